// What Python hands to the selective scan.
#pragma once
#include "array.h"

#define LINRNN_SELECTIVE_SCAN_FIELDS(WORD, ARRAY, REAL)                               \
    WORD(dtype)    /* of sequences; everything else is F32 for BF16 and F16 */        \
    WORD(threads)                                                                     \
    WORD(reverse)                                                                     \
    WORD(softplus) /* dt = softplus(dt + bias) */                                     \
    WORD(zoh)                                                                         \
    WORD(chunk)    /* steps between kept states */                                    \
    WORD(seqs) WORD(time) WORD(channels) WORD(modes)                                  \
    WORD(offsets)  /* as of a scan */                                                 \
    WORD(groups)   /* backward: channel groups, each with a part of grad_B, grad_C */ \
    WORD(rows)     /* backward: groups of sequences, each with a part of `sums` */    \
    ARRAY(x) ARRAY(dt) ARRAY(B) ARRAY(C)                                              \
    ARRAY(z)       /* or data == 0 */                                                 \
    ARRAY(reset)   /* bytes, or data == 0 */                                          \
    WORD(A)        /* (channels, modes) */                                            \
    WORD(D) WORD(bias) /* (channels) or 0 */                                          \
    WORD(initial)  /* (seqs, channels, modes) or 0 */                                 \
    WORD(kept)     /* (.., modes, channels): state before each chunk; 0 keeps none */ \
    ARRAY(y)       /* forward: written.  backward: its gradient */                    \
    WORD(final)    /* forward: written.  backward: its gradient */                    \
    WORD(backward)                                                                    \
    ARRAY(grad_x) ARRAY(grad_dt) ARRAY(grad_z)                                        \
    ARRAY(grad_B) ARRAY(grad_C) /* of group 0; the others follow */                   \
    WORD(grad_initial) /* (seqs, channels, modes) */                                  \
    WORD(sums)     /* double (rows, modes + 2, channels): of A, D and bias */

namespace linrnn {
LINRNN_RECORD(SelectiveScanArgs, LINRNN_SELECTIVE_SCAN_FIELDS)
}
