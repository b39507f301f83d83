// What Python hands to the gated norm.
#pragma once
#include "operand_args.h"

#define LINRNN_GATED_NORM_FIELDS(WORD, ARRAY, REAL)                                     \
    WORD(dtype) /* what is computed in, F32 or F64; tensors have their own */           \
    WORD(threads)                                                                       \
    WORD(silu)  /* the gate is silu(z), else sigmoid(z) */                              \
    WORD(norm_first)                                                                    \
    REAL(eps)                                                                           \
    WORD(rows) WORD(groups) WORD(width)                                                 \
    LINRNN_OPERAND_FIELDS(WORD, x) LINRNN_OPERAND_FIELDS(WORD, z) /* heads are groups */ \
    LINRNN_OPERAND_FIELDS(WORD, weight)                                                 \
    WORD(y) WORD(y_dtype)                                                               \
    WORD(backward)                                                                      \
    WORD(parts)                           /* of the rows, each with a row of `sums` */  \
    LINRNN_OPERAND_FIELDS(WORD, grad)     /* of y */                                    \
    WORD(grad_x) WORD(grad_z)             /* dense, in the dtypes of x and z */         \
    WORD(sums)                            /* double (parts, groups * width), or 0 */

namespace linrnn {
LINRNN_RECORD(GatedNormArgs, LINRNN_GATED_NORM_FIELDS)
}
