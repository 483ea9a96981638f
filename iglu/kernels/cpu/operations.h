/* The operations of loops.h for one element, in one precision; included as formulas.h is.
 *
 * `any` says that sigma may be negative or zero.  With s the sign of sigma the formulas, odd or even in
 * sigma x, give f(x; sigma) = s f(s x; |sigma|), and the gate and the slope are those at s x. */

#include "formulas.h"

typedef struct {
    REAL x, up, grad, by_x, by_up;
} NAME(input);

typedef struct {
    REAL first, second, third, part; /* as IGLU_FIRST ..., and parts */
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
        NAME(output) out = {.first = NAME(any_##family##_value)(in.x, k, any)};                              \
        return out;                                                                                          \
    }                                                                                                        \
    IGLU_INLINE NAME(output) NAME(gate_##family)(NAME(input) in, SCALE k, int any)                           \
    {                                                                                                        \
        NAME(output) out = {.first = NAME(family##_gate)(any ? k.sign * in.x : in.x, k)};                    \
        return out;                                                                                          \
    }                                                                                                        \
    IGLU_INLINE NAME(output) NAME(glu_##family)(NAME(input) in, SCALE k, int any)                            \
    {                                                                                                        \
        NAME(output) out = {.first = NAME(any_##family##_value)(in.x, k, any) * in.up};                      \
        return out;                                                                                          \
    }                                                                                                        \
    IGLU_INLINE NAME(output) NAME(value_backward_##family)(NAME(input) in, SCALE k, int any)                 \
    {                                                                                                        \
        REAL x = any ? k.sign * in.x : in.x;                                                                 \
        NAME(output) out = {.first = in.grad * NAME(family##_slope)(x, k),                                   \
                            .part = in.grad * NAME(family##_by_sigma)(x, k)};                                \
        return out;                                                                                          \
    }                                                                                                        \
    IGLU_INLINE NAME(output) NAME(gate_backward_##family)(NAME(input) in, SCALE k, int any)                  \
    {                                                                                                        \
        REAL by_x = NAME(family##_gate_slope)(in.x, k), by_sigma = NAME(family##_gate_by_sigma)(in.x, k);    \
        if (any) {                                                                                           \
            by_x = k.sign * by_x;                                                                            \
            by_sigma = k.sigma == 0 ? in.x * density_at_zero : by_sigma;                                     \
        }                                                                                                    \
        NAME(output) out = {.first = in.grad * by_x, .part = in.grad * by_sigma};                            \
        return out;                                                                                          \
    }                                                                                                        \
    IGLU_INLINE NAME(output) NAME(glu_backward_##family)(NAME(input) in, SCALE k, int any)                   \
    {                                                                                                        \
        REAL x = any ? k.sign * in.x : in.x, through = in.grad * in.up;                                      \
        NAME(output) out = {.first = through * NAME(family##_slope)(x, k),                                   \
                            .second = in.grad * NAME(any_##family##_value)(in.x, k, any),                    \
                            .part = through * NAME(family##_by_sigma)(x, k)};                                \
        return out;                                                                                          \
    }                                                                                                        \
    IGLU_INLINE REAL NAME(any_##family##_curvature)(REAL x, SCALE k, int any)                                \
    {                                                                                                        \
        REAL curvature = NAME(family##_curvature)(x, k);                                                     \
        return any ? k.sign * curvature : curvature;                                                         \
    }                                                                                                        \
    IGLU_INLINE NAME(output) NAME(value_twice_##family)(NAME(input) in, SCALE k, int any)                    \
    {                                                                                                        \
        REAL through = in.grad * in.by_x;                                                                    \
        NAME(output) out = {.first = in.by_x * NAME(family##_slope)(any ? k.sign * in.x : in.x, k),          \
                            .second = through * NAME(any_##family##_curvature)(in.x, k, any),                \
                            .part = through * NAME(family##_slope_by_sigma)(in.x, k)};                       \
        return out;                                                                                          \
    }                                                                                                        \
    IGLU_INLINE NAME(output) NAME(glu_twice_##family)(NAME(input) in, SCALE k, int any)                      \
    {                                                                                                        \
        REAL x = any ? k.sign * in.x : in.x, slope = NAME(family##_slope)(x, k), by_both = in.by_x * in.up;  \
        NAME(output) out = {                                                                                 \
            .first = MADD(by_both, slope, in.by_up * NAME(any_##family##_value)(in.x, k, any)),              \
            .second = in.grad * MADD(by_both, NAME(any_##family##_curvature)(in.x, k, any), in.by_up * slope), \
            .third = in.grad * in.by_x * slope,                                                              \
            .part = in.grad * MADD(by_both, NAME(family##_slope_by_sigma)(in.x, k),                          \
                                   in.by_up * NAME(family##_by_sigma)(x, k))};                               \
        return out;                                                                                          \
    }

OPERATIONS_OF(exact, INVERSE_PI)
OPERATIONS_OF(rational, (REAL)0.5)

IGLU_INLINE NAME(output) NAME(output_backward_rational)(NAME(input) in, SCALE k, int any)
{
    REAL y = any ? k.sign * in.x : in.x, slope = NAME(rational_slope_from_output)(y, k);
    if (any)
        slope = k.sigma == 0 && y == y ? (REAL)0.5 : slope;
    NAME(output) out = {.first = in.grad * slope,
                        .part = in.grad * NAME(rational_by_sigma_from_output)(y, k)};
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
