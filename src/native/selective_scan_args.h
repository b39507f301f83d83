// What Python hands to the selective scan; see scan_args.h for the manner and
// linrnn/ops/selective_scan/_cpu.py for the other side.
#pragma once
#include "array.h"

namespace linrnn {

struct SelectiveScanArgs {
    i64 size;      // sizeof(SelectiveScanArgs)
    i64 dtype;     // of sequences; everything else is F32 for BF16 and F16
    i64 threads;
    i64 backward;
    i64 softplus;  // dt = softplus(dt + bias)
    i64 zoh;
    i64 chunk;     // steps between kept states
    i64 seqs, time, channels, modes;
    i64 groups;    // backward: channel groups, each with its own part of grad_B and grad_C
    i64 rows;      // backward: groups of sequences, each with its own part of `sums`
    Array x, dt, B, C;
    Array z;       // or data == 0
    Array reset;   // bytes, or data == 0
    Array y;       // forward: written.  backward: its gradient
    i64 A;         // (channels, modes)
    i64 D, bias;   // (channels) or 0
    i64 initial;   // (seqs, channels, modes) or 0
    i64 final;     // forward: written.  backward: its gradient
    i64 kept;      // (seqs, chunks, modes, channels): state before each chunk; 0 keeps none
    i64 grad_x, grad_dt, grad_z;  // (seqs, time, channels)
    i64 grad_B, grad_C;           // (groups, seqs, time, modes)
    i64 grad_initial;             // (seqs, channels, modes)
    i64 sums;                     // double (rows, modes + 2, channels): of A, D and bias
};

}  // namespace linrnn
