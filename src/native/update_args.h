// What Python hands to the kernels of one step that write a state where it lies.
#pragma once
#include "operand_args.h"

namespace linrnn {

// dtype is that of the state; y is dense and has a dtype too.
#define LINRNN_CONV_UPDATE_FIELDS(WORD, ARRAY, REAL)                                     \
    WORD(dtype) WORD(threads)                                                            \
    WORD(silu)                                                                           \
    WORD(rows) WORD(channels) WORD(width)                                                \
    WORD(state) WORD(state_row) WORD(state_channel) /* its last axis is dense */         \
    LINRNN_OPERAND_FIELDS(WORD, x)      /* lanes are channels */                         \
    LINRNN_OPERAND_FIELDS(WORD, weight) /* heads are channels, lanes the taps */         \
    LINRNN_OPERAND_FIELDS(WORD, bias)                                                    \
    WORD(y) WORD(y_dtype)

#define LINRNN_SELECTIVE_UPDATE_FIELDS(WORD, ARRAY, REAL)                                \
    WORD(dtype) WORD(threads)                                                            \
    WORD(softplus)                                                                       \
    WORD(rows) WORD(channels) WORD(modes)                                                \
    WORD(state) WORD(state_row) WORD(state_channel) /* modes are dense */                \
    LINRNN_OPERAND_FIELDS(WORD, x) LINRNN_OPERAND_FIELDS(WORD, dt)                       \
    LINRNN_OPERAND_FIELDS(WORD, A) /* heads are channels, lanes the modes */             \
    LINRNN_OPERAND_FIELDS(WORD, B) LINRNN_OPERAND_FIELDS(WORD, C)                        \
    LINRNN_OPERAND_FIELDS(WORD, D) LINRNN_OPERAND_FIELDS(WORD, z)                        \
    LINRNN_OPERAND_FIELDS(WORD, bias)                                                    \
    WORD(y) WORD(y_dtype)

#define LINRNN_OUTER_UPDATE_FIELDS(WORD, ARRAY, REAL)                                    \
    WORD(dtype) WORD(threads)                                                            \
    WORD(softplus) REAL(least) REAL(most) /* bounds of a step size */                    \
    WORD(rows) WORD(heads) WORD(groups) WORD(width) WORD(modes)                          \
    WORD(state) WORD(state_row) WORD(state_head)                                         \
    WORD(state_width) WORD(state_mode) /* one of them is 1 */                            \
    LINRNN_OPERAND_FIELDS(WORD, x)                                                       \
    LINRNN_OPERAND_FIELDS(WORD, dt) LINRNN_OPERAND_FIELDS(WORD, A) /* one a head */      \
    LINRNN_OPERAND_FIELDS(WORD, B) LINRNN_OPERAND_FIELDS(WORD, C) /* heads are groups */ \
    LINRNN_OPERAND_FIELDS(WORD, D) LINRNN_OPERAND_FIELDS(WORD, z)                        \
    LINRNN_OPERAND_FIELDS(WORD, bias)                                                    \
    WORD(y) WORD(y_dtype)

#define LINRNN_DELTA_UPDATE_FIELDS(WORD, ARRAY, REAL)                                    \
    WORD(dtype) WORD(threads)                                                            \
    WORD(norm) REAL(eps) REAL(scale)                                                     \
    WORD(rows) WORD(heads) WORD(key_heads) WORD(keys) WORD(values)                       \
    WORD(state) WORD(state_row) WORD(state_head) WORD(state_key) /* values are dense */  \
    LINRNN_OPERAND_FIELDS(WORD, q) LINRNN_OPERAND_FIELDS(WORD, k)                        \
    LINRNN_OPERAND_FIELDS(WORD, v)                                                       \
    LINRNN_OPERAND_FIELDS(WORD, g)    /* one a head, or with lanes one a key channel */  \
    WORD(key_decays)                                                                     \
    LINRNN_OPERAND_FIELDS(WORD, beta) /* one a head */                                   \
    WORD(y) WORD(y_dtype)

LINRNN_RECORD(ConvUpdateArgs, LINRNN_CONV_UPDATE_FIELDS)
LINRNN_RECORD(SelectiveUpdateArgs, LINRNN_SELECTIVE_UPDATE_FIELDS)
LINRNN_RECORD(OuterUpdateArgs, LINRNN_OUTER_UPDATE_FIELDS)
LINRNN_RECORD(DeltaUpdateArgs, LINRNN_DELTA_UPDATE_FIELDS)
}  // namespace linrnn
