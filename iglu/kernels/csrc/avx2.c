/* The loops for AVX2, FMA and F16C; empty unless the target is x86-64. */

#if defined(__x86_64__)
#define LOOPS iglu_avx2_loops
#define TARGET "avx2,fma,f16c"
#define AVX512 0
#include "loops.c"
#endif
