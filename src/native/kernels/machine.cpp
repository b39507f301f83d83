// The machine: runs a program, one step of a recurrence as a list of operations on rows, over time.
//
// Time is outside, operations are inside. A tile is one sequence and a block of channels, or some
// sequences and all channels where a product with a matrix mixes these; its rows are about a
// kilobyte each, so that all of them stay in the first-level cache. Rows in memory are operands
// where they lie, unless they are of another type or shape than what is computed in. What no state
// is needed for, or no later state needs, is computed for a chunk of steps at once.
//
// Compiled once for every instruction set: see scan.cpp.
#include <cstdlib>

#include "../large_pages.h"
#include "../machine_tile.h"
#ifdef _OPENMP
#include <omp.h>
#endif

namespace linrnn {
namespace LINRNN_ISA {
namespace {

constexpr i64 THREAD_NUMBERS = 64 * 1024;  // results of operations that occupy a thread
constexpr i64 TOGETHER = 16;               // sequences that share the reading of a matrix
constexpr i64 LONG = 16;                   // steps of all sequences that repay packing a matrix
constexpr i64 CHUNK_STEPS = 32;

// Sequences by their length, long ones first, then by number.
struct Length {
    i64 count, number;
};
inline int longer(const void* a, const void* b) {
    auto &x = *static_cast<const Length*>(a), &y = *static_cast<const Length*>(b);
    if (x.count != y.count) return x.count > y.count ? -1 : 1;
    return x.number < y.number ? -1 : x.number > y.number;
}

template <class A>
struct Run {
    using M = Machine<A>;
    const MachineArgs& args;
    const MachineProgram& program;
    const MachineOperand* operands;

    i64 threads() const {
        i64 work = args.channels * (program.count() + program.matrices * args.channels);
        i64 worth = steps_of(args) * work / THREAD_NUMBERS;
        return worth < 1 ? 1 : worth < args.threads ? worth : args.threads;
    }
    static i64 lines(i64 numbers) { return (numbers + M::LINE - 1) / M::LINE * M::LINE; }

    Plan plan(i64 threads) const {
        Plan p{1, args.channels, 1, 0, false, 0};
        const i64 n = args.channels;
        if (program.matrices) {
            p.packed = steps_of(args) >= LONG;
            p.seqs = (args.seqs + threads - 1) / threads;
            if (p.seqs > TOGETHER) p.seqs = TOGETHER;
            if (p.seqs > 4) p.seqs = (p.seqs + 3) / 4 * 4;
        } else if (n <= M::ROW / 4 && args.seqs >= 4 * (M::ROW / n)) {
            p.seqs = M::ROW / n;
        } else {
            i64 parts = (threads + args.seqs - 1) / args.seqs;
            p.width = lines((n + parts - 1) / parts);
            if (p.width > M::ROW) p.width = M::ROW;
            if (p.width > n) p.width = n;
            p.steps = M::ROW / n < 1 ? 1 : M::ROW / n < CHUNK_STEPS ? M::ROW / n : CHUNK_STEPS;
        }
        p.row = lines(p.seqs * p.width);
        const bool down = (args.reverse != 0) != (args.backward != 0);
        if ((down || p.seqs > 1 || p.width < n) && p.width >= M::LINE)
            p.ahead = p.seqs > 1 ? p.steps : 2 * M::ROW / p.width;
        return p;
    }
    i64 space(const Plan& p, const M& machine) const {
        i64 numbers = 0;
        for (i64 i = 0; i < program.slots; ++i)
            numbers += machine.rows_of(program.slot()[i]) * p.row;
        return 64 + numbers * i64(sizeof(A)) + 4 * program.slots * 8;
    }
    i64 count_sums() const {
        i64 count = 0;
        for (i64 i = 0; i < program.slots; ++i) count += program.slot()[i].kind == SUM;
        return count;
    }
    i64 matrix_size(i64 i, bool packed) const {
        const MachineOperand& o = operands[program.matrix()[i].operand];
        const i64 n = args.channels / o.seq;
        if (packed) return Product<A>::size(o.seq, n);
        return o.dtype == (sizeof(A) == 8 ? F64 : F32) ? 0 : o.seq * n * n;
    }
    template <class W>
    void lay_out(i64 i, bool packed, A* to) const {
        const MachineMatrix& matrix = program.matrix()[i];
        const MachineOperand& o = operands[matrix.operand];
        const i64 n = args.channels / o.seq;
        auto from = reinterpret_cast<const W*>(o.data);
        if (packed) Product<A>::pack(from, matrix.turned, to, o.seq, n);
        else convert(to, from, o.seq * n * n);
    }
    const A* matrix(i64 i, bool packed, A* to) const {
        const MachineOperand& o = operands[program.matrix()[i].operand];
        if (!matrix_size(i, packed)) return reinterpret_cast<const A*>(o.data);
        switch (o.dtype) {
            case F32: lay_out<float>(i, packed, to); break;
            case F64: lay_out<double>(i, packed, to); break;
            case BF16: lay_out<bf16>(i, packed, to); break;
            case F16: lay_out<f16>(i, packed, to); break;
        }
        return to;
    }
    i64* order(bool together) const {
        if (!together || !args.offsets) return nullptr;
        auto lengths = static_cast<Length*>(std::malloc(size_t(args.seqs) * sizeof(Length)));
        auto numbers = reinterpret_cast<i64*>(lengths);
        if (!lengths) return nullptr;
        for (i64 s = 0; s < args.seqs; ++s) lengths[s] = {Span(args, s).count, s};
        std::qsort(lengths, size_t(args.seqs), sizeof(Length), longer);
        for (i64 s = 0; s < args.seqs; ++s) numbers[s] = lengths[s].number;
        return numbers;
    }

    // The sum over sequences, in their order.
    void finish(const double* sums, double* total) const {
        i64 number = 0;
        for (i64 i = 0; i < program.slots; ++i) {
            const MachineSlot& slot = program.slot()[i];
            if (slot.kind != SUM) continue;
            for (i64 c = 0; c < args.channels; ++c) total[c] = 0;
            for (i64 s = 0; s < args.seqs; ++s)
                for (i64 c = 0; c < args.channels; ++c)
                    total[c] += sums[(number * args.seqs + s) * args.channels + c];
            for (i64 c = 0; c < args.channels; ++c) total[c] *= slot.value;
            const MachineOperand& o = operands[slot.operand];
            store(reinterpret_cast<char*>(o.data), total, o.dtype, args.channels);
            ++number;
        }
    }
    // Fresh results in large pages; those that lie side by side together, or pages between them
    // would stay small.
    void prepare() const {
        i64 begin = 0, end = 0;
        for (i64 i = 0; i < program.slots; ++i) {
            const MachineSlot& slot = program.slot()[i];
            if (slot.kind != OUTPUT) continue;
            const MachineOperand& o = operands[slot.operand];
            if (o.step < args.channels) continue;
            const i64 last = (steps_of(args) - 1) * o.step + args.channels;
            if (o.data < begin || o.data > end) advise(begin, end - begin), begin = o.data;
            end = o.data + last * bytes_of(o.dtype);
        }
        advise(begin, end - begin);
    }

    void tiles(const M& machine, i64 threads, char* spaces, i64 each) const {
        const Plan& p = machine.plan;
        const i64 blocks = (args.channels + p.width - 1) / p.width;
        const i64 groups = (args.seqs + p.seqs - 1) / p.seqs;
#pragma omp parallel for num_threads(int(threads)) schedule(dynamic) if (threads > 1)
        for (i64 j = 0; j < groups * blocks; ++j) {
            char* mine = spaces;
#ifdef _OPENMP
            mine += omp_get_thread_num() * each;
#endif
            auto pointers = reinterpret_cast<A**>(mine);
            auto apart = reinterpret_cast<i64*>(pointers + 3 * program.slots);
            auto first = reinterpret_cast<std::uintptr_t>(apart + program.slots);
            auto rows = reinterpret_cast<A*>((first + 63) / 64 * 64);
            Tile<A>(machine, j / blocks * p.seqs, j % blocks * p.width, pointers, apart, rows).all();
        }
    }

    int run() const {
        if (!args.seqs || !args.channels) return 0;
        const i64 team = threads();
        const Plan p = plan(team);
        M machine{args, program, operands, p, nullptr, nullptr, nullptr};
        const i64 each = (space(p, machine) + 63) / 64 * 64, n_sums = count_sums();
        i64 numbers = 0;
        for (i64 i = 0; i < program.matrices; ++i) numbers += lines(matrix_size(i, p.packed));
        const i64 sums = (n_sums ? n_sums * args.seqs + 1 : 0) * args.channels;
        const i64 bytes = 64 + team * each + numbers * i64(sizeof(A)) + sums * 8 + program.matrices * 8;
        char* memory = static_cast<char*>(std::malloc(size_t(bytes)));
        i64* sequences = order(p.seqs > 1);
        if (!memory || (!sequences && p.seqs > 1 && args.offsets)) {
            std::free(memory), std::free(sequences);
            return 1;
        }
        char* spaces = reinterpret_cast<char*>((reinterpret_cast<std::uintptr_t>(memory) + 63) / 64 * 64);
        A* packed = reinterpret_cast<A*>(spaces + team * each);
        auto found = reinterpret_cast<double*>(packed + numbers);
        auto matrices = reinterpret_cast<const A**>(found + sums);
        for (i64 i = 0; i < sums; ++i) found[i] = 0;
        for (i64 i = 0; i < program.matrices; ++i) {
            matrices[i] = matrix(i, p.packed, packed);
            packed += lines(matrix_size(i, p.packed));
        }
        machine.matrices = matrices, machine.order = sequences, machine.sums = found;
        prepare();
        tiles(machine, team, spaces, each);
        if (n_sums) finish(found, found + n_sums * args.seqs * args.channels);
        std::free(memory), std::free(sequences);
        return 0;
    }
};

}  // namespace

int machine(const void* record) {
    const auto& args = *static_cast<const MachineArgs*>(record);
    if (args.size != i64(sizeof(MachineArgs))) return 3;
    auto operands = reinterpret_cast<const MachineOperand*>(&args + 1);
    const auto& program = *reinterpret_cast<const MachineProgram*>(args.program);
    switch (args.dtype) {
        case F32: return Run<float>{args, program, operands}.run();
        case F64: return Run<double>{args, program, operands}.run();
    }
    return 2;
}

}  // namespace LINRNN_ISA
}  // namespace linrnn
