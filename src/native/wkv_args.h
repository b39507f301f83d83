// What Python hands to the weighted mean of RWKV-4 of bfloat16 rows.
#pragma once
#include "array.h"

#define LINRNN_WKV_FIELDS(WORD, ARRAY, REAL)                                              \
    WORD(dtype)    /* of sequences: BF16 */                                               \
    WORD(threads)                                                                         \
    WORD(backward)                                                                        \
    WORD(seqs) WORD(time) WORD(channels)                                                  \
    ARRAY(k) ARRAY(v) ARRAY(r) /* (seqs, time, channels), channels side by side */        \
    WORD(decay) WORD(bonus)    /* F32 (channels) */                                       \
    ARRAY(reset)   /* bytes, or data == 0 */                                              \
    REAL(empty)    /* the logarithm of no weight, as a sequence begins after a reset */   \
    WORD(initial_mean) WORD(initial_norm) /* F32 (seqs, channels) */                      \
    ARRAY(y)       /* forward: written */                                                 \
    WORD(final_mean) WORD(final_norm) /* forward: written. backward: their gradients */   \
    WORD(marks)    /* F32 (seqs, windows, 2, channels): mean and norm before each window of \
                      8 steps. forward: written, or 0. backward: read */                  \
    ARRAY(grad_y)  /* backward */                                                         \
    WORD(grad_k) WORD(grad_v) WORD(grad_r) /* dense, written */                           \
    WORD(grad_mean) WORD(grad_norm) /* of the initial ones */                             \
    WORD(sums)     /* double (seqs, 2, channels): gradients of decay and bonus */

namespace linrnn {
LINRNN_RECORD(WkvArgs, LINRNN_WKV_FIELDS)
}
