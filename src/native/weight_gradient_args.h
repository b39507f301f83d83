// What Python hands to the product of two sequences over time that is the gradient of a weight.
#pragma once
#include "array.h"

#define LINRNN_WEIGHT_GRADIENT_FIELDS(WORD, ARRAY, REAL)                             \
    WORD(dtype)   /* of both factors: BF16 */                                        \
    WORD(threads)                                                                    \
    WORD(rows) WORD(outputs) WORD(inputs)                                            \
    WORD(grad) WORD(grad_step) /* (rows, outputs), numbers from a row to the next */ \
    WORD(x) WORD(x_step)       /* (rows, inputs) */                                  \
    WORD(weight)  /* F32 (outputs, inputs), dense: the sum of grad^T x over rows */              \
    WORD(sums)    /* F32 (outputs): the sum of grad over rows; or 0 */

namespace linrnn {
LINRNN_RECORD(WeightGradientArgs, LINRNN_WEIGHT_GRADIENT_FIELDS)
}
