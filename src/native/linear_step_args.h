// What Python hands to a matrix product for a few vectors; the other side is
// linrnn/ops/_native_step.py. Everything is contiguous and of one dtype.
#pragma once
#include "array.h"

namespace linrnn {

struct LinearStepArgs {
    i64 size;   // sizeof(LinearStepArgs)
    i64 dtype;  // F32 or F64
    i64 threads;
    i64 batch, columns, rows;
    i64 x;       // (batch, columns)
    i64 weight;  // (rows, columns)
    i64 bias;    // (rows) or 0
    i64 y;       // (batch, rows)
};

}  // namespace linrnn
