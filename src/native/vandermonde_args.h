// What Python hands to the Vandermonde product.
#pragma once
#include "array.h"

#define LINRNN_VANDERMONDE_FIELDS(WORD, ARRAY, REAL)                              \
    WORD(dtype)   /* C64 or C128: of c; y is its real part */                     \
    WORD(threads)                                                                 \
    WORD(rows) WORD(channels) WORD(modes) WORD(time)                              \
    WORD(shared)  /* a is (modes), the same for every channel */                  \
    WORD(a)       /* complex double (channels, modes) */                          \
    WORD(c)       /* (rows, channels, modes) */                                   \
    WORD(y)       /* (rows, channels, time).  backward: its gradient */           \
    WORD(backward)                                                                \
    WORD(grad_a)  /* complex double (channels, modes), also of one that all share */ \
    WORD(grad_c)

namespace linrnn {
LINRNN_RECORD(VandermondeArgs, LINRNN_VANDERMONDE_FIELDS)
}
