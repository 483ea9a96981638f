/* Loops over float by AVX-512 instructions that compilers do not choose.  loops.c includes this file where AVX512 is 1;
 * AVX512_ENTRIES replaces its loops by these.  The same equations and names as in formulas.h, for sixteen elements at
 * once and one sigma > 0:
 *
 *   rational value         the quotient by an estimate of the reciprocal and one correction, instead of a division
 *   exact value and df/dx  a polynomial of degree 4 per sixteenth of 0 <= m <= 1, its coefficients looked up in
 *                          registers, instead of one for the complete range (degree 8; degrees 10 and 12)
 *   exact d2f/dx2          without 1/|u|, since u^2 fits into a float wherever the result does
 *
 * Minima and maxima have their arguments in the order that propagates NaN and keeps -0. */

#include "tables.h"

#define VECTOR_FIELD(name) __m512 name;
#define VECTOR_CONSTANT(name) .name = _mm512_set1_ps(*(const float *)span->constants[IGLU_##name]),

typedef struct {
    IGLU_EACH_CONSTANT(VECTOR_FIELD)
} constants_avx512;

IGLU_INLINE constants_avx512 constants_avx512_of(const iglu_span *span)
{
    return (constants_avx512){IGLU_EACH_CONSTANT(VECTOR_CONSTANT)};
}

IGLU_INLINE __m512 positive_part_avx512(__m512 x) { return _mm512_max_ps(_mm512_setzero_ps(), x); }

/* -- rational ------------------------------------------------------------------------------------------ */

/* The relative error of q = x r is 2^-14, that of q + (x - d q) r is 2^-28 plus a rounding. */
IGLU_INLINE __m512 quotient_avx512(__m512 x, __m512 d)
{
    __m512 r = _mm512_rcp14_ps(d), q = _mm512_mul_ps(x, r);
    return _mm512_fmadd_ps(_mm512_fnmadd_ps(d, q, x), r, q);
}

/* |x| is clipped at a = 2^100, so that the estimate is neither 0 nor subnormal; the tail is 1/(2 sigma) by then.  (The
 * clipping loses a NaN, positive_part keeps it.)  The divisor is doubled, which is free, instead of halving
 * the quotient.  has_low: sigma is not a float, which costs one more operation. */
IGLU_INLINE __m512 rational_value_avx512(__m512 x, constants_avx512 k, int has_low)
{
    const __m512 two = _mm512_set1_ps(2), two_sigma = _mm512_add_ps(k.sigma, k.sigma);
    const __m512 two_sigma_low = _mm512_add_ps(k.sigma_low, k.sigma_low);
    const __m512 limit = _mm512_min_ps(k.largest_x, _mm512_div_ps(_mm512_set1_ps(0x1p100f), k.sigma));
    __m512 abs_x = _mm512_range_ps(limit, x, 10); /* the smaller absolute value */
    __m512 d = _mm512_fmadd_ps(two_sigma, abs_x, has_low ? _mm512_fmadd_ps(two_sigma_low, abs_x, two) : two);
    return _mm512_sub_ps(positive_part_avx512(x), quotient_avx512(abs_x, d));
}

/* -- exact --------------------------------------------------------------------------------------------- */

/* The coefficients of a near and a far function by order and piece, and the low parts of the first ones. */
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

/* As in formulas.h, without a_low and t_error. */
typedef struct {
    __m512 x, abs_x, a, t;
} argument_avx512;

IGLU_INLINE argument_avx512 argument_avx512_of(__m512 x, constants_avx512 k)
{
    __m512 abs_x = _mm512_min_ps(k.largest_x, _mm512_abs_ps(x)), a = _mm512_mul_ps(k.sigma, abs_x);
    argument_avx512 u = {x, abs_x, a, _mm512_div_ps(_mm512_set1_ps(1), a)};
    return u;
}

IGLU_INLINE __m512 a_low_avx512(argument_avx512 u, constants_avx512 k)
{
    return _mm512_fmadd_ps(k.sigma_low, u.abs_x, _mm512_fmsub_ps(k.sigma, u.abs_x, u.a));
}

/* m = min(a, t), the index of its piece (plus 16 where a >= 1), and its distance from the middle of that piece. */
typedef struct {
    __m512 m, distance;
    __m512i piece;
    __mmask16 is_far;
} place;

IGLU_INLINE place place_of(argument_avx512 u)
{
    /* Added to 15 m, these leave the index in the last bits. */
    const __m512 near = _mm512_set1_ps(0x1.8p23f), far = _mm512_set1_ps(0x1.8p23f + 16);
    const __m512 count = _mm512_set1_ps(15);
    place p = {.m = _mm512_min_ps(u.t, u.a), .is_far = _mm512_cmp_ps_mask(u.a, _mm512_set1_ps(1), _CMP_NLT_UQ)};
    __m512 offset = _mm512_mask_mov_ps(near, p.is_far, far), sum = _mm512_fmadd_ps(count, p.m, offset);
    p.piece = _mm512_castps_si512(sum);
    p.distance = _mm512_fmsub_ps(count, p.m, _mm512_sub_ps(sum, offset));
    return p;
}

#define COEFFICIENT(order) _mm512_permutex2var_ps(of.near[order], at.piece, of.far[order])

/* (polynomial - first coefficient)/distance */
IGLU_INLINE __m512 higher_terms(pieces of, place at)
{
    __m512 p = COEFFICIENT(4);
    p = _mm512_fmadd_ps(p, at.distance, COEFFICIENT(3));
    p = _mm512_fmadd_ps(p, at.distance, COEFFICIENT(2));
    return _mm512_fmadd_ps(p, at.distance, COEFFICIENT(1));
}

/* |x| tail: near |x| (1/2 - arctan(a)/pi), far (arctan(t)/t)/(pi sigma). */
IGLU_INLINE __m512 exact_value_avx512(argument_avx512 u, constants_avx512 k, pieces of)
{
    place at = place_of(u);
    __m512 low = _mm512_permutex2var_ps(of.near_low, at.piece, of.far_low);
    __m512 p = _mm512_add_ps(_mm512_fmadd_ps(higher_terms(of, at), at.distance, low), COEFFICIENT(0));
    __m512 factor = _mm512_mask_mov_ps(u.abs_x, at.is_far, k.floor);
    return _mm512_fnmadd_ps(factor, p, positive_part_avx512(u.x));
}

/* As in formulas.h; the far tail is t^3 p. */
IGLU_INLINE __m512 exact_df_dx_avx512(argument_avx512 u, constants_avx512 k, pieces of)
{
    const __m512 one = _mm512_set1_ps(1);
    __m512 a_low = a_low_avx512(u, k), t_error = _mm512_fnmadd_ps(a_low, u.t, _mm512_fnmadd_ps(u.a, u.t, one));
    place at = place_of(u);
    __m512 m_low = _mm512_mask_mul_ps(a_low, at.is_far, u.t, t_error);
    at.distance = _mm512_fmadd_ps(_mm512_set1_ps(15), m_low, at.distance);
    __m512 p = _mm512_fmadd_ps(higher_terms(of, at), at.distance, COEFFICIENT(0));
    __m512 far = _mm512_mul_ps(u.t, _mm512_mul_ps(_mm512_mul_ps(u.t, u.t), p));
    __m512 far_error = _mm512_add_ps(t_error, _mm512_add_ps(t_error, t_error));
    __m512 tail = _mm512_mask_mov_ps(p, at.is_far, _mm512_fmadd_ps(far, far_error, far));
    return _mm512_mask_sub_ps(tail, _mm512_cmp_ps_mask(u.x, _mm512_setzero_ps(), _CMP_NLT_UQ), one, tail);
}

/* 2 sigma/(pi d^2) with d = 1 + u^2, 1/d = r (1 + error).  |u| is clipped where d^2 has long overflowed. */
IGLU_INLINE __m512 exact_d2f_dx2_avx512(argument_avx512 u, constants_avx512 k)
{
    const __m512 one = _mm512_set1_ps(1), two_sigma_over_pi = _mm512_add_ps(k.sigma_over_pi, k.sigma_over_pi);
    __m512 a = _mm512_min_ps(_mm512_set1_ps(0x1p63f), u.a), a_low = a_low_avx512(u, k);
    __m512 d = _mm512_fmadd_ps(a, a, one), r = _mm512_div_ps(one, d);
    __m512 d_low = _mm512_fmadd_ps(_mm512_add_ps(a, a), a_low, _mm512_fmadd_ps(a, a, _mm512_sub_ps(one, d)));
    __m512 error = _mm512_fnmadd_ps(d_low, r, _mm512_fnmadd_ps(d, r, one));
    error = _mm512_add_ps(_mm512_add_ps(error, error), _mm512_div_ps(k.sigma_over_pi_low, k.sigma_over_pi));
    __m512 result = _mm512_mul_ps(_mm512_mul_ps(two_sigma_over_pi, r), r);
    return _mm512_fmadd_ps(result, error, result);
}

/* -- the loops ----------------------------------------------------------------------------------------- */

/* Whether an upward loop would load from an address that shares its low 12 bits with a recent store, for which the
 * processor waits (4K aliasing).  A downward loop does not. */
IGLU_INLINE int is_before_in_page(const void *from, const void *to)
{
    return from && ((uintptr_t)to - (uintptr_t)from - 1) % 4096 < 1024;
}

#define LOAD(from) _mm512_loadu_ps(from + i)
#define STORE(to, result) _mm512_storeu_ps(to + i, result)
#define LOAD_REST(from) _mm512_maskz_loadu_ps(rest, from + i)
#define STORE_REST(to, result) _mm512_mask_storeu_ps(to + i, rest, result)
#define AVX512_STEP(LOAD, STORE, USES, FIRST, SECOND_RESULT)                                                           \
    const __m512 up = (USES)&UP ? LOAD(ups) : u.x, grad = (USES)&GRAD ? LOAD(grads) : u.x;                             \
    const __m512 gg_x = (USES)&GG_X ? LOAD(gg_xs) : u.x;                                                               \
    (void)up, (void)grad, (void)gg_x;                                                                                  \
    STORE(first, FIRST);                                                                                               \
    if ((USES)&SECOND)                                                                                                 \
        STORE(second, SECOND_RESULT);

/* FIRST and SECOND_RESULT are expressions of u, up, grad and gg_x; USES as in loops.c.  The next argument, with its
 * division, is prepared while a result is computed, which saves a tenth of the time. */
#define AVX512_LOOP(FUNCTION, USES, PREPARED, FIRST, SECOND_RESULT)                                                    \
    static void FUNCTION(const iglu_span *span, int64_t n)                                                             \
    {                                                                                                                  \
        const float *xs = (void *)span->data[IGLU_X], *ups = (void *)span->data[IGLU_UP];                              \
        const float *grads = (void *)span->data[IGLU_GRAD], *gg_xs = (void *)span->data[IGLU_GG_X];                    \
        float *first = (void *)span->data[IGLU_FIRST], *second = (void *)span->data[IGLU_SECOND];                      \
        const constants_avx512 k = constants_avx512_of(span);                                                          \
        PREPARED                                                                                                       \
        const int is_downwards = is_before_in_page(xs, first) || is_before_in_page(grads, first);                      \
        const int64_t whole = n / 16 * 16, step = is_downwards ? -16 : 16;                                             \
        int64_t i = is_downwards && whole ? whole - 16 : 0;                                                            \
        const __mmask16 rest = (__mmask16)((1u << (n - whole)) - 1);                                                   \
        argument_avx512 u = argument_avx512_of(whole ? LOAD(xs) : LOAD_REST(xs), k), next;                             \
        for (int64_t left = whole; left > 0; left -= 16, i += step, u = next) {                                        \
            next = argument_avx512_of(_mm512_loadu_ps(xs + (left > 16 ? i + step : i)), k);                            \
            AVX512_STEP(LOAD, STORE, USES, FIRST, SECOND_RESULT)                                                       \
        }                                                                                                              \
        if (rest) {                                                                                                    \
            i = whole;                                                                                                 \
            u = argument_avx512_of(LOAD_REST(xs), k);                                                                  \
            AVX512_STEP(LOAD_REST, STORE_REST, USES, FIRST, SECOND_RESULT)                                             \
        }                                                                                                              \
    }

#define VALUE_PIECES                                                                                                   \
    pieces value_pieces = pieces_of(NEAR_VALUE, FAR_VALUE);                                                            \
    value_pieces.far_low = _mm512_fmadd_ps(value_pieces.far[0], k.floor_error, value_pieces.far_low);
#define DF_DX_PIECES const pieces df_dx_pieces = pieces_of(NEAR_DF_DX, FAR_DF_DX);
#define TIMES(a, b) _mm512_mul_ps(a, b)

#define F exact_value_avx512(u, k, value_pieces)
#define DF_DX exact_df_dx_avx512(u, k, df_dx_pieces)

AVX512_LOOP(rational_of_float_sigma, 0, , rational_value_avx512(u.x, k, 0), u.x)
AVX512_LOOP(rational_of_double_sigma, 0, , rational_value_avx512(u.x, k, 1), u.x)
AVX512_LOOP(value_avx512, 0, VALUE_PIECES, F, u.x)
AVX512_LOOP(glu_avx512, UP, VALUE_PIECES, TIMES(F, up), u.x)
AVX512_LOOP(value_backward_avx512, GRAD, DF_DX_PIECES, TIMES(grad, DF_DX), u.x)
AVX512_LOOP(glu_backward_avx512, UP | GRAD | SECOND, VALUE_PIECES DF_DX_PIECES, TIMES(TIMES(grad, up), DF_DX),
            TIMES(grad, F))
AVX512_LOOP(value_double_backward_avx512, GRAD | GG_X | SECOND, DF_DX_PIECES, TIMES(gg_x, DF_DX),
            TIMES(TIMES(grad, gg_x), exact_d2f_dx2_avx512(u, k)))

static void rational_avx512(const iglu_span *span, int64_t n)
{
    const constants_f32 k = constants_at_f32(constant_arrays_of_f32(span), 0);
    if (k.sigma >= 0x1p126f) /* 2 sigma may overflow */
        value_rational_f32_00(span, n);
    else if (k.sigma_low == 0)
        rational_of_float_sigma(span, n);
    else
        rational_of_double_sigma(span, n);
}

/* grad_x by the same loop, so that its bits do not depend on whether the gradient of sigma is wanted. */
static void value_backward_sigma_grad_avx512(const iglu_span *span, int64_t n)
{
    const float *x = (void *)span->data[IGLU_X], *grad = (void *)span->data[IGLU_GRAD];
    float *sigma_grads = span->sigma_grads;
    const constants_f32 k = constants_at_f32(constant_arrays_of_f32(span), 0);
    INDEPENDENT for (int64_t i = 0; i < n; i++) sigma_grads[i] = grad[i] * exact_df_dsigma_f32(x[i], k);
    value_backward_avx512(span, n);
}

/* Indices as in loops.h. */
#define AVX512_ENTRIES                                                                                                 \
    .loop[IGLU_F32][IGLU_RATIONAL][IGLU_VALUE][0][0] = rational_avx512,                                                \
    .loop[IGLU_F32][IGLU_EXACT][IGLU_VALUE][0][0] = value_avx512,                                                      \
    .loop[IGLU_F32][IGLU_EXACT][IGLU_GLU][0][0] = glu_avx512,                                                          \
    .loop[IGLU_F32][IGLU_EXACT][IGLU_VALUE_BACKWARD][0][0] = value_backward_avx512,                                    \
    .loop[IGLU_F32][IGLU_EXACT][IGLU_VALUE_BACKWARD][1][0] = value_backward_sigma_grad_avx512,                         \
    .loop[IGLU_F32][IGLU_EXACT][IGLU_GLU_BACKWARD][0][0] = glu_backward_avx512,                                        \
    .loop[IGLU_F32][IGLU_EXACT][IGLU_VALUE_DOUBLE_BACKWARD][0][0] = value_double_backward_avx512,
