/* The loops for AVX-512 (F, BW, DQ, VL), FMA and F16C; empty unless the target is x86-64. */

#if defined(__x86_64__)
#define LOOPS iglu_avx512_loops
#define TARGET "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c"
#define AVX512 1
#include "loops.c"
#endif
