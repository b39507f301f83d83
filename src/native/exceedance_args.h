// What Python hands to the bank of modes whose waves are counted above thresholds.
#pragma once
#include "array.h"

#define LINRNN_EXCEEDANCE_FIELDS(WORD, ARRAY, REAL)                                          \
    WORD(dtype) /* F32 or F64, of all numbers */                                            \
    WORD(threads)                                                                           \
    WORD(seqs) WORD(time) WORD(inputs) WORD(modes)                                          \
    WORD(x)         /* (seqs, time, inputs), finite */                                      \
    WORD(observed)  /* (seqs, time): 0 where nothing was */                                 \
    WORD(when)      /* (seqs, time): the time of a step, which never falls */               \
    WORD(decay)     /* complex (modes) */                                                   \
    WORD(out)       /* complex (modes): a wave is the real part of out times the state */   \
    WORD(weight)    /* (modes, inputs) */                                                   \
    WORD(threshold) /* (modes), or 0 where only waves are wanted */                         \
    WORD(before)    /* (9, seqs, modes): see the kernel; 0: from the beginning */           \
    WORD(after)     /* the same, written, or 0 */                                           \
    WORD(features)  /* (seqs, 6, modes), written, or 0: of sequences read in one piece */   \
    WORD(places)    /* (count): of 64 bits, rising; steps of all sequences, behind one another */ \
    WORD(count)                                                                             \
    WORD(waves)     /* (modes, row), written: first the waves at these places, or 0 */      \
    WORD(row)

namespace linrnn {
LINRNN_RECORD(ExceedanceArgs, LINRNN_EXCEEDANCE_FIELDS)
}
