/* The operations that the kernels compute, and one loop per operation over a contiguous span of elements, for each
 * instruction set.  Plain C: neither torch nor Python. */

#ifndef IGLU_LOOPS_H
#define IGLU_LOOPS_H

#include <stdint.h>

#if !defined(__GNUC__)
#error "The kernels need gcc or clang (on Windows clang-cl or mingw-w64). Without them iglu runs its formulas in torch."
#endif

/* f is the activation, gate the function it multiplies x with. */
enum iglu_operation {
    IGLU_VALUE,           /* y = f(x) */
    IGLU_GATE,            /* y = gate(x) */
    IGLU_GLU,             /* y = f(x) up */
    IGLU_VALUE_BACKWARD,  /* grad_x = grad df/dx */
    IGLU_GATE_BACKWARD,   /* grad_x = grad dgate/dx */
    IGLU_GLU_BACKWARD,    /* grad_x = grad df/dx up,  grad_up = grad f */
    IGLU_OUTPUT_BACKWARD, /* IGLU_VALUE_BACKWARD with f(x) in place of x; rational only */
    /* Given gg_x and gg_up, the gradients of grad_x and grad_up: the gradients of grad, of x and of up */
    IGLU_VALUE_DOUBLE_BACKWARD, /* gg_x df/dx,  grad gg_x d2f/dx2 */
    IGLU_GLU_DOUBLE_BACKWARD,   /* gg_x up df/dx + gg_up f,  grad (gg_x up d2f/dx2 + gg_up df/dx),  grad gg_x df/dx */
    IGLU_OPERATIONS
};

enum iglu_operand {
    IGLU_X,      /* the argument; of a gated pair, the gate */
    IGLU_UP,     /* the other half of a gated pair */
    IGLU_GRAD,   /* backward: the gradient of the result */
    IGLU_GG_X,   /* double backward: the gradient of grad_x */
    IGLU_GG_UP,  /* double backward: the gradient of grad_up */
    IGLU_FIRST,  /* the result; backward: grad_x; double backward: the gradient of grad */
    IGLU_SECOND, /* backward of a pair: grad_up; double backward: the gradient of x */
    IGLU_THIRD,  /* double backward of a pair: the gradient of up */
    IGLU_OPERANDS
};

enum iglu_family { IGLU_EXACT, IGLU_RATIONAL, IGLU_FAMILIES };

enum iglu_dtype { IGLU_F32, IGLU_F64, IGLU_BF16, IGLU_F16, IGLU_DTYPES };

static inline int64_t iglu_bytes(int dtype) { return dtype == IGLU_F64 ? 8 : dtype == IGLU_F32 ? 4 : 2; }

/* Constants of formulas.h that depend on sigma, in the precision of the computation (float for the 16-bit types): each
 * is an array of one element, or of one per element of the span.  A name with _low is the rounding error of its
 * predecessor. */
#define IGLU_EACH_CONSTANT(EACH)                                                                                       \
    EACH(sigma) EACH(sigma_low)                 /* |sigma| */                                                          \
    EACH(sigma_over_pi) EACH(sigma_over_pi_low) /* sigma/pi */                                                         \
    EACH(quarter_pi_sigma)                      /* pi sigma/4, which does not overflow */                              \
    EACH(largest_x_half) EACH(largest_y)        /* limits of |x|, 2^20/sigma, and of y, 2^30/sigma (double: 2^60) */   \
    EACH(floor) EACH(floor_error)               /* 1/(pi sigma) = floor (1 + floor_error) */                           \
    EACH(largest_x)                             /* limit of |x|, 2^126/sigma (double: 2^1022) */                       \
    EACH(sign)                                  /* of sigma, see operations.h */

#define IGLU_INDEX(name) IGLU_##name,
enum iglu_constant { IGLU_EACH_CONSTANT(IGLU_INDEX) IGLU_CONSTANTS };

/* Contiguous tensors of the same length, and the operation to run on them. */
typedef struct iglu_span {
    enum iglu_operation operation;
    enum iglu_family family;
    enum iglu_dtype dtype;
    char *data[IGLU_OPERANDS]; /* NULL: unused by the operation */
    void *sigma_grads; /* output: the terms of the gradient of sigma, in that precision; NULL: not needed */
    const void *constants[IGLU_CONSTANTS];
    int signed_sigma; /* 0: one sigma > 0; 1: the constants have a sigma of any sign per element */
} iglu_span;

/* The longest span with sigma_grads or of float16. */
#define IGLU_CHUNK 512

/* The loops for one instruction set. */
typedef struct iglu_loops {
    void (*run)(const iglu_span *, int64_t n);
    /* the sum of sigma_grads */
    double (*sum[IGLU_DTYPES])(const void *sigma_grads, int64_t n);
    /* sums[i] += sigma_grads[i] */
    void (*add[IGLU_DTYPES])(double *sums, const void *sigma_grads, int64_t n);
} iglu_loops;

extern const iglu_loops iglu_baseline_loops;
#if defined(__x86_64__)
extern const iglu_loops iglu_avx2_loops, iglu_avx512_loops;
#endif

#endif
