/* Run one operation on tensors of any strides, on torch's threads. */

#ifndef IGLU_RUN_H
#define IGLU_RUN_H

#include "loops.h"

#define IGLU_MAX_DIMENSIONS 16

/* All tensors have the same sizes; strides are in elements.  The result may be x itself; otherwise outputs must not
 * overlap inputs. */
typedef struct iglu_call {
    enum iglu_operation operation;
    enum iglu_family family;
    enum iglu_dtype dtype;

    int dimensions;
    int64_t sizes[IGLU_MAX_DIMENSIONS];
    char *data[IGLU_OPERANDS]; /* NULL: unused by the operation */
    int64_t strides[IGLU_OPERANDS][IGLU_MAX_DIMENSIONS];

    /* sigma may be any number.  If `sigmas` is not NULL, it has one per channel along channel_dimension. */
    double sigma;
    const double *sigmas;
    int channel_dimension;

    /* Output of a backward operation: the gradient of sigma, one number or one per channel; may be NULL.
     * The sum does not depend on the number of threads. */
    double *grad_sigma;
} iglu_call;

/* torch_parallel_for of libtorch_cpu: splits [begin, end) into pieces of at least `grain`. */
typedef int32_t iglu_parallel_for(int64_t begin, int64_t end, int64_t grain,
                                  void (*body)(int64_t begin, int64_t end, void *context), void *context);

/* Returns 0, or -1 if out of memory.  Needs no GIL. */
int iglu_run(const iglu_call *);

/* The instruction set in use: "baseline", "avx2" or "avx512". */
const char *iglu_capability(void);
/* Uses an instruction set.  Returns 0, or -1 if the name is unknown or this processor does not support it. */
int iglu_use(const char *name);
/* Uses the best supported one, limited by ATEN_CPU_CAPABILITY (default, avx2, avx512), which limits torch too. */
void iglu_use_best(void);
/* NULL: single-threaded. */
void iglu_set_parallel_for(iglu_parallel_for *);

#endif
