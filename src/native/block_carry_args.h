// What Python hands to states that are carried over blocks of time.
#pragma once
#include "array.h"

#define LINRNN_BLOCK_CARRY_FIELDS(WORD, ARRAY, REAL)                                   \
    WORD(dtype)   /* of the states */                                                  \
    WORD(threads)                                                                      \
    WORD(channels) WORD(seqs) WORD(blocks) WORD(modes)                                 \
    WORD(left)    /* (channels, seqs, blocks, modes): what a block adds; after the call \
                     the state before it.  backward: the gradient of that state; after  \
                     the call that of what is added */                                 \
    WORD(first)   /* (channels, seqs, modes).  backward: written, a gradient */        \
    WORD(last)    /* (channels, seqs, modes): written.  backward: read, a gradient */  \
    WORD(decay)   /* (channels, modes) */                                              \
    WORD(backward)                                                                     \
    WORD(before)  /* the states before each block, of backward alone */                \
    WORD(grad_decay)

namespace linrnn {
LINRNN_RECORD(BlockCarryArgs, LINRNN_BLOCK_CARRY_FIELDS)
}
