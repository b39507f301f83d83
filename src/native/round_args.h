// What Python hands to the rounding of a float32 array to bfloat16, or back.
#pragma once
#include "array.h"

#define LINRNN_ROUND_FIELDS(WORD, ARRAY, REAL)                 \
    WORD(dtype)    /* of the narrow array: BF16 */             \
    WORD(threads)                                              \
    WORD(count)                                                \
    WORD(widens)   /* x is BF16 and y F32; else x is F32 */    \
    WORD(x)        /* (count) */                               \
    WORD(y)        /* like x, written */

namespace linrnn {
LINRNN_RECORD(RoundArgs, LINRNN_ROUND_FIELDS)
}
