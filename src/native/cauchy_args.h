// What Python hands to the Cauchy product.
#pragma once
#include "array.h"

#define LINRNN_CAUCHY_FIELDS(WORD, ARRAY, REAL)                                         \
    WORD(dtype)   /* F32 or F64: of beta, alpha, re and im; the rest is double */       \
    WORD(threads)                                                                       \
    WORD(rows) WORD(channels) WORD(modes) WORD(nodes)                                   \
    WORD(beta) WORD(alpha)    /* (rows, channels, modes) */                             \
    WORD(radius) WORD(real)   /* (channels, modes) */                                   \
    WORD(sine) WORD(cosine)   /* (nodes): of half the angle */                          \
    WORD(re) WORD(im)         /* (rows, channels, nodes).  backward: their gradients */ \
    WORD(backward)                                                                      \
    WORD(grad_beta) WORD(grad_alpha) WORD(grad_radius) WORD(grad_real)

namespace linrnn {
LINRNN_RECORD(CauchyArgs, LINRNN_CAUCHY_FIELDS)
}
