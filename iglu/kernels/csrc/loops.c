/* The loops of loops.h, included by one short file per instruction set (baseline.c, avx2.c, avx512.c), which defines
 * LOOPS, the name of the table; AVX512, 0 or 1; and, unless it is the compiler's default, TARGET, which has FMA and
 * F16C. */

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "loops.h"

#ifdef TARGET
#include <immintrin.h>
#define PRAGMA(...) _Pragma(#__VA_ARGS__)
#define TARGET_PRAGMA(...) PRAGMA(__VA_ARGS__)
#if defined(__clang__)
TARGET_PRAGMA(clang attribute push(__attribute__((target(TARGET))), apply_to = function))
#else
TARGET_PRAGMA(GCC target(TARGET))
#endif
#endif

#if defined(TARGET) || defined(__FMA__) || defined(__ARM_FEATURE_FMA) || defined(__aarch64__)
#define FUSED_MULTIPLY_ADD 1
#else
#define FUSED_MULTIPLY_ADD 0
#endif

#define IGLU_INLINE static inline __attribute__((always_inline))

/* a b + c in the type of b.  MADD: the fastest way.  FUSED: a b is not rounded, for sums that cancel. */
#if FUSED_MULTIPLY_ADD
#define MADD(a, b, c) _Generic((b), float: fmaf, double: fma)(a, b, c)
#define FUSED(a, b, c) MADD(a, b, c)
#else
#define MADD(a, b, c) ((a) * (b) + (c))
#define FUSED(a, b, c) _Generic((b), float: fused_float, double: fused_double)(a, b, c)

IGLU_INLINE float fused_float(float a, float b, float c) { return (float)((double)a * (double)b + (double)c); }

/* The upper half of the significand. */
IGLU_INLINE double upper_half(double value)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    bits &= ~(uint64_t)0x7ffffff;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* Dekker's product: the products of halves are exact, or very nearly. */
IGLU_INLINE double fused_double(double a, double b, double c)
{
    double a_high = upper_half(a), a_low = a - a_high, b_high = upper_half(b), b_low = b - b_high;
    double product = a * b;
    double rest = ((a_high * b_high - product) + a_high * b_low + a_low * b_high) + a_low * b_low;
    return (product + c) + rest;
}
#endif

#define ABS(x) _Generic((x), float: fabsf, double: fabs)(x)
#define SQRT(x) _Generic((x), float: sqrtf, double: sqrt)(x)

#include "polynomials.h"

/* -- one element, in each precision ----------------------------------------------------------------------- */

#define REAL float
#define NAME(x) x##_f32
#define HALF 0
#include "operations.h"

#define REAL float
#define NAME(x) x##_half
#define HALF 1
#define excess_half excess_f32
#include "operations.h"

#define REAL double
#define NAME(x) x##_f64
#define HALF 0
#include "operations.h"

/* -- bfloat16: the upper half of a float ------------------------------------------------------------------- */

IGLU_INLINE float as_float(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

IGLU_INLINE uint32_t as_bits(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

/* Round to nearest, ties to even; the result is in the upper half.  The carry would turn a NaN with a full significand
 * into -0, but none occurs: the lower half of a NaN is 0 in a bfloat16 operand, in a sigma as run.c passes it, and in
 * the NaN that the processor makes. */
IGLU_INLINE uint32_t rounded_bfloat16(float value)
{
    uint32_t bits = as_bits(value);
    return bits + 0x7fff + ((bits >> 16) & 1);
}

IGLU_INLINE uint32_t load_pair(const void *from, int64_t i)
{
    uint32_t pair;
    memcpy(&pair, (const char *)from + 4 * i, sizeof pair);
    return pair;
}

IGLU_INLINE void store_pair(void *to, int64_t i, float even, float odd)
{
    uint32_t pair = rounded_bfloat16(even) >> 16 | (rounded_bfloat16(odd) & 0xffff0000);
    memcpy((char *)to + 4 * i, &pair, sizeof pair);
}

#define EVEN(from, i) as_float(load_pair(from, i) << 16)
#define ODD(from, i) as_float(load_pair(from, i) & 0xffff0000)
#define BFLOAT16(from, i) as_float((uint32_t)from[i] << 16)

/* -- float16: converted to float and back, a chunk at a time ------------------------------------------------ */

#ifdef TARGET

static void float16_to_float(const uint16_t *from, float *to, int64_t n)
{
    int64_t i = 0;
    for (; i + 8 <= n; i += 8)
        _mm256_storeu_ps(to + i, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(from + i))));
    for (; i < n; i++)
        to[i] = _cvtsh_ss(from[i]);
}

static void float_to_float16(const float *from, uint16_t *to, int64_t n)
{
    int64_t i = 0;
    for (; i + 8 <= n; i += 8)
        _mm_storeu_si128((__m128i *)(to + i), _mm256_cvtps_ph(_mm256_loadu_ps(from + i), 0));
    for (; i < n; i++)
        to[i] = (uint16_t)_cvtss_sh(from[i], 0);
}

#else

/* The exponent bias changes from 15 to 127.  A subnormal gets an implicit bit that is then subtracted: no intermediate
 * float is subnormal, so it works with subnormals flushed to zero too. */
static void float16_to_float(const uint16_t *from, float *to, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        uint32_t half = from[i], bits = (half & 0x7fff) << 13, exponent = bits & 0x0f800000;
        float normal = as_float(bits + (112u << 23)), special = as_float(bits + (224u << 23));
        float subnormal = as_float(bits + (113u << 23)) - 0x1p-14f;
        float magnitude = exponent == 0 ? subnormal : exponent == 0x0f800000 ? special : normal;
        to[i] = as_float(as_bits(magnitude) | (half & 0x8000) << 16);
    }
}

/* Round to nearest, ties to even; below 2^-14 the processor rounds, in the addition of 1/2. */
static void float_to_float16(const float *from, uint16_t *to, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        uint32_t bits = as_bits(from[i]), magnitude = bits & 0x7fffffff;
        uint32_t normal = (magnitude - (112u << 23) + 0xfff + (magnitude >> 13 & 1)) >> 13;
        uint32_t subnormal = as_bits(as_float(magnitude) + 0.5f) - 0x3f000000;
        uint32_t special = magnitude > 0x7f800000 ? 0x7e00 : 0x7c00;
        uint32_t half = magnitude >= 0x47800000 ? special : magnitude < 0x38800000 ? subnormal : normal;
        to[i] = (uint16_t)(half | (bits >> 16 & 0x8000));
    }
}

#endif

/* -- the loops --------------------------------------------------------------------------------------------- */

/* The iterations are independent, also where the result overwrites x. */
#if defined(__clang__)
#define INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#else
#define INDEPENDENT _Pragma("GCC ivdep")
#endif

/* USES: what an operation reads in addition to x and writes in addition to the first result, as bits. */
enum { UP = 1, GRAD = 2, GG_X = 4, GG_UP = 8, SECOND = 16, THIRD = 32 };

/* Declares the tensors of a span. */
#define OPERANDS(TYPE)                                                                                                 \
    const TYPE *x = (void *)span->data[IGLU_X], *up = (void *)span->data[IGLU_UP];                                     \
    const TYPE *grad = (void *)span->data[IGLU_GRAD], *gg_x = (void *)span->data[IGLU_GG_X];                           \
    const TYPE *gg_up = (void *)span->data[IGLU_GG_UP];                                                                \
    TYPE *first = (void *)span->data[IGLU_FIRST], *second = (void *)span->data[IGLU_SECOND];                           \
    TYPE *third = (void *)span->data[IGLU_THIRD];

#define INPUT(LOAD, USES)                                                                                              \
    {                                                                                                                  \
        LOAD(x, i), (USES)&UP ? LOAD(up, i) : 0, (USES)&GRAD ? LOAD(grad, i) : 0,                                      \
            (USES)&GG_X ? LOAD(gg_x, i) : 0, (USES)&GG_UP ? LOAD(gg_up, i) : 0                                         \
    }

#define OUTPUT(STORE, USES)                                                                                            \
    STORE(first);                                                                                                      \
    if ((USES)&SECOND)                                                                                                 \
        STORE(second);                                                                                                 \
    if ((USES)&THIRD)                                                                                                  \
        STORE(third);

/* Element i. */
#define STEP(OPERATION, TYPE, LOAD, STORE, USES, SIGMA_GRAD, SIGNED)                                                   \
    const input_##TYPE in = INPUT(LOAD, USES);                                                                         \
    const output_##TYPE out = OPERATION##_##TYPE(in, SIGNED ? constants_at_##TYPE(arrays, i) : one, SIGNED);           \
    OUTPUT(STORE, USES)                                                                                                \
    if (SIGMA_GRAD)                                                                                                    \
        sigma_grads[i] = out.sigma_grad;

#define ELEMENT(from, i) from[i]
#define STORE_ELEMENT(to) to[i] = out.to
#define STORE_BFLOAT16(to) to[i] = (uint16_t)(rounded_bfloat16(out.to) >> 16)
#define STORE_PAIR(to) store_pair(to, i, even.to, odd.to)

/* A loop of OPERATION over a contiguous span.  SIGMA_GRAD: whether to write sigma_grads.  SIGNED: one sigma of any
 * sign per element, instead of one sigma > 0 for all.  (Unused: where avx512.h replaces it.) */
#define DENSE_LOOP(FUNCTION, OPERATION, TYPE, REAL_TYPE, USES, SIGMA_GRAD, SIGNED)                                     \
    static __attribute__((unused)) void FUNCTION(const iglu_span *span, int64_t n)                                     \
    {                                                                                                                  \
        OPERANDS(REAL_TYPE)                                                                                            \
        REAL_TYPE *sigma_grads = span->sigma_grads;                                                                    \
        const constant_arrays_##TYPE arrays = constant_arrays_of_##TYPE(span);                                         \
        const constants_##TYPE one = constants_at_##TYPE(arrays, 0);                                                   \
        INDEPENDENT for (int64_t i = 0; i < n; i++)                                                                    \
        {                                                                                                              \
            STEP(OPERATION, TYPE, ELEMENT, STORE_ELEMENT, USES, SIGMA_GRAD, SIGNED)                                    \
        }                                                                                                              \
    }

/* The same for bfloat16, in pairs: both halves of a 32-bit word become floats without a shuffle. */
#define PAIR_LOOP(FUNCTION, OPERATION, USES, SIGMA_GRAD, SIGNED)                                                       \
    static void FUNCTION(const iglu_span *span, int64_t n)                                                             \
    {                                                                                                                  \
        OPERANDS(uint16_t)                                                                                             \
        float *sigma_grads = span->sigma_grads;                                                                        \
        const constant_arrays_half arrays = constant_arrays_of_half(span);                                             \
        const constants_half one = constants_at_half(arrays, 0);                                                       \
        INDEPENDENT for (int64_t i = 0; i < n / 2; i++)                                                                \
        {                                                                                                              \
            const input_half even_in = INPUT(EVEN, USES), odd_in = INPUT(ODD, USES);                                   \
            const output_half even =                                                                                   \
                OPERATION##_half(even_in, SIGNED ? constants_at_half(arrays, 2 * i) : one, SIGNED);                    \
            const output_half odd =                                                                                    \
                OPERATION##_half(odd_in, SIGNED ? constants_at_half(arrays, 2 * i + 1) : one, SIGNED);                 \
            OUTPUT(STORE_PAIR, USES)                                                                                   \
            if (SIGMA_GRAD) {                                                                                          \
                sigma_grads[2 * i] = even.sigma_grad;                                                                  \
                sigma_grads[2 * i + 1] = odd.sigma_grad;                                                               \
            }                                                                                                          \
        }                                                                                                              \
        if (n % 2) {                                                                                                   \
            const int64_t i = n - 1;                                                                                   \
            STEP(OPERATION, half, BFLOAT16, STORE_BFLOAT16, USES, SIGMA_GRAD, SIGNED)                                  \
        }                                                                                                              \
    }

/* The same for float16, by the loop for float. */
static void run_as_float(const iglu_span *span, int64_t n, iglu_loop *loop)
{
    float floats[IGLU_OPERANDS][IGLU_CHUNK];
    iglu_span converted = *span;
    for (int k = 0; k < IGLU_OPERANDS; k++)
        if (span->data[k]) {
            converted.data[k] = (char *)floats[k];
            if (k < IGLU_FIRST)
                float16_to_float((const void *)span->data[k], floats[k], n);
        }
    loop(&converted, n);
    for (int k = IGLU_FIRST; k < IGLU_OPERANDS; k++)
        if (span->data[k])
            float_to_float16(floats[k], (void *)span->data[k], n);
}

#define LOOP(TYPE, OPERATION, FAMILY, SIGMA_GRAD, SIGNED) OPERATION##_##FAMILY##_##TYPE##_##SIGMA_GRAD##SIGNED

#define LOOPS_OF(OPERATION, FAMILY, USES, ...)                                                                         \
    DENSE_LOOP(LOOP(f32, OPERATION, FAMILY, __VA_ARGS__), OPERATION##_##FAMILY, f32, float, USES, __VA_ARGS__)         \
    DENSE_LOOP(LOOP(f64, OPERATION, FAMILY, __VA_ARGS__), OPERATION##_##FAMILY, f64, double, USES, __VA_ARGS__)        \
    DENSE_LOOP(LOOP(half, OPERATION, FAMILY, __VA_ARGS__), OPERATION##_##FAMILY, half, float, USES, __VA_ARGS__)       \
    PAIR_LOOP(LOOP(bf16, OPERATION, FAMILY, __VA_ARGS__), OPERATION##_##FAMILY, USES, __VA_ARGS__)                     \
    static void LOOP(f16, OPERATION, FAMILY, __VA_ARGS__)(const iglu_span *span, int64_t n)                            \
    {                                                                                                                  \
        run_as_float(span, n, LOOP(half, OPERATION, FAMILY, __VA_ARGS__));                                             \
    }

/* Every operation of a family: index, name, USES.  The backward ones exist with and without sigma_grads. */
#define OPERATIONS(FORWARD, BACKWARD, ...)                                                                             \
    FORWARD(IGLU_VALUE, value, 0, __VA_ARGS__)                                                                         \
    FORWARD(IGLU_GATE, gate, 0, __VA_ARGS__)                                                                           \
    FORWARD(IGLU_GLU, glu, UP, __VA_ARGS__)                                                                            \
    BACKWARD(IGLU_VALUE_BACKWARD, value_backward, GRAD, __VA_ARGS__)                                                   \
    BACKWARD(IGLU_GATE_BACKWARD, gate_backward, GRAD, __VA_ARGS__)                                                     \
    BACKWARD(IGLU_GLU_BACKWARD, glu_backward, UP | GRAD | SECOND, __VA_ARGS__)                                         \
    BACKWARD(IGLU_VALUE_DOUBLE_BACKWARD, value_double_backward, GRAD | GG_X | SECOND, __VA_ARGS__)                     \
    BACKWARD(IGLU_GLU_DOUBLE_BACKWARD, glu_double_backward, UP | GRAD | GG_X | GG_UP | SECOND | THIRD, __VA_ARGS__)

#define FORWARD_LOOPS(INDEX, OPERATION, USES, FAMILY)                                                                  \
    LOOPS_OF(OPERATION, FAMILY, USES, 0, 0)                                                                            \
    LOOPS_OF(OPERATION, FAMILY, USES, 0, 1)
#define BACKWARD_LOOPS(INDEX, OPERATION, USES, FAMILY)                                                                 \
    FORWARD_LOOPS(INDEX, OPERATION, USES, FAMILY)                                                                      \
    LOOPS_OF(OPERATION, FAMILY, USES, 1, 0)                                                                            \
    LOOPS_OF(OPERATION, FAMILY, USES, 1, 1)

OPERATIONS(FORWARD_LOOPS, BACKWARD_LOOPS, exact)
OPERATIONS(FORWARD_LOOPS, BACKWARD_LOOPS, rational)
BACKWARD_LOOPS(IGLU_OUTPUT_BACKWARD, output_backward, GRAD, rational)

#if AVX512
#include "avx512.h"
#else
#define AVX512_ENTRIES
#endif

/* Eight partial sums, for speed and for accuracy; always in the same order. */
#define SUM(FUNCTION, REAL_TYPE)                                                                                       \
    static double FUNCTION(const void *data, int64_t n)                                                                \
    {                                                                                                                  \
        const REAL_TYPE *sigma_grads = data;                                                                           \
        double lanes[8] = {0}, total = 0;                                                                              \
        int64_t i = 0;                                                                                                 \
        for (; i + 8 <= n; i += 8)                                                                                     \
            for (int lane = 0; lane < 8; lane++)                                                                       \
                lanes[lane] += sigma_grads[i + lane];                                                                  \
        for (; i < n; i++)                                                                                             \
            lanes[i % 8] += sigma_grads[i];                                                                            \
        for (int lane = 0; lane < 8; lane++)                                                                           \
            total += lanes[lane];                                                                                      \
        return total;                                                                                                  \
    }

SUM(sum_float, float)
SUM(sum_double, double)

#define ADD(FUNCTION, REAL_TYPE)                                                                                       \
    static void FUNCTION(double *sums, const void *data, int64_t n)                                                    \
    {                                                                                                                  \
        const REAL_TYPE *sigma_grads = data;                                                                           \
        INDEPENDENT for (int64_t i = 0; i < n; i++) sums[i] += sigma_grads[i];                                         \
    }

ADD(add_float, float)
ADD(add_double, double)

#define BOTH(TYPE, OPERATION, FAMILY, SIGMA_GRAD)                                                                      \
    {LOOP(TYPE, OPERATION, FAMILY, SIGMA_GRAD, 0), LOOP(TYPE, OPERATION, FAMILY, SIGMA_GRAD, 1)}
#define FORWARD_ENTRY(INDEX, OPERATION, USES, TYPE, FAMILY) [INDEX] = {BOTH(TYPE, OPERATION, FAMILY, 0)},
#define BACKWARD_ENTRY(INDEX, OPERATION, USES, TYPE, FAMILY)                                                           \
    [INDEX] = {BOTH(TYPE, OPERATION, FAMILY, 0), BOTH(TYPE, OPERATION, FAMILY, 1)},
#define TYPE_TABLE(TYPE)                                                                                               \
    {                                                                                                                  \
        [IGLU_EXACT] = {OPERATIONS(FORWARD_ENTRY, BACKWARD_ENTRY, TYPE, exact)},                                       \
        [IGLU_RATIONAL] = {OPERATIONS(FORWARD_ENTRY, BACKWARD_ENTRY, TYPE, rational)                                   \
                           BACKWARD_ENTRY(IGLU_OUTPUT_BACKWARD, output_backward, GRAD, TYPE, rational)},               \
    }

#pragma GCC diagnostic ignored "-Woverride-init" /* the entries of AVX512_ENTRIES replace earlier ones */
const iglu_loops LOOPS = {
    .loop = {[IGLU_F32] = TYPE_TABLE(f32),
             [IGLU_F64] = TYPE_TABLE(f64),
             [IGLU_BF16] = TYPE_TABLE(bf16),
             [IGLU_F16] = TYPE_TABLE(f16)},
    AVX512_ENTRIES
    .sum = {[IGLU_F32] = sum_float, [IGLU_F64] = sum_double, [IGLU_BF16] = sum_float, [IGLU_F16] = sum_float},
    .add = {[IGLU_F32] = add_float, [IGLU_F64] = add_double, [IGLU_BF16] = add_float, [IGLU_F16] = add_float},
};

#if defined(TARGET) && defined(__clang__)
#pragma clang attribute pop
#endif
