// What Python hands to the scan kernels: one flat record of 64-bit integers, pointers included,
// so that a call costs one struct.pack and one foreign-function argument. The order of the fields
// is repeated in linrnn/ops/linear_scan/_cpu.py; `size` catches a library and a package that differ.
#pragma once
#include "array.h"

namespace linrnn {

struct ScanArgs {
    i64 size;       // sizeof(ScanArgs)
    i64 dtype;      // of a, b, h and their gradients; states of F32 for BF16 and F16
    i64 threads;
    i64 reverse;    // process from the last step to the first
    i64 backward;   // compute the adjoint instead of the scan
    i64 constant;   // a does not depend on time: (channels,)
    i64 seqs, time, channels;
    i64 offsets;    // seqs + 1 offsets of packed sequences (i64*), or 0 for a dense batch
    Array a;
    Array b;        // forward: b.  backward: the gradient of h
    Array h;        // forward: written.  backward: read
    Array reset;    // bytes, or data == 0
    i64 initial;    // (seqs, channels) or 0
    i64 final;      // forward: written final state.  backward: its gradient
    i64 grad_a;     // backward: (seqs, time, channels), or (channels,) when constant
    i64 grad_b;     // backward: dense like h
    i64 grad_initial;
};

}  // namespace linrnn
