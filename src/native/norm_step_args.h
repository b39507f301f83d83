// What Python hands to a residual sum and its norm; the other side is linrnn/ops/_step_program.py.
// Everything is contiguous.
#pragma once
#include "array.h"

namespace linrnn {

enum Norm : i64 { NO_NORM = 0, LAYER_NORM = 1, RMS_NORM = 2 };

struct NormStepArgs {
    i64 size;   // sizeof(NormStepArgs)
    i64 dtype;  // of the weights: F32, F64, or BF16 beside float32 for the rest
    i64 threads;
    i64 batch, model;
    i64 norm;   // which
    i64 eps;    // the bits of a double; below 0: the rounding of what is computed in
    i64 x;      // (batch, model)
    i64 added;  // (batch, model) or 0
    i64 weight, bias;  // (model) or 0
    i64 sum;    // x + added, (batch, model), or 0 where nobody wants it; may be x
    i64 y;      // the norm of the sum
};

}  // namespace linrnn
