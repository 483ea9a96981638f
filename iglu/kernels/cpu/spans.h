/* What loops.c gives run.c: every loop over one dense span of elements, for one instruction set. */

#ifndef IGLU_SPANS_H
#define IGLU_SPANS_H

#include <stdint.h>

#include "loops.h"

/* The constants of formulas.h that follow from sigma, each as an array in the precision of the computation
 * (float for the half types): of one element, or of one for each element of the span. */
enum iglu_constant {
    IGLU_SIGMA,
    IGLU_SIGMA_LOW,
    IGLU_OVER_PI,
    IGLU_OVER_PI_LOW,
    IGLU_TIMES_QUARTER_PI,
    IGLU_FAR,
    IGLU_TALL,
    IGLU_FLOOR,
    IGLU_FLOOR_ERROR,
    IGLU_LARGEST,
    IGLU_SIGN,
    IGLU_CONSTANTS
};

typedef struct iglu_span {
    char *data[IGLU_OPERANDS]; /* NULL: not there */
    void *parts; /* each element's part of the gradient of sigma, in the precision of the computation */
    const void *constants[IGLU_CONSTANTS];
} iglu_span;

typedef void iglu_loop(const iglu_span *, int64_t n);

/* The longest span of a loop that is told to write parts, or that computes float16. */
#define IGLU_CHUNK 512

typedef struct iglu_loops {
    /* [..][writes parts][one sigma > 0, or an array of any sigmas] */
    iglu_loop *loop[IGLU_DTYPES][IGLU_FAMILIES][IGLU_OPERATIONS][2][2];
    /* of parts */
    double (*sum[IGLU_DTYPES])(const void *, int64_t n);
    /* each to its own sum */
    void (*add[IGLU_DTYPES])(double *sums, const void *, int64_t n);
} iglu_loops;

extern const iglu_loops iglu_baseline_loops;
#if defined(__x86_64__)
extern const iglu_loops iglu_avx2_loops, iglu_avx512_loops;
#endif

#endif
