/* The loops for whatever the compiler targets by default: SSE2 on x86-64, NEON on 64-bit ARM, which fuses. */

#define LOOPS iglu_baseline_loops
#if defined(__FMA__) || defined(__ARM_FEATURE_FMA) || defined(__aarch64__)
#define FUSED_MULTIPLY_ADD 1
#else
#define FUSED_MULTIPLY_ADD 0
#endif
#define F16C 0
#define WIDE 0
#include "loops.c"
