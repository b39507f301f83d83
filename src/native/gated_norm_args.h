// What Python hands to the gated norm.
#pragma once
#include "operand_args.h"

#define LINRNN_GATED_NORM_FIELDS(WORD, ARRAY, REAL)                                     \
    WORD(dtype) /* what is computed in, F32 or F64; tensors have their own */           \
    WORD(threads)                                                                       \
    WORD(act)   /* the gate is sigmoid(z), 0, silu(z), 1, or z itself, 2 */             \
    WORD(norm_first)                                                                    \
    WORD(centre) /* subtract the mean of each group before */                           \
    REAL(eps)                                                                           \
    WORD(rows) WORD(groups) WORD(width)                                                 \
    LINRNN_OPERAND_FIELDS(WORD, x) LINRNN_OPERAND_FIELDS(WORD, z) /* heads are groups */ \
    LINRNN_OPERAND_FIELDS(WORD, weight)                                                 \
    LINRNN_OPERAND_FIELDS(WORD, bias)                                                   \
    LINRNN_OPERAND_FIELDS(WORD, q) /* with k, v and share, or data == 0: what is added */ \
    LINRNN_OPERAND_FIELDS(WORD, k) LINRNN_OPERAND_FIELDS(WORD, v)                       \
    LINRNN_OPERAND_FIELDS(WORD, share)                                                  \
    LINRNN_OPERAND_FIELDS(WORD, skip) /* times a weight it is added to x; or data == 0 */ \
    LINRNN_OPERAND_FIELDS(WORD, skip_weight)                                            \
    WORD(y) WORD(y_dtype)                                                               \
    WORD(backward)                                                                      \
    WORD(parts)                           /* of the rows, each with a row of `sums` */  \
    LINRNN_OPERAND_FIELDS(WORD, grad)     /* of y */                                    \
    WORD(grad_x) WORD(grad_z)             /* dense, in the dtypes of x and z */         \
    WORD(grad_q) WORD(grad_k) WORD(grad_v) WORD(grad_skip) /* in the dtypes of these, or 0 */ \
    WORD(sums)      /* double (parts, 4, groups * width), of weight, bias, share and \
                       skip_weight, or 0 */

namespace linrnn {
LINRNN_RECORD(GatedNormArgs, LINRNN_GATED_NORM_FIELDS)
}
