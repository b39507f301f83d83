// What Python hands to a streaming step of Mamba; linrnn/ops/_step_program.py is the other side.
// Everything is contiguous.
#pragma once
#include "array.h"

namespace linrnn {

struct MambaStepArgs {
    i64 size;   // sizeof(MambaStepArgs)
    i64 dtype;  // of the weights: F32, F64, or BF16 beside float32 for the rest
    i64 threads;
    i64 batch;
    i64 zoh;
    i64 inner, modes, model, width, rank;
    i64 x;            // (batch, model)
    i64 in_proj;      // (2 inner, model): input of the convolution, then of the gate
    i64 in_bias;      // (2 inner) or 0
    i64 conv_weight;  // (inner, width), oldest first
    i64 conv_bias;    // (inner) or 0
    i64 x_proj;       // (rank + 2 modes, inner)
    i64 dt_weight;    // (inner, rank)
    i64 dt_bias, A_log, D;
    i64 out_proj;  // (model, inner)
    i64 out_bias;  // (model) or 0
    i64 h, past;  // states: (batch, inner, modes) and (batch, width - 1, inner)
    i64 y, new_h, new_past;
};

}  // namespace linrnn
