// The dtypes and the strided array of every kernel's record.
#pragma once
#include <cstdint>

namespace linrnn {

using i64 = std::int64_t;

enum DType : i64 { F32 = 0, F64 = 1, C64 = 2, C128 = 3, BF16 = 4, F16 = 5 };

// A (sequence, time, channel) array; strides in elements, the channel stride is 1.
struct Array {
    i64 data, seq, step;
};

}  // namespace linrnn
