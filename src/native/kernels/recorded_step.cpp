// A step of a model as it was recorded: vector operations and products with a few vectors, one
// after the other. The operations are those of the machine (machine_ops.h).
//
// Compiled once for every instruction set: see scan.cpp.
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>

#include "../machine_ops.h"
#include "../quantized.h"
#include "../recorded_step_args.h"

namespace linrnn {
namespace LINRNN_ISA {
namespace {

constexpr i64 TILE = 512;  // numbers that are computed at once where they do not lie in a row

// The instructions that are computed in A.
template <class A>
struct Recorded {
    using Operand = RecordedOperand;
    using Instruction = RecordedInstruction;
    const RecordedStepArgs& args;

    char* at(const Operand& x) const {
        return reinterpret_cast<char*>(reinterpret_cast<const i64*>(args.bases)[x.slot]) + x.offset;
    }
    // The element of an operand that its strides lead to.
    A* element(const Operand& x, i64 number) const { return reinterpret_cast<A*>(at(x)) + number; }

    // A block of rows of one size; the operand's number at its start.
    struct Block {
        i64 rows, columns, start;
    };

    static bool dense(const Operand& x, const Block& block) {
        return (x.stride[3] == 1 || block.columns == 1) &&
               (block.rows == 1 || x.stride[2] == block.columns);
    }
    static constexpr i64 OWN = sizeof(A) == sizeof(float) ? F32 : F64;
    template <class S>
    static A number(S x) {
        if constexpr (std::is_arithmetic<S>::value) return A(x);
        else return A(widen(x));
    }

    // Calls a function with the address of an operand's first number, of the type that it is stored as.
    template <class F>
    void stored(const Operand& x, F function) const {
        const i64 address = reinterpret_cast<i64>(at(x));
        if (x.dtype == I64) function(reinterpret_cast<i64*>(address));
        else as_stored(address, x.dtype, function);
    }
    template <class S>
    static void gather(const S* from, const Operand& x, const Block& block, A* to) {
        for (i64 i = 0; i < block.rows; ++i, to += block.columns) {
            const S* row = from + i * x.stride[2];
            if (x.stride[3] == 0) {
                const A only = number(*row);
                for (i64 j = 0; j < block.columns; ++j) to[j] = only;
            } else if (x.stride[3] == 1) {
                for (i64 j = 0; j < block.columns; ++j) to[j] = number(row[j]);
            } else {
                for (i64 j = 0; j < block.columns; ++j) to[j] = number(row[j * x.stride[3]]);
            }
        }
    }
    A* read(const Operand& x, const Block& block, A* buffer) const {
        if (x.slot < 0) return buffer;  // filled already
        if (x.dtype == OWN && dense(x, block)) return element(x, block.start);
        stored(x, [&](auto* from) { gather(from + block.start, x, block, buffer); });
        return buffer;
    }
    void scatter(const A* from, const Operand& x, const Block& block) const {
        stored(x, [&](auto* to) {
            const A* row = from;
            for (i64 i = 0; i < block.rows; ++i)
                for (i64 j = 0; j < block.columns; ++j)
                    put_number(*row++, to[block.start + i * x.stride[2] + j * x.stride[3]]);
        });
    }

    static i64 offset(const Operand& x, i64 i, i64 j, i64 k, i64 l) {
        return i * x.stride[0] + j * x.stride[1] + k * x.stride[2] + l * x.stride[3];
    }
    // Calls a function for each row along the last axis, with what says where an operand's row begins.
    template <class F>
    static void each_row(const Instruction& step, F function) {
        for (i64 i = 0; i < step.size[0]; ++i)
            for (i64 j = 0; j < step.size[1]; ++j)
                for (i64 k = 0; k < step.size[2]; ++k)
                    function([=](const Operand& x) { return offset(x, i, j, k, 0); });
    }

    A one(const Operand& x, i64 place) const {
        A result = A(0);
        stored(x, [&](auto* from) { result = number(from[place]); });
        return result;
    }
    void take(const Instruction& step) const {
        const i64 n = i64(step.c.value), apart = i64(step.value);
        each_row(step, [&](auto first) {
            for (i64 l = 0; l < step.size[3]; ++l) {
                auto here = [&](const Operand& x) { return first(x) + l * x.stride[3]; };
                i64 place = i64(one(step.b, here(step.b)));
                if (place < 0) place += n;
                const A result = place >= 0 && place < n ? one(step.a, here(step.a) + place * apart)
                                                         : std::numeric_limits<A>::quiet_NaN();
                scatter(&result, step.d, {1, 1, here(step.d)});
            }
        });
    }

    void elementwise(const Instruction& step) const {
        alignas(64) A tiles[4][TILE];
        const Operand* given[] = {&step.a, &step.b, &step.c};
        const auto loop = Ops<A>::find(step.op);
        const i64* size = step.size;
        if (size[2] == 0 || size[3] == 0) return;
        const i64 columns = size[3] < TILE ? size[3] : TILE;
        const i64 rows = columns < size[3] ? 1 : TILE / columns < size[2] ? TILE / columns : size[2];
        for (int i = 0; i < 3; ++i)
            if (given[i]->slot < 0)
                for (i64 k = 0; k < rows * columns; ++k) tiles[i][k] = A(given[i]->value);
        for (i64 i = 0; i < size[0]; ++i)
            for (i64 j = 0; j < size[1]; ++j)
                for (i64 k = 0; k < size[2]; k += rows)
                    for (i64 l = 0; l < size[3]; l += columns) {
                        const i64 r = size[2] - k < rows ? size[2] - k : rows;
                        const i64 c = size[3] - l < columns ? size[3] - l : columns;
                        auto block = [&](const Operand& x) {
                            return Block{r, c, offset(x, i, j, k, l)};
                        };
                        A* x[3];
                        for (int o = 0; o < 3; ++o)
                            x[o] = read(*given[o], block(*given[o]), tiles[o]);
                        const Block to = block(step.d);
                        const bool direct = step.d.dtype == OWN && dense(step.d, to);
                        A* d = direct ? element(step.d, to.start) : tiles[3];
                        loop(d, x[0], x[1], x[2], A(step.value), r * c);
                        if (!direct) scatter(d, step.d, to);
                    }
    }

    // Whether the sums of a row with four vectors fit into the registers.
#ifdef __AVX512F__
    static constexpr i64 TOGETHER = 4;
#else
    static constexpr i64 TOGETHER = 0;
#endif

    static constexpr i64 LANES = 16;  // sums that go side by side
    static A total(const A* x, i64 stride, i64 n) {
        constexpr i64 L = LANES;
        A lanes[L] = {}, sum = A(0);
        i64 i = 0;
        if (stride == 1)
            for (; i + L <= n; i += L)
                for (i64 k = 0; k < L; ++k) lanes[k] += x[i + k];
        for (; i < n; ++i) lanes[i % L] += x[i * stride];
        for (i64 k = 0; k < L; ++k) sum += lanes[k];
        return sum;
    }
    static A largest(const A* x, i64 stride, i64 n) {
        A found = n ? x[0] : -std::numeric_limits<A>::infinity();
        for (i64 i = 1; i < n; ++i) {
            const A y = x[i * stride];
            found = ((y > found) | (y != y)) ? y : found;
        }
        return found;
    }
    void reduce(const Instruction& step, A (*one)(const A*, i64, i64)) const {
        each_row(step, [&](auto first) {
            *element(step.d, first(step.d)) =
                one(element(step.a, first(step.a)), step.a.stride[3], step.size[3]);
        });
    }

    void standardise(const Instruction& step) const {
        const i64 n = step.size[3], from = step.a.stride[3], to = step.d.stride[3];
        each_row(step, [&](auto first) {
            const A* x = element(step.a, first(step.a));
            A* y = element(step.d, first(step.d));
            const A mean = A(step.c.value) * total(x, from, n) / A(n);
            A lanes[LANES] = {}, squares = A(0);
            for (i64 l = 0; l < n; ++l) y[l * to] = x[l * from] - mean;
            i64 l = 0;
            if (to == 1)
                for (; l + LANES <= n; l += LANES)
                    for (i64 m = 0; m < LANES; ++m) lanes[m] += y[l + m] * y[l + m];
            for (; l < n; ++l) squares += y[l * to] * y[l * to];
            for (i64 m = 0; m < LANES; ++m) squares += lanes[m];
            const A scale = A(1) / root(squares / A(n) + A(step.value));
            if (to == 1)
                for (l = 0; l < n; ++l) y[l] *= scale;
            else
                for (l = 0; l < n; ++l) y[l * to] *= scale;
        });
    }

    template <class W>
    void product(const Instruction& step) const {
        const i64 blocks = step.size[0], m = step.size[1], n = step.size[2], k = step.size[3];
        const Operand &d = step.d, &a = step.a, &b = step.b, &c = step.c;
        const W* matrix = reinterpret_cast<const W*>(at(b));
        auto added = [&](i64 q, i64 i, i64 j) {
            if (c.slot < 0) return A(0);
            const i64 number = offset(c, q, i, j, 0);
            return c.dtype == BF16 ? A(widen(reinterpret_cast<const bf16*>(at(c))[number]))
                                   : *element(c, number);
        };
        if (b.stride[3] == 1) {
            i64 team = n * k / Gemv<A, W>::WORTH + 1;
            team = team < args.threads ? team : args.threads;
            for (i64 q = 0; q < blocks; ++q) {
#pragma omp parallel for num_threads(int(team)) if (team > 1) schedule(static)
                for (i64 j = 0; j < n; ++j) {
                    const W* row = matrix + offset(b, q, 0, j, 0);
                    i64 i = 0;
                    for (; TOGETHER && i + TOGETHER <= m; i += TOGETHER) {
                        A totals[4];
                        Gemv<A, W>::four(row, element(a, offset(a, q, i, 0, 0)), a.stride[1], k,
                                         totals);
                        for (i64 r = 0; r < 4; ++r)
                            *element(d, offset(d, q, i + r, j, 0)) =
                                totals[r] + added(q, i + r, j);
                    }
                    for (; i < m; ++i)
                        *element(d, offset(d, q, i, j, 0)) =
                            Gemv<A, W>::dot(row, element(a, offset(a, q, i, 0, 0)), k) +
                            added(q, i, j);
                }
            }
            return;
        }
        for (i64 q = 0; q < blocks; ++q)
            for (i64 i = 0; i < m; ++i) {
                A* to = element(d, offset(d, q, i, 0, 0));
                const A* x = element(a, offset(a, q, i, 0, 0));
                for (i64 j = 0; j < n; ++j) to[j] = added(q, i, j);
                for (i64 l = 0; l < k; ++l) {
                    const W* row = matrix + offset(b, q, 0, 0, l);
                    const A factor = x[l];
                    if (b.stride[2] == 1) {
                        LINRNN_INDEPENDENT
                        for (i64 j = 0; j < n; ++j) to[j] += factor * widen(row[j]);
                    } else {
                        for (i64 j = 0; j < n; ++j) to[j] += factor * widen(row[j * b.stride[2]]);
                    }
                }
            }
    }

    bool quantized(const Instruction& step) const {
        const i64 form = i64(step.value);
        const i64 bits = form % 16, zeros = form / 16 % 2, digits = form / 32 % 4, group = form / 128;
        const i64 n = step.size[2], k = step.size[3];
        const QuantizedMatrix w{bits, n, k, group, (k + group - 1) / group,
                                reinterpret_cast<const std::uint8_t*>(at(step.b)),
                                reinterpret_cast<const bf16*>(at(step.c)), zeros != 0};
        return quantized_product(
            w, step.size[1], digits, args.threads,
            [&](QuantizedRows& to, i64 row, i64 i) {
                to.fill(row, element(step.a, offset(step.a, 0, i, 0, 0)));
            },
            [&](i64 i, i64 j, float value) { *element(step.d, offset(step.d, 0, i, j, 0)) = A(value); });
    }

    bool run(const Instruction& step) const {
        if (step.op == OPS + 5) {
            if constexpr (sizeof(A) == sizeof(float)) return quantized(step);
        } else if (step.op < OPS) elementwise(step);
        else if (step.op == OPS) reduce(step, total);
        else if (step.op == OPS + 1) reduce(step, largest);
        else if (step.op == OPS + 3) standardise(step);
        else if (step.op == OPS + 4) take(step);
        else if (step.b.dtype != BF16) product<A>(step);
        else if constexpr (sizeof(A) == sizeof(float)) product<bf16>(step);
        return true;
    }
};

}  // namespace

int recorded_step(const void* record) {
    const auto& args = *static_cast<const RecordedStepArgs*>(record);
    if (args.size != i64(sizeof(RecordedStepArgs))) return 3;
    const auto* watch = reinterpret_cast<const RecordedWatch*>(args.watched);
    for (i64 i = 0; i < args.watches; ++i, ++watch)
        if (watch->bytes &&
            std::memcmp(reinterpret_cast<const void*>(watch->now),
                        reinterpret_cast<const void*>(watch->before), size_t(watch->bytes))) {
            *reinterpret_cast<i64*>(args.differ) = 1;
            return 0;
        }
    const auto* step = reinterpret_cast<const RecordedInstruction*>(args.program);
    for (i64 i = 0; i < args.count; ++i, ++step) {
        if (step->op < 0 || step->op > OPS + 5) return 3;
        bool done = true;
        if (step->dtype == F32) done = Recorded<float>{args}.run(*step);
        else if (step->dtype == F64) done = Recorded<double>{args}.run(*step);
        else return 2;
        if (!done) return 1;
    }
    return 0;
}

}  // namespace LINRNN_ISA
}  // namespace linrnn
