// What Python hands to the sum of a sequence and of another one's channels, each times a weight.
#pragma once
#include "array.h"

#define LINRNN_SKIP_FIELDS(WORD, ARRAY, REAL)                                           \
    WORD(dtype)    /* what is computed in, F32 or F64: that of weight and y */          \
    WORD(threads)                                                                       \
    WORD(rows) WORD(channels)                                                           \
    WORD(z) WORD(z_dtype) /* (rows, channels), dense */                                 \
    WORD(weight)   /* (channels) */                                                     \
    WORD(x) WORD(x_dtype) /* like z */                                                  \
    WORD(y)        /* (rows, channels), forward: written. backward: its gradient */     \
    WORD(backward)                                                                      \
    WORD(parts)    /* of the rows, each with a row of `sums` */                         \
    WORD(grad_z) WORD(grad_x) /* like z and x; grad_x may be 0 */                       \
    WORD(sums)     /* double (parts, channels), of weight */

namespace linrnn {
LINRNN_RECORD(SkipArgs, LINRNN_SKIP_FIELDS)
}
