/* iglu/formulas.py for one element, in one precision: the same equations, arranged for speed and for a
 * few units in the last place.  loops.c includes this for float, for double and for the half types, which
 * compute in float with shorter polynomials; and all that once for each instruction set.
 *
 * Before inclusion: REAL, the type; NAME(x), x with the suffix of the precision; HALF, 1 for the half types.
 *
 * Every function is of x and of a sigma > 0, given as a SCALE.  Notation as in formulas.py: u = sigma x,
 * a = |u|, t = 1/a, m = min(a, t), z = m^2.  The value is written as max(x, 0) - |x| tail, which is right
 * for -0, NaN and the infinities too.  |x| is cut where sigma |x| would overflow and every
 * tail has long reached its limit; the comparisons are arranged to let a NaN through. */

#define FIELD(name) REAL name;
typedef struct {
    IGLU_SCALE(FIELD)
} NAME(scale);
#undef FIELD

#define SCALE NAME(scale)
/* pi = PI (1 + PI_ERROR), and so for its inverse. */
#define BY_PRECISION(single, twice) ((REAL)(sizeof(REAL) == sizeof(float) ? (single) : (twice)))
#define LARGEST BY_PRECISION(0x1.fffffep127, 0x1.fffffffffffffp1023)
#define PI ((REAL)3.141592653589793)
#define PI_ERROR BY_PRECISION(-2.7827534378484539e-8, 3.8981718325193755e-17)
#define INVERSE_PI ((REAL)0.31830988618379067)
#define INVERSE_PI_ERROR BY_PRECISION(4.034206196184844e-8, -6.182238607512212e-17)

IGLU_INLINE REAL NAME(smaller)(REAL a, REAL b) { return a < b ? a : b; }

IGLU_INLINE REAL NAME(size)(REAL x, SCALE k) { return NAME(smaller)(k.largest, ABS(x)); }

/* -0 stays -0. */
IGLU_INLINE REAL NAME(positive_part)(REAL x) { return x < 0 ? 0 : x; }

/* A distribution function, from its (symmetric) tail. */
IGLU_INLINE REAL NAME(either_tail)(REAL x, REAL tail) { return x < 0 ? tail : 1 - tail; }

/* value (1 + error); value must be finite.  For the half types all these errors are below notice. */
IGLU_INLINE REAL NAME(corrected)(REAL value, REAL error)
{
#if HALF
    (void)error;
    return value;
#else
    return MADD(value, error, value);
#endif
}

/* -- exact ------------------------------------------------------------------------------------------- */

/* |u| and its reciprocal, each with the little it lacks: |u| = a + a_low, 1/|u| = t (1 + t_error). */
typedef struct {
    REAL size, a, a_low, t, t_error;
} NAME(argument);

IGLU_INLINE NAME(argument) NAME(argument_of)(REAL x, SCALE k)
{
    REAL size = NAME(size)(x, k), a = k.sigma * size, t = 1 / a;
#if HALF
    NAME(argument) u = {size, a, 0, t, 0};
#else
    REAL a_low = MADD(k.sigma_low, size, FUSED(k.sigma, size, -a));
    NAME(argument) u = {size, a, a_low, t, MADD(-a_low, t, -FUSED(a, t, -1))};
#endif
    return u;
}

/* arctan(a)/pi for a < 1, given excess(z): its linear term, where the digits are, to twice the precision. */
IGLU_INLINE REAL NAME(near_angle)(REAL size, REAL z, REAL excess, SCALE k)
{
    REAL linear = k.over_pi * size;
    REAL rest = MADD(k.over_pi_low, size, FUSED(k.over_pi, size, -linear));
    return linear + MADD(linear * z, excess, rest);
}

/* The tail of a gate, which is 0 at the infinities and, since |x| is cut, only nearly so by itself. */
IGLU_INLINE REAL NAME(gate_tail)(REAL x, SCALE k, REAL tail)
{
    return ABS(x) > LARGEST && k.sigma > 0 ? 0 : tail;
}

IGLU_INLINE REAL NAME(exact_gate)(REAL x, SCALE k)
{
    NAME(argument) u = NAME(argument_of)(x, k);
    REAL m = NAME(smaller)(u.t, u.a), z = m * m, excess = NAME(excess)(z);
    REAL near = (REAL)0.5 - NAME(near_angle)(u.size, z, excess, k);
    REAL linear = m * INVERSE_PI;
    REAL rest = MADD(linear, u.t_error + INVERSE_PI_ERROR, FUSED(m, INVERSE_PI, -linear));
    REAL far = linear + MADD(linear * z, excess, rest);
    return NAME(either_tail)(x, NAME(gate_tail)(x, k, u.a < 1 ? near : far));
}

#if HALF

/* The gate at -a, one fraction in b = pi a for every a up to 2^20, where it is 1/b to every digit that counts
 * and its fifth power is still far from overflow. */
IGLU_INLINE REAL NAME(exact_tail)(REAL b) { return NAME(tail_numerator)(b) / NAME(tail_denominator)(b); }

IGLU_INLINE REAL NAME(exact_value)(REAL x, SCALE k)
{
    REAL size = NAME(smaller)(k.far, ABS(x));
    return MADD(-size, NAME(exact_tail)(4 * (k.times_quarter_pi * size)), NAME(positive_part)(x));
}

IGLU_INLINE REAL NAME(exact_slope)(REAL x, SCALE k)
{
    REAL a = k.sigma * NAME(size)(x, k), t = 1 / a, z = t * t;
    REAL near = NAME(near_slope)(a - NAME(NEAR_SLOPE_CENTRE));
    REAL far = t * (z * NAME(far_slope)(z));
    return NAME(either_tail)(x, a < 1 ? near : far);
}

#else

IGLU_INLINE REAL NAME(exact_value)(REAL x, SCALE k)
{
    REAL size = NAME(size)(x, k), a = k.sigma * size, m = NAME(smaller)(1 / a, a), z = m * m;
    REAL excess = NAME(excess)(z);
    REAL near = MADD(-size, NAME(near_angle)(size, z, excess, k), (REAL)0.5 * size);
    /* |x| arctan(t)/pi = (arctan(t)/t)/(pi sigma) */
    REAL far = MADD(k.floor, MADD(z, excess, k.floor_error), k.floor);
    return NAME(positive_part)(x) - (a < 1 ? near : far);
}

/* The tail falls like t^3, which triples every relative error of t. */
IGLU_INLINE REAL NAME(exact_slope)(REAL x, SCALE k)
{
    NAME(argument) u = NAME(argument_of)(x, k);
    REAL z = u.t * u.t, z_error = 2 * u.t_error;
    REAL near = NAME(near_slope)((u.a - NAME(NEAR_SLOPE_CENTRE)) + u.a_low);
    REAL far = u.t * (z * NAME(far_slope)(MADD(z, z_error, z - NAME(FAR_SLOPE_CENTRE))));
    far = NAME(corrected)(far, z_error + u.t_error);
    return NAME(either_tail)(x, u.a < 1 ? near : far);
}

#endif

/* 1/(1 + z), of which the true value is the result times (1 + error). */
IGLU_INLINE REAL NAME(one_over_one_plus_z)(NAME(argument) u, REAL *error)
{
    REAL m = NAME(smaller)(u.t, u.a), d = MADD(m, m, 1), r = 1 / d;
#if HALF
    *error = 0;
#else
    REAL z_low = 2 * (u.a < 1 ? u.a * u.a_low : m * m * u.t_error);
    *error = MADD(-(FUSED(m, m, 1 - d) + z_low), r, -FUSED(d, r, -1));
#endif
    return r;
}

/* d f/d sigma = x^2/(pi (1 + u^2)), beyond |u| = 1 as pi/((pi sigma)^2 (1 + t^2)). */
IGLU_INLINE REAL NAME(exact_by_sigma)(REAL x, SCALE k)
{
    NAME(argument) u = NAME(argument_of)(x, k);
    REAL error, r = NAME(one_over_one_plus_z)(u, &error);
    REAL w = u.a < 1 ? u.size : k.floor;
    error += u.a < 1 ? INVERSE_PI_ERROR : 2 * k.floor_error + PI_ERROR;
    return w * (w * NAME(corrected)(u.a < 1 ? INVERSE_PI * r : PI * r, error));
}

/* d Z/dx = sigma/(pi (1 + u^2)), beyond |u| = 1 as sigma t^2/(pi (1 + t^2)). */
IGLU_INLINE REAL NAME(exact_gate_slope)(REAL x, SCALE k)
{
    NAME(argument) u = NAME(argument_of)(x, k);
    REAL error, r = NAME(one_over_one_plus_z)(u, &error);
    REAL w = u.a < 1 ? 1 : u.t, density = w * r;
    REAL result = MADD(k.over_pi_low * w, density, k.over_pi * w * density);
    return NAME(corrected)(result, u.a < 1 ? error : error + 2 * u.t_error);
}

/* d Z/d sigma = x/(pi (1 + u^2)), beyond |u| = 1 as t/(pi sigma (1 + t^2)). */
IGLU_INLINE REAL NAME(exact_gate_by_sigma)(REAL x, SCALE k)
{
    NAME(argument) u = NAME(argument_of)(x, k);
    REAL error, r = NAME(one_over_one_plus_z)(u, &error);
    REAL result = (u.a < 1 ? u.size * INVERSE_PI : k.floor * u.t) * r;
    error += u.a < 1 ? INVERSE_PI_ERROR : k.floor_error + u.t_error;
    result = NAME(corrected)(result, error);
    return x < 0 ? -result : result;
}

/* 1/(1 + u^2), beyond |u| = 1 as t^2/(1 + t^2), of which the true value is the result times (1 + error). */
IGLU_INLINE REAL NAME(one_over_one_plus_square)(REAL x, SCALE k, REAL *error)
{
    NAME(argument) u = NAME(argument_of)(x, k);
    REAL r = NAME(one_over_one_plus_z)(u, error);
    *error += u.a < 1 ? 0 : 2 * u.t_error;
    return u.a < 1 ? r : u.t * u.t * r;
}

/* f'' = 2 sigma/(pi (1 + u^2)^2) */
IGLU_INLINE REAL NAME(exact_curvature)(REAL x, SCALE k)
{
    REAL error, q = NAME(one_over_one_plus_square)(x, k, &error);
    REAL result = MADD(k.over_pi_low * q, q, k.over_pi * q * q);
    return NAME(corrected)(2 * result, 2 * error);
}

/* d f'/d sigma = 2 x/(pi (1 + u^2)^2) */
IGLU_INLINE REAL NAME(exact_slope_by_sigma)(REAL x, SCALE k)
{
    REAL error, q = NAME(one_over_one_plus_square)(x, k, &error);
    REAL result = NAME(corrected)(2 * INVERSE_PI * (NAME(size)(x, k) * q) * q, 2 * error + INVERSE_PI_ERROR);
    return x < 0 ? -result : result;
}

/* -- rational ---------------------------------------------------------------------------------------- */

/* 1 + a.  The low part of sigma, added first, counts where a is large. */
IGLU_INLINE REAL NAME(one_plus)(REAL size, SCALE k)
{
#if HALF
    return MADD(k.sigma, size, 1);
#else
    return MADD(k.sigma, size, MADD(k.sigma_low, size, 1));
#endif
}

IGLU_INLINE REAL NAME(rational_value)(REAL x, SCALE k)
{
    REAL size = NAME(size)(x, k);
    return MADD((REAL)-0.5, size / NAME(one_plus)(size, k), NAME(positive_part)(x));
}

/* r = 1/(1+a), of which the true value is r (1 + error). */
IGLU_INLINE REAL NAME(lomax)(REAL size, SCALE k, REAL *error)
{
    REAL d = MADD(k.sigma, size, 1), r = 1 / d;
#if HALF
    *error = 0;
#else
    REAL d_low = MADD(k.sigma_low, size, FUSED(k.sigma, size, 1 - d));
    *error = MADD(-d_low, r, -FUSED(d, r, -1));
#endif
    return r;
}

IGLU_INLINE REAL NAME(rational_gate)(REAL x, SCALE k)
{
    REAL error, r = NAME(lomax)(NAME(size)(x, k), k, &error);
    return NAME(either_tail)(x, NAME(gate_tail)(x, k, NAME(corrected)((REAL)0.5 * r, error)));
}

IGLU_INLINE REAL NAME(rational_slope)(REAL x, SCALE k)
{
#if FUSED_MULTIPLY_ADD || HALF
    /* 1 + a rounds once, which leaves r^2/2 within 4 units in the last place */
    REAL r = 1 / NAME(one_plus)(NAME(size)(x, k), k);
    return NAME(either_tail)(x, r * ((REAL)0.5 * r));
#else
    REAL error, r = NAME(lomax)(NAME(size)(x, k), k, &error);
    REAL tail = r * ((REAL)0.5 * r);
    return NAME(either_tail)(x, NAME(corrected)(tail, 2 * error));
#endif
}

/* x^2 r^2/2, as the square of |x| r, which is at most 1/sigma. */
IGLU_INLINE REAL NAME(rational_by_sigma)(REAL x, SCALE k)
{
    REAL error, size = NAME(size)(x, k), r = NAME(lomax)(size, k, &error);
    REAL root = size * r;
    root = NAME(corrected)(root, error);
    return root * ((REAL)0.5 * root);
}

/* r = 1/(1+a) from the output y: 1 + 2 sigma y below 0; above, u solves 2 u^2 + (1 - 2 v) u = 2 v, v = sigma y.
 * y is cut where u has outgrown every digit of 1/u and its square is still far from overflow. */
IGLU_INLINE REAL NAME(lomax_from_output)(REAL y, SCALE k)
{
    REAL v = k.sigma * NAME(smaller)(k.tall, y), b = MADD(2, v, -1);
    REAL u = (REAL)0.25 * (b + SQRT(MADD(b, b, 16 * (v < 0 ? 0 : v))));
    return y < 0 ? MADD(2 * k.sigma_low, y, FUSED(2 * k.sigma, y, 1)) : 1 / (1 + u);
}

IGLU_INLINE REAL NAME(rational_slope_from_output)(REAL y, SCALE k)
{
    REAL r = NAME(lomax_from_output)(y, k);
    return NAME(either_tail)(y, r * ((REAL)0.5 * r));
}

/* (x r)^2/2, where x = y/gate. */
IGLU_INLINE REAL NAME(rational_by_sigma_from_output)(REAL y, SCALE k)
{
    REAL r = NAME(lomax_from_output)(y, k);
    REAL root = y < 0 ? 2 * y : NAME(smaller)(k.tall, y) * r / (1 - (REAL)0.5 * r);
    return root * ((REAL)0.5 * root);
}

IGLU_INLINE REAL NAME(rational_gate_slope)(REAL x, SCALE k)
{
    REAL error, r = NAME(lomax)(NAME(size)(x, k), k, &error);
    REAL half = (REAL)0.5 * r;
    REAL result = MADD(k.sigma_low * r, half, k.sigma * r * half);
    return NAME(corrected)(result, 2 * error);
}

IGLU_INLINE REAL NAME(rational_gate_by_sigma)(REAL x, SCALE k)
{
    REAL error, size = NAME(size)(x, k), r = NAME(lomax)(size, k, &error);
    REAL result = (size * r) * ((REAL)0.5 * r);
    result = NAME(corrected)(result, 2 * error);
    return x < 0 ? -result : result;
}

/* f'' = sigma r^3 */
IGLU_INLINE REAL NAME(rational_curvature)(REAL x, SCALE k)
{
    REAL error, r = NAME(lomax)(NAME(size)(x, k), k, &error);
    REAL result = MADD(k.sigma_low * r, r * r, k.sigma * r * (r * r));
    return NAME(corrected)(result, 3 * error);
}

/* d f'/d sigma = x r^3 */
IGLU_INLINE REAL NAME(rational_slope_by_sigma)(REAL x, SCALE k)
{
    REAL error, size = NAME(size)(x, k), r = NAME(lomax)(size, k, &error);
    REAL result = NAME(corrected)(((size * r) * r) * r, 3 * error);
    return x < 0 ? -result : result;
}
