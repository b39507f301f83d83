// What Python hands to the powers of a transition that is diagonal plus low rank.
#pragma once
#include "array.h"

#define LINRNN_DPLR_POWERS_FIELDS(WORD, ARRAY, REAL)                                       \
    WORD(dtype)     /* F32 or F64: of what is written; the system is complex double */     \
    WORD(threads)                                                                          \
    WORD(channels) WORD(modes) WORD(rank)                                                  \
    WORD(steps)     /* of a block */                                                       \
    WORD(rest)      /* steps of a shorter one, or 0 */                                     \
    WORD(a) WORD(b) WORD(c) /* (channels, modes) */                                        \
    WORD(p) WORD(q)         /* (channels, rank, modes) */                                  \
    WORD(response)  /* (channels, steps): c A^j b.  backward: this and the next are gradients */ \
    WORD(into)      /* (channels, steps, 2 modes): A^j b, the highest power first */       \
    WORD(out)       /* (channels, steps, 2 modes): c A^(j + 1) */                          \
    WORD(decay)     /* (channels, 2 modes, 2 modes): A^steps, to multiply rows with */     \
    WORD(rest_decay)                                                                       \
    WORD(backward)                                                                         \
    WORD(grad_a) WORD(grad_b) WORD(grad_c) WORD(grad_p) WORD(grad_q)

namespace linrnn {
LINRNN_RECORD(DplrPowersArgs, LINRNN_DPLR_POWERS_FIELDS)
}
