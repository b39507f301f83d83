// What Python hands to the traces of linear maps: what the parts of each channel of a state owe to
// the weights that move it.
#pragma once
#include "array.h"

#define LINRNN_TRACES_FIELDS(WORD, ARRAY, REAL)                                            \
    WORD(dtype)                                                                            \
    WORD(threads)                                                                          \
    WORD(parts) WORD(rows) WORD(outputs) WORD(inputs) WORD(channels)                       \
    WORD(index)   /* (outputs): of 64 bits, the channel that an output moves */            \
    WORD(before)  /* (parts, rows, outputs, inputs), or 0: nothing is owed */              \
    WORD(after)   /* the same, written: another array, or 0 */                             \
    WORD(keep)    /* (rows, parts after, parts before, channels): how the state goes on */ \
    WORD(slope)   /* (rows, parts, outputs): of a state by an output, or 0 */              \
    WORD(x)       /* (rows, inputs): what the map was given, or 0 */                       \
    WORD(credit)  /* (parts, rows, channels): of a state, or 0 */                          \
    WORD(total)   /* (outputs, inputs), written: credit times what is owed before, or 0 */  \
    WORD(pairs)   /* (2, outputs): of 64 bits, or 0: see the kernel */                     \
    WORD(gain)    /* (rows, rows of total): more gradient of outputs, at x, or 0 */

namespace linrnn {
LINRNN_RECORD(TracesArgs, LINRNN_TRACES_FIELDS)
}
