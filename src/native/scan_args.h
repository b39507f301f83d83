// What Python hands to the scan kernels: one flat record of 64-bit fields, pointers included.
#pragma once
#include "array.h"

#define LINRNN_SCAN_FIELDS(WORD, ARRAY, REAL)                                         \
    WORD(dtype)    /* of a, b, h and their gradients; states of F32 for BF16 and F16;\
                      CBF16 has a, its gradient and states of C64 */\
    WORD(threads)                                                                     \
    WORD(reverse)  /* process from the last step to the first */                      \
    WORD(backward) /* compute the adjoint instead of the scan */                      \
    WORD(constant) /* a does not depend on time: (channels,) */                       \
    WORD(seqs) WORD(time) WORD(channels)                                              \
    WORD(offsets)  /* seqs + 1 offsets of packed sequences (i64*), or 0 for a batch */\
    ARRAY(a)                                                                          \
    ARRAY(b)       /* forward: b.  backward: the gradient of h */                     \
    ARRAY(h)       /* forward: written.  backward: read */                            \
    ARRAY(reset)   /* bytes, or data == 0 */                                          \
    WORD(initial)  /* (seqs, channels) or 0 */                                        \
    WORD(final)    /* forward: written final state.  backward: its gradient */        \
    WORD(grad_a)   /* backward: (seqs, time, channels), or (channels,) when constant */\
    WORD(grad_b)   /* backward: dense like h */                                       \
    WORD(grad_initial)

namespace linrnn {
LINRNN_RECORD(ScanArgs, LINRNN_SCAN_FIELDS)
}
