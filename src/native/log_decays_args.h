// What Python hands to the logarithms of decays.
#pragma once
#include "array.h"

#define LINRNN_LOG_DECAYS_FIELDS(WORD, ARRAY, REAL)                                     \
    WORD(dtype)    /* what is computed in, F32 or F64: that of base and g */            \
    WORD(threads)                                                                       \
    WORD(rows) WORD(channels)                                                           \
    WORD(sigmoid)  /* 1: scale * log(sigmoid(x)), without base or limit */              \
    REAL(limit) REAL(scale)                                                             \
    WORD(x) WORD(x_dtype) /* (rows, channels), dense */                                 \
    WORD(base)     /* (channels) */                                                     \
    WORD(g)        /* (rows, channels), forward: written. backward: its gradient */     \
    WORD(backward)                                                                      \
    WORD(parts)    /* of the rows, each with a row of `sums` */                         \
    WORD(grad_x)   /* like x */                                                         \
    WORD(sums)     /* double (parts, channels), of base; zeros of a sigmoid */

namespace linrnn {
LINRNN_RECORD(LogDecaysArgs, LINRNN_LOG_DECAYS_FIELDS)
}
