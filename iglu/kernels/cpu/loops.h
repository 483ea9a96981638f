/* The seam of the native CPU kernels: what module.c offers to Python's iglu._kernels, and, through the
 * capsule iglu._kernels.table, to any other native code.  Plain C, no torch, no Python. */

#ifndef IGLU_LOOPS_H
#define IGLU_LOOPS_H

#include <stdint.h>

/* Raised whenever anything below changes its meaning or its place. */
#define IGLU_TABLE_VERSION 1
#define IGLU_TABLE_CAPSULE "iglu._kernels.table"

enum iglu_operation {
    IGLU_VALUE,          /* y = f(x) */
    IGLU_GATE,           /* y = Z(x) */
    IGLU_GLU,            /* y = f(x) up */
    IGLU_VALUE_BACKWARD, /* grad_x = grad f'(x) */
    IGLU_GATE_BACKWARD,  /* grad_x = grad Z'(x) */
    IGLU_GLU_BACKWARD,   /* grad_x = grad f'(x) up,  grad_up = grad f(x) */
    IGLU_OUTPUT_BACKWARD, /* as IGLU_VALUE_BACKWARD, from f(x) in the place of x; rational only */
    IGLU_OPERATIONS
};

enum iglu_family { IGLU_EXACT, IGLU_RATIONAL, IGLU_FAMILIES };

enum iglu_dtype { IGLU_F32, IGLU_F64, IGLU_BF16, IGLU_F16, IGLU_DTYPES };

/* One call.  Every tensor is seen as `rows` rows of `width` dense elements; a step is the distance, in
 * elements, from a row to the next, so that the halves of a packed [gate | up] serve in place (width n,
 * step 2n).  A dense tensor is one row of n elements, whatever its shape, if all share its memory order.
 * Unused pointers and steps stay zero: a call is `iglu_call c = {0}` and the fields it needs.  The output
 * may be the input itself; otherwise the tensors must not overlap. */
typedef struct iglu_call {
    int64_t rows, width;

    const void *x;    /* the argument; the gate of a pair */
    const void *up;   /* the other half of a pair */
    const void *grad; /* backward: the gradient of y */
    void *y;          /* forward: the result */
    void *grad_x;     /* backward: the gradient of x */
    void *grad_up;    /* backward of a pair: the gradient of up */
    int64_t x_step, up_step, grad_step, y_step, grad_x_step, grad_up_step;

    int32_t grad_is_one_value; /* 1: `grad` points at a single value that stands for every element */

    /* sigma: any finite number; where `channels` is not 0, `sigmas` holds that many and the elements,
     * counted row by row, are seen as (outer, channels, inner). */
    double sigma;
    const double *sigmas;
    int64_t channels, inner;

    /* backward: where the sum of grad dy/dsigma goes, one number or one for each channel; may be NULL.
     * The sum does not depend on the number of threads. */
    double *by_sigma;
} iglu_call;

typedef int iglu_run_function(enum iglu_operation, enum iglu_family, enum iglu_dtype, const iglu_call *);

typedef struct iglu_table {
    int32_t version;
    /* Runs one operation on the threads of torch; returns 0, or -1 where memory ran out.  Needs no GIL. */
    iglu_run_function *run;
    /* The instruction set in use: "baseline", "avx2" or "avx512". */
    const char *(*capability)(void);
} iglu_table;

#endif
