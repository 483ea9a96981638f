/* The operations of loops.h in one precision: for one element, and as loops over contiguous tensors of REAL.  Included in
 * the same way as formulas.h.
 *
 * operation, family, has_sigma_grad and signed_sigma are constants in every call, so that each call is compiled to the
 * code of one case.  With signed_sigma, sigma may be negative or zero.  The formulas take |sigma|: with s the sign of
 * sigma, f(x; sigma) = s f(s x; |sigma|), gate(x; sigma) = gate(s x; |sigma|) and df/dx(x; sigma) = df/dx(s x; |sigma|).
 */

#include "formulas.h"

typedef struct {
    REAL x, up, grad, gg_x, gg_up; /* as IGLU_X, ...; if the operation has none, up is 1 and others are 0 */
} NAME(input);

typedef struct {
    REAL first, second, third, sigma_grad; /* as IGLU_FIRST, ...; the term of the gradient of sigma */
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

#define TIMES_SIGN(x) (signed_sigma ? k.sign * (x) : (x))
#define OF_FAMILY(formula, x)                                                                                          \
    (family == IGLU_EXACT ? NAME(exact_##formula)(x, k) : NAME(rational_##formula)(x, k))

IGLU_INLINE REAL NAME(signed_value)(REAL x, CONSTANTS k, int family, int signed_sigma)
{
    REAL value = TIMES_SIGN(OF_FAMILY(value, TIMES_SIGN(x)));
    return signed_sigma && k.sigma == 0 ? (REAL)0.5 * x : value;
}

/* x j, where the density j of the gate is 1/pi or 1/2 at 0 */
IGLU_INLINE REAL NAME(signed_dgate_dsigma)(REAL x, CONSTANTS k, int family, int signed_sigma)
{
    REAL result = OF_FAMILY(dgate_dsigma, x), at_zero = x * (family == IGLU_EXACT ? INVERSE_PI : (REAL)0.5);
    return signed_sigma && k.sigma == 0 ? at_zero : result;
}

/* `through` is the product of all factors of a derivative of f. */
IGLU_INLINE NAME(output) NAME(compute)(int operation, int family, NAME(input) in, CONSTANTS k, int signed_sigma)
{
    const REAL x = TIMES_SIGN(in.x);
    REAL df_dx, df_dsigma, d2f_dx2, value, through;
    switch (operation) {
    case IGLU_VALUE:
    case IGLU_GLU:
        return (NAME(output)){.first = NAME(signed_value)(in.x, k, family, signed_sigma) * in.up};
    case IGLU_GATE:
        return (NAME(output)){.first = OF_FAMILY(gate, x)};
    case IGLU_VALUE_BACKWARD:
    case IGLU_GLU_BACKWARD:
        through = in.grad * in.up;
        return (NAME(output)){.first = through * OF_FAMILY(df_dx, x),
                              .second = in.grad * NAME(signed_value)(in.x, k, family, signed_sigma),
                              .sigma_grad = through * OF_FAMILY(df_dsigma, x)};
    case IGLU_GATE_BACKWARD:
        return (NAME(output)){.first = in.grad * TIMES_SIGN(OF_FAMILY(dgate_dx, in.x)),
                              .sigma_grad = in.grad * NAME(signed_dgate_dsigma)(in.x, k, family, signed_sigma)};
    case IGLU_OUTPUT_BACKWARD:
        df_dx = NAME(rational_df_dx_from_output)(x, k);
        df_dsigma = NAME(rational_df_dsigma_from_output)(x, k);
        if (signed_sigma && k.sigma == 0)
            df_dx = x == x ? (REAL)0.5 : x;
        return (NAME(output)){.first = in.grad * df_dx, .sigma_grad = in.grad * df_dsigma};
    case IGLU_VALUE_DOUBLE_BACKWARD:
        through = in.grad * in.gg_x;
        return (NAME(output)){.first = in.gg_x * OF_FAMILY(df_dx, x),
                              .second = through * TIMES_SIGN(OF_FAMILY(d2f_dx2, in.x)),
                              .sigma_grad = through * OF_FAMILY(d2f_dxdsigma, in.x)};
    default: /* IGLU_GLU_DOUBLE_BACKWARD */
        df_dx = OF_FAMILY(df_dx, x);
        d2f_dx2 = TIMES_SIGN(OF_FAMILY(d2f_dx2, in.x));
        value = NAME(signed_value)(in.x, k, family, signed_sigma);
        through = in.gg_x * in.up;
        return (NAME(output)){.first = MADD(through, df_dx, in.gg_up * value),
                              .second = in.grad * MADD(through, d2f_dx2, in.gg_up * df_dx),
                              .third = in.grad * in.gg_x * df_dx,
                              .sigma_grad = in.grad * MADD(through, OF_FAMILY(d2f_dxdsigma, in.x),
                                                           in.gg_up * OF_FAMILY(df_dsigma, x))};
    }
}

/* signed_sigma: one sigma of any sign per element, instead of one sigma > 0 for all. */
IGLU_INLINE void NAME(loop)(const iglu_span *span, int64_t n, int operation, int family, int has_sigma_grad,
                            int signed_sigma)
{
    OPERANDS(REAL)
    REAL *sigma_grads = span->sigma_grads;
    const NAME(constant_arrays) arrays = NAME(constant_arrays_of)(span);
    const CONSTANTS one = NAME(constants_at)(arrays, 0);
    INDEPENDENT for (int64_t i = 0; i < n; i++)
    {
        const NAME(input) in = INPUT(ELEMENT, i);
        const CONSTANTS k = signed_sigma ? NAME(constants_at)(arrays, i) : one;
        const NAME(output) out = NAME(compute)(operation, family, in, k, signed_sigma);
        OUTPUT(STORE)
        if (has_sigma_grad)
            sigma_grads[i] = out.sigma_grad;
    }
}

/* Eight partial sums, for speed and for accuracy; always in the same order. */
static inline double NAME(sum)(const void *data, int64_t n)
{
    const REAL *sigma_grads = data;
    double lanes[8] = {0}, total = 0;
    int64_t i = 0;
    for (; i + 8 <= n; i += 8)
        for (int lane = 0; lane < 8; lane++)
            lanes[lane] += sigma_grads[i + lane];
    for (; i < n; i++)
        lanes[i % 8] += sigma_grads[i];
    for (int lane = 0; lane < 8; lane++)
        total += lanes[lane];
    return total;
}

static inline void NAME(add)(double *sums, const void *data, int64_t n)
{
    const REAL *sigma_grads = data;
    INDEPENDENT for (int64_t i = 0; i < n; i++) sums[i] += sigma_grads[i];
}

#undef REAL
#undef NAME
#undef HALF
