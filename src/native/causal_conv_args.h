// What Python hands to the causal convolution; see scan_args.h for the manner and
// linrnn/ops/causal_conv/_cpu.py for the other side.
#pragma once
#include "array.h"

namespace linrnn {

struct CausalConvArgs {
    i64 size;   // sizeof(CausalConvArgs)
    i64 dtype;  // of x and y; everything else is F32 for BF16 and F16
    i64 threads;
    i64 backward;
    i64 silu;   // y = silu(convolution)
    i64 seqs, time, channels, width;
    i64 rows;   // backward: groups of units of work, each with its own part of `sums`
    Array x, reset;
    Array y;      // forward: written.  backward: its gradient
    i64 past;     // (seqs, width - 1, channels): inputs before the first, oldest first
    i64 weight;   // (width, channels), oldest first
    i64 bias;     // (channels) or 0
    i64 grad_x;   // (seqs, time, channels)
    i64 grad_past;
    i64 sums;     // double (rows, width + 1, channels): of weight and bias
};

}  // namespace linrnn
