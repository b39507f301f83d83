// What Python hands to a matrix product for a few vectors; the other side is
// linrnn/ops/_step_program.py. Everything is contiguous.
#pragma once
#include "array.h"

namespace linrnn {

struct LinearStepArgs {
    i64 size;   // sizeof(LinearStepArgs)
    i64 dtype;  // of the weights: F32, F64, or BF16 beside float32 for the rest
    i64 threads;
    i64 batch, columns, rows;
    i64 x;       // (batch, columns)
    i64 weight;  // (rows, columns)
    i64 bias;    // (rows) or 0
    i64 y;       // (batch, rows)
};

}  // namespace linrnn
