// What Python hands to the products of the channels of each head with a number of its step.
#pragma once
#include "array.h"

#define LINRNN_SCALE_HEADS_FIELDS(WORD, ARRAY, REAL)                                    \
    WORD(dtype)    /* of x and y: F32, F64, BF16 or F16 */                              \
    WORD(threads)                                                                       \
    WORD(rows) WORD(heads) WORD(channels) /* of a head */                               \
    WORD(x) WORD(x_row) /* (rows, heads, channels), of dense rows that lie so far apart */ \
    WORD(scales)   /* (rows, heads), F64 for F64, else F32 */                           \
    WORD(y)        /* (rows, heads, channels), dense, forward: written. backward: its gradient */ \
    WORD(backward)                                                                      \
    WORD(grad_x)   /* like y */                                                         \
    WORD(grad_scales) /* like scales */

namespace linrnn {
LINRNN_RECORD(ScaleHeadsArgs, LINRNN_SCALE_HEADS_FIELDS)
}
