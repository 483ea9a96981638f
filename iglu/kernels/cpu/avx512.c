/* The loops for AVX-512 (F, BW, DQ, VL), FMA and F16C; empty elsewhere than on x86-64. */

#if defined(__x86_64__)

#include <immintrin.h>

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c"))), apply_to = function)
#else
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")
#endif

#define LOOPS iglu_avx512_loops
#define FUSED_MULTIPLY_ADD 1
#define F16C 1
#define WIDE 1
#include "loops.c"

#if defined(__clang__)
#pragma clang attribute pop
#endif

#endif
