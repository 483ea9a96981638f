/* The loops, in plain C, written once and included by one short file for each instruction set (baseline.c,
 * avx2.c, avx512.c), which sets LOOPS, the name of the table, and FUSED_MULTIPLY_ADD, F16C and WIDE, 0 or 1. */

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "loops.h"

#define IGLU_INLINE static inline __attribute__((always_inline))

/* a b + c in the type of b, as fast as can be; and where the two cancel, so that the rounding of a b must not be lost. */
#if FUSED_MULTIPLY_ADD
#define MADD(a, b, c) _Generic((b), float: fmaf, double: fma)(a, b, c)
#define FUSED(a, b, c) MADD(a, b, c)
#else
#define MADD(a, b, c) ((a) * (b) + (c))
#define FUSED(a, b, c) _Generic((b), float: fused_float, double: fused_double)(a, b, c)

IGLU_INLINE float fused_float(float a, float b, float c) { return (float)((double)a * (double)b + (double)c); }

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

#define ABS(x) _Generic((x), float: fabsf, double: fabs)(x)
#define SQRT(x) _Generic((x), float: sqrtf, double: sqrt)(x)

#include "polynomials.h"

/* -- what is computed ---------------------------------------------------------------------------------- */

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

#define EVEN(from, i) as_float(load_pair(from, i) << 16)
#define ODD(from, i) as_float(load_pair(from, i) & 0xffff0000)
#define BFLOAT16(from, i) as_float((uint32_t)from[i] << 16)

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

/* The tensors of a span, by their names. */
#define OPERANDS(TYPE)                                                                                       \
    const TYPE *x = (void *)span->data[IGLU_X], *up = (void *)span->data[IGLU_UP];                           \
    const TYPE *grad = (void *)span->data[IGLU_GRAD], *by_x = (void *)span->data[IGLU_BY_X];                 \
    const TYPE *by_up = (void *)span->data[IGLU_BY_UP];                                                      \
    TYPE *first = (void *)span->data[IGLU_FIRST], *second = (void *)span->data[IGLU_SECOND];                 \
    TYPE *third = (void *)span->data[IGLU_THIRD];

#define INPUT(LOAD, USES)                                                                                    \
    {                                                                                                        \
        LOAD(x, i), (USES)&UP ? LOAD(up, i) : 0, (USES)&GRAD ? LOAD(grad, i) : 0,                            \
            (USES)&BY_X ? LOAD(by_x, i) : 0, (USES)&BY_UP ? LOAD(by_up, i) : 0                               \
    }

#define OUTPUT(STORE, USES)                                                                                  \
    STORE(first);                                                                                            \
    if ((USES)&SECOND)                                                                                       \
        STORE(second);                                                                                       \
    if ((USES)&THIRD)                                                                                        \
        STORE(third);

/* Element i. */
#define STEP(OPERATION, TYPE, LOAD, STORE, USES, PARTS, ANY)                                                 \
    const input_##TYPE in = INPUT(LOAD, USES);                                                               \
    const output_##TYPE out = OPERATION##_##TYPE(in, ANY ? scale_at_##TYPE(constants, i) : one, ANY);        \
    OUTPUT(STORE, USES)                                                                                      \
    if (PARTS)                                                                                               \
        parts[i] = out.part;

#define ELEMENT(from, i) from[i]
#define STORE_ELEMENT(to) to[i] = out.to
#define STORE_BFLOAT16(to) to[i] = (uint16_t)(rounded_bfloat16(out.to) >> 16)
#define STORE_PAIR(to) store_pair(to, i, even.to, odd.to)

/* A loop of OPERATION over a dense span.  USES: which of these; PARTS: are these written?
 * ANY: does each element have its own sigma, of any sign, instead of one sigma > 0 for all?
 * (Unused: where wide.h has a better one.) */
#define DENSE_LOOP(FUNCTION, OPERATION, TYPE, REAL_TYPE, USES, PARTS, ANY)                                   \
    static __attribute__((unused)) void FUNCTION(const iglu_span *span, int64_t n)                           \
    {                                                                                                        \
        OPERANDS(REAL_TYPE)                                                                                  \
        REAL_TYPE *parts = span->parts;                                                                      \
        const constants_##TYPE constants = constants_of_##TYPE(span);                                        \
        const scale_##TYPE one = scale_at_##TYPE(constants, 0);                                              \
        INDEPENDENT for (int64_t i = 0; i < n; i++)                                                          \
        {                                                                                                    \
            STEP(OPERATION, TYPE, ELEMENT, STORE_ELEMENT, USES, PARTS, ANY)                                  \
        }                                                                                                    \
    }

/* The same for bfloat16, two to a word: their upper and lower halves need no shuffling. */
#define PAIR_LOOP(FUNCTION, OPERATION, USES, PARTS, ANY)                                                     \
    static void FUNCTION(const iglu_span *span, int64_t n)                                                   \
    {                                                                                                        \
        OPERANDS(uint16_t)                                                                                   \
        float *parts = span->parts;                                                                          \
        const constants_half constants = constants_of_half(span);                                            \
        const scale_half one = scale_at_half(constants, 0);                                                  \
        INDEPENDENT for (int64_t i = 0; i < n / 2; i++)                                                      \
        {                                                                                                    \
            const input_half first_in = INPUT(EVEN, USES), second_in = INPUT(ODD, USES);                     \
            const output_half even = OPERATION##_half(first_in, ANY ? scale_at_half(constants, 2 * i) : one, ANY); \
            const output_half odd = OPERATION##_half(second_in, ANY ? scale_at_half(constants, 2 * i + 1) : one, ANY); \
            OUTPUT(STORE_PAIR, USES)                                                                         \
            if (PARTS) {                                                                                     \
                parts[2 * i] = even.part;                                                                    \
                parts[2 * i + 1] = odd.part;                                                                 \
            }                                                                                                \
        }                                                                                                    \
        if (n % 2) {                                                                                         \
            const int64_t i = n - 1;                                                                         \
            STEP(OPERATION, half, BFLOAT16, STORE_BFLOAT16, USES, PARTS, ANY)                                \
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

/* Every operation of a family: its index, its name and what it uses.  Those backward are there with parts as well. */
#define OPERATIONS(FORWARD, BACKWARD, ...)                                                                   \
    FORWARD(IGLU_VALUE, value, 0, __VA_ARGS__)                                                               \
    FORWARD(IGLU_GATE, gate, 0, __VA_ARGS__)                                                                 \
    FORWARD(IGLU_GLU, glu, UP, __VA_ARGS__)                                                                  \
    BACKWARD(IGLU_VALUE_BACKWARD, value_backward, GRAD, __VA_ARGS__)                                         \
    BACKWARD(IGLU_GATE_BACKWARD, gate_backward, GRAD, __VA_ARGS__)                                           \
    BACKWARD(IGLU_GLU_BACKWARD, glu_backward, UP | GRAD | SECOND, __VA_ARGS__)                               \
    BACKWARD(IGLU_VALUE_TWICE, value_twice, GRAD | BY_X | SECOND, __VA_ARGS__)                               \
    BACKWARD(IGLU_GLU_TWICE, glu_twice, UP | GRAD | BY_X | BY_UP | SECOND | THIRD, __VA_ARGS__)

#define FORWARD_LOOPS(INDEX, OPERATION, USES, FAMILY)                                                        \
    LOOPS_OF(OPERATION, FAMILY, USES, 0, 0)                                                                  \
    LOOPS_OF(OPERATION, FAMILY, USES, 0, 1)
#define BACKWARD_LOOPS(INDEX, OPERATION, USES, FAMILY)                                                       \
    FORWARD_LOOPS(INDEX, OPERATION, USES, FAMILY)                                                            \
    LOOPS_OF(OPERATION, FAMILY, USES, 1, 0)                                                                  \
    LOOPS_OF(OPERATION, FAMILY, USES, 1, 1)

OPERATIONS(FORWARD_LOOPS, BACKWARD_LOOPS, exact)
OPERATIONS(FORWARD_LOOPS, BACKWARD_LOOPS, rational)
BACKWARD_LOOPS(IGLU_OUTPUT_BACKWARD, output_backward, GRAD, rational)

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

#define BOTH(TYPE, OPERATION, FAMILY, PARTS)                                                                 \
    {LOOP(TYPE, OPERATION, FAMILY, PARTS, 0), LOOP(TYPE, OPERATION, FAMILY, PARTS, 1)}
#define FORWARD_ENTRY(INDEX, OPERATION, USES, TYPE, FAMILY) [INDEX] = {BOTH(TYPE, OPERATION, FAMILY, 0)},
#define BACKWARD_ENTRY(INDEX, OPERATION, USES, TYPE, FAMILY)                                                 \
    [INDEX] = {BOTH(TYPE, OPERATION, FAMILY, 0), BOTH(TYPE, OPERATION, FAMILY, 1)},
#define TYPE_TABLE(TYPE)                                                                                     \
    {                                                                                                        \
        [IGLU_EXACT] = {OPERATIONS(FORWARD_ENTRY, BACKWARD_ENTRY, TYPE, exact)},                             \
        [IGLU_RATIONAL] = {OPERATIONS(FORWARD_ENTRY, BACKWARD_ENTRY, TYPE, rational)                         \
                           BACKWARD_ENTRY(IGLU_OUTPUT_BACKWARD, output_backward, GRAD, TYPE, rational)},     \
    }

const iglu_loops LOOPS = {
    .loop = {[IGLU_F32] = TYPE_TABLE(f32),
             [IGLU_F64] = TYPE_TABLE(f64),
             [IGLU_BF16] = TYPE_TABLE(bf16),
             [IGLU_F16] = TYPE_TABLE(f16)},
    .sum = {[IGLU_F32] = sum_float, [IGLU_F64] = sum_double, [IGLU_BF16] = sum_float, [IGLU_F16] = sum_float},
    .add = {[IGLU_F32] = add_float, [IGLU_F64] = add_double, [IGLU_BF16] = add_float, [IGLU_F16] = add_float},
};
