// What Python hands to the machine (kernels/machine.cpp), which runs a program over time.
#pragma once
#include "array.h"

#define LINRNN_MACHINE_FIELDS(WORD, ARRAY, REAL)                                      \
    WORD(dtype)    /* what is computed in, F32 or F64; each operand has its own */    \
    WORD(threads)                                                                     \
    WORD(reverse) WORD(backward) /* backward: against the order of reading */         \
    WORD(seqs) WORD(time) WORD(channels) /* channels: of the widest row */            \
    WORD(offsets)  /* as of a scan */                                                 \
    ARRAY(reset)   /* bytes, or data == 0 */                                          \
    WORD(program)  /* a MachineProgram, with its slots, matrices and codes behind it */ \
    WORD(operands) /* how many MachineOperand lie behind the record */                \
    WORD(every)    /* of which steps the states are kept, see below; 0 where all are */ \
    WORD(again)    /* backward: the program that computes the others, a MachineProgram */ \
    WORD(kept)     /* the operand that is the first state's; others behind it */      \
    WORD(half)     /* what needs to be no better than of bfloat16: a sum of MachineHalf */ \
    WORD(widths)   /* numbers a row, of each class of slots; or 0: all have `channels` */ \
    WORD(again_widths) /* of the other program */

// Every operation of numbers: a name, and what it makes of a number x, y, z of each of three rows
// and of the constant v. Two of them also fill the third row.
#define LINRNN_MACHINE_OPS(X)                                                         \
    X(move, x) X(neg, -x) X(abs, magnitude(x)) X(reciprocal, A(1) / x)                \
    X(square, x * x) X(sqrt, root(x)) X(exp, vexp(x)) X(expm1, vexpm1(x))             \
    X(log, vlog(x)) X(log1p, x == A(0) ? x : vlog1p(x)) X(sigmoid, vsigmoid(x)) X(tanh, vtanh(x))     \
    X(softplus, x > A(20) ? x : vsoftplus_to(x)) X(logsigmoid, -vsoftplus_to(-x))     \
    X(relu, x < A(0) ? A(0) : x) X(erf, error_function(x)) X(gelu, normal_part(x))    \
    X(sin, vsin(x)) X(cos, vcos(x)) X(sinh, hyperbolic_sine(x))                       \
    X(cosh, hyperbolic_cosine(x)) X(floor, below(x)) X(round, nearest(x))             \
    X(fmod, division_rest(x, y)) X(atan2, angle(x, y)) X(pow, power(x, y))            \
    X(add, x + y) X(sub, x - y) X(mul, x * y) X(div, x / y)                           \
    X(maximum, ((x > y) | (x != x)) ? x : y) X(minimum, ((x < y) | (x != x)) ? x : y) \
    X(lt, x < y ? A(1) : A(0)) X(le, x <= y ? A(1) : A(0))                            \
    X(eq, x == y ? A(1) : A(0)) X(ne, x != y ? A(1) : A(0))                           \
    X(where, x != A(0) ? y : z)                                                       \
    X(add_v, x + v) X(rsub_v, v - x) X(mul_v, x * v) X(rdiv_v, v / x)                 \
    X(mul_v_add, x * v + y) X(rsub_v_mul, (v - x) * y)                                \
    X(mul_add, x * y + z) X(mul_sub, x * y - z) X(neg_mul_add, z - x * y)             \
    X(add_add, x + y + z) X(mul_mul, x * y * z) X(sub_mul, (x - y) * z)               \
    X(add_mul, (x + y) * z) X(lerp, x + z * (y - x))                                  \
    X(one_minus_square, A(1) - x * x) X(mul_one_minus_square, x * (A(1) - y * y))     \
    X(sigmoid_both, both_sigmoids(x, &c[i])) X(sin_cos, vcos_sin(x, &c[i]))

// What repeats the numbers of a row n times, or sums up n of them: all of the row after itself, or
// each number beside itself; and what moves them n places on. Their numbers follow that of the product.
#define LINRNN_MACHINE_SPREADS(X) X(spread) X(spread_each) X(fold) X(fold_each) X(roll)

namespace linrnn {
LINRNN_RECORD(MachineArgs, LINRNN_MACHINE_FIELDS)

// Numbers of products with matrices; functions, which are right to one part in a million.
enum MachineHalf : i64 { HALF_FACTORS = 1, HALF_FUNCTIONS = 2 };

// A tensor of a call. In memory: strides in elements. Per channel: data. A matrix: dense, in
// `seq` blocks along the diagonal. An output without data is not wanted.
struct MachineOperand {
    i64 data, seq, step, dtype;
};

// Where not all states are kept (`every` = k): of each sequence those after k, 2k, ... steps, which
// lie in row (start / k + 0, 1, ...) of operands behind the program's own. Against time, `again`
// computes the steps between two of these once more, from operands behind those of the adjoint, and
// both programs have operands in common that hold these steps only: their `seq` is WINDOW, their
// `data` a number. The first are the states, in order.
constexpr i64 WINDOW = -1;

// Where a value lies. Chunks: of steps that come one after the other.
enum MachineKind : i64 {
    STEP = 0,      // a row, as long as one step
    CHUNK = 1,     // a row for each step of a chunk
    STATE = 2,     // from step to step; operands: before the first step or none, after the last
    CHANNEL = 3,   // an operand of one number a channel
    CONSTANT = 4,  // `value` everywhere
    INPUT = 5,     // an operand
    PREVIOUS = 6,  // an operand of the state after each step, one step earlier in the order of
                   // reading; next operand: before the first step or none, which is `value`
    OUTPUT = 7,    // an operand
    SUM = 8,       // over all steps and sequences, times `value`, into an operand of one number a
                   // channel
};
struct MachineSlot {
    i64 kind, operand;
    double value;  // of STATE and PREVIOUS: before a sequence and at a reset
    i64 width;     // the class of slots that are as wide
};

// Its matrix turned or not; the classes of its products and of what it is applied to.
struct MachineMatrix {
    i64 operand, turned, result, vector;
};

// row d = op(rows a, b, c; value). `op` is a place in LINRNN_MACHINE_OPS, or behind them all the
// product of matrix b with row a, to which row c is added unless it is -1; or behind that one of
// LINRNN_MACHINE_SPREADS, of row a and n = `value`.
struct MachineCode {
    std::int32_t op, d, a, b, c, unused;
    double value;
};

// Codes in order of their level: before the first step, for all steps of a chunk, for each step,
// and for all steps of a chunk afterwards.
struct MachineProgram {
    i64 size;  // of all of it in bytes
    i64 slots, matrices, codes[4];

    i64 count() const { return codes[0] + codes[1] + codes[2] + codes[3]; }
    const MachineSlot* slot() const { return reinterpret_cast<const MachineSlot*>(this + 1); }
    const MachineMatrix* matrix() const {
        return reinterpret_cast<const MachineMatrix*>(slot() + slots);
    }
    const MachineCode* code() const {
        return reinterpret_cast<const MachineCode*>(matrix() + matrices);
    }
};
}
