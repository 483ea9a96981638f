/* The loops for the default target of the compiler: SSE2 on x86-64, NEON with fused multiply-add on 64-bit ARM. */

#define LOOPS iglu_baseline_loops
#define AVX512 0
#include "loops.c"
