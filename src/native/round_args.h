// What Python hands to the rounding of a float32 array to bfloat16.
#pragma once
#include "array.h"

#define LINRNN_ROUND_FIELDS(WORD, ARRAY, REAL)                 \
    WORD(dtype)    /* of the result: BF16 */                   \
    WORD(threads)                                              \
    WORD(count)                                                \
    WORD(x)        /* F32 (count) */                           \
    WORD(y)        /* (count) */

namespace linrnn {
LINRNN_RECORD(RoundArgs, LINRNN_ROUND_FIELDS)
}
