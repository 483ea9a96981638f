/* Running one call over tensors of any layout, on the threads of torch. */

#ifndef IGLU_RUN_H
#define IGLU_RUN_H

#include "loops.h"

/* The most dimensions a tensor may have. */
#define IGLU_DIMENSIONS 16

/* One call: every tensor it has, with its strides in elements.  The result may be x itself; otherwise what is
 * written must not overlap what is read. */
typedef struct iglu_call {
    int dimensions;
    int64_t sizes[IGLU_DIMENSIONS];
    char *data[IGLU_OPERANDS]; /* NULL: not there */
    int64_t strides[IGLU_OPERANDS][IGLU_DIMENSIONS];

    /* sigma: any number; where `sigmas` is not NULL, one for each channel along channel_dimension. */
    double sigma;
    const double *sigmas;
    int channel_dimension;

    /* backward: where the sum of grad dy/dsigma goes, one number or one for each channel; may be NULL.
     * The sum does not depend on the number of threads. */
    double *by_sigma;
} iglu_call;

/* torch_parallel_for of libtorch_cpu: splits [begin, end) into pieces of at least `grain`. */
typedef int32_t iglu_parallel_for(int64_t begin, int64_t end, int64_t grain,
                                  void (*body)(int64_t begin, int64_t end, void *context), void *context);

/* 0, or -1 where memory ran out.  Needs no GIL. */
int iglu_run(enum iglu_operation, enum iglu_family, enum iglu_dtype, const iglu_call *);
const char *iglu_capability(void);

/* "baseline", "avx2", "avx512": 0, or -1 where the processor has not got it or the name is unknown. */
int iglu_use(const char *name);
/* The best there is; ATEN_CPU_CAPABILITY (default, avx2, avx512) limits it, as it limits torch. */
void iglu_use_best(void);
/* NULL: one thread. */
void iglu_set_parallel_for(iglu_parallel_for *);

#endif
