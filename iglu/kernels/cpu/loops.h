/* What the loops compute.  Plain C, no torch, no Python. */

#ifndef IGLU_LOOPS_H
#define IGLU_LOOPS_H

#if !defined(__GNUC__)
#error "The loops need gcc or clang (on Windows clang-cl or mingw-w64). Without them iglu computes in plain torch."
#endif

enum iglu_operation {
    IGLU_VALUE,          /* y = f(x) */
    IGLU_GATE,           /* y = Z(x) */
    IGLU_GLU,            /* y = f(x) up */
    IGLU_VALUE_BACKWARD, /* grad_x = grad f'(x) */
    IGLU_GATE_BACKWARD,  /* grad_x = grad Z'(x) */
    IGLU_GLU_BACKWARD,   /* grad_x = grad f'(x) up,  grad_up = grad f(x) */
    IGLU_OUTPUT_BACKWARD, /* as IGLU_VALUE_BACKWARD, from f(x) in the place of x; rational only */
    IGLU_VALUE_TWICE, /* of v, the gradient of grad_x:  v f'(x),  grad v f''(x) */
    IGLU_GLU_TWICE,   /* of v and w, those of grad_x and grad_up:
                         v f'(x) up + w f(x),  grad (v f''(x) up + w f'(x)),  grad v f'(x) */
    IGLU_OPERATIONS
};

enum iglu_operand {
    IGLU_X,      /* the argument; the gate of a pair */
    IGLU_UP,     /* the other half of a pair */
    IGLU_GRAD,   /* backward: the gradient of the result */
    IGLU_BY_X,   /* twice: the gradient of the gradient of x */
    IGLU_BY_UP,  /* twice: the gradient of the gradient of up */
    IGLU_FIRST,  /* the result; backward: the gradient of x; twice: of grad */
    IGLU_SECOND, /* backward of a pair: the gradient of up; twice: of x */
    IGLU_THIRD,  /* twice, of a pair: the gradient of up */
    IGLU_OPERANDS
};

enum iglu_family { IGLU_EXACT, IGLU_RATIONAL, IGLU_FAMILIES };

enum iglu_dtype { IGLU_F32, IGLU_F64, IGLU_BF16, IGLU_F16, IGLU_DTYPES };

#endif
