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

/* -- what the loops have in common ------------------------------------------------------------------------- */

/* The iterations are independent, also if the result overwrites x. */
#if defined(__clang__)
#define INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#else
#define INDEPENDENT _Pragma("GCC ivdep")
#endif

/* What an operation reads in addition to x and writes in addition to the first result. */
enum { UP = 1, GRAD = 2, GG_X = 4, GG_UP = 8, SECOND = 16, THIRD = 32 };
static const int USES[IGLU_OPERATIONS] = {
    [IGLU_GLU] = UP,
    [IGLU_VALUE_BACKWARD] = GRAD,
    [IGLU_GATE_BACKWARD] = GRAD,
    [IGLU_GLU_BACKWARD] = UP | GRAD | SECOND,
    [IGLU_OUTPUT_BACKWARD] = GRAD,
    [IGLU_VALUE_DOUBLE_BACKWARD] = GRAD | GG_X | SECOND,
    [IGLU_GLU_DOUBLE_BACKWARD] = UP | GRAD | GG_X | GG_UP | SECOND | THIRD,
};

/* Declares what an operation uses, and the tensors of a span. */
#define OPERANDS(TYPE)                                                                                                 \
    const int uses = USES[operation];                                                                                  \
    const TYPE *x = (void *)span->data[IGLU_X], *up = (void *)span->data[IGLU_UP];                                     \
    const TYPE *grad = (void *)span->data[IGLU_GRAD], *gg_x = (void *)span->data[IGLU_GG_X];                           \
    const TYPE *gg_up = (void *)span->data[IGLU_GG_UP];                                                                \
    TYPE *first = (void *)span->data[IGLU_FIRST], *second = (void *)span->data[IGLU_SECOND];                           \
    TYPE *third = (void *)span->data[IGLU_THIRD];

#define INPUT(LOAD, i)                                                                                                 \
    {                                                                                                                  \
        LOAD(x, i), uses &UP ? LOAD(up, i) : 1, uses &GRAD ? LOAD(grad, i) : 0, uses &GG_X ? LOAD(gg_x, i) : 0,        \
            uses &GG_UP ? LOAD(gg_up, i) : 0                                                                           \
    }
#define OUTPUT(STORE)                                                                                                  \
    STORE(first);                                                                                                      \
    if (uses & SECOND)                                                                                                 \
        STORE(second);                                                                                                 \
    if (uses & THIRD)                                                                                                  \
        STORE(third);

#define ELEMENT(from, i) from[i]
#define STORE(to) to[i] = out.to

/* -- the loops over float and double; HALF computes in float with shorter polynomials --------------------- */

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
#define STORE_PAIR(to) store_pair(to, i, even.to, odd.to)
#define STORE_BFLOAT16(to) to[i] = (uint16_t)(rounded_bfloat16(out.to) >> 16)

/* Computes pairs of elements: both halves of a 32-bit word become floats without a shuffle. */
IGLU_INLINE void loop_bf16(const iglu_span *span, int64_t n, int operation, int family, int has_sigma_grad,
                           int signed_sigma)
{
    OPERANDS(uint16_t)
    float *sigma_grads = span->sigma_grads;
    const constant_arrays_half arrays = constant_arrays_of_half(span);
    const constants_half one = constants_at_half(arrays, 0);
    INDEPENDENT for (int64_t i = 0; i < n / 2; i++)
    {
        const input_half even_in = INPUT(EVEN, i), odd_in = INPUT(ODD, i);
        const constants_half even_k = signed_sigma ? constants_at_half(arrays, 2 * i) : one;
        const constants_half odd_k = signed_sigma ? constants_at_half(arrays, 2 * i + 1) : one;
        const output_half even = compute_half(operation, family, even_in, even_k, signed_sigma);
        const output_half odd = compute_half(operation, family, odd_in, odd_k, signed_sigma);
        OUTPUT(STORE_PAIR)
        if (has_sigma_grad) {
            sigma_grads[2 * i] = even.sigma_grad;
            sigma_grads[2 * i + 1] = odd.sigma_grad;
        }
    }
    if (n % 2) {
        const int64_t i = n - 1;
        const input_half in = INPUT(BFLOAT16, i);
        const constants_half k = signed_sigma ? constants_at_half(arrays, i) : one;
        const output_half out = compute_half(operation, family, in, k, signed_sigma);
        OUTPUT(STORE_BFLOAT16)
        if (has_sigma_grad)
            sigma_grads[i] = out.sigma_grad;
    }
}

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
 * float is subnormal, so this also works if subnormals are flushed to zero. */
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

/* -- the table --------------------------------------------------------------------------------------------- */

#define EACH_OPERATION(DO, TYPE, FAMILY)                                                                               \
    DO(TYPE, VALUE, FAMILY)                                                                                            \
    DO(TYPE, GATE, FAMILY)                                                                                             \
    DO(TYPE, GLU, FAMILY)                                                                                              \
    DO(TYPE, VALUE_BACKWARD, FAMILY)                                                                                   \
    DO(TYPE, GATE_BACKWARD, FAMILY)                                                                                    \
    DO(TYPE, GLU_BACKWARD, FAMILY)                                                                                     \
    DO(TYPE, VALUE_DOUBLE_BACKWARD, FAMILY)                                                                            \
    DO(TYPE, GLU_DOUBLE_BACKWARD, FAMILY)

/* One function per type, operation and family, which chooses between its two or four loops. */
#define LOOP(TYPE, OPERATION, FAMILY)                                                                                  \
    static void TYPE##_##OPERATION##_##FAMILY(const iglu_span *span, int64_t n)                                        \
    {                                                                                                                  \
        const int operation = IGLU_##OPERATION, family = IGLU_##FAMILY;                                                \
        const int has_sigma_grad = operation >= IGLU_VALUE_BACKWARD && span->sigma_grads;                              \
        if (has_sigma_grad && span->signed_sigma)                                                                      \
            loop_##TYPE(span, n, operation, family, 1, 1);                                                             \
        else if (has_sigma_grad)                                                                                       \
            loop_##TYPE(span, n, operation, family, 1, 0);                                                             \
        else if (span->signed_sigma)                                                                                   \
            loop_##TYPE(span, n, operation, family, 0, 1);                                                             \
        else                                                                                                           \
            loop_##TYPE(span, n, operation, family, 0, 0);                                                             \
    }
#define LOOPS_OF(TYPE)                                                                                                 \
    EACH_OPERATION(LOOP, TYPE, EXACT)                                                                                  \
    EACH_OPERATION(LOOP, TYPE, RATIONAL)                                                                               \
    LOOP(TYPE, OUTPUT_BACKWARD, RATIONAL)

LOOPS_OF(f32)
LOOPS_OF(f64)
LOOPS_OF(bf16)
LOOPS_OF(half)

#if AVX512
#include "avx512.h"
#endif

#define ENTRY(TYPE, OPERATION, FAMILY) [IGLU_##OPERATION] = TYPE##_##OPERATION##_##FAMILY,
#define TABLE_OF(TYPE)                                                                                                 \
    {                                                                                                                  \
        [IGLU_EXACT] = {EACH_OPERATION(ENTRY, TYPE, EXACT)},                                                           \
        [IGLU_RATIONAL] = {EACH_OPERATION(ENTRY, TYPE, RATIONAL) ENTRY(TYPE, OUTPUT_BACKWARD, RATIONAL)},              \
    }

typedef void loop(const iglu_span *, int64_t n);
static loop *const table[IGLU_DTYPES][IGLU_FAMILIES][IGLU_OPERATIONS] = {
    [IGLU_F32] = TABLE_OF(f32), [IGLU_F64] = TABLE_OF(f64), [IGLU_BF16] = TABLE_OF(bf16), [IGLU_F16] = TABLE_OF(half)};

static void run(const iglu_span *span, int64_t n)
{
    loop *const run_loop = table[span->dtype][span->family][span->operation];
#if AVX512
    if (span->dtype == IGLU_F32 && run_avx512(span, n))
        return;
#endif
    if (span->dtype != IGLU_F16) {
        run_loop(span, n);
        return;
    }
    float floats[IGLU_OPERANDS][IGLU_CHUNK];
    iglu_span converted = *span;
    for (int k = 0; k < IGLU_OPERANDS; k++)
        if (span->data[k]) {
            converted.data[k] = (char *)floats[k];
            if (k < IGLU_FIRST)
                float16_to_float((const void *)span->data[k], floats[k], n);
        }
    run_loop(&converted, n);
    for (int k = IGLU_FIRST; k < IGLU_OPERANDS; k++)
        if (span->data[k])
            float_to_float16(floats[k], (void *)span->data[k], n);
}

const iglu_loops LOOPS = {run, {sum_f32, sum_f64, sum_half, sum_half}, {add_f32, add_f64, add_half, add_half}};

#if defined(TARGET) && defined(__clang__)
#pragma clang attribute pop
#endif
