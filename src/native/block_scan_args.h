// What Python hands to the scan of blocks.
#pragma once
#include "array.h"

#define LINRNN_BLOCK_SCAN_FIELDS(WORD, ARRAY, REAL)                                       \
    WORD(dtype)    /* of a, b, h and their gradients; states of F32 for BF16 and F16 */    \
    WORD(threads)                                                                         \
    WORD(reverse) WORD(backward)                                                          \
    WORD(constant) /* a does not depend on time: (blocks, side, side), matrices alone */  \
    WORD(seqs) WORD(time)                                                                 \
    WORD(blocks)   /* of a state, each of `side` numbers */                               \
    WORD(side)                                                                            \
    WORD(offsets)  /* as of a scan */                                                     \
    ARRAY(a)       /* (seqs, time, blocks, side, side); with an index (.., blocks, side) */\
    ARRAY(b)       /* (seqs, time, blocks, side); backward: the gradient of h */          \
    ARRAY(h)       /* forward: written.  backward: read */                                \
    ARRAY(reset)   /* bytes, or data == 0 */                                              \
    ARRAY(index)   /* of 64 bits, as a: see the kernel; data == 0 of matrices */          \
    WORD(gather)   /* which of the two an index is */                                     \
    WORD(initial)  /* (seqs, blocks, side) or 0 */                                        \
    WORD(final)    /* forward: written.  backward: its gradient */                        \
    WORD(grad_a)   /* backward: dense like a */                                           \
    WORD(grad_b)   /* backward: dense like h */                                           \
    WORD(grad_initial)

namespace linrnn {
LINRNN_RECORD(BlockScanArgs, LINRNN_BLOCK_SCAN_FIELDS)
}
