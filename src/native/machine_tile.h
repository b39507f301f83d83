// Some channels of one sequence, or all channels of several, on their way through time.
#pragma once
#include "machine_ops.h"
#include "prefetch.h"

namespace linrnn {
namespace LINRNN_ISA {
namespace {

// How a call is cut up. No choice that changes the order of a sum depends on the threads.
struct Plan {
    i64 seqs;     // of a tile
    i64 width;    // channels of a tile
    i64 steps;    // of a chunk
    i64 row;      // numbers from one row of a step to the next
    bool packed;  // matrices are laid out anew
    i64 ahead;    // how many steps ahead of use its rows are prefetched; or 0
};

template <class A>
struct Machine {
    static constexpr i64 LINE = 64 / i64(sizeof(A));    // rows are whole lines
    static constexpr i64 ROW = 1024 / i64(sizeof(A));   // numbers of a row that stays in cache
    static constexpr i64 FLUSH = 64;  // chunks summed up before they go to double precision

    const MachineArgs& args;
    const MachineProgram& program;
    const MachineOperand* operands;
    Plan plan;
    const A* const* matrices;  // of the program, packed or as they are
    const i64* order;          // of the sequences, long ones first
    double* sums;              // (sums, seqs, channels)
    const Machine* again;      // what computes states that were not kept; or null
    i64 windows;               // operands that hold some steps only

    const i64* widths() const { return reinterpret_cast<const i64*>(args.widths); }
    // Whether vectors of n numbers are multiplied as pairs of halves.
    bool by_halves(i64 n) const { return halves(args, plan.packed, n); }
    static bool halves(const MachineArgs& args, bool packed, i64 n) {
#ifdef LINRNN_HALF_PRODUCTS
        return sizeof(A) == 4 && (args.half & HALF_FACTORS) && packed && n % 2 == 0 && has_half_products();
#else
        return (void)args, (void)packed, (void)n, false;
#endif
    }
    // What computes an operation; where results are bfloat16, no better than these show.
    typename Ops<A>::Loop loop(i64 op) const {
#ifdef LINRNN_HALF_PRODUCTS
        if constexpr (sizeof(A) == 4)
            if ((args.half & HALF_FUNCTIONS) && has_half_products())
                if (const auto function = HalfOps::find(op)) return function;
#endif
        return Ops<A>::find(op);
    }
    i64 rows_of(const MachineSlot& slot) const {
        return slot.kind == STEP || slot.kind == STATE ? 1 : plan.steps;
    }
};

// Rows between memory and what is computed in.
template <class A, class S>
inline void convert(A* to, const S* from, i64 n) {
    for (i64 i = 0; i < n; ++i) to[i] = A(widen(from[i]));
}
template <class A>
inline void load(A* to, const char* from, i64 dtype, i64 n) {
    as_stored(reinterpret_cast<i64>(from), dtype, [=](auto* numbers) { convert(to, numbers, n); });
}
#ifdef LINRNN_HALF_PRODUCTS
// By whole lines of 32 numbers: by half lines a store waits twice for memory.
LINRNN_BF16_TARGET inline void convert_lines(bf16* to, const float* from, i64 n) {
    i64 i = 0;
    for (; i + 32 <= n; i += 32) {
        const __m512bh both = _mm512_cvtne2ps_pbh(_mm512_loadu_ps(from + i + 16), _mm512_loadu_ps(from + i));
        std::memcpy(to + i, &both, sizeof both);
    }
    to_halves(from + i, reinterpret_cast<HalfPair*>(to + i), n - i);
}
#endif
template <class A, class S>
inline void convert_back(S* to, const A* from, i64 n) {
#ifdef LINRNN_HALF_PRODUCTS
    if constexpr (std::is_same<S, bf16>::value && std::is_same<A, float>::value)
        if (has_half_products()) return convert_lines(to, from, n);
#endif
    for (i64 i = 0; i < n; ++i) put_number(from[i], to[i]);
}
template <class A>
inline void store(char* to, const A* from, i64 dtype, i64 n) {
    as_stored(reinterpret_cast<i64>(to), dtype, [=](auto* numbers) { convert_back(numbers, from, n); });
}

// Where a tile keeps its numbers: addresses and distances of slots, rows, and room for the halves of one.
template <class A>
struct TileMemory {
    A** pointers;
    i64* apart;
    A *rows, *halves;
};

template <class A>
struct Recall;

template <class A>
struct Tile {
    using M = Machine<A>;
    const M& m;
    const i64 first_seq, count, c, n;  // of the sequences in order; of the channels
    A** const base;    // of each slot: its rows of this chunk, in the order of memory
    A** const at;      // its row of this step
    i64* const by;     // from one row to the next
    A** const own;     // its rows that are not in memory
    A* const rounded;  // room for the halves of a row
    i64 active;        // sequences that have not ended: they come first
    Recall<A>* const recall;  // computes what was not kept; or null

    Tile(const M& machine, i64 first, i64 channel, const TileMemory<A>& memory, Recall<A>* other = nullptr)
        : m(machine), first_seq(first),
          count(m.args.seqs - first < m.plan.seqs ? m.args.seqs - first : m.plan.seqs), c(channel),
          n(m.args.channels - c < m.plan.width ? m.args.channels - c : m.plan.width),
          base(memory.pointers), at(base + m.program.slots), by(memory.apart),
          own(at + m.program.slots), rounded(memory.halves), active(count), recall(other) {
        A* space = memory.rows;
        for (i64 i = 0; i < m.program.slots; ++i) {
            const i64 rows = m.rows_of(slot(i));
            own[i] = base[i] = at[i] = space, space += rows * m.plan.row;
            const i64 kind = slot(i).kind;
            by[i] = rows == 1 || kind == CHANNEL || kind == CONSTANT ? 0 : m.plan.row;
            if (kind == CONSTANT || kind == SUM)
                fill(own[i], A(kind == SUM ? 0 : slot(i).value), rows * m.plan.row);
        }
    }
    const MachineSlot& slot(i64 i) const { return m.program.slot()[i]; }
    const MachineOperand& operand(i64 i) const { return m.operands[i]; }
    // Numbers of a slot's row for one sequence; with several widths a tile has all channels.
    i64 wide(i64 i) const { return m.args.widths ? m.widths()[slot(i).width] : n; }
    i64 sequence(i64 q) const { return m.order ? m.order[first_seq + q] : first_seq + q; }
    Span span(i64 q) const { return Span(m.args, sequence(q)); }
    static void fill(A* to, A value, i64 n) {
        for (i64 i = 0; i < n; ++i) to[i] = value;
    }

    // The step that sequence q computes as number p, and how it goes on.
    i64 place(const Span& x, i64 p) const {
        return x.first + x.by * (m.args.backward ? x.count - 1 - p : p);
    }
    i64 way() const { return (m.args.reverse != 0) == (m.args.backward != 0) ? 1 : -1; }
    bool cut(const Span& x, i64 step) const {
        const Array& r = m.args.reset;
        return r.data && reinterpret_cast<const char*>(r.data)[x.row * r.seq + step * r.step];
    }
    char* address(const MachineOperand& o, i64 row, i64 step) const {
        return reinterpret_cast<char*>(o.data) + (row * o.seq + step * o.step + c) * bytes_of(o.dtype);
    }
    // Row q of an array of one row a sequence.
    char* of_sequence(const MachineOperand& o, i64 q) const { return address(o, sequence(q), 0); }

    // ------------------------------------------------------------------------ before and after

    void enter() {
        for (i64 i = 0; i < m.program.slots; ++i) {
            const MachineSlot& s = slot(i);
            if (s.kind == CHANNEL) {
                const i64 rows = m.rows_of(s);
                for (i64 k = 0; k < rows; ++k)
                    for (i64 q = 0; q < count; ++q)
                        load(own[i] + k * m.plan.row + q * wide(i), address(operand(s.operand), 0, 0),
                             operand(s.operand).dtype, wide(i));
            }
            if (s.kind == STATE)
                for (i64 q = 0; q < count; ++q) begin(i, q, own[i] + q * wide(i));
        }
        run(0, base, m.plan.steps * m.plan.row, 1);
        active = count;
        drop(0);
    }
    // The state before sequence q, of the slots that have one.
    void begin(i64 i, i64 q, A* to) const {
        const MachineSlot& s = slot(i);
        const MachineOperand& initial = operand(s.operand + (s.kind == PREVIOUS));
        if (initial.data) load(to, of_sequence(initial, q), initial.dtype, wide(i));
        else fill(to, A(s.value), wide(i));
    }
    // Take the sequences out that have no step p.
    void drop(i64 p) {
        const i64 before = active;
        while (active && span(active - 1).count <= p) --active;
        if (active == before) return;
        if (p % (M::FLUSH * m.plan.steps)) flush(active, before);
        for (i64 i = 0; i < m.program.slots; ++i) {
            if (slot(i).kind != STATE) continue;
            const MachineOperand& last = operand(slot(i).operand + 1);
            for (i64 q = active; last.data && q < before; ++q)
                store(of_sequence(last, q), own[i] + q * wide(i), last.dtype, wide(i));
        }
    }
    // Add up what was summed for some sequences.
    void flush(i64 from, i64 to) {
        i64 number = 0;
        for (i64 i = 0; i < m.program.slots; ++i) {
            if (slot(i).kind != SUM) continue;
            for (i64 q = from; q < to; ++q) {
                double* sum = m.sums + (number * m.args.seqs + sequence(q)) * m.args.channels + c;
                for (i64 k = 0; k < m.plan.steps; ++k) {
                    A* part = own[i] + k * m.plan.row + q * wide(i);
                    for (i64 j = 0; j < wide(i); ++j) sum[j] += double(part[j]), part[j] = A(0);
                }
            }
            ++number;
        }
    }

    // --------------------------------------------------------------------------------- a chunk

    // Whether the rows of a slot can be used where they lie, which those of whole lines can.
    bool direct(i64 i, i64 steps) const {
        const MachineOperand& o = operand(slot(i).operand);
        return wide(i) % M::LINE == 0 && m.plan.seqs == 1 && bytes_of(o.dtype) == i64(sizeof(A)) &&
               o.dtype < C64 && (m.plan.steps == 1 || o.step == m.plan.row || steps == 1);
    }
    // `steps` steps from number p on: where each slot's rows are, filled where they are copies.
    void gather(i64 p, i64 steps) {
        for (i64 i = 0; i < m.program.slots; ++i) {
            const MachineSlot& s = slot(i);
            if (s.kind == SUM) base[i] = own[i] + summed(p, steps) * m.plan.row;
            if (s.kind != INPUT && s.kind != OUTPUT && s.kind != PREVIOUS) continue;
            const MachineOperand& o = operand(s.operand);
            if (s.kind == PREVIOUS) {
                previous(i, p, steps);
            } else if (o.data && direct(i, steps)) {
                const Span x = span(0);
                const i64 low = way() > 0 ? p : p + steps - 1;
                base[i] = reinterpret_cast<A*>(address(o, x.row, place(x, low)));
            } else {
                base[i] = own[i];
                if (s.kind == INPUT) each(i, p, steps, [&](A* row, const Span& x, i64 step, i64) {
                    load(row, address(o, x.row, step), o.dtype, wide(i));
                });
            }
        }
    }
    // Where a part of a chunk is in rows that have one for each step of a whole chunk.
    i64 summed(i64 p, i64 steps) const {
        const i64 past = p % m.plan.steps, left = span(0).count - p + past;
        return way() > 0 ? past : (left < m.plan.steps ? left : m.plan.steps) - past - steps;
    }
    template <class F>
    void each(i64 i, i64 p, i64 steps, F f) {
        for (i64 q = 0; q < active; ++q) {
            const Span x = span(q);
            for (i64 k = 0; k < steps; ++k) {
                const i64 row = way() > 0 ? k : steps - 1 - k;
                f(own[i] + row * m.plan.row + q * wide(i), x, place(x, p + k), q);
            }
        }
    }
    // The states before these steps: what was kept of the step before, unless there is none.
    void previous(i64 i, i64 p, i64 steps) {
        const MachineSlot& s = slot(i);
        const MachineOperand& o = operand(s.operand);
        base[i] = own[i];
        if (steps == 1 && active == 1 && direct(i, 1)) {
            const Span x = span(0);
            const i64 step = place(x, p);
            if (step != x.first && !cut(x, step)) {
                base[i] = reinterpret_cast<A*>(address(o, x.row, step - x.by));
                return;
            }
        }
        each(i, p, steps, [&](A* row, const Span& x, i64 step, i64 q) {
            if (cut(x, step)) fill(row, A(s.value), wide(i));
            else if (step == x.first) begin(i, q, row);
            else load(row, address(o, x.row, step - x.by), o.dtype, wide(i));
        });
    }
    void scatter(i64 p, i64 steps) {
        for (i64 i = 0; i < m.program.slots; ++i) {
            if (slot(i).kind != OUTPUT || base[i] != own[i]) continue;
            const MachineOperand& o = operand(slot(i).operand);
            if (o.data) each(i, p, steps, [&](A* row, const Span& x, i64 step, i64) {
                store(address(o, x.row, step), row, o.dtype, wide(i));
            });
        }
    }

    // A reset before a step sets the state anew; against time, nothing passes it.
    void restart(i64 p) {
        if (!m.args.reset.data) return;
        for (i64 q = 0; q < active; ++q) {
            const Span x = span(q);
            if (!cut(x, place(x, p))) continue;
            for (i64 i = 0; i < m.program.slots; ++i)
                if (slot(i).kind == STATE)
                    fill(own[i] + q * wide(i), A(m.args.backward ? 0 : slot(i).value), wide(i));
        }
    }

    // The codes of a level on some numbers of their rows: of those of one step where these differ.
    void run(i64 level, A* const* row, i64 length, i64 steps) const {
        const MachineCode* code = m.program.code();
        for (i64 i = 0; i < level; ++i) code += m.program.codes[i];
        for (const MachineCode* end = code + m.program.codes[level]; code < end; ++code) {
            if (code->op < OPS) {
                m.loop(code->op)(row[code->d], row[code->a], row[code->b], row[code->c], A(code->value),
                                 m.args.widths ? this->length(active * wide(code->d)) : length);
            } else if (code->op == OPS) {
                product(*code, row, steps);
            } else {
                spread(*code, row, steps);
            }
        }
    }
    void spread(const MachineCode& code, A* const* row, i64 steps) const {
        const auto loop = Spreads<A>::find(code.op - OPS - 1);
        const i64 n = i64(code.value), to = wide(code.d), from = wide(code.a);
        for (i64 k = 0; k < steps; ++k)
            for (i64 q = 0; q < active; ++q)
                loop(row[code.d] + (steps > 1 ? k * by[code.d] : 0) + q * to,
                     row[code.a] + (steps > 1 ? k * by[code.a] : 0) + q * from,
                     to < from ? to : from, n);
    }
    void product(const MachineCode& code, A* const* row, i64 steps) const {
        const MachineMatrix& of = m.program.matrix()[code.b];
        const i64 heads = operand(of.operand).seq, y = wide(code.d), x = wide(code.a);
        const typename Product<A>::Shape shape{heads, y / heads, x / heads, x, y};
        for (i64 k = 0; k < steps; ++k) {
            auto shifted = [&](i64 i) { return row[i] + (steps > 1 ? k * by[i] : 0); };
            const A *from = shifted(code.a), *add = code.c < 0 ? nullptr : shifted(code.c);
            const A* matrix = m.matrices[code.b];
#ifdef LINRNN_HALF_PRODUCTS
            if constexpr (sizeof(A) == 4)
                if (m.by_halves(shape.n)) {
                    auto halves = reinterpret_cast<HalfPair*>(rounded);
                    to_halves(from, halves, active * x);
#ifdef LINRNN_HALF_TILES
                    if (shape.n >= Product<A>::WORTH_TILES && has_half_tiles()) {
                        Product<A>::multiply_tiles(matrix, halves, add, shifted(code.d), shape, active);
                        continue;
                    }
#endif
                    Product<A>::multiply(matrix, halves, add, shifted(code.d), shape, active);
                    continue;
                }
#endif
            if (m.plan.packed)
                Product<A>::multiply(matrix, from, add, shifted(code.d), shape, active);
            else
                Product<A>::multiply_once(matrix, of.turned, from, add, shifted(code.d), shape,
                                          active);
        }
    }
    i64 length(i64 numbers) const { return (numbers + M::LINE - 1) / M::LINE * M::LINE; }

    void chunk(i64 p, i64 steps) {
        gather(p, steps);
        const i64 all = (steps - 1) * m.plan.row + length(active * n);
        run(1, base, all, steps);
        const i64 go = way() > 0 ? 1 : -1;
        for (i64 i = 0; i < m.program.slots; ++i) at[i] = base[i] + (go > 0 ? 0 : (steps - 1) * by[i]);
        for (i64 k = 0; k < steps; ++k) {
            if (!m.args.backward) restart(p + k);
            run(2, at, length(active * n), 1);
            if (m.args.backward) restart(p + k);
            for (i64 i = 0; i < m.program.slots; ++i) at[i] += go * by[i];
        }
        run(3, base, all, steps);
        scatter(p, steps);
    }

    // Asks for the rows of step p, which is computed soon. Hardware foresees a few arrays that are
    // read upwards; no walk downwards, not many sequences at once, no parts of rows.
    void foresee(i64 p) const {
        for (i64 i = 0; i < m.program.slots; ++i) {
            const i64 kind = slot(i).kind, step = p + (kind == PREVIOUS);
            if (kind != INPUT && kind != OUTPUT && kind != PREVIOUS) continue;
            const MachineOperand& o = operand(slot(i).operand);
            for (i64 q = 0; q < active; ++q) {
                const Span x = span(q);
                if (step >= x.count) break;
                const i64 row = reinterpret_cast<i64>(address(o, x.row, place(x, step)));
                if (kind == OUTPUT) prefetch<true, 2>(row, wide(i) * bytes_of(o.dtype));
                else prefetch<false, 2>(row, wide(i) * bytes_of(o.dtype));
            }
        }
    }

    // How many steps from p on are computed together.
    i64 together(i64 p) const {
        const i64 left = span(active - 1).count - p, every = m.args.every;
        i64 steps = m.plan.steps - p % m.plan.steps;
        if (every) {
            const i64 most = recall ? (left - 1) % every + 1 : every - p % every;
            steps = steps < most ? steps : most;
        }
        return left < steps ? left : steps;
    }
    char* kept(i64 number, const Span& x, i64 steps) const {
        const i64 start = x.by > 0 ? x.first : x.first - x.count + 1;
        return address(m.operands[m.args.kept + number], x.row,
                       start / m.args.every + steps / m.args.every - 1);
    }
    // The states after p steps are kept, or read.
    template <class F>
    void each_kept(i64 p, F f) const {
        i64 number = 0;
        for (i64 i = 0; i < m.program.slots; ++i) {
            if (slot(i).kind != STATE) continue;
            for (i64 q = 0; q < active; ++q)
                f(i, q, kept(number, span(q), p), m.operands[m.args.kept + number].dtype);
            ++number;
        }
    }

    void all() {
        enter();
        for (i64 p = 0; active;) {
            if (recall) recall->before(*this, p);
            else if (m.args.every && p && p % m.args.every == 0)
                each_kept(p, [&](i64 i, i64 q, char* to, i64 dtype) {
                    store(to, own[i] + q * wide(i), dtype, wide(i));
                });
            const i64 steps = together(p);
            for (i64 k = 0; m.plan.ahead && k < steps; ++k) foresee(p + k + m.plan.ahead);
            chunk(p, steps);
            p += steps;
            if (p % (M::FLUSH * m.plan.steps) == 0) flush(0, active);
            drop(p);
        }
    }
};

// Computes, for a tile that goes against time, the steps between two kept states once more.
template <class A>
struct Recall {
    using M = Machine<A>;
    Tile<A>& forward;
    const MachineOperand *theirs, *ours;  // operands as they were given, of both
    MachineOperand *to_theirs, *to_ours;  // and as they are read, windows put in their places
    i64 n_theirs, n_ours;
    A* space;

    // Of one sequence, or of several as long as each other.
    void before(const Tile<A>& tile, i64 p) {
        const i64 every = tile.m.args.every, last = tile.span(0).count - 1 - p;
        if (p && (last + 1) % every) return;
        const i64 from = last / every * every;
        windows(tile, theirs, to_theirs, n_theirs, from);
        windows(tile, ours, to_ours, n_ours, from);
        if (from) resume(tile, from);
        else
            for (i64 i = 0; i < forward.m.program.slots; ++i)
                for (i64 q = 0; forward.slot(i).kind == STATE && q < forward.count; ++q)
                    forward.begin(i, q, forward.own[i] + q * forward.wide(i));
        for (i64 k = from; k <= last;) {
            const i64 left = last + 1 - k, most = forward.m.plan.steps;
            forward.chunk(k, left < most ? left : most);
            k += left < most ? left : most;
        }
    }
    // A window has a row for each of these steps and for the state before them.
    void windows(const Tile<A>& tile, const MachineOperand* given, MachineOperand* to, i64 count,
                 i64 from) const {
        const Span x = tile.span(0);
        const i64 every = tile.m.args.every, width = row(tile.m.plan);
        const i64 low = x.by > 0 ? x.first + from - 1 : x.first - (from + every - 1);
        const i64 seq = (every + 1) * width, whole = tile.m.plan.seqs * seq;
        for (i64 i = 0; i < count; ++i) {
            if (given[i].seq != WINDOW) continue;
            const i64 origin = x.row * seq + low * width + tile.c;
            to[i].data = reinterpret_cast<i64>(space + given[i].data * whole) -
                         origin * i64(sizeof(A));
            to[i].seq = seq, to[i].step = width, to[i].dtype = sizeof(A) == 8 ? F64 : F32;
        }
    }
    static i64 row(const Plan& plan) { return plan.seqs == 1 ? plan.row : plan.width; }
    static i64 numbers(const Plan& plan, i64 windows, i64 every) {
        return windows * plan.seqs * (every + 1) * row(plan);
    }
    void resume(const Tile<A>& tile, i64 from) const {
        const i64 seq = (tile.m.args.every + 1) * row(tile.m.plan);
        i64 number = -1, slot = -1;
        forward.each_kept(from, [&](i64 i, i64 q, char* at, i64 dtype) {
            if (i != slot) slot = i, ++number;
            const i64 n = forward.wide(i);
            load(forward.own[i] + q * n, at, dtype, n);
            const i64 place = tile.span(0).by > 0 ? 0 : tile.m.args.every;
            A* window = space + number * tile.m.plan.seqs * seq;
            copy(window + q * seq + place * row(tile.m.plan), forward.own[i] + q * n, n);
        });
    }
};

}  // namespace
}  // namespace LINRNN_ISA
}  // namespace linrnn
