// What Python hands to the steps of a GRU or LSTM of bfloat16 numbers; all arrays are dense.
#pragma once
#include "array.h"

#define LINRNN_DENSE_STEPS_FIELDS(WORD, ARRAY, REAL)                                       \
    WORD(dtype)    /* of all but states: BF16 */                                           \
    WORD(threads)                                                                          \
    WORD(gates)    /* blocks of rows of the matrix: 3 of a GRU (r, z, n), 4 of an LSTM (i, f, g, o) */ \
    WORD(backward)                                                                         \
    WORD(seqs) WORD(time) WORD(channels) /* channels: a multiple of 32 */                  \
    ARRAY(reset)   /* bytes, or data == 0 */                                               \
    WORD(matrix)   /* (gates channels, channels) */                                        \
    WORD(bias)     /* F32 (4, channels): what is added to each logit, of a GRU r, z, n and then \
                      to the third product; or 0 */                                        \
    WORD(parts)    /* (seqs, time, gates channels). forward: what is added to products;    \
                      where `inner` is written, gates are written over it */               \
    WORD(inner)    /* (seqs, time, channels), of a GRU the third product, of an LSTM c; or 0: \
                      there is no backward */                                              \
    WORD(h)        /* (seqs, time, channels) */                                            \
    WORD(initial_h) WORD(initial_c) /* F32 (seqs, channels); c: of an LSTM */              \
    WORD(final_h) WORD(final_c)     /* forward: written. backward: their gradients */      \
    WORD(grad_h)      /* backward: of h */                                                 \
    WORD(grad_parts)  /* backward: like parts */                                           \
    WORD(grad_inner)  /* backward, of a GRU: of the third product, like h */               \
    WORD(before)      /* backward: h before each step, like h */                           \
    WORD(grad_initial_h) WORD(grad_initial_c) /* backward: F32, written */

namespace linrnn {
LINRNN_RECORD(DenseStepsArgs, LINRNN_DENSE_STEPS_FIELDS)
}
