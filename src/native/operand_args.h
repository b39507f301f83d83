// A tensor that a kernel reads in any dtype and with any strides.
#pragma once
#include "array.h"

namespace linrnn {

// A tensor of real numbers, zeros for none. Its axes are rows of the batch,
// heads and lanes; a stride is 0 where it lacks the axis.
struct Operand {
    i64 data, dtype, row, head, lane;
};

#define LINRNN_OPERAND_FIELDS(WORD, x) \
    WORD(x) WORD(x##_dtype) WORD(x##_row) WORD(x##_head) WORD(x##_lane)
#define LINRNN_OPERAND(args, x) \
    ::linrnn::Operand{args.x, args.x##_dtype, args.x##_row, args.x##_head, args.x##_lane}

}  // namespace linrnn
