/* What the loops compute, and each of them over one dense span of elements, for one instruction set.  Plain C, no torch,
 * no Python. */

#ifndef IGLU_LOOPS_H
#define IGLU_LOOPS_H

#include <stdint.h>

#if !defined(__GNUC__)
#error "The loops need gcc or clang (on Windows clang-cl or mingw-w64). Without them iglu computes in plain torch."
#endif

enum iglu_operation {
    IGLU_VALUE,          /* y = f(x) */
    IGLU_GATE,           /* y = Z(x) */
    IGLU_GLU,            /* y = f(x) up */
    IGLU_VALUE_BACKWARD, /* grad_x = grad f'(x) */
    IGLU_GATE_BACKWARD,  /* grad_x = grad Z'(x) */
    IGLU_GLU_BACKWARD,   /* grad_x = grad f'(x) up,  grad_up = grad f(x) */
    IGLU_OUTPUT_BACKWARD, /* as IGLU_VALUE_BACKWARD, from f(x) in the place of x; rational only */
    IGLU_VALUE_TWICE, /* of v, the gradient of grad_x:  v f'(x),  grad v f''(x) */
    IGLU_GLU_TWICE,   /* of v and w, those of grad_x and grad_up:
                         v f'(x) up + w f(x),  grad (v f''(x) up + w f'(x)),  grad v f'(x) */
    IGLU_OPERATIONS
};

enum iglu_operand {
    IGLU_X,      /* the argument; the gate of a pair */
    IGLU_UP,     /* the other half of a pair */
    IGLU_GRAD,   /* backward: the gradient of the result */
    IGLU_BY_X,   /* twice: the gradient of the gradient of x */
    IGLU_BY_UP,  /* twice: the gradient of the gradient of up */
    IGLU_FIRST,  /* the result; backward: the gradient of x; twice: of grad */
    IGLU_SECOND, /* backward of a pair: the gradient of up; twice: of x */
    IGLU_THIRD,  /* twice, of a pair: the gradient of up */
    IGLU_OPERANDS
};

enum iglu_family { IGLU_EXACT, IGLU_RATIONAL, IGLU_FAMILIES };

enum iglu_dtype { IGLU_F32, IGLU_F64, IGLU_BF16, IGLU_F16, IGLU_DTYPES };

static inline int64_t iglu_bytes(int dtype) { return dtype == IGLU_F64 ? 8 : dtype == IGLU_F32 ? 4 : 2; }

/* The constants of formulas.h that follow from sigma, each as an array in the precision of the computation
 * (float for the half types): of one element, or of one for each element of the span. */
#define IGLU_SCALE(EACH)                                                                                     \
    EACH(sigma) EACH(sigma_low)     /* sigma to twice the precision */                                       \
    EACH(over_pi) EACH(over_pi_low) /* sigma/pi, likewise */                                                 \
    EACH(times_quarter_pi)          /* pi sigma/4, which does not overflow */                                \
    EACH(far) EACH(tall)            /* 2^20/sigma and 2^30/sigma (2^60 in double), or the largest number */  \
    EACH(floor) EACH(floor_error)   /* 1/(pi sigma) = floor (1 + floor_error) */                             \
    EACH(largest)                   /* where |x| is cut */                                                   \
    EACH(sign)                      /* of the sigma that was asked for, see operations.h */

#define IGLU_INDEX(name) IGLU_##name,
enum iglu_constant { IGLU_SCALE(IGLU_INDEX) IGLU_CONSTANTS };

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
