// What Python hands to products with weights of 8 or 4 bits.
#pragma once
#include "array.h"

#define LINRNN_QUANTIZED_FIELDS(WORD, ARRAY, REAL)                                       \
    WORD(dtype)   /* of x, bias and y: F32, BF16 or F16 */                               \
    WORD(threads)                                                                        \
    WORD(bits)    /* 8 or 4 */                                                           \
    WORD(outputs) WORD(inputs) WORD(group) WORD(groups)                                  \
    WORD(weight)  /* bytes (tiles, groups, group / 4, 16, 4), or half as many */         \
    WORD(scales)  /* BF16 (tiles, groups, 1 or 2, 16) */                                 \
    WORD(zeros)   /* the second of the two is the number that stands for zero */         \
    WORD(rows)    /* of x and y */                                                       \
    WORD(digits)  /* of 8 bits, that x is split into where whole numbers are multiplied */ \
    WORD(x) WORD(x_step)                                                                 \
    WORD(bias)    /* (outputs) or 0 */                                                   \
    WORD(y) WORD(y_step)                                                                 \
    WORD(first) WORD(count) /* which outputs; without an x these weights are written to y as F32 */

namespace linrnn {
LINRNN_RECORD(QuantizedArgs, LINRNN_QUANTIZED_FIELDS)
}
