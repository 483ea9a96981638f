/* The loops for AVX2, FMA and F16C; empty elsewhere than on x86-64. */

#if defined(__x86_64__)

#include <immintrin.h>

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma,f16c"))), apply_to = function)
#else
#pragma GCC target("avx2,fma,f16c")
#endif

#define LOOPS iglu_avx2_loops
#define FUSED_MULTIPLY_ADD 1
#define F16C 1
#define WIDE 0
#include "loops.c"

#if defined(__clang__)
#pragma clang attribute pop
#endif

#endif
