/* The operations of loops.h for one element, in one precision; included as formulas.h is.
 *
 * `any` says that sigma may be negative or zero.  With s the sign of sigma the formulas, odd or even in
 * sigma x, give f(x; sigma) = s f(s x; |sigma|), and the gate and the slope are those at s x. */

#include "formulas.h"

typedef struct {
    REAL x, up, grad;
} NAME(input);

typedef struct {
    REAL first, second, part; /* as in iglu_span */
} NAME(output);

typedef struct {
    const REAL *of[IGLU_CONSTANTS];
} NAME(constants);

IGLU_INLINE NAME(constants) NAME(constants_of)(const iglu_span *span)
{
    NAME(constants) constants;
    for (int i = 0; i < IGLU_CONSTANTS; i++)
        constants.of[i] = span->constants[i];
    return constants;
}

IGLU_INLINE SCALE NAME(scale_at)(NAME(constants) constants, int64_t i)
{
    SCALE k = {
        .sigma = constants.of[IGLU_SIGMA][i],
        .sigma_low = constants.of[IGLU_SIGMA_LOW][i],
        .over_pi = constants.of[IGLU_OVER_PI][i],
        .over_pi_low = constants.of[IGLU_OVER_PI_LOW][i],
        .times_quarter_pi = constants.of[IGLU_TIMES_QUARTER_PI][i],
        .far = constants.of[IGLU_FAR][i],
        .tall = constants.of[IGLU_TALL][i],
        .floor = constants.of[IGLU_FLOOR][i],
        .floor_error = constants.of[IGLU_FLOOR_ERROR][i],
        .largest = constants.of[IGLU_LARGEST][i],
        .sign = constants.of[IGLU_SIGN][i],
    };
    return k;
}

#define OPERATIONS_OF(family, density_at_zero)                                                               \
    IGLU_INLINE REAL NAME(any_##family##_value)(REAL x, SCALE k, int any)                                    \
    {                                                                                                        \
        if (!any)                                                                                            \
            return NAME(family##_value)(x, k);                                                               \
        REAL value = k.sign * NAME(family##_value)(k.sign * x, k);                                           \
        return k.sigma == 0 ? (REAL)0.5 * x : value;                                                         \
    }                                                                                                        \
    IGLU_INLINE NAME(output) NAME(value_##family)(NAME(input) in, SCALE k, int any)                          \
    {                                                                                                        \
        NAME(output) out = {NAME(any_##family##_value)(in.x, k, any), 0, 0};                                 \
        return out;                                                                                          \
    }                                                                                                        \
    IGLU_INLINE NAME(output) NAME(gate_##family)(NAME(input) in, SCALE k, int any)                           \
    {                                                                                                        \
        NAME(output) out = {NAME(family##_gate)(any ? k.sign * in.x : in.x, k), 0, 0};                       \
        return out;                                                                                          \
    }                                                                                                        \
    IGLU_INLINE NAME(output) NAME(glu_##family)(NAME(input) in, SCALE k, int any)                            \
    {                                                                                                        \
        NAME(output) out = {NAME(any_##family##_value)(in.x, k, any) * in.up, 0, 0};                         \
        return out;                                                                                          \
    }                                                                                                        \
    IGLU_INLINE NAME(output) NAME(value_backward_##family)(NAME(input) in, SCALE k, int any)                 \
    {                                                                                                        \
        REAL x = any ? k.sign * in.x : in.x;                                                                 \
        NAME(output) out = {in.grad * NAME(family##_slope)(x, k), 0, in.grad * NAME(family##_by_sigma)(x, k)}; \
        return out;                                                                                          \
    }                                                                                                        \
    IGLU_INLINE NAME(output) NAME(gate_backward_##family)(NAME(input) in, SCALE k, int any)                  \
    {                                                                                                        \
        REAL by_x = NAME(family##_gate_slope)(in.x, k), by_sigma = NAME(family##_gate_by_sigma)(in.x, k);    \
        if (any) {                                                                                           \
            by_x = k.sign * by_x;                                                                            \
            by_sigma = k.sigma == 0 ? in.x * density_at_zero : by_sigma;                                     \
        }                                                                                                    \
        NAME(output) out = {in.grad * by_x, 0, in.grad * by_sigma};                                          \
        return out;                                                                                          \
    }                                                                                                        \
    IGLU_INLINE NAME(output) NAME(glu_backward_##family)(NAME(input) in, SCALE k, int any)                   \
    {                                                                                                        \
        REAL x = any ? k.sign * in.x : in.x, through = in.grad * in.up;                                      \
        NAME(output) out = {through * NAME(family##_slope)(x, k),                                            \
                            in.grad * NAME(any_##family##_value)(in.x, k, any),                              \
                            through * NAME(family##_by_sigma)(x, k)};                                        \
        return out;                                                                                          \
    }

OPERATIONS_OF(exact, INVERSE_PI)
OPERATIONS_OF(rational, (REAL)0.5)

IGLU_INLINE NAME(output) NAME(output_backward_rational)(NAME(input) in, SCALE k, int any)
{
    REAL y = any ? k.sign * in.x : in.x, slope = NAME(rational_slope_from_output)(y, k);
    if (any)
        slope = k.sigma == 0 && y == y ? (REAL)0.5 : slope;
    NAME(output) out = {in.grad * slope, 0, in.grad * NAME(rational_by_sigma_from_output)(y, k)};
    return out;
}

#undef OPERATIONS_OF
#undef BY_PRECISION
#undef LARGEST
#undef PI
#undef PI_ERROR
#undef INVERSE_PI
#undef INVERSE_PI_ERROR
#undef SCALE
