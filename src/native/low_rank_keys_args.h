// What Python hands to the keys of a memory with a low rank.
#pragma once
#include "array.h"

#define LINRNN_LOW_RANK_KEYS_FIELDS(WORD, ARRAY, REAL)                                        \
    WORD(dtype)  /* what is computed in, F32 or F64: that of direction, relax and g */        \
    WORD(threads)                                                                             \
    WORD(rows) WORD(heads) WORD(width)                                                        \
    REAL(eps) REAL(scale)                                                                     \
    WORD(key) WORD(key_dtype) WORD(rate) WORD(rate_dtype) WORD(decay) WORD(decay_dtype)       \
    WORD(direction) WORD(relax) /* (heads * width) */                                         \
    WORD(k) WORD(a) WORD(b) WORD(out_dtype)                                                   \
    WORD(g)          /* forward: these four are written. backward: their gradients */         \
    WORD(backward)                                                                            \
    WORD(parts)      /* of the rows, each with a row of `sums` */                             \
    WORD(grad_key) WORD(grad_rate) WORD(grad_decay) /* in the dtypes of key, rate, decay */   \
    WORD(sums)       /* double (parts, 2, heads * width), of direction and relax */

namespace linrnn {
LINRNN_RECORD(LowRankKeysArgs, LINRNN_LOW_RANK_KEYS_FIELDS)
}
