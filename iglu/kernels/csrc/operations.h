/* The operations of loops.h for one element, in one precision; included in the same way as formulas.h.
 *
 * With signed_sigma, sigma may be negative or zero.  The formulas take |sigma|: with s the sign of sigma,
 * f(x; sigma) = s f(s x; |sigma|), gate(x; sigma) = gate(s x; |sigma|) and df/dx(x; sigma) = df/dx(s x; |sigma|). */

#include "formulas.h"

typedef struct {
    REAL x, up, grad, gg_x, gg_up; /* as IGLU_X ... */
} NAME(input);

typedef struct {
    REAL first, second, third, sigma_grad; /* as IGLU_FIRST ...; the contribution to the gradient of sigma */
} NAME(output);

/* The constants of element i.  The pointers are copied, since a store through `span` could change them. */
typedef struct {
    const REAL *of[IGLU_CONSTANTS];
} NAME(constant_arrays);

IGLU_INLINE NAME(constant_arrays) NAME(constant_arrays_of)(const iglu_span *span)
{
    NAME(constant_arrays) arrays;
    for (int i = 0; i < IGLU_CONSTANTS; i++)
        arrays.of[i] = span->constants[i];
    return arrays;
}

#define AT(name) .name = arrays.of[IGLU_##name][i],
IGLU_INLINE CONSTANTS NAME(constants_at)(NAME(constant_arrays) arrays, int64_t i)
{
    return (CONSTANTS){IGLU_EACH_CONSTANT(AT)};
}

/* For x, or a result, that changes its sign with sigma. */
#define TIMES_SIGN(x) (signed_sigma ? k.sign * (x) : (x))
#define OPERATION(name) IGLU_INLINE NAME(output) NAME(name)(NAME(input) in, CONSTANTS k, int signed_sigma)
/* `through` is the product of everything that a derivative of f is multiplied with. */
#define OPERATIONS_OF(family, density_at_zero)                                                                         \
    IGLU_INLINE REAL NAME(signed_##family##_value)(REAL x, CONSTANTS k, int signed_sigma)                              \
    {                                                                                                                  \
        REAL value = TIMES_SIGN(NAME(family##_value)(TIMES_SIGN(x), k));                                               \
        return signed_sigma && k.sigma == 0 ? (REAL)0.5 * x : value;                                                   \
    }                                                                                                                  \
    OPERATION(value_##family) { return (NAME(output)){.first = NAME(signed_##family##_value)(in.x, k, signed_sigma)}; }\
    OPERATION(gate_##family) { return (NAME(output)){.first = NAME(family##_gate)(TIMES_SIGN(in.x), k)}; }             \
    OPERATION(glu_##family)                                                                                            \
    {                                                                                                                  \
        return (NAME(output)){.first = NAME(signed_##family##_value)(in.x, k, signed_sigma) * in.up};                  \
    }                                                                                                                  \
    OPERATION(value_backward_##family)                                                                                 \
    {                                                                                                                  \
        REAL x = TIMES_SIGN(in.x);                                                                                     \
        return (NAME(output)){.first = in.grad * NAME(family##_df_dx)(x, k),                                           \
                              .sigma_grad = in.grad * NAME(family##_df_dsigma)(x, k)};                                 \
    }                                                                                                                  \
    OPERATION(gate_backward_##family)                                                                                  \
    {                                                                                                                  \
        REAL dgate_dx = TIMES_SIGN(NAME(family##_dgate_dx)(in.x, k));                                                  \
        REAL dgate_dsigma = NAME(family##_dgate_dsigma)(in.x, k);                                                      \
        return (NAME(output)){                                                                                         \
            .first = in.grad * dgate_dx,                                                                               \
            .sigma_grad = in.grad * (signed_sigma && k.sigma == 0 ? in.x * density_at_zero : dgate_dsigma)};           \
    }                                                                                                                  \
    OPERATION(glu_backward_##family)                                                                                   \
    {                                                                                                                  \
        REAL x = TIMES_SIGN(in.x), through = in.grad * in.up;                                                          \
        return (NAME(output)){.first = through * NAME(family##_df_dx)(x, k),                                           \
                              .second = in.grad * NAME(signed_##family##_value)(in.x, k, signed_sigma),                \
                              .sigma_grad = through * NAME(family##_df_dsigma)(x, k)};                                 \
    }                                                                                                                  \
    OPERATION(value_double_backward_##family)                                                                          \
    {                                                                                                                  \
        REAL through = in.grad * in.gg_x;                                                                              \
        return (NAME(output)){.first = in.gg_x * NAME(family##_df_dx)(TIMES_SIGN(in.x), k),                            \
                              .second = through * TIMES_SIGN(NAME(family##_d2f_dx2)(in.x, k)),                         \
                              .sigma_grad = through * NAME(family##_d2f_dxdsigma)(in.x, k)};                           \
    }                                                                                                                  \
    OPERATION(glu_double_backward_##family)                                                                            \
    {                                                                                                                  \
        REAL x = TIMES_SIGN(in.x), df_dx = NAME(family##_df_dx)(x, k), through = in.gg_x * in.up;                      \
        REAL d2f_dx2 = TIMES_SIGN(NAME(family##_d2f_dx2)(in.x, k));                                                    \
        return (NAME(output)){                                                                                         \
            .first = MADD(through, df_dx, in.gg_up * NAME(signed_##family##_value)(in.x, k, signed_sigma)),            \
            .second = in.grad * MADD(through, d2f_dx2, in.gg_up * df_dx),                                              \
            .third = in.grad * in.gg_x * df_dx,                                                                        \
            .sigma_grad = in.grad * MADD(through, NAME(family##_d2f_dxdsigma)(in.x, k),                                \
                                         in.gg_up * NAME(family##_df_dsigma)(x, k))};                                  \
    }

OPERATIONS_OF(exact, INVERSE_PI)
OPERATIONS_OF(rational, (REAL)0.5)

OPERATION(output_backward_rational)
{
    REAL y = TIMES_SIGN(in.x), df_dx = NAME(rational_df_dx_from_output)(y, k);
    return (NAME(output)){.first = in.grad * (signed_sigma && k.sigma == 0 && y == y ? (REAL)0.5 : df_dx),
                          .sigma_grad = in.grad * NAME(rational_df_dsigma_from_output)(y, k)};
}

#undef REAL
#undef NAME
#undef HALF
