/* Running one call: see iglu_table in loops.h. */

#ifndef IGLU_RUN_H
#define IGLU_RUN_H

#include "loops.h"

/* torch_parallel_for of libtorch_cpu: splits [begin, end) into pieces of at least `grain`. */
typedef int32_t iglu_parallel_for(int64_t begin, int64_t end, int64_t grain,
                                  void (*body)(int64_t begin, int64_t end, void *context), void *context);

int iglu_run(enum iglu_operation, enum iglu_family, enum iglu_dtype, const iglu_call *);
const char *iglu_capability(void);

/* "baseline", "avx2", "avx512": 0, or -1 where the processor has not got it or the name is unknown. */
int iglu_use(const char *name);
/* The best there is; ATEN_CPU_CAPABILITY (default, avx2, avx512) limits it, as it limits torch. */
void iglu_use_best(void);
/* NULL: one thread. */
void iglu_set_parallel_for(iglu_parallel_for *);

#endif
