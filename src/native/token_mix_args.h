// What Python hands to the mixes of each input with the one before.
#pragma once
#include "array.h"

#define LINRNN_TOKEN_MIX_FIELDS(WORD, ARRAY, REAL)                                          \
    WORD(dtype)      /* what is computed in, F32 or F64: that of mu and past */             \
    WORD(threads)                                                                           \
    WORD(seqs) WORD(time) WORD(channels) WORD(mixes)                                        \
    ARRAY(x) WORD(x_dtype)                                                                  \
    WORD(past)       /* (seqs, channels), the input before the first */                     \
    WORD(mu)         /* (mixes, channels) */                                                \
    ARRAY(moved) WORD(moved_dtype) WORD(moved_mix) /* added to mu, with a stride of mixes; \
                        or data == 0 */                                                     \
    ARRAY(reset)     /* bytes, or data == 0 */                                              \
    WORD(outputs)    /* mixes addresses of dense (seqs, time, channels): forward: written.  \
                        backward: their gradients */                                        \
    WORD(output_dtype)                                                                      \
    WORD(backward)                                                                          \
    WORD(parts)      /* backward: of the units of work, each with a row of `sums` */        \
    WORD(grad_x)     /* dense, of x_dtype */                                                \
    WORD(grad_past)  /* (seqs, channels) */                                                 \
    WORD(grad_moved) /* like moved in dtype and strides, or 0 */                            \
    WORD(sums)       /* double (parts, mixes, channels): of mu */

namespace linrnn {
LINRNN_RECORD(TokenMixArgs, LINRNN_TOKEN_MIX_FIELDS)
}
