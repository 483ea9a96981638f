/* Loops over float by AVX-512 instructions that compilers do not choose.  loops.c includes this file where AVX512 is 1
 * and calls run_avx512.  The same equations and names as in formulas.h, for sixteen elements at once and one sigma > 0:
 *
 *   rational value         the quotient by an estimate of the reciprocal and one correction, instead of a division
 *   exact value and df/dx  a polynomial of degree 4 per sixteenth of 0 <= m <= 1, its coefficients looked up in
 *                          registers, instead of one for the complete range (degree 8; degrees 10 and 12)
 *   exact d2f/dx2          without 1/|u|, since u^2 fits into a float wherever the result does
 *
 * Minima and maxima have their arguments in the order that propagates NaN and keeps -0. */

#include "tables.h"

typedef __m512 vector; /* gcc and clang define + - * / for it */

#define VECTOR_FIELD(name) vector name;
#define VECTOR_CONSTANT(name) .name = all(*(const float *)span->constants[IGLU_##name]),

typedef struct {
    IGLU_EACH_CONSTANT(VECTOR_FIELD)
} constants_avx512;

IGLU_INLINE vector all(float value) { return _mm512_set1_ps(value); }
/* a b + c, a b - c and c - a b, rounded once */
IGLU_INLINE vector fma_avx512(vector a, vector b, vector c) { return _mm512_fmadd_ps(a, b, c); }
IGLU_INLINE vector fms_avx512(vector a, vector b, vector c) { return _mm512_fmsub_ps(a, b, c); }
IGLU_INLINE vector fnma_avx512(vector a, vector b, vector c) { return _mm512_fnmadd_ps(a, b, c); }
IGLU_INLINE vector smaller_avx512(vector a, vector b) { return _mm512_min_ps(a, b); }
IGLU_INLINE vector positive_part_avx512(vector x) { return _mm512_max_ps(all(0), x); }
/* no where the mask is 0, yes where it is 1 */
IGLU_INLINE vector choose(__mmask16 mask, vector no, vector yes) { return _mm512_mask_mov_ps(no, mask, yes); }
/* Also true where either is NaN. */
IGLU_INLINE __mmask16 is_not_less(vector a, vector b) { return _mm512_cmp_ps_mask(a, b, _CMP_NLT_UQ); }

IGLU_INLINE constants_avx512 constants_avx512_of(const iglu_span *span)
{
    return (constants_avx512){IGLU_EACH_CONSTANT(VECTOR_CONSTANT)};
}

/* -- rational ------------------------------------------------------------------------------------------ */

/* |x| is clipped at a = 2^100, so that the estimate r of 1/d is neither 0 nor subnormal; the tail is 1/(2 sigma) by then.
 * (The clipping loses a NaN, positive_part keeps it.)  The divisor d is doubled, which is free, instead of halving the
 * quotient q.  The relative error of q = |x| r is 2^-14, that of q + (|x| - d q) r is 2^-28 plus a rounding.  has_low:
 * sigma is not a float, which costs one more operation. */
IGLU_INLINE vector rational_value_avx512(vector x, constants_avx512 k, int has_low)
{
    const vector limit = smaller_avx512(k.largest_x, all(0x1p100f) / k.sigma);
    vector abs_x = _mm512_range_ps(limit, x, 10); /* the smaller absolute value */
    vector d = fma_avx512(k.sigma + k.sigma, abs_x,
                          has_low ? fma_avx512(k.sigma_low + k.sigma_low, abs_x, all(2)) : all(2));
    vector r = _mm512_rcp14_ps(d), q = abs_x * r;
    return positive_part_avx512(x) - fma_avx512(fnma_avx512(d, q, abs_x), r, q);
}

/* -- exact --------------------------------------------------------------------------------------------- */

/* The coefficients of a near and a far function by order and piece, and the low parts of the first ones. */
typedef struct {
    vector near[6], far[6];
} pieces;

IGLU_INLINE pieces pieces_of(const float near[6][16], const float far[6][16])
{
    pieces p;
    for (int row = 0; row < 6; row++) {
        p.near[row] = _mm512_loadu_ps(near[row]);
        p.far[row] = _mm512_loadu_ps(far[row]);
    }
    return p;
}

/* As in formulas.h, without a_low and t_error. */
typedef struct {
    vector x, abs_x, a, t;
} argument_avx512;

IGLU_INLINE argument_avx512 argument_avx512_of(vector x, constants_avx512 k)
{
    vector abs_x = smaller_avx512(k.largest_x, _mm512_abs_ps(x)), a = k.sigma * abs_x;
    return (argument_avx512){x, abs_x, a, all(1) / a};
}

IGLU_INLINE vector a_low_avx512(argument_avx512 u, constants_avx512 k)
{
    return fma_avx512(k.sigma_low, u.abs_x, fms_avx512(k.sigma, u.abs_x, u.a));
}

/* For m = min(a, t): the distance from the middle of its piece, and the index of that piece (plus 16 if a >= 1). */
typedef struct {
    vector distance;
    __m512i piece;
    __mmask16 is_far;
} place;

IGLU_INLINE place place_of(argument_avx512 u)
{
    __mmask16 is_far = is_not_less(u.a, all(1));
    /* Added to 15 m, this leaves the index in the last bits. */
    vector offset = choose(is_far, all(0x1.8p23f), all(0x1.8p23f + 16));
    vector m = smaller_avx512(u.t, u.a), sum = fma_avx512(all(15), m, offset);
    return (place){fms_avx512(all(15), m, sum - offset), _mm512_castps_si512(sum), is_far};
}

#define COEFFICIENT(row) _mm512_permutex2var_ps(of.near[row], at.piece, of.far[row])

/* (polynomial - first coefficient)/distance */
IGLU_INLINE vector higher_terms(pieces of, place at)
{
    vector p = COEFFICIENT(4);
    for (int order = 3; order > 0; order--)
        p = fma_avx512(p, at.distance, COEFFICIENT(order));
    return p;
}

/* |x| tail: near |x| (1/2 - arctan(a)/pi), far (arctan(t)/t)/(pi sigma). */
IGLU_INLINE vector exact_value_avx512(argument_avx512 u, constants_avx512 k, pieces of)
{
    place at = place_of(u);
    vector p = fma_avx512(higher_terms(of, at), at.distance, COEFFICIENT(5)) + COEFFICIENT(0);
    return fnma_avx512(choose(at.is_far, u.abs_x, k.floor), p, positive_part_avx512(u.x));
}

/* As in formulas.h; the far tail is t^3 p. */
IGLU_INLINE vector exact_df_dx_avx512(argument_avx512 u, constants_avx512 k, pieces of)
{
    vector a_low = a_low_avx512(u, k), t_error = fnma_avx512(a_low, u.t, fnma_avx512(u.a, u.t, all(1)));
    place at = place_of(u);
    at.distance = fma_avx512(all(15), choose(at.is_far, a_low, u.t * t_error), at.distance);
    vector p = fma_avx512(higher_terms(of, at), at.distance, COEFFICIENT(0));
    vector far = u.t * (u.t * u.t * p);
    vector tail = choose(at.is_far, p, fma_avx512(far, t_error + (t_error + t_error), far));
    return choose(is_not_less(u.x, all(0)), tail, all(1) - tail);
}

/* 2 sigma/(pi d^2) with d = 1 + u^2, 1/d = r (1 + error).  |u| is clipped where d^2 has long overflowed. */
IGLU_INLINE vector exact_d2f_dx2_avx512(argument_avx512 u, constants_avx512 k)
{
    vector a = smaller_avx512(all(0x1p63f), u.a), d = fma_avx512(a, a, all(1)), r = all(1) / d;
    vector d_low = fma_avx512(a + a, a_low_avx512(u, k), fma_avx512(a, a, all(1) - d));
    vector error = fnma_avx512(d_low, r, fnma_avx512(d, r, all(1)));
    vector result = (k.sigma_over_pi + k.sigma_over_pi) * r * r;
    return fma_avx512(result, (error + error) + k.sigma_over_pi_low / k.sigma_over_pi, result);
}

/* -- the loops ----------------------------------------------------------------------------------------- */

/* Whether an upward loop would load from an address that shares its low 12 bits with a recent store, for which the
 * processor waits (4K aliasing).  A downward loop does not. */
IGLU_INLINE int is_before_in_page(const void *from, const void *to)
{
    return from && ((uintptr_t)to - (uintptr_t)from - 1) % 4096 < 1024;
}

typedef struct {
    vector first, second;
} output_avx512;

/* has_low: see rational_value_avx512.  up is 1 if the operation has none. */
IGLU_INLINE output_avx512 compute_avx512(int operation, int family, int has_low, argument_avx512 u, vector up,
                                         vector grad, vector gg_x, constants_avx512 k, pieces value, pieces df_dx)
{
    if (family == IGLU_RATIONAL)
        return (output_avx512){.first = rational_value_avx512(u.x, k, has_low)};
    switch (operation) {
    case IGLU_VALUE:
    case IGLU_GLU:
        return (output_avx512){.first = exact_value_avx512(u, k, value) * up};
    case IGLU_VALUE_BACKWARD:
    case IGLU_GLU_BACKWARD:
        return (output_avx512){grad * up * exact_df_dx_avx512(u, k, df_dx), grad * exact_value_avx512(u, k, value)};
    default: /* IGLU_VALUE_DOUBLE_BACKWARD */
        return (output_avx512){gg_x * exact_df_dx_avx512(u, k, df_dx), grad * gg_x * exact_d2f_dx2_avx512(u, k)};
    }
}

/* Elements i to i + 15; the mask says which of them exist. */
#define LOAD(from) _mm512_maskz_loadu_ps(mask, from + i)
#define STEP(MASK)                                                                                                     \
    {                                                                                                                  \
        const __mmask16 mask = MASK;                                                                                   \
        const output_avx512 out =                                                                                      \
            compute_avx512(operation, family, has_low, u, uses &UP ? LOAD(up) : all(1), uses &GRAD ? LOAD(grad) : u.x,    \
                           uses &GG_X ? LOAD(gg_x) : u.x, k, value, df_dx);                                            \
        _mm512_mask_storeu_ps(first + i, mask, out.first);                                                             \
        if (uses & SECOND)                                                                                             \
            _mm512_mask_storeu_ps(second + i, mask, out.second);                                                       \
    }

/* The next argument, with its division, is prepared while a result is computed, which saves 10% of the time. */
IGLU_INLINE void loop_avx512(const iglu_span *span, int64_t n, int operation, int family, int has_low)
{
    OPERANDS(float)
    (void)gg_up, (void)third;
    const constants_avx512 k = constants_avx512_of(span);
    const pieces df_dx = pieces_of(NEAR_DF_DX, FAR_DF_DX);
    pieces value = pieces_of(NEAR_VALUE, FAR_VALUE);
    value.far[5] = fma_avx512(value.far[0], k.floor_error, value.far[5]);
    const int is_downwards = is_before_in_page(x, first) || is_before_in_page(grad, first);
    const int64_t whole = n / 16 * 16, step = is_downwards ? -16 : 16;
    const __mmask16 rest = (__mmask16)((1u << (n - whole)) - 1);
    int64_t i = is_downwards && whole ? whole - 16 : 0;
    argument_avx512 u = argument_avx512_of(_mm512_maskz_loadu_ps(whole ? 0xffff : rest, x + i), k), next;
    for (int64_t left = whole; left > 0; left -= 16, i += step, u = next) {
        next = argument_avx512_of(_mm512_loadu_ps(x + (left > 16 ? i + step : i)), k);
        STEP(0xffff)
    }
    if (rest) {
        i = whole;
        u = argument_avx512_of(_mm512_maskz_loadu_ps(rest, x + i), k);
        STEP(rest)
    }
}

#define CASE(operation)                                                                                                \
    case operation:                                                                                                    \
        loop_avx512(span, n, operation, IGLU_EXACT, 0);                                                                \
        return 1;

/* Returns 0 if this file has no loop for the span. */
static int run_avx512(const iglu_span *span, int64_t n)
{
    const constants_f32 k = constants_at_f32(constant_arrays_of_f32(span), 0);
    if (span->signed_sigma || (span->sigma_grads && span->operation != IGLU_VALUE_BACKWARD))
        return 0;
    if (span->family == IGLU_RATIONAL) {
        if (span->operation != IGLU_VALUE || k.sigma >= 0x1p126f) /* 2 sigma may overflow */
            return 0;
        if (k.sigma_low == 0)
            loop_avx512(span, n, IGLU_VALUE, IGLU_RATIONAL, 0);
        else
            loop_avx512(span, n, IGLU_VALUE, IGLU_RATIONAL, 1);
        return 1;
    }
    if (span->sigma_grads) { /* grad_x comes from the loop below, so that its bits do not depend on sigma_grads */
        const float *x = (void *)span->data[IGLU_X], *grad = (void *)span->data[IGLU_GRAD];
        float *sigma_grads = span->sigma_grads;
        INDEPENDENT for (int64_t i = 0; i < n; i++) sigma_grads[i] = grad[i] * exact_df_dsigma_f32(x[i], k);
    }
    switch (span->operation) {
        CASE(IGLU_VALUE)
        CASE(IGLU_GLU)
        CASE(IGLU_VALUE_BACKWARD)
        CASE(IGLU_GLU_BACKWARD)
        CASE(IGLU_VALUE_DOUBLE_BACKWARD)
    default:
        return 0;
    }
}
