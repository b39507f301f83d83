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

    // Of a program that goes against time together with the one that computes its states once more.
    Plan plan(i64 threads) const {
        Plan p{1, args.channels, 1, 0, false, 0};
        const i64 n = args.channels;
        const auto again = reinterpret_cast<const MachineProgram*>(args.again);
        if (program.matrices || (again && again->matrices)) {
            p.packed = steps_of(args) >= LONG;
            p.seqs = (args.seqs + threads - 1) / threads;
            if (p.seqs > TOGETHER) p.seqs = TOGETHER;
            if (p.seqs > 4) p.seqs = (p.seqs + 3) / 4 * 4;
        } else if (args.widths) {  // of spreads: nothing but a short row is worth sharing
            p.seqs = n < M::ROW ? M::ROW / n : 1;
            if (p.seqs > args.seqs) p.seqs = args.seqs;
        } else if (n <= M::ROW / 4 && args.seqs >= 4 * (M::ROW / n)) {
            p.seqs = M::ROW / n;
        } else {
            i64 parts = (threads + args.seqs - 1) / args.seqs;
            p.width = lines((n + parts - 1) / parts);
            if (p.width > M::ROW) p.width = M::ROW;
            if (p.width > n) p.width = n;
            p.steps = M::ROW / n < 1 ? 1 : M::ROW / n < CHUNK_STEPS ? M::ROW / n : CHUNK_STEPS;
        }
        // states are computed once more for sequences as long as each other
        if (args.again && args.offsets) p.seqs = 1;
        p.row = lines(p.seqs * p.width);
        const bool down = (args.reverse != 0) != (args.backward != 0);
        if ((down || p.seqs > 1 || p.width < n) && p.width >= M::LINE)
            p.ahead = p.seqs > 1 ? p.steps : 2 * M::ROW / p.width;
        return p;
    }
    // Memory that is handed out by whole lines; from address 0 on it is only counted.
    struct Room {
        i64 at;
        template <class T>
        T* take(i64 numbers) {
            const i64 begin = at;
            at += (numbers * i64(sizeof(T)) + 63) / 64 * 64;
            return reinterpret_cast<T*>(begin);
        }
    };
    static TileMemory<A> memory_of(const M& machine, Room& room) {
        const i64 slots = machine.program.slots, row = machine.plan.row;
        i64 rows = 0;
        for (i64 i = 0; i < slots; ++i) rows += machine.rows_of(machine.program.slot()[i]);
        auto pointers = room.take<A*>(3 * slots);
        auto apart = room.take<i64>(slots);
        auto numbers = room.take<A>(rows * row);
        return {pointers, apart, numbers, room.take<A>(machine.args.half ? (row + 1) / 2 : 0)};
    }
    // Of a tile, and of the one that computes its states once more.
    struct Spaces {
        TileMemory<A> ours, theirs;
        MachineOperand* operands;
        A* windows;
    };
    Spaces spaces_of(const M& machine, Room& room) const {
        Spaces all{memory_of(machine, room), {}, nullptr, nullptr};
        if (!machine.again) return all;
        all.theirs = memory_of(*machine.again, room);
        all.operands = room.take<MachineOperand>(all_operands());
        all.windows = room.take<A>(Recall<A>::numbers(machine.plan, machine.windows, args.every));
        return all;
    }
    static i64 count(const MachineProgram& of, MachineKind kind) {
        i64 found = 0;
        for (i64 i = 0; i < of.slots; ++i) found += of.slot()[i].kind == kind;
        return found;
    }
    // Behind the record; those of what was kept are the last.
    i64 all_operands() const {
        return args.every ? args.kept + count(program, STATE) : args.operands;
    }
    void compute(const M& machine, i64 seq, i64 channel, Room room) const {
        const Spaces spaces = spaces_of(machine, room);
        if (!machine.again) return Tile<A>(machine, seq, channel, spaces.ours).all();
        M ours = machine, theirs = *machine.again;
        MachineOperand* table = spaces.operands;
        std::memcpy(table, operands, size_t(all_operands()) * sizeof(MachineOperand));
        ours.operands = table, theirs.operands = table + args.operands;
        Tile<A> forward(theirs, seq, channel, spaces.theirs);
        forward.enter();
        const i64 n_theirs = args.kept - args.operands;
        Recall<A> recall{forward, operands + args.operands, operands, table + args.operands, table,
                         n_theirs, args.operands, spaces.windows};
        Tile<A>(ours, seq, channel, spaces.ours, &recall).all();
    }
    i64 width_of(i64 one) const {
        return args.widths ? reinterpret_cast<const i64*>(args.widths)[one] : args.channels;
    }
    // Where each matrix is: as it lies, or laid out anew in `room`, which is only counted without `to`.
    void lay_out(bool packed, const A** to, Room& room) const {
        for (i64 i = 0; i < program.matrices; ++i) {
            const MachineMatrix& matrix = program.matrix()[i];
            const MachineOperand& o = operands[matrix.operand];
            const i64 m = width_of(matrix.result) / o.seq, n = width_of(matrix.vector) / o.seq;
            if (!packed && o.dtype == (sizeof(A) == 8 ? F64 : F32)) {
                if (to) to[i] = reinterpret_cast<const A*>(o.data);
                continue;
            }
            [[maybe_unused]] const bool halves = M::halves(args, packed, n);
            const i64 size = packed ? Product<A>::size(o.seq, m, n) : o.seq * m * n;
            A* place = room.template take<A>(halves ? size / 2 : size);
            if (!to) continue;
            to[i] = place;
            as_stored(o.data, o.dtype, [&](auto* from) {
#ifdef LINRNN_HALF_PRODUCTS
                if (halves) return Product<A>::pack_halves(from, matrix.turned, place, o.seq, m, n);
#endif
                if (packed) Product<A>::pack(from, matrix.turned, place, o.seq, m, n);
                else convert(place, from, o.seq * m * n);
            });
        }
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
            store(reinterpret_cast<char*>(o.data), total, o.dtype, width_of(slot.width));
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
            if (!o.data || o.step < width_of(slot.width)) continue;
            const i64 last = (steps_of(args) - 1) * o.step + width_of(slot.width);
            if (o.data < begin || o.data > end) advise(begin, end - begin), begin = o.data;
            end = o.data + last * bytes_of(o.dtype);
        }
        advise(begin, end - begin);
    }

    void tiles(const M& machine, i64 threads, i64 spaces, i64 each) const {
        const Plan& p = machine.plan;
        const i64 blocks = (args.channels + p.width - 1) / p.width;
        const i64 groups = (args.seqs + p.seqs - 1) / p.seqs;
#pragma omp parallel for num_threads(int(threads)) schedule(dynamic) if (threads > 1)
        for (i64 j = 0; j < groups * blocks; ++j) {
            Room mine{spaces};
#ifdef _OPENMP
            mine.at += omp_get_thread_num() * each;
#endif
            compute(machine, j / blocks * p.seqs, j % blocks * p.width, mine);
        }
    }

    // What computes the states once more: the same call in the order of reading.
    MachineArgs forward_args() const {
        MachineArgs found = args;
        found.backward = found.again = 0, found.kept -= args.operands;
        found.widths = args.again_widths;
        return found;
    }
    i64 count_windows() const {
        i64 found = 0;
        for (i64 i = 0; i < all_operands(); ++i)
            if (operands[i].seq == WINDOW && operands[i].data >= found) found = operands[i].data + 1;
        return found;
    }

    int run() const {
        if (!args.seqs || !args.channels) return 0;
        const i64 team = threads();
        const Plan p = plan(team);
        const MachineArgs ahead = forward_args();
        const Run other{ahead, args.again ? *reinterpret_cast<const MachineProgram*>(args.again) : program,
                        operands + args.operands};
        M again{ahead, other.program, other.operands, p, nullptr, nullptr, nullptr, nullptr, 0};
        M machine{args, program, operands, p, nullptr, nullptr, nullptr,
                  args.again ? &again : nullptr, args.again ? count_windows() : 0};
        const i64 n_sums = count(program, SUM), sums = (n_sums ? n_sums * args.seqs + 1 : 0) * args.channels;
        const i64 n_matrices = program.matrices + (args.again ? other.program.matrices : 0);
        Room tile{0};
        spaces_of(machine, tile);
        // twice: first how much there is, then where
        auto lay_out_all = [&](Room& room, bool there) {
            room.template take<char>(team * tile.at);
            machine.sums = room.template take<double>(sums);
            auto matrices = room.template take<const A*>(n_matrices), theirs = matrices + program.matrices;
            lay_out(p.packed, there ? matrices : nullptr, room);
            if (args.again) other.lay_out(p.packed, there ? theirs : nullptr, room);
            machine.matrices = matrices, again.matrices = theirs;
        };
        Room needed{0};
        lay_out_all(needed, false);
        void* memory = std::malloc(size_t(needed.at + 64));
        i64* sequences = order(p.seqs > 1);
        if (!memory || (!sequences && p.seqs > 1 && args.offsets)) {
            std::free(memory), std::free(sequences);
            return 1;
        }
        const i64 begin = (reinterpret_cast<i64>(memory) + 63) / 64 * 64;
        Room room{begin};
        lay_out_all(room, true);
        machine.order = sequences;
        for (i64 i = 0; i < sums; ++i) machine.sums[i] = 0;
        prepare();
        tiles(machine, team, begin, tile.at);
        if (n_sums) finish(machine.sums, machine.sums + n_sums * args.seqs * args.channels);
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
