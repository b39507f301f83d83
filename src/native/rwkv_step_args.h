// What Python hands to a streaming step of RWKV-4's two halves; the other side is
// linrnn/ops/_step_program.py. Everything is contiguous.
#pragma once
#include "array.h"

namespace linrnn {

struct TimeMixStepArgs {
    i64 size;   // sizeof(TimeMixStepArgs)
    i64 dtype;  // of the weights: F32, F64, or BF16 beside float32 for the rest
    i64 threads;
    i64 batch, model, state;
    i64 x;                             // (batch, model)
    i64 mu_k, mu_v, mu_r;              // (model), or 0 without token shift
    i64 key, value, receptance;        // (state, model)
    i64 output;                        // (model, state)
    i64 time_decay, time_first;        // (state)
    i64 mean, log_norm;                // states: (batch, state); a norm of 0 is that of no weight
    i64 shift;                         // and (batch, model), or 0
    i64 y, new_mean, new_log_norm, new_shift;
};

struct ChannelMixStepArgs {
    i64 size;   // sizeof(ChannelMixStepArgs)
    i64 dtype;  // of the weights: F32, F64, or BF16 beside float32 for the rest
    i64 threads;
    i64 batch, model, inner;
    i64 x;            // (batch, model)
    i64 mu_k, mu_r;   // (model)
    i64 key;          // (inner, model)
    i64 receptance;   // (model, model)
    i64 value;        // (model, inner)
    i64 past;         // state: (batch, model)
    i64 y, new_past;
};

}  // namespace linrnn
