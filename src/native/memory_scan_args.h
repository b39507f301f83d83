// What Python hands to the scans of matrix memories: outer_scan and delta_scan, and their adjoints.
#pragma once
#include "array.h"

#define LINRNN_MEMORY_SCAN_FIELDS(WORD, ARRAY, REAL)                                          \
    WORD(dtype)    /* of q, k, v, a, b and o; everything else is F32 for BF16 and F16 */      \
    WORD(threads)                                                                             \
    WORD(reverse)                                                                             \
    WORD(delta)    /* what is written is the difference, unless there are a and b */          \
    WORD(before)   /* q reads what has decayed, before the writes of its step */              \
    WORD(normalizer) /* a last column of ones, which is not stored */                         \
    WORD(channels) /* decays: 0 none, 1 one a head, 2 one a key */                            \
    WORD(constant) /* g is (heads) or (heads, keys) */                                        \
    REAL(scale)                                                                               \
    WORD(seqs) WORD(time) WORD(heads) WORD(keys)                                              \
    WORD(rank)     /* writes of a step: rows of k, v, a, b and beta */                        \
    WORD(reads)    /* rows of q and o a step: 1, or as many as writes */                      \
    WORD(key_heads) /* that gradients of q, k, a and b of as many heads are shared by */      \
    WORD(q_share) WORD(k_share) WORD(v_share) WORD(a_share) WORD(b_share) /* heads of one */  \
    WORD(g_share) WORD(value_decay_share) WORD(beta_share)                                    \
    WORD(values)   /* without the normalizer */                                               \
    WORD(offsets)  /* as of a scan */                                                         \
    WORD(window)   /* steps between kept states */                                            \
    WORD(width)    /* columns of a slice */                                                   \
    WORD(parts)    /* backward: of the heads and slices that share a key */                   \
    ARRAY(q) ARRAY(k) ARRAY(v)                                                                \
    ARRAY(a) ARRAY(b) /* or data == 0 */                                                      \
    ARRAY(g)       /* (.., heads) or (.., heads, keys); of no stride where constant */        \
    ARRAY(sign)    /* of the decays, like g; or data == 0 */                                  \
    ARRAY(value_decay) ARRAY(beta) /* or data == 0 */                                         \
    WORD(rates)    /* beta is (.., heads, values) */                                          \
    ARRAY(reset)   /* bytes, or data == 0 */                                                  \
    WORD(bonus)    /* (heads, keys) or 0 */                                                   \
    WORD(initial)  /* (seqs, heads, keys, columns) or 0 */                                    \
    WORD(kept)     /* (.., heads, keys, columns): memory before each window; 0 keeps none */  \
    ARRAY(o)       /* forward: written.  backward: its gradient */                            \
    WORD(final)    /* forward: written.  backward: its gradient */                            \
    WORD(backward)                                                                            \
    ARRAY(grad_q) ARRAY(grad_k) ARRAY(grad_a) ARRAY(grad_b) /* of part 0; the others follow; \
                      of key_heads where those that they are of are as many, else of heads */ \
    WORD(single)   /* each of these four is of dtype, and nothing is added to it */           \
    ARRAY(grad_v)                                                                             \
    ARRAY(grad_g)  /* of slice 0; the others follow */                                        \
    ARRAY(grad_value_decay)                                                                   \
    ARRAY(grad_beta) /* of slice 0; the others follow, unless there are rates */              \
    WORD(grad_initial) /* (seqs, heads, keys, columns) */                                     \
    WORD(sums)     /* double (slices, seqs, heads, 2, keys): of a constant g and of bonus */

namespace linrnn {
LINRNN_RECORD(MemoryScanArgs, LINRNN_MEMORY_SCAN_FIELDS)
}
