// What Python hands to the causal convolution.
#pragma once
#include "array.h"

#define LINRNN_CAUSAL_CONV_FIELDS(WORD, ARRAY, REAL)                                  \
    WORD(dtype)    /* of x and y; everything else is F32 for BF16 and F16 */          \
    WORD(threads)                                                                     \
    WORD(reverse)                                                                     \
    WORD(silu)     /* y = silu(convolution) */                                        \
    WORD(seqs) WORD(time) WORD(channels) WORD(width)                                  \
    WORD(offsets)  /* as of a scan */                                                 \
    ARRAY(x) ARRAY(reset)                                                             \
    WORD(x_channel) WORD(y_channel) /* strides of channels; in a batch that is read     \
        forward, without resets, both arrays may have neighbouring steps instead */   \
    WORD(past)     /* (seqs, width - 1, channels): inputs before the first */         \
    WORD(weight)   /* (width, channels), oldest first */                              \
    WORD(bias)     /* (channels) or 0 */                                              \
    ARRAY(y)       /* forward: written.  backward: its gradient */                    \
    WORD(backward)                                                                    \
    WORD(rows)     /* backward: groups of units of work, each with a part of `sums` */\
    ARRAY(grad_x)  /* (seqs, time, channels) */                                       \
    WORD(grad_past)                                                                   \
    WORD(sums)     /* double (rows, width + 1, channels): of weight and bias */

namespace linrnn {
LINRNN_RECORD(CausalConvArgs, LINRNN_CAUSAL_CONV_FIELDS)
}
