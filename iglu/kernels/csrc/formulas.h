/* iglu/formulas.py for one element, in one precision: the same equations, arranged for speed and an error of a few
 * units in the last place.  loops.c includes this file for float, for double and for the 16-bit types (HALF), which
 * compute in float with shorter polynomials, each once per instruction set.
 *
 * Define before inclusion: REAL, the type; NAME(x), x with the suffix of the precision; HALF, 1 for the 16-bit types.
 *
 * Every function takes x and the constants k of a sigma > 0.  Notation as in formulas.py: u = sigma x, a = |u|,
 * t = 1/a, m = min(a, t), z = m^2.  "near" is the formula for a < 1, "far" the one for a >= 1.  The activation is
 * max(x, 0) - |x| tail, which is also correct for -0, NaN and infinities.  |x| is clipped where sigma |x| would
 * overflow; every tail has reached its limit long before.  Comparisons are written so that a NaN propagates.
 *
 * Where a rounded intermediate result would cost accuracy, its rounding error is computed too: a "low" part is to be
 * added, an "error" is relative. */

#define FIELD(name) REAL name;
typedef struct {
    IGLU_EACH_CONSTANT(FIELD)
} NAME(constants);

#define CONSTANTS NAME(constants)
/* pi = PI (1 + PI_ERROR), and likewise for its inverse. */
#define BY_PRECISION(single, other) ((REAL)(sizeof(REAL) == sizeof(float) ? (single) : (other)))
#define LARGEST BY_PRECISION(0x1.fffffep127, 0x1.fffffffffffffp1023)
#define PI ((REAL)3.141592653589793)
#define PI_ERROR BY_PRECISION(-2.7827534378484539e-8, 3.8981718325193755e-17)
#define INVERSE_PI ((REAL)0.31830988618379067)
#define INVERSE_PI_ERROR BY_PRECISION(4.034206196184844e-8, -6.182238607512212e-17)

IGLU_INLINE REAL NAME(smaller)(REAL a, REAL b) { return a < b ? a : b; }

IGLU_INLINE REAL NAME(clipped_abs)(REAL x, CONSTANTS k) { return NAME(smaller)(k.largest_x, ABS(x)); }

/* -0 stays -0. */
IGLU_INLINE REAL NAME(positive_part)(REAL x) { return x < 0 ? 0 : x; }

/* F(x) of a symmetric distribution, given its tail F(-|x|). */
IGLU_INLINE REAL NAME(from_tail)(REAL x, REAL tail) { return x < 0 ? tail : 1 - tail; }

/* value (1 + error); value must be finite.  In HALF these errors are far below the rounding of the result. */
IGLU_INLINE REAL NAME(corrected)(REAL value, REAL error) { return HALF ? value : MADD(value, error, value); }

/* -- exact ------------------------------------------------------------------------------------------- */

/* |u| = a + a_low, 1/|u| = t (1 + t_error). */
typedef struct {
    REAL abs_x, a, a_low, t, t_error;
} NAME(argument);

IGLU_INLINE NAME(argument) NAME(argument_of)(REAL x, CONSTANTS k)
{
    REAL abs_x = NAME(clipped_abs)(x, k), a = k.sigma * abs_x, t = 1 / a;
    REAL a_low = HALF ? 0 : MADD(k.sigma_low, abs_x, FUSED(k.sigma, abs_x, -a));
    return (NAME(argument)){abs_x, a, a_low, t, HALF ? 0 : MADD(-a_low, t, -FUSED(a, t, -1))};
}

/* arctan(a)/pi for a < 1, given excess(z); the linear term, which dominates, in double the precision. */
IGLU_INLINE REAL NAME(near_angle)(REAL abs_x, REAL z, REAL excess, CONSTANTS k)
{
    REAL linear = k.sigma_over_pi * abs_x;
    REAL rest = MADD(k.sigma_over_pi_low, abs_x, FUSED(k.sigma_over_pi, abs_x, -linear));
    return linear + MADD(linear * z, excess, rest);
}

/* The tail of a gate: 0 at the infinities, where the clipped |x| would give a tiny positive number. */
IGLU_INLINE REAL NAME(gate_tail)(REAL x, CONSTANTS k, REAL tail)
{
    return ABS(x) > LARGEST && k.sigma > 0 ? 0 : tail;
}

IGLU_INLINE REAL NAME(exact_gate)(REAL x, CONSTANTS k)
{
    NAME(argument) u = NAME(argument_of)(x, k);
    REAL m = NAME(smaller)(u.t, u.a), z = m * m, excess = NAME(excess)(z);
    REAL near = (REAL)0.5 - NAME(near_angle)(u.abs_x, z, excess, k);
    REAL linear = m * INVERSE_PI;
    REAL rest = MADD(linear, u.t_error + INVERSE_PI_ERROR, FUSED(m, INVERSE_PI, -linear));
    REAL far = linear + MADD(linear * z, excess, rest);
    return NAME(from_tail)(x, NAME(gate_tail)(x, k, u.a < 1 ? near : far));
}

#if HALF

/* The gate at -a is one rational function of b = pi a for every a up to 2^20, where the gate is 1/b to the last
 * significant digit and b^5 is still far from overflow. */
IGLU_INLINE REAL NAME(exact_value)(REAL x, CONSTANTS k)
{
    REAL abs_x = NAME(smaller)(k.largest_x_half, ABS(x)), b = 4 * (k.quarter_pi_sigma * abs_x);
    return MADD(-abs_x, NAME(tail_numerator)(b) / NAME(tail_denominator)(b), NAME(positive_part)(x));
}

IGLU_INLINE REAL NAME(exact_df_dx)(REAL x, CONSTANTS k)
{
    REAL a = k.sigma * NAME(clipped_abs)(x, k), t = 1 / a, z = t * t;
    REAL near = NAME(near_df_dx)(a - NAME(NEAR_DF_DX_CENTER));
    REAL far = t * (z * NAME(far_df_dx)(z));
    return NAME(from_tail)(x, a < 1 ? near : far);
}

#else

IGLU_INLINE REAL NAME(exact_value)(REAL x, CONSTANTS k)
{
    REAL abs_x = NAME(clipped_abs)(x, k), a = k.sigma * abs_x, m = NAME(smaller)(1 / a, a), z = m * m;
    REAL excess = NAME(excess)(z);
    REAL near = MADD(-abs_x, NAME(near_angle)(abs_x, z, excess, k), (REAL)0.5 * abs_x);
    /* |x| arctan(t)/pi = (arctan(t)/t)/(pi sigma) */
    REAL far = MADD(k.floor, MADD(z, excess, k.floor_error), k.floor);
    return NAME(positive_part)(x) - (a < 1 ? near : far);
}

/* The tail decreases like t^3, which triples every relative error of t. */
IGLU_INLINE REAL NAME(exact_df_dx)(REAL x, CONSTANTS k)
{
    NAME(argument) u = NAME(argument_of)(x, k);
    REAL z = u.t * u.t, z_error = 2 * u.t_error;
    REAL near = NAME(near_df_dx)((u.a - NAME(NEAR_DF_DX_CENTER)) + u.a_low);
    REAL far = u.t * (z * NAME(far_df_dx)(MADD(z, z_error, z - NAME(FAR_DF_DX_CENTER))));
    far = NAME(corrected)(far, z_error + u.t_error);
    return NAME(from_tail)(x, u.a < 1 ? near : far);
}

#endif

/* 1/(1 + z) = result (1 + error) */
IGLU_INLINE REAL NAME(one_over_one_plus_z)(NAME(argument) u, REAL *error)
{
    REAL m = NAME(smaller)(u.t, u.a), d = MADD(m, m, 1), r = 1 / d;
    REAL z_low = 2 * (u.a < 1 ? u.a * u.a_low : m * m * u.t_error);
    *error = HALF ? 0 : MADD(-(FUSED(m, m, 1 - d) + z_low), r, -FUSED(d, r, -1));
    return r;
}

/* df/dsigma = x^2/(pi (1 + u^2)); far: pi/((pi sigma)^2 (1 + t^2)) */
IGLU_INLINE REAL NAME(exact_df_dsigma)(REAL x, CONSTANTS k)
{
    NAME(argument) u = NAME(argument_of)(x, k);
    REAL error, r = NAME(one_over_one_plus_z)(u, &error);
    REAL w = u.a < 1 ? u.abs_x : k.floor;
    error += u.a < 1 ? INVERSE_PI_ERROR : 2 * k.floor_error + PI_ERROR;
    return w * (w * NAME(corrected)(u.a < 1 ? INVERSE_PI * r : PI * r, error));
}

/* dgate/dx = sigma/(pi (1 + u^2)); far: sigma t^2/(pi (1 + t^2)) */
IGLU_INLINE REAL NAME(exact_dgate_dx)(REAL x, CONSTANTS k)
{
    NAME(argument) u = NAME(argument_of)(x, k);
    REAL error, r = NAME(one_over_one_plus_z)(u, &error);
    REAL w = u.a < 1 ? 1 : u.t, density = w * r;
    REAL result = MADD(k.sigma_over_pi_low * w, density, k.sigma_over_pi * w * density);
    return NAME(corrected)(result, u.a < 1 ? error : error + 2 * u.t_error);
}

/* dgate/dsigma = x/(pi (1 + u^2)); far: t/(pi sigma (1 + t^2)) */
IGLU_INLINE REAL NAME(exact_dgate_dsigma)(REAL x, CONSTANTS k)
{
    NAME(argument) u = NAME(argument_of)(x, k);
    REAL error, r = NAME(one_over_one_plus_z)(u, &error);
    REAL result = (u.a < 1 ? u.abs_x * INVERSE_PI : k.floor * u.t) * r;
    error += u.a < 1 ? INVERSE_PI_ERROR : k.floor_error + u.t_error;
    result = NAME(corrected)(result, error);
    return x < 0 ? -result : result;
}

/* 1/(1 + u^2) = result (1 + error); far: t^2/(1 + t^2) */
IGLU_INLINE REAL NAME(one_over_one_plus_square)(REAL x, CONSTANTS k, REAL *error)
{
    NAME(argument) u = NAME(argument_of)(x, k);
    REAL r = NAME(one_over_one_plus_z)(u, error);
    *error += u.a < 1 ? 0 : 2 * u.t_error;
    return u.a < 1 ? r : u.t * u.t * r;
}

/* d2f/dx2 = 2 sigma/(pi (1 + u^2)^2) */
IGLU_INLINE REAL NAME(exact_d2f_dx2)(REAL x, CONSTANTS k)
{
    REAL error, q = NAME(one_over_one_plus_square)(x, k, &error);
    REAL result = MADD(k.sigma_over_pi_low * q, q, k.sigma_over_pi * q * q);
    return NAME(corrected)(2 * result, 2 * error);
}

/* d2f/dxdsigma = 2 x/(pi (1 + u^2)^2) */
IGLU_INLINE REAL NAME(exact_d2f_dxdsigma)(REAL x, CONSTANTS k)
{
    REAL error, q = NAME(one_over_one_plus_square)(x, k, &error);
    REAL result = NAME(corrected)(2 * INVERSE_PI * (NAME(clipped_abs)(x, k) * q) * q, 2 * error + INVERSE_PI_ERROR);
    return x < 0 ? -result : result;
}

/* -- rational ---------------------------------------------------------------------------------------- */

/* 1 + a.  The low part of sigma is added first; it matters where a is large. */
IGLU_INLINE REAL NAME(one_plus)(REAL abs_x, CONSTANTS k)
{
    return MADD(k.sigma, abs_x, HALF ? 1 : MADD(k.sigma_low, abs_x, 1));
}

IGLU_INLINE REAL NAME(rational_value)(REAL x, CONSTANTS k)
{
    REAL abs_x = NAME(clipped_abs)(x, k);
    return MADD((REAL)-0.5, abs_x / NAME(one_plus)(abs_x, k), NAME(positive_part)(x));
}

/* 1/(1 + a) = r (1 + error) */
IGLU_INLINE REAL NAME(one_over_one_plus_a)(REAL abs_x, CONSTANTS k, REAL *error)
{
    REAL d = MADD(k.sigma, abs_x, 1), r = 1 / d;
    REAL d_low = MADD(k.sigma_low, abs_x, FUSED(k.sigma, abs_x, 1 - d));
    *error = HALF ? 0 : MADD(-d_low, r, -FUSED(d, r, -1));
    return r;
}

IGLU_INLINE REAL NAME(rational_gate)(REAL x, CONSTANTS k)
{
    REAL error, r = NAME(one_over_one_plus_a)(NAME(clipped_abs)(x, k), k, &error);
    return NAME(from_tail)(x, NAME(gate_tail)(x, k, NAME(corrected)((REAL)0.5 * r, error)));
}

IGLU_INLINE REAL NAME(rational_df_dx)(REAL x, CONSTANTS k)
{
#if FUSED_MULTIPLY_ADD || HALF
    /* 1 + a is rounded once, which keeps r^2/2 within 4 units in the last place */
    REAL r = 1 / NAME(one_plus)(NAME(clipped_abs)(x, k), k);
    return NAME(from_tail)(x, r * ((REAL)0.5 * r));
#else
    REAL error, r = NAME(one_over_one_plus_a)(NAME(clipped_abs)(x, k), k, &error);
    REAL tail = r * ((REAL)0.5 * r);
    return NAME(from_tail)(x, NAME(corrected)(tail, 2 * error));
#endif
}

/* df/dsigma = x^2 r^2/2, as the square of |x| r, which is at most 1/sigma. */
IGLU_INLINE REAL NAME(rational_df_dsigma)(REAL x, CONSTANTS k)
{
    REAL error, abs_x = NAME(clipped_abs)(x, k), r = NAME(one_over_one_plus_a)(abs_x, k, &error);
    REAL root = abs_x * r;
    root = NAME(corrected)(root, error);
    return root * ((REAL)0.5 * root);
}

/* r = 1/(1 + a) from the output y.  With v = sigma y: r = 1 + 2 v below 0; above, u solves
 * 2 u^2 + (1 - 2 v) u = 2 v.  y is clipped where 1 + u = u in REAL and u^2 is still far from overflow. */
IGLU_INLINE REAL NAME(r_from_output)(REAL y, CONSTANTS k)
{
    REAL v = k.sigma * NAME(smaller)(k.largest_y, y), b = MADD(2, v, -1);
    REAL u = (REAL)0.25 * (b + SQRT(MADD(b, b, 16 * (v < 0 ? 0 : v))));
    return y < 0 ? MADD(2 * k.sigma_low, y, FUSED(2 * k.sigma, y, 1)) : 1 / (1 + u);
}

IGLU_INLINE REAL NAME(rational_df_dx_from_output)(REAL y, CONSTANTS k)
{
    REAL r = NAME(r_from_output)(y, k);
    return NAME(from_tail)(y, r * ((REAL)0.5 * r));
}

/* df/dsigma = (x r)^2/2 with x = y/gate */
IGLU_INLINE REAL NAME(rational_df_dsigma_from_output)(REAL y, CONSTANTS k)
{
    REAL r = NAME(r_from_output)(y, k);
    REAL root = y < 0 ? 2 * y : NAME(smaller)(k.largest_y, y) * r / (1 - (REAL)0.5 * r);
    return root * ((REAL)0.5 * root);
}

IGLU_INLINE REAL NAME(rational_dgate_dx)(REAL x, CONSTANTS k)
{
    REAL error, r = NAME(one_over_one_plus_a)(NAME(clipped_abs)(x, k), k, &error);
    REAL half = (REAL)0.5 * r;
    REAL result = MADD(k.sigma_low * r, half, k.sigma * r * half);
    return NAME(corrected)(result, 2 * error);
}

IGLU_INLINE REAL NAME(rational_dgate_dsigma)(REAL x, CONSTANTS k)
{
    REAL error, abs_x = NAME(clipped_abs)(x, k), r = NAME(one_over_one_plus_a)(abs_x, k, &error);
    REAL result = (abs_x * r) * ((REAL)0.5 * r);
    result = NAME(corrected)(result, 2 * error);
    return x < 0 ? -result : result;
}

/* d2f/dx2 = sigma r^3 */
IGLU_INLINE REAL NAME(rational_d2f_dx2)(REAL x, CONSTANTS k)
{
    REAL error, r = NAME(one_over_one_plus_a)(NAME(clipped_abs)(x, k), k, &error);
    REAL result = MADD(k.sigma_low * r, r * r, k.sigma * r * (r * r));
    return NAME(corrected)(result, 3 * error);
}

/* d2f/dxdsigma = x r^3 */
IGLU_INLINE REAL NAME(rational_d2f_dxdsigma)(REAL x, CONSTANTS k)
{
    REAL error, abs_x = NAME(clipped_abs)(x, k), r = NAME(one_over_one_plus_a)(abs_x, k, &error);
    REAL result = NAME(corrected)(((abs_x * r) * r) * r, 3 * error);
    return x < 0 ? -result : result;
}
