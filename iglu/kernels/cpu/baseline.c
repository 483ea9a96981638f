/* The loops for whatever the compiler targets by default: SSE2 on x86-64, NEON (which fuses) on AArch64. */

#define LOOPS iglu_baseline_loops
#if defined(__FMA__) || defined(__aarch64__)
#define FUSED_MULTIPLY_ADD 1
#else
#define FUSED_MULTIPLY_ADD 0
#endif
#define F16C 0
#include "loops.c"
