// What Python hands to a step that was recorded (kernels/recorded_step.cpp); the other side is
// linrnn/engine/replay/step.py.
#pragma once
#include "machine_args.h"

#define LINRNN_RECORDED_STEP_FIELDS(WORD, ARRAY, REAL)                                    \
    WORD(dtype)   /* unused: each instruction has its own */                              \
    WORD(threads)                                                                         \
    WORD(program) /* RecordedInstruction, one behind the other */                         \
    WORD(count)                                                                           \
    WORD(bases)   /* an address for each slot */                                          \
    WORD(watched) /* RecordedWatch: weights that must be what they were */                \
    WORD(watches) /* how many */                                                          \
    WORD(differ)  /* where 1 is written if they are not; then nothing is computed */

// What an instruction does beside the operations of the machine, whose numbers come first; the
// rules that write instructions are linrnn/engine/replay/rules.py and engine/replay/sums.py.
#define LINRNN_RECORDED_OPS(X) X(total) X(largest) X(product) X(standardise) X(take) X(quantized)

namespace linrnn {
constexpr i64 I64 = 6, BYTES = 7;  // beside the dtypes of floating point

LINRNN_RECORD(RecordedStepArgs, LINRNN_RECORDED_STEP_FIELDS)

// Weights, and what they were when something was computed from them alone.
struct RecordedWatch {
    i64 now, before, bytes;
};

// Numbers in memory, at most four axes of them; or one constant, where slot < 0.
struct RecordedOperand {
    i64 slot, offset;  // which base, and bytes behind it
    i64 dtype;         // F32, F64, I64, BF16 or, of quantized weights, BYTES
    i64 stride[4];     // in elements
    double value;
};

// total, largest: over the last axis of a, into d. product: size is (blocks, m, n, k), and
// d[q, i, j] = sum_k a[q, i, k] b[q, j, k] + c[q, i, j]; each operand has its strides at the axes that
// it has. These are of the dtype that is computed in, but for b and c, which may be BF16; the last
// axis of a is dense, and so is that of b or of d; c may be missing. standardise: of each row x along
// the last axis of a, (x - m) / sqrt(mean((x - m)^2) + value), where m is the mean of x times the
// constant c, 0 or 1; in the dtype that is computed in. take: a at the places b, below 0 from the end, of an axis of c numbers that lie `value`
// apart; NaN where it has no such place. quantized, in F32: size is (1, m, n, k), and d[i, j] is the sum
// of a[i, k] w[j, k], where w is b with the scales c (quantized.h); value is bits + 16 (zeros + 2 (digits
// + 4 group)), and the last axes of a and d are dense.
struct RecordedInstruction {
    i64 op, dtype;  // computed in F32 or F64
    double value;
    i64 size[4];
    RecordedOperand d, a, b, c;
};
}  // namespace linrnn
