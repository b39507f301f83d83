// What Python hands to the gated scan.
#pragma once
#include "array.h"

#define LINRNN_GATED_SCAN_FIELDS(WORD, ARRAY, REAL)                                   \
    WORD(dtype)    /* of sequences; states of F32 for BF16 and F16 */                 \
    WORD(threads)                                                                     \
    WORD(reverse) WORD(backward)                                                      \
    WORD(gate)     /* what makes keep and add: see Gate */                            \
    WORD(positive) /* value = g(pre-activation), which is positive; else as it is */  \
    WORD(seqs) WORD(time) WORD(channels)                                              \
    WORD(offsets)  /* as of a scan */                                                 \
    ARRAY(x)       /* pre-activations (seqs, time, 2 or 3, channels): value, gates */ \
    WORD(x_part)   /* stride between those two or three */                            \
    ARRAY(h)       /* forward: written.  backward: read */                            \
    ARRAY(reset)   /* bytes, or data == 0 */                                          \
    WORD(initial)  /* (seqs, channels), or 0: the state before is `start` */          \
    REAL(start)    /* the state before a sequence, and so at a reset */               \
    WORD(final)    /* forward: written.  backward: its gradient */                    \
    ARRAY(grad_h)  /* backward */                                                     \
    ARRAY(grad_x)  /* backward: its parts and channels are side by side */            \
    WORD(grad_initial)

namespace linrnn {
LINRNN_RECORD(GatedScanArgs, LINRNN_GATED_SCAN_FIELDS)
}
