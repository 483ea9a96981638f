/* The loops, in plain C, written once and included by one short file for each instruction set (baseline.c,
 * avx2.c, avx512.c), which sets LOOPS, the name of the table, and FUSED_MULTIPLY_ADD, F16C and WIDE, 0 or 1. */

#include <stdint.h>
#include <string.h>

#include "spans.h"

#define IGLU_INLINE static inline __attribute__((always_inline))

#if FUSED_MULTIPLY_ADD
#define MADD_FLOAT(a, b, c) __builtin_fmaf(a, b, c)
#define MADD_DOUBLE(a, b, c) __builtin_fma(a, b, c)
#define FUSED_FLOAT(a, b, c) __builtin_fmaf(a, b, c)
#define FUSED_DOUBLE(a, b, c) __builtin_fma(a, b, c)
#else
#define MADD_FLOAT(a, b, c) ((a) * (b) + (c))
#define MADD_DOUBLE(a, b, c) ((a) * (b) + (c))
#define FUSED_FLOAT(a, b, c) ((float)((double)(a) * (double)(b) + (double)(c)))
#define FUSED_DOUBLE(a, b, c) fused_double(a, b, c)

/* A number without the lower half of its digits. */
IGLU_INLINE double upper_half(double value)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    bits &= ~(uint64_t)0x7ffffff;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* Dekker's product: halves multiply (all but) exactly. */
IGLU_INLINE double fused_double(double a, double b, double c)
{
    double a_high = upper_half(a), a_low = a - a_high, b_high = upper_half(b), b_low = b - b_high;
    double product = a * b;
    double rest = ((a_high * b_high - product) + a_high * b_low + a_low * b_high) + a_low * b_low;
    return (product + c) + rest;
}
#endif

#include "polynomials.h"

/* -- what is computed ---------------------------------------------------------------------------------- */

#define REAL float
#define NAME(x) x##_f32
#define ABS(x) __builtin_fabsf(x)
#define SQRT(x) __builtin_sqrtf(x)
#define MADD(a, b, c) MADD_FLOAT(a, b, c)
#define FUSED(a, b, c) FUSED_FLOAT(a, b, c)
#define HALF 0
#include "operations.h"
#undef NAME
#undef HALF

#define NAME(x) x##_half
#define HALF 1
#define excess_half excess_f32
#include "operations.h"
#undef REAL
#undef NAME
#undef ABS
#undef SQRT
#undef MADD
#undef FUSED
#undef HALF

#define REAL double
#define NAME(x) x##_f64
#define ABS(x) __builtin_fabs(x)
#define SQRT(x) __builtin_sqrt(x)
#define MADD(a, b, c) MADD_DOUBLE(a, b, c)
#define FUSED(a, b, c) FUSED_DOUBLE(a, b, c)
#define HALF 0
#include "operations.h"

/* -- bfloat16: the upper half of a float --------------------------------------------------------------- */

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

/* To nearest, ties to even, in the upper half.  A NaN from bfloat16 operands keeps its lower half zero or is
 * the default one, so the carry cannot run through it. */
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

#define EVEN(pair) as_float((pair) << 16)
#define ODD(pair) as_float((pair) & 0xffff0000)
#define BFLOAT16(from, i) as_float((uint32_t)((const uint16_t *)(from))[i] << 16)
#define STORE_BFLOAT16(to, i, value) (((uint16_t *)(to))[i] = (uint16_t)(rounded_bfloat16(value) >> 16))

/* -- float16: converted by chunks ---------------------------------------------------------------------- */

#if F16C

#include <immintrin.h>

static void widen(const uint16_t *from, float *to, int64_t n)
{
    int64_t i = 0;
    for (; i + 8 <= n; i += 8)
        _mm256_storeu_ps(to + i, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(from + i))));
    for (; i < n; i++)
        to[i] = _cvtsh_ss(from[i]);
}

static void narrow(const float *from, uint16_t *to, int64_t n)
{
    int64_t i = 0;
    for (; i + 8 <= n; i += 8)
        _mm_storeu_si128((__m128i *)(to + i), _mm256_cvtps_ph(_mm256_loadu_ps(from + i), 0));
    for (; i < n; i++)
        to[i] = (uint16_t)_cvtss_sh(from[i], 0);
}

#else

/* The exponent moves from bias 15 to 127.  A subnormal gets an implicit bit that is then subtracted: no float
 * is subnormal on the way, so flushing them does no harm. */
static void widen(const uint16_t *from, float *to, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        uint32_t half = from[i], bits = (half & 0x7fff) << 13, exponent = bits & 0x0f800000;
        float normal = as_float(bits + (112u << 23)), special = as_float(bits + (224u << 23));
        float subnormal = as_float(bits + (113u << 23)) - 0x1p-14f;
        float size = exponent == 0 ? subnormal : exponent == 0x0f800000 ? special : normal;
        to[i] = as_float(as_bits(size) | (half & 0x8000) << 16);
    }
}

/* To nearest, ties to even; below 2^-14 the addition of 1/2 lets the processor round. */
static void narrow(const float *from, uint16_t *to, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        uint32_t bits = as_bits(from[i]), size = bits & 0x7fffffff;
        uint32_t normal = (size - (112u << 23) + 0xfff + (size >> 13 & 1)) >> 13;
        uint32_t subnormal = as_bits(as_float(size) + 0.5f) - 0x3f000000;
        uint32_t special = size > 0x7f800000 ? 0x7e00 : 0x7c00;
        uint32_t half = size >= 0x47800000 ? special : size < 0x38800000 ? subnormal : normal;
        to[i] = (uint16_t)(half | (bits >> 16 & 0x8000));
    }
}

#endif

/* -- the loops ----------------------------------------------------------------------------------------- */

/* No element depends on another, also where a result overwrites its argument. */
#if defined(__clang__)
#define INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#else
#define INDEPENDENT _Pragma("GCC ivdep")
#endif

/* What an operation reads beside x, and what it writes beside the first result, as bits. */
#define UP 1
#define GRAD 2
#define BY_X 4
#define BY_UP 8
#define SECOND 16
#define THIRD 32

/* A loop of OPERATION over a dense span.  USES: which of these; PARTS: are these written?
 * ANY: does each element have its own sigma, of any sign, instead of one sigma > 0 for all?
 * (Unused: where wide.h has a better one.) */
#define DENSE_LOOP(FUNCTION, OPERATION, TYPE, REAL_TYPE, USES, PARTS, ANY)                                   \
    static __attribute__((unused)) void FUNCTION(const iglu_span *span, int64_t n)                                                   \
    {                                                                                                        \
        const REAL_TYPE *x = (void *)span->data[IGLU_X], *up = (void *)span->data[IGLU_UP];                  \
        const REAL_TYPE *grad = (void *)span->data[IGLU_GRAD], *by_x = (void *)span->data[IGLU_BY_X];        \
        const REAL_TYPE *by_up = (void *)span->data[IGLU_BY_UP];                                             \
        REAL_TYPE *first = (void *)span->data[IGLU_FIRST], *second = (void *)span->data[IGLU_SECOND];        \
        REAL_TYPE *third = (void *)span->data[IGLU_THIRD], *parts = span->parts;                             \
        const constants_##TYPE constants = constants_of_##TYPE(span);                                        \
        const scale_##TYPE one = scale_at_##TYPE(constants, 0);                                              \
        INDEPENDENT for (int64_t i = 0; i < n; i++)                                                          \
        {                                                                                                    \
            input_##TYPE in = {x[i], (USES)&UP ? up[i] : 0, (USES)&GRAD ? grad[i] : 0,                       \
                               (USES)&BY_X ? by_x[i] : 0, (USES)&BY_UP ? by_up[i] : 0};                      \
            output_##TYPE out = OPERATION##_##TYPE(in, ANY ? scale_at_##TYPE(constants, i) : one, ANY);      \
            first[i] = out.first;                                                                            \
            if ((USES)&SECOND)                                                                               \
                second[i] = out.second;                                                                      \
            if ((USES)&THIRD)                                                                                \
                third[i] = out.third;                                                                        \
            if (PARTS)                                                                                       \
                parts[i] = out.part;                                                                         \
        }                                                                                                    \
    }

/* The same for bfloat16, two to a word: their upper and lower halves need no shuffling. */
#define PAIR_LOOP(FUNCTION, OPERATION, USES, PARTS, ANY)                                                     \
    static void FUNCTION(const iglu_span *span, int64_t n)                                                   \
    {                                                                                                        \
        const void *x = span->data[IGLU_X], *up = span->data[IGLU_UP], *grad = span->data[IGLU_GRAD];        \
        const void *by_x = span->data[IGLU_BY_X], *by_up = span->data[IGLU_BY_UP];                           \
        void *first = span->data[IGLU_FIRST], *second = span->data[IGLU_SECOND], *third = span->data[IGLU_THIRD]; \
        float *parts = span->parts;                                                                          \
        const constants_half constants = constants_of_half(span);                                            \
        const scale_half one = scale_at_half(constants, 0);                                                  \
        INDEPENDENT for (int64_t i = 0; i < n / 2; i++)                                                      \
        {                                                                                                    \
            uint32_t xs = load_pair(x, i), ups = (USES)&UP ? load_pair(up, i) : 0;                           \
            uint32_t grads = (USES)&GRAD ? load_pair(grad, i) : 0;                                           \
            uint32_t by_xs = (USES)&BY_X ? load_pair(by_x, i) : 0;                                           \
            uint32_t by_ups = (USES)&BY_UP ? load_pair(by_up, i) : 0;                                        \
            input_half in0 = {EVEN(xs), EVEN(ups), EVEN(grads), EVEN(by_xs), EVEN(by_ups)};                  \
            input_half in1 = {ODD(xs), ODD(ups), ODD(grads), ODD(by_xs), ODD(by_ups)};                       \
            output_half out0 = OPERATION##_half(in0, ANY ? scale_at_half(constants, 2 * i) : one, ANY);      \
            output_half out1 = OPERATION##_half(in1, ANY ? scale_at_half(constants, 2 * i + 1) : one, ANY);  \
            store_pair(first, i, out0.first, out1.first);                                                    \
            if ((USES)&SECOND)                                                                               \
                store_pair(second, i, out0.second, out1.second);                                             \
            if ((USES)&THIRD)                                                                                \
                store_pair(third, i, out0.third, out1.third);                                                \
            if (PARTS) {                                                                                     \
                parts[2 * i] = out0.part;                                                                    \
                parts[2 * i + 1] = out1.part;                                                                \
            }                                                                                                \
        }                                                                                                    \
        if (n % 2) {                                                                                         \
            int64_t i = n - 1;                                                                               \
            input_half in = {BFLOAT16(x, i), (USES)&UP ? BFLOAT16(up, i) : 0,                                \
                             (USES)&GRAD ? BFLOAT16(grad, i) : 0, (USES)&BY_X ? BFLOAT16(by_x, i) : 0,       \
                             (USES)&BY_UP ? BFLOAT16(by_up, i) : 0};                                         \
            output_half out = OPERATION##_half(in, ANY ? scale_at_half(constants, i) : one, ANY);            \
            STORE_BFLOAT16(first, i, out.first);                                                             \
            if ((USES)&SECOND)                                                                               \
                STORE_BFLOAT16(second, i, out.second);                                                       \
            if ((USES)&THIRD)                                                                                \
                STORE_BFLOAT16(third, i, out.third);                                                         \
            if (PARTS)                                                                                       \
                parts[i] = out.part;                                                                         \
        }                                                                                                    \
    }

/* And for float16, through float, a chunk at a time. */
static void converted(const iglu_span *span, int64_t n, iglu_loop *loop)
{
    float floats[IGLU_OPERANDS][IGLU_CHUNK];
    iglu_span wide = *span;
    for (int k = 0; k < IGLU_OPERANDS; k++)
        if (span->data[k]) {
            wide.data[k] = (char *)floats[k];
            if (k < IGLU_FIRST)
                widen((const void *)span->data[k], floats[k], n);
        }
    loop(&wide, n);
    for (int k = IGLU_FIRST; k < IGLU_OPERANDS; k++)
        if (span->data[k])
            narrow(floats[k], (void *)span->data[k], n);
}

#define LOOP(TYPE, OPERATION, FAMILY, PARTS, ANY) OPERATION##_##FAMILY##_##TYPE##_##PARTS##ANY

#define LOOPS_OF(OPERATION, FAMILY, USES, PARTS, ANY)                                                        \
    DENSE_LOOP(LOOP(f32, OPERATION, FAMILY, PARTS, ANY), OPERATION##_##FAMILY, f32, float, USES, PARTS, ANY) \
    DENSE_LOOP(LOOP(f64, OPERATION, FAMILY, PARTS, ANY), OPERATION##_##FAMILY, f64, double, USES, PARTS, ANY) \
    DENSE_LOOP(LOOP(half, OPERATION, FAMILY, PARTS, ANY), OPERATION##_##FAMILY, half, float, USES, PARTS, ANY) \
    PAIR_LOOP(LOOP(bf16, OPERATION, FAMILY, PARTS, ANY), OPERATION##_##FAMILY, USES, PARTS, ANY)             \
    static void LOOP(f16, OPERATION, FAMILY, PARTS, ANY)(const iglu_span *span, int64_t n)                   \
    {                                                                                                        \
        converted(span, n, LOOP(half, OPERATION, FAMILY, PARTS, ANY));                                       \
    }

/* With and without the parts of the gradient of sigma. */
#define BACKWARD_LOOPS_OF(OPERATION, FAMILY, USES, ANY)                                                      \
    LOOPS_OF(OPERATION, FAMILY, USES, 0, ANY)                                                                \
    LOOPS_OF(OPERATION, FAMILY, USES, 1, ANY)

#define LOOPS_OF_FAMILY(FAMILY, ANY)                                                                         \
    LOOPS_OF(value, FAMILY, 0, 0, ANY)                                                                       \
    LOOPS_OF(gate, FAMILY, 0, 0, ANY)                                                                        \
    LOOPS_OF(glu, FAMILY, UP, 0, ANY)                                                                        \
    BACKWARD_LOOPS_OF(value_backward, FAMILY, GRAD, ANY)                                                     \
    BACKWARD_LOOPS_OF(gate_backward, FAMILY, GRAD, ANY)                                                      \
    BACKWARD_LOOPS_OF(glu_backward, FAMILY, UP | GRAD | SECOND, ANY)                                         \
    BACKWARD_LOOPS_OF(value_twice, FAMILY, GRAD | BY_X | SECOND, ANY)                                        \
    BACKWARD_LOOPS_OF(glu_twice, FAMILY, UP | GRAD | BY_X | BY_UP | SECOND | THIRD, ANY)

LOOPS_OF_FAMILY(exact, 0)
LOOPS_OF_FAMILY(exact, 1)
LOOPS_OF_FAMILY(rational, 0)
LOOPS_OF_FAMILY(rational, 1)
BACKWARD_LOOPS_OF(output_backward, rational, GRAD, 0)
BACKWARD_LOOPS_OF(output_backward, rational, GRAD, 1)

#if WIDE
#include "wide.h"
#endif

/* Sums in eight lanes, for speed as for accuracy, and always in the same order. */
#define SUM(FUNCTION, REAL_TYPE)                                                                             \
    static double FUNCTION(const void *data, int64_t n)                                                      \
    {                                                                                                        \
        const REAL_TYPE *parts = data;                                                                       \
        double lanes[8] = {0}, total = 0;                                                                    \
        int64_t i = 0;                                                                                       \
        for (; i + 8 <= n; i += 8)                                                                           \
            for (int lane = 0; lane < 8; lane++)                                                             \
                lanes[lane] += parts[i + lane];                                                              \
        for (; i < n; i++)                                                                                   \
            lanes[i % 8] += parts[i];                                                                        \
        for (int lane = 0; lane < 8; lane++)                                                                 \
            total += lanes[lane];                                                                            \
        return total;                                                                                        \
    }

SUM(sum_float, float)
SUM(sum_double, double)

#define ADD(FUNCTION, REAL_TYPE)                                                                             \
    static void FUNCTION(double *sums, const void *data, int64_t n)                                          \
    {                                                                                                        \
        const REAL_TYPE *parts = data;                                                                       \
        INDEPENDENT for (int64_t i = 0; i < n; i++) sums[i] += parts[i];                                     \
    }

ADD(add_float, float)
ADD(add_double, double)

#define FORWARD(TYPE, OPERATION, FAMILY)                                                                     \
    {                                                                                                        \
        {LOOP(TYPE, OPERATION, FAMILY, 0, 0), LOOP(TYPE, OPERATION, FAMILY, 0, 1)}, {0, 0}                   \
    }
#define BACKWARD(TYPE, OPERATION, FAMILY)                                                                    \
    {                                                                                                        \
        {LOOP(TYPE, OPERATION, FAMILY, 0, 0), LOOP(TYPE, OPERATION, FAMILY, 0, 1)},                          \
        {                                                                                                    \
            LOOP(TYPE, OPERATION, FAMILY, 1, 0), LOOP(TYPE, OPERATION, FAMILY, 1, 1)                         \
        }                                                                                                    \
    }
#define FAMILY_TABLE(TYPE, FAMILY, ...)                                                                      \
    {                                                                                                        \
        [IGLU_VALUE] = FORWARD(TYPE, value, FAMILY), [IGLU_GATE] = FORWARD(TYPE, gate, FAMILY),              \
        [IGLU_GLU] = FORWARD(TYPE, glu, FAMILY),                                                             \
        [IGLU_VALUE_BACKWARD] = BACKWARD(TYPE, value_backward, FAMILY),                                      \
        [IGLU_GATE_BACKWARD] = BACKWARD(TYPE, gate_backward, FAMILY),                                        \
        [IGLU_GLU_BACKWARD] = BACKWARD(TYPE, glu_backward, FAMILY),                                          \
        [IGLU_VALUE_TWICE] = BACKWARD(TYPE, value_twice, FAMILY),                                            \
        [IGLU_GLU_TWICE] = BACKWARD(TYPE, glu_twice, FAMILY), __VA_ARGS__                                    \
    }
#define TYPE_TABLE(TYPE)                                                                                     \
    {                                                                                                        \
        [IGLU_EXACT] = FAMILY_TABLE(TYPE, exact, ),                                                          \
        [IGLU_RATIONAL] = FAMILY_TABLE(TYPE, rational,                                                       \
                                       [IGLU_OUTPUT_BACKWARD] = BACKWARD(TYPE, output_backward, rational))   \
    }

const iglu_loops LOOPS = {
    .loop = {[IGLU_F32] = TYPE_TABLE(f32),
             [IGLU_F64] = TYPE_TABLE(f64),
             [IGLU_BF16] = TYPE_TABLE(bf16),
             [IGLU_F16] = TYPE_TABLE(f16)},
    .sum = {[IGLU_F32] = sum_float, [IGLU_F64] = sum_double, [IGLU_BF16] = sum_float, [IGLU_F16] = sum_float},
    .add = {[IGLU_F32] = add_float, [IGLU_F64] = add_double, [IGLU_BF16] = add_float, [IGLU_F16] = add_float},
};
