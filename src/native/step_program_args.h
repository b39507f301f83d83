// Several steps of one token, one after the other; the other side is
// linrnn/ops/_step_program.py. The records of the steps lie behind this one in the same memory.
#pragma once
#include "array.h"

namespace linrnn {

struct StepCall {
    i64 kernel;  // its place in LINRNN_STEPS
    i64 record;  // bytes from the start of the program
};

struct StepProgramArgs {
    i64 size;   // sizeof(StepProgramArgs)
    i64 bytes;  // of the whole program
    i64 count;  // of calls, which follow
};

}  // namespace linrnn

// The order is that of _STEPS in linrnn/ops/_step_program.py.
#define LINRNN_STEPS(X) \
    X(linear_step) X(norm_step) X(mamba_step) X(time_mix_step) X(channel_mix_step)
