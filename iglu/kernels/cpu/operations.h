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
#define AT(name) .name = constants.of[IGLU_##name][i],
    const SCALE k = {IGLU_SCALE(AT)};
#undef AT
    return k;
}

/* x or a result that changes its sign with sigma. */
IGLU_INLINE REAL NAME(turned)(REAL x, SCALE k, int any) { return any ? k.sign * x : x; }

#define OPERATIONS_OF(family, density_at_zero)                                                               \
    IGLU_INLINE REAL NAME(any_##family##_value)(REAL x, SCALE k, int any)                                    \
    {                                                                                                        \
        REAL value = NAME(turned)(NAME(family##_value)(NAME(turned)(x, k, any), k), k, any);                 \
        return any && k.sigma == 0 ? (REAL)0.5 * x : value;                                                  \
    }                                                                                                        \
    IGLU_INLINE NAME(output) NAME(value_##family)(NAME(input) in, SCALE k, int any)                          \
    {                                                                                                        \
        return (NAME(output)){.first = NAME(any_##family##_value)(in.x, k, any)};                            \
    }                                                                                                        \
    IGLU_INLINE NAME(output) NAME(gate_##family)(NAME(input) in, SCALE k, int any)                           \
    {                                                                                                        \
        return (NAME(output)){.first = NAME(family##_gate)(NAME(turned)(in.x, k, any), k)};                  \
    }                                                                                                        \
    IGLU_INLINE NAME(output) NAME(glu_##family)(NAME(input) in, SCALE k, int any)                            \
    {                                                                                                        \
        return (NAME(output)){.first = NAME(any_##family##_value)(in.x, k, any) * in.up};                    \
    }                                                                                                        \
    IGLU_INLINE NAME(output) NAME(value_backward_##family)(NAME(input) in, SCALE k, int any)                 \
    {                                                                                                        \
        REAL x = NAME(turned)(in.x, k, any);                                                                 \
        return (NAME(output)){.first = in.grad * NAME(family##_slope)(x, k),                                 \
                              .part = in.grad * NAME(family##_by_sigma)(x, k)};                              \
    }                                                                                                        \
    IGLU_INLINE NAME(output) NAME(gate_backward_##family)(NAME(input) in, SCALE k, int any)                  \
    {                                                                                                        \
        REAL by_x = NAME(turned)(NAME(family##_gate_slope)(in.x, k), k, any);                                \
        REAL by_sigma = NAME(family##_gate_by_sigma)(in.x, k);                                               \
        return (NAME(output)){.first = in.grad * by_x,                                                       \
                              .part = in.grad * (any && k.sigma == 0 ? in.x * density_at_zero : by_sigma)};  \
    }                                                                                                        \
    IGLU_INLINE NAME(output) NAME(glu_backward_##family)(NAME(input) in, SCALE k, int any)                   \
    {                                                                                                        \
        REAL x = NAME(turned)(in.x, k, any), through = in.grad * in.up;                                      \
        return (NAME(output)){.first = through * NAME(family##_slope)(x, k),                                 \
                              .second = in.grad * NAME(any_##family##_value)(in.x, k, any),                  \
                              .part = through * NAME(family##_by_sigma)(x, k)};                              \
    }                                                                                                        \
    IGLU_INLINE NAME(output) NAME(value_twice_##family)(NAME(input) in, SCALE k, int any)                    \
    {                                                                                                        \
        REAL through = in.grad * in.by_x;                                                                    \
        return (NAME(output)){.first = in.by_x * NAME(family##_slope)(NAME(turned)(in.x, k, any), k),        \
                              .second = through * NAME(turned)(NAME(family##_curvature)(in.x, k), k, any),   \
                              .part = through * NAME(family##_slope_by_sigma)(in.x, k)};                     \
    }                                                                                                        \
    IGLU_INLINE NAME(output) NAME(glu_twice_##family)(NAME(input) in, SCALE k, int any)                      \
    {                                                                                                        \
        REAL x = NAME(turned)(in.x, k, any), slope = NAME(family##_slope)(x, k), by_both = in.by_x * in.up;  \
        REAL curvature = NAME(turned)(NAME(family##_curvature)(in.x, k), k, any);                            \
        return (NAME(output)){                                                                               \
            .first = MADD(by_both, slope, in.by_up * NAME(any_##family##_value)(in.x, k, any)),              \
            .second = in.grad * MADD(by_both, curvature, in.by_up * slope),                                  \
            .third = in.grad * in.by_x * slope,                                                              \
            .part = in.grad * MADD(by_both, NAME(family##_slope_by_sigma)(in.x, k),                          \
                                   in.by_up * NAME(family##_by_sigma)(x, k))};                               \
    }

OPERATIONS_OF(exact, INVERSE_PI)
OPERATIONS_OF(rational, (REAL)0.5)

IGLU_INLINE NAME(output) NAME(output_backward_rational)(NAME(input) in, SCALE k, int any)
{
    REAL y = NAME(turned)(in.x, k, any), slope = NAME(rational_slope_from_output)(y, k);
    return (NAME(output)){.first = in.grad * (any && k.sigma == 0 && y == y ? (REAL)0.5 : slope),
                          .part = in.grad * NAME(rational_by_sigma_from_output)(y, k)};
}

#undef REAL
#undef NAME
#undef HALF
#undef OPERATIONS_OF
#undef BY_PRECISION
#undef LARGEST
#undef PI
#undef PI_ERROR
#undef INVERSE_PI
#undef INVERSE_PI_ERROR
#undef SCALE
