/* Loops over float that AVX-512 has better instructions for than a compiler finds: included by loops.c where
 * WIDE is 1, whose own they replace.  The same equations and the same names as in formulas.h, sixteen elements
 * at once, for one sigma > 0:
 *
 *   rational value   the quotient from the estimate of a reciprocal and one correction, instead of a division
 *   exact value,     a polynomial of degree 4 for each sixteenth of 0 <= m <= 1, coefficients looked up in
 *   exact slope      registers, instead of one of degree 8 and of two of degrees 10 and 12 for the whole range
 *   exact curvature  without 1/|u|, since u^2 fits into a float wherever the result does
 *
 * Arguments of minima and maxima are in the order that lets a NaN and a -0 through. */

#include "tables.h"

#define FIELD(name) __m512 name;
#define CONSTANT(name) .name = _mm512_set1_ps(*(const float *)span->constants[IGLU_##name]),

typedef struct {
    IGLU_SCALE(FIELD)
} scale_wide;

IGLU_INLINE scale_wide scale_wide_of(const iglu_span *span)
{
    const scale_wide k = {IGLU_SCALE(CONSTANT)};
    return k;
}

IGLU_INLINE __m512 positive_part_wide(__m512 x) { return _mm512_max_ps(_mm512_setzero_ps(), x); }

/* -- rational ------------------------------------------------------------------------------------------ */

/* q = x r misses x/d by 2^-14 of it, and q + (x - d q) r by 2^-28 and a rounding. */
IGLU_INLINE __m512 quotient_wide(__m512 x, __m512 d)
{
    __m512 r = _mm512_rcp14_ps(d), q = _mm512_mul_ps(x, r);
    return _mm512_fmadd_ps(_mm512_fnmadd_ps(d, q, x), r, q);
}

/* |x| is cut at a = 2^100, so that the estimate is neither 0 nor subnormal; the tail is 1/(2 sigma) by then.  (The
 * cut of a NaN is no NaN, its positive part is.)  The divisor is doubled, which costs nothing, instead of halving the
 * quotient.  The low part of sigma, which a float has not got, is one more operation of nine. */
IGLU_INLINE __m512 rational_value_wide(__m512 x, scale_wide k, int has_low)
{
    const __m512 two = _mm512_set1_ps(2), twice = _mm512_add_ps(k.sigma, k.sigma);
    const __m512 twice_low = _mm512_add_ps(k.sigma_low, k.sigma_low);
    const __m512 cut = _mm512_min_ps(k.largest, _mm512_div_ps(_mm512_set1_ps(0x1p100f), k.sigma));
    __m512 size = _mm512_range_ps(cut, x, 10); /* the smaller of the absolute values */
    __m512 d = _mm512_fmadd_ps(twice, size, has_low ? _mm512_fmadd_ps(twice_low, size, two) : two);
    return _mm512_sub_ps(positive_part_wide(x), quotient_wide(size, d));
}

/* -- exact --------------------------------------------------------------------------------------------- */

/* The coefficients of a near and of a far function by order and piece, and what the first ones lack. */
typedef struct {
    __m512 near[5], far[5], near_low, far_low;
} pieces;

IGLU_INLINE pieces pieces_of(const float near[6][16], const float far[6][16])
{
    pieces p;
    for (int order = 0; order < 5; order++) {
        p.near[order] = _mm512_loadu_ps(near[order]);
        p.far[order] = _mm512_loadu_ps(far[order]);
    }
    p.near_low = _mm512_loadu_ps(near[5]);
    p.far_low = _mm512_loadu_ps(far[5]);
    return p;
}

/* As in formulas.h, without what a and t lack. */
typedef struct {
    __m512 x, size, a, t;
} argument_wide;

IGLU_INLINE argument_wide argument_wide_of(__m512 x, scale_wide k)
{
    __m512 size = _mm512_min_ps(k.largest, _mm512_abs_ps(x)), a = _mm512_mul_ps(k.sigma, size);
    argument_wide u = {x, size, a, _mm512_div_ps(_mm512_set1_ps(1), a)};
    return u;
}

IGLU_INLINE __m512 a_low_wide(argument_wide u, scale_wide k)
{
    return _mm512_fmadd_ps(k.sigma_low, u.size, _mm512_fmsub_ps(k.sigma, u.size, u.a));
}

/* m = min(a, t), the piece it is in, 16 more where a >= 1, and its distance from the middle of that piece. */
typedef struct {
    __m512 m, distance;
    __m512i piece;
    __mmask16 is_far;
} place;

IGLU_INLINE place place_of(argument_wide u)
{
    /* Added to 15 m, it leaves the nearest integer, and the 16, in the last bits. */
    const __m512 near = _mm512_set1_ps(0x1.8p23f), far = _mm512_set1_ps(0x1.8p23f + 16);
    const __m512 count = _mm512_set1_ps(15);
    place p = {.m = _mm512_min_ps(u.t, u.a), .is_far = _mm512_cmp_ps_mask(u.a, _mm512_set1_ps(1), _CMP_NLT_UQ)};
    __m512 offset = _mm512_mask_mov_ps(near, p.is_far, far), sum = _mm512_fmadd_ps(count, p.m, offset);
    p.piece = _mm512_castps_si512(sum);
    p.distance = _mm512_fmsub_ps(count, p.m, _mm512_sub_ps(sum, offset));
    return p;
}

#define COEFFICIENT(order) _mm512_permutex2var_ps(of.near[order], at.piece, of.far[order])

/* All but the first coefficient, divided by the distance. */
IGLU_INLINE __m512 higher_terms(pieces of, place at)
{
    __m512 p = COEFFICIENT(4);
    p = _mm512_fmadd_ps(p, at.distance, COEFFICIENT(3));
    p = _mm512_fmadd_ps(p, at.distance, COEFFICIENT(2));
    return _mm512_fmadd_ps(p, at.distance, COEFFICIENT(1));
}

/* |x| tail is |x| (1/2 - arctan(a)/pi) near, and (arctan(t)/t)/(pi sigma) far. */
IGLU_INLINE __m512 exact_value_wide(argument_wide u, scale_wide k, pieces of)
{
    place at = place_of(u);
    __m512 low = _mm512_permutex2var_ps(of.near_low, at.piece, of.far_low);
    __m512 p = _mm512_add_ps(_mm512_fmadd_ps(higher_terms(of, at), at.distance, low), COEFFICIENT(0));
    __m512 scale = _mm512_mask_mov_ps(u.size, at.is_far, k.floor);
    return _mm512_fnmadd_ps(scale, p, positive_part_wide(u.x));
}

/* As in formulas.h, the tail being t^3 p far. */
IGLU_INLINE __m512 exact_slope_wide(argument_wide u, scale_wide k, pieces of)
{
    const __m512 one = _mm512_set1_ps(1);
    __m512 a_low = a_low_wide(u, k), t_error = _mm512_fnmadd_ps(a_low, u.t, _mm512_fnmadd_ps(u.a, u.t, one));
    place at = place_of(u);
    __m512 m_low = _mm512_mask_mul_ps(a_low, at.is_far, u.t, t_error);
    at.distance = _mm512_fmadd_ps(_mm512_set1_ps(15), m_low, at.distance);
    __m512 p = _mm512_fmadd_ps(higher_terms(of, at), at.distance, COEFFICIENT(0));
    __m512 far = _mm512_mul_ps(u.t, _mm512_mul_ps(_mm512_mul_ps(u.t, u.t), p));
    __m512 far_error = _mm512_add_ps(t_error, _mm512_add_ps(t_error, t_error));
    __m512 tail = _mm512_mask_mov_ps(p, at.is_far, _mm512_fmadd_ps(far, far_error, far));
    return _mm512_mask_sub_ps(tail, _mm512_cmp_ps_mask(u.x, _mm512_setzero_ps(), _CMP_NLT_UQ), one, tail);
}

#undef COEFFICIENT

/* 2 sigma/(pi d^2), d = 1 + u^2, of which 1/d = r (1 + error).  |u| is cut where d^2 has long overflowed. */
IGLU_INLINE __m512 exact_curvature_wide(argument_wide u, scale_wide k)
{
    const __m512 one = _mm512_set1_ps(1), twice = _mm512_add_ps(k.over_pi, k.over_pi);
    __m512 a = _mm512_min_ps(_mm512_set1_ps(0x1p63f), u.a), a_low = a_low_wide(u, k);
    __m512 d = _mm512_fmadd_ps(a, a, one), r = _mm512_div_ps(one, d);
    __m512 d_low = _mm512_fmadd_ps(_mm512_add_ps(a, a), a_low, _mm512_fmadd_ps(a, a, _mm512_sub_ps(one, d)));
    __m512 error = _mm512_fnmadd_ps(d_low, r, _mm512_fnmadd_ps(d, r, one));
    error = _mm512_add_ps(_mm512_add_ps(error, error), _mm512_div_ps(k.over_pi_low, k.over_pi));
    __m512 result = _mm512_mul_ps(_mm512_mul_ps(twice, r), r);
    return _mm512_fmadd_ps(result, error, result);
}

/* -- the loops ----------------------------------------------------------------------------------------- */

/* Whether a loop upwards would load from soon after it stored to the same place in another page, which a processor
 * takes for the same place until it has looked closer, and waits.  A loop downwards does not. */
IGLU_INLINE int is_before_in_page(const void *from, const void *to)
{
    return from && ((uintptr_t)to - (uintptr_t)from - 1) % 4096 < 1024;
}

#define LOAD(from) _mm512_loadu_ps(from + i)
#define STORE(to, result) _mm512_storeu_ps(to + i, result)
#define LOAD_REST(from) _mm512_maskz_loadu_ps(rest, from + i)
#define STORE_REST(to, result) _mm512_mask_storeu_ps(to + i, rest, result)
#define WIDE_STEP(LOAD, STORE, USES, FIRST, SECOND_RESULT)                                                   \
    const __m512 up = (USES)&UP ? LOAD(ups) : u.x, grad = (USES)&GRAD ? LOAD(grads) : u.x;                   \
    const __m512 by_x = (USES)&BY_X ? LOAD(by_xs) : u.x;                                                     \
    (void)up, (void)grad, (void)by_x;                                                                        \
    STORE(first, FIRST);                                                                                     \
    if ((USES)&SECOND)                                                                                       \
        STORE(second, SECOND_RESULT);

/* The results are of u, up, grad and by_x, of which USES says which there are, as in loops.c.  The next argument is
 * on its way, with its division, while a result is made: a tenth less time. */
#define WIDE_LOOP(FUNCTION, USES, PREPARED, FIRST, SECOND_RESULT)                                            \
    static void FUNCTION(const iglu_span *span, int64_t n)                                                   \
    {                                                                                                        \
        const float *xs = (void *)span->data[IGLU_X], *ups = (void *)span->data[IGLU_UP];                    \
        const float *grads = (void *)span->data[IGLU_GRAD], *by_xs = (void *)span->data[IGLU_BY_X];          \
        float *first = (void *)span->data[IGLU_FIRST], *second = (void *)span->data[IGLU_SECOND];            \
        const scale_wide k = scale_wide_of(span);                                                            \
        PREPARED                                                                                             \
        const int is_downwards = is_before_in_page(xs, first) || is_before_in_page(grads, first);            \
        const int64_t whole = n / 16 * 16, step = is_downwards ? -16 : 16;                                   \
        int64_t i = is_downwards && whole ? whole - 16 : 0;                                                  \
        const __mmask16 rest = (__mmask16)((1u << (n - whole)) - 1);                                         \
        argument_wide u = argument_wide_of(whole ? LOAD(xs) : LOAD_REST(xs), k), next;                       \
        for (int64_t left = whole; left > 0; left -= 16, i += step, u = next) {                              \
            next = argument_wide_of(_mm512_loadu_ps(xs + (left > 16 ? i + step : i)), k);                    \
            WIDE_STEP(LOAD, STORE, USES, FIRST, SECOND_RESULT)                                               \
        }                                                                                                    \
        if (rest) {                                                                                          \
            i = whole;                                                                                       \
            u = argument_wide_of(LOAD_REST(xs), k);                                                          \
            WIDE_STEP(LOAD_REST, STORE_REST, USES, FIRST, SECOND_RESULT)                                     \
        }                                                                                                    \
    }

#define VALUES                                                                                               \
    pieces values = pieces_of(NEAR_VALUE, FAR_VALUE);                                                        \
    values.far_low = _mm512_fmadd_ps(values.far[0], k.floor_error, values.far_low);
#define SLOPES const pieces slopes = pieces_of(NEAR_SLOPE, FAR_SLOPE);
#define TIMES(a, b) _mm512_mul_ps(a, b)

WIDE_LOOP(rational_of_float_sigma, 0, , rational_value_wide(u.x, k, 0), u.x)
WIDE_LOOP(rational_of_double_sigma, 0, , rational_value_wide(u.x, k, 1), u.x)
WIDE_LOOP(value_wide, 0, VALUES, exact_value_wide(u, k, values), u.x)
WIDE_LOOP(glu_wide, UP, VALUES, TIMES(exact_value_wide(u, k, values), up), u.x)
WIDE_LOOP(value_backward_wide, GRAD, SLOPES, TIMES(grad, exact_slope_wide(u, k, slopes)), u.x)
WIDE_LOOP(glu_backward_wide, UP | GRAD | SECOND, VALUES SLOPES,
          TIMES(TIMES(grad, up), exact_slope_wide(u, k, slopes)), TIMES(grad, exact_value_wide(u, k, values)))
WIDE_LOOP(value_twice_wide, GRAD | BY_X | SECOND, SLOPES, TIMES(by_x, exact_slope_wide(u, k, slopes)),
          TIMES(TIMES(grad, by_x), exact_curvature_wide(u, k)))

static void rational_wide(const iglu_span *span, int64_t n)
{
    const scale_f32 k = scale_at_f32(constants_of_f32(span), 0);
    if (k.sigma >= 0x1p126f) /* whose double may overflow */
        value_rational_f32_00(span, n);
    else if (k.sigma_low == 0)
        rational_of_float_sigma(span, n);
    else
        rational_of_double_sigma(span, n);
}

/* The gradient of x is the same to the last bit whether that of sigma is asked for or not. */
static void value_backward_with_parts_wide(const iglu_span *span, int64_t n)
{
    const float *x = (void *)span->data[IGLU_X], *grad = (void *)span->data[IGLU_GRAD];
    float *parts = span->parts;
    const scale_f32 k = scale_at_f32(constants_of_f32(span), 0);
    INDEPENDENT for (int64_t i = 0; i < n; i++) parts[i] = grad[i] * exact_by_sigma_f32(x[i], k);
    value_backward_wide(span, n);
}

#define value_rational_f32_00 rational_wide
#define value_exact_f32_00 value_wide
#define glu_exact_f32_00 glu_wide
#define value_backward_exact_f32_00 value_backward_wide
#define value_backward_exact_f32_10 value_backward_with_parts_wide
#define glu_backward_exact_f32_00 glu_backward_wide
#define value_twice_exact_f32_00 value_twice_wide
