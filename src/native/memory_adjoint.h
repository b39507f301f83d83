// The adjoint of a chunk: the chunks of a window are computed once more, with the memory transposed, and
// gone through backward.
#pragma once
#include "memory_chunk.h"

namespace linrnn {
namespace LINRNN_ISA {
namespace {

template <class A>
struct Adjoint : Chunk<A> {
    using Base = Chunk<A>;
    using typename Base::Factors;
    using typename Base::Meeting;
    using typename Base::Reader;
    using typename Base::T;
    using typename Base::Tape;
    using typename Base::V;
    using typename Base::Write;
    using Base::AFTER, Base::BEFORE, Base::NONE, Base::C, Base::L;
    using Base::args, Base::channels, Base::delta, Base::early, Base::head, Base::keys, Base::low_rank;
    using Base::grouped, Base::most, Base::reader, Base::rows, Base::size, Base::sparse, Base::two_sided, Base::width;
    static constexpr i64 MOST = 4;  // chunks of a window

    Adjoint(const Head<A>& of, A* work) : Base(of, work) {}

    // Gradients of a write; `values` is then of the reader's read, negated, where it is of this write.
    struct WriteSlope {
        A *key, *left;       // (C, keys)
        A *values, *turned;  // (C, width), (width, C)
        A *pairs, *solve;    // (C, C)
    };
    // Gradients of a chunk.
    struct Slope {
        A *q, *reader, *q_in, *reader_in, *decay;  // (C, keys)
        A *o, *o_in;                               // (C, width): as given, as it meets the memory
        A* o_turned;                               // (width, C): o_in
        A *past, *forget;                          // (C, width)
        A *across, *across_row;                    // (keys), (width)
        A* turned_keys;                            // (keys, C)
        WriteSlope own, second;
    };
    i64 slope_room() const {
        const i64 write = 2 * C * keys + 2 * C * width + 2 * C * C;
        return 6 * C * keys + (2 + 3 * two_sided) * C * width + keys + width + (1 + low_rank) * write;
    }
    i64 backward_room() const { return MOST * this->tape_room() + (MOST + 1) * size + slope_room(); }
    A* lay_out(A* p, WriteSlope& d) const {
        for (A** rows : {&d.key, &d.left}) *rows = p, p += C * keys;
        for (A** rows : {&d.values, &d.turned}) *rows = p, p += C * width;
        for (A** pairs : {&d.pairs, &d.solve}) *pairs = p, p += C * C;
        return p;
    }
    A* lay_out(A* p, Slope& d) const {
        for (A** rows : {&d.q, &d.reader, &d.q_in, &d.reader_in, &d.decay, &d.turned_keys})
            *rows = p, p += C * keys;
        for (A** rows : {&d.o, &d.o_turned}) *rows = p, p += C * width;
        d.o_in = d.o;
        if (two_sided)
            for (A** rows : {&d.o_in, &d.past, &d.forget}) *rows = p, p += C * width;
        d.across = p, p += keys;
        d.across_row = p, p += width;
        p = lay_out(p, d.own);
        return low_rank ? lay_out(p, d.second) : p;
    }

    // Steps [begin, end) of a window, of which none resets but the first, with the memory S before
    // them and the gradient R of that after them, both transposed: (width, keys).
    void backward(i64 begin, i64 end, const A* S, A* R, A* work) const {
        Tape tapes[MOST];
        Slope d;
        A* states = lay_out(work, d);
        work = states + (MOST + 1) * size;
        std::memcpy(states, S, size_t(size) * sizeof(A));
        i64 count = 0;
        for (i64 t = begin; t < end; t += most, ++count) {
            const i64 next = t + most < end ? t + most : begin - args.window;
            Tape& x = tapes[count];
            work = Base::lay_out(work, x);
            this->load(t, this->steps(t, end), x, next);
            x.memory = states + count * size;
            replay(x, t + most < end ? x.memory + size : nullptr, d);
        }
        while (count--) retreat(tapes[count], R, d);
    }

    // What a chunk keeps of column v of a memory, from key c on.
    V kept(const Tape& x, const A* memory, i64 v, i64 c) const {
        const V keep = T::load(x.across + c) * T::load(memory + v * keys + c);
        return two_sided ? x.across_row[v] * keep : keep;
    }
    // Rows of what each step reads of the memory before the chunk.
    void read_memory(const Tape& x, const A* in, A* turned, A* to, const Slope& d) const {
        T::transpose(in, keys, d.turned_keys, C, C, keys);
        this->product(turned, C, width, C, typename T::Zero(),
                      Factors{x.memory, keys, 1, d.turned_keys, C, args.keys});
        T::transpose(turned, C, to, width, width, C);
    }

    // What the chunk writes, and the memory after it where that is wanted.
    void replay(Tape& x, A* after, const Slope& d) const {
        if (two_sided) {
            if (delta) read_memory(x, x.reader_in, d.own.turned, x.read_past, d);
            this->columns_of(x, nullptr, x.error).forward(nullptr);
            this->keep_columns(x);
        } else if (delta) {
            read_memory(x, x.reader_in, d.own.turned, d.own.values, d);
            this->template solve_rows<true>(x, d.own.values);
        }
        turn(x.own);
        if (low_rank) turn(x.second);
        if (!after) return;
        auto begin = [&](i64 v, i64 c) { return kept(x, x.memory, v, c); };
        const Factors own{x.own.turned, C, 1, x.own.left_rows, keys, x.n};
        if (low_rank)
            this->product(after, keys, width, keys, begin, own,
                          Factors{x.second.turned, C, 1, x.second.left_rows, keys, x.n});
        else
            this->product(after, keys, width, keys, begin, own);
    }
    void turn(const Write& w) const {
        T::transpose(w.kept, width, w.turned, C, C, width);
        T::transpose(w.left, C, w.left_rows, keys, keys, C);
    }

    // From the gradient R of the memory after a chunk to that before it.
    void retreat(Tape& x, A* R, const Slope& d) const {
        for (i64 i = 0; i < x.n; ++i) head.ask_slopes(x.t + i);
        for (i64 i = 0; i < x.m; ++i) {
            const i64 t = x.t + this->place(x, i);
            head.out_row(t, d.o + i * width);
            head.ask_out(t - most);
        }
        head.clear(d.o, x.m * width, C * width);
        if (two_sided) {
            read_memory(x, x.q_in, d.own.turned, d.past, d);
            const A* since = x.since_row + (early ? 0 : width);
            for (i64 i = 0; i < C * width; i += L)
                T::store(d.o_in + i, T::load(since + i) * T::load(d.o + i));
        }
        T::transpose(d.o_in, width, d.o_turned, C, C, width);
        written(x, x.own, d.own, R, d);
        if (low_rank) written(x, x.second, d.second, R, d);
        leave_memory(x, R, d);
        if (two_sided) leave_columns(x, d);
        else if (delta) resolve(x, d);
        meet_values(x, x.own, d.own, R, d);
        if (low_rank) meet_values(x, x.second, d.second, R, d);
        leave_read(x, R, d);
        part_reads(x, d);
        if (channels) leave_channels(x, d);
        else leave_head(x, d);
        put_slopes(x, d);
    }
    void put_slopes(const Tape& x, const Slope& d) const {
        for (i64 i = 0; i < x.n; ++i) {
            const i64 t = x.t + i;
            if (!delta) head.put_values(t, d.own.values + i * width);
            if (head.reads(t)) head.add_keys(args.grad_q, args.q_share, head.read_row(t), d.q + i * keys, A(args.scale));
            head.add_keys(args.grad_k, args.k_share, t, d.own.key + i * keys, A(1));
            if (!low_rank) continue;
            head.add_keys(args.grad_a, args.a_share, t, d.reader + i * keys, A(1));
            head.add_keys(args.grad_b, args.b_share, t, d.second.key + i * keys, A(1));
        }
    }
    // Rows of steps that read back in their places, and no slopes of what these do not see.
    void part_reads(const Tape& x, const Slope& d) const {
        if (sparse) {
            scatter(x, d.q_in, keys);
            scatter(x, x.q_in, keys);
            for (A* pairs : {x.own.pairs, d.own.pairs}) scatter(x, pairs, C);
            if (low_rank)
                for (A* pairs : {x.second.pairs, d.second.pairs}) scatter(x, pairs, C);
        }
        if (!args.before) return;
        const i64 rank = grouped ? args.rank : 1;
        for (i64 i = 0; i < C; ++i)
            for (i64 j = i / rank * rank; j <= i; ++j) {
                d.own.pairs[i * C + j] = A(0);
                if (low_rank) d.second.pairs[i * C + j] = A(0);
            }
    }
    void scatter(const Tape& x, A* rows, i64 ld) const {
        i64 last = C;
        for (i64 i = x.m - 1; i >= 0; --i) {
            if (x.at[i] != i) copy(rows + x.at[i] * ld, rows + i * ld, ld);
            head.clear(rows, (x.at[i] + 1) * ld, last * ld);
            last = x.at[i];
        }
        head.clear(rows, 0, last * ld);
    }

    // What is written, as the memory after the chunk and q of later steps have it; where columns decay,
    // as the memory alone.
    void written(const Tape& x, const Write& w, const WriteSlope& d, const A* R, const Slope& of) const {
        const Factors memory{R, keys, 1, w.left, C, args.keys};
        if (two_sided) this->product(d.turned, C, width, C, typename T::Zero(), memory);
        else this->product(d.turned, C, width, C, typename T::Zero(), memory, Factors{of.o_turned, C, 1, w.pairs, C, x.m});
        T::transpose(d.turned, C, d.values, width, width, C);
    }

    // Gradients of the reader's reads, by rows and turned.
    const WriteSlope& of_reader(const Slope& d) const { return low_rank ? d.second : d.own; }

    // The substitution backward: from the gradient of what is written to that of what is read, which
    // is left in its place, negated by the delta rule.
    void resolve(const Tape& x, const Slope& d) const {
        const WriteSlope& reads = of_reader(d);
        const A* solve = low_rank ? x.second.solve : x.own.solve;
        for (i64 j = x.n - 1; j >= 0; --j) {
            add_later(x, solve, reads.values, j, reads.values + j * width);
            A* row = d.own.values + j * width;
            if (low_rank) add_later(x, x.own.solve, reads.values, j, row);
            put_written(x, j, row);
        }
        head.clear(reads.values, x.n * width, C * width);
        T::transpose(reads.values, width, reads.turned, C, C, width);
    }
    // From the gradient of what a step writes to that of what its reader reads.
    void put_written(const Tape& x, i64 j, A* row) const {
        head.put_beta(x.t + j, row, x.error + j * width);
        if (x.rates)
            for (i64 v = 0; v < width; v += L) T::store(row + v, this->rate(x, j, v) * T::load(row + v));
        else
            for (i64 v = 0; v < width; v += L) T::store(row + v, x.beta[j] * T::load(row + v));
        head.put_values(x.t + j, row);
        for (i64 v = 0; v < width && !low_rank; v += L) T::store(row + v, A(-1) * T::load(row + v));
    }
    // Column j of pairs times the rows of later steps.
    void add_later(const Tape& x, const A* pairs, const A* from, i64 j, A* row) const {
        for (i64 i = j + 1; i < x.n; ++i) {
            const A m = pairs[i * C + j];
            for (i64 v = 0; v < width; v += L)
                T::store(row + v, T::load(row + v) + m * T::load(from + i * width + v));
        }
    }

    // What q reads of the memory, and what the whole chunk keeps of it.
    void leave_memory(const Tape& x, const A* R, const Slope& d) const {
        const A* S = x.memory;
        this->product(d.q_in, keys, rows(x.m), keys, typename T::Zero(),
                      Factors{d.o_in, width, 1, S, keys, head.count});
        for (i64 c = 0; c < keys; c += L) {
            V total{};
            for (i64 v = 0; v < head.count; ++v) {
                V both = T::load(R + v * keys + c) * T::load(S + v * keys + c);
                total += two_sided ? x.across_row[v] * both : both;
            }
            T::store(d.across + c, total);
        }
        for (i64 v = 0; two_sided && v < width; ++v) {
            V total{};
            for (i64 c = 0; c < keys; c += L)
                total += T::load(x.across + c) * (T::load(R + v * keys + c) * T::load(S + v * keys + c));
            d.across_row[v] = T::sum(total);
        }
    }
    // Pairs of steps and keys, of what is written.
    void meet_values(const Tape& x, const Write& w, const WriteSlope& d, const A* R, const Slope& of) const {
        const i64 depth = head.count;
        this->product(d.left, keys, rows(x.n), keys, typename T::Zero(), Factors{w.kept, width, 1, R, keys, depth});
        const A* reads = of_reader(of).values;
        if (two_sided) {
            T::transpose(w.values, width, w.turned, C, C, width);
            const Meeting all{x.forget, of.o, reads, width, depth, w.turned, d.pairs, d.solve};
            return this->choose([&](auto early_, auto reader_) {
                Base::template meet<early_.value, reader_.value>(all);
            });
        }
        T::product(d.pairs, C, rows(x.m), C, typename T::Zero(), Factors{of.o, width, 1, w.turned, C, depth});
        if (delta)
            T::product(d.solve, C, C, C, typename T::Zero(), Factors{reads, width, 1, w.turned, C, depth});
    }
    // The gradient of the memory before the chunk.
    void leave_read(const Tape& x, A* R, const Slope& d) const {
        auto begin = [&](i64 v, i64 c) { return kept(x, R, v, c); };
        const Factors reads{d.o_turned, C, 1, x.q_in, keys, x.m};
        if (!delta) return this->product(R, keys, width, keys, begin, reads);
        const WriteSlope& of = of_reader(d);
        if (two_sided) {
            for (i64 i = 0; i < x.n * width; i += L)
                T::store(of.values + i, T::load(x.since_row + width + i) * T::load(of.values + i));
            T::transpose(of.values, width, of.turned, C, C, width);
        }
        this->product(d.reader_in, keys, rows(x.n), keys, typename T::Zero(),
                      Factors{of.values, width, 1, x.memory, keys, head.count});
        this->product(R, keys, width, keys, begin, reads, Factors{of.turned, C, 1, x.reader_in, keys, x.n});
    }

    // Every term of the gradient of a decay is a separate sum: of the pairs, reads and writes that
    // it stands between, and of what the whole chunk keeps.
    void leave_head(const Tape& x, const Slope& d) const {
        alignas(64) A inner[C * C];
        const Write& w = x.own;
        const WriteSlope& dw = d.own;
        for (i64 i = 0; i < C; ++i) {
            const i64 end = this->seen(i) > i ? this->seen(i) : i + 1;
            for (i64 j = 0; j < C; ++j) {
                A both = j < i ? dw.pairs[i * C + j] * w.pairs[i * C + j] : A(0);
                if (delta && j < i) both += dw.solve[i * C + j] * w.solve[i * C + j];
                inner[i * C + j] = both;
                dw.pairs[i * C + j] = j < end ? dw.pairs[i * C + j] * x.between[i * C + j] : A(0);
                if (delta) dw.solve[i * C + j] = j < i ? dw.solve[i * C + j] * x.between[i * C + j] : A(0);
            }
        }
        if (args.channels) put_head_decays(x, d, inner);
        const i64 n = x.n;
        T::product(d.q, keys, rows(n), keys,
                   [&](i64 i, i64 c) { return x.since[i] * T::load(d.q_in + i * keys + c); },
                   Factors{dw.pairs, C, 1, w.key, keys, n});
        auto left = [&](i64 j, i64 c) { return x.until[j] * T::load(dw.left + j * keys + c); };
        const Factors read{dw.pairs, 1, C, x.q, keys, n};
        if (!delta) T::product(dw.key, keys, rows(n), keys, left, read);
        else
            T::product(dw.key, keys, rows(n), keys,
                       [&](i64 j, i64 c) { return left(j, c) + x.since[j] * T::load(d.reader_in + j * keys + c); },
                       read, Factors{dw.solve, 1, C, w.key, keys, n}, Factors{dw.solve, C, 1, w.key, keys, n});
    }
    // What reads see of later writes of their step.
    void leave_together(const Tape& x, const Slope& d, const A* pairs) const {
        for (i64 i = 0; i < x.n && !args.before; ++i)
            for (i64 j = i + 1; j < i / args.rank * args.rank + args.rank; ++j) {
                const A slope = pairs[i * C + j];
                A *q = d.q + i * keys, *key = d.own.key + j * keys;
                for (i64 c = 0; c < keys; ++c) {
                    q[c] += slope * x.own.key[j * keys + c];
                    key[c] += slope * x.q[i * keys + c];
                }
            }
    }
    void put_head_decays(const Tape& x, const Slope& d, A* inner) const {
        alignas(64) A total[C] = {};
        A all = A(0), writes = A(0), reads = A(0);
        for (i64 c = 0; c < args.keys; ++c) all += x.across[c] * d.across[c];
        for (i64 s = 0; s < x.n; ++s) {
            // inner(i, s): the pairs of i with those before s
            total[s] = all + writes;
            writes += T::dot(x.own.left_rows + s * keys, d.own.left + s * keys, keys);
            for (i64 i = s; i < x.n; ++i) {
                A before = s ? inner[i * C + s - 1] : A(0);
                total[s] += before;
                if (s) inner[i * C + s] += before;
            }
        }
        for (i64 s = x.n - 1; s >= 0; --s) {
            reads += T::dot(x.q_in + s * keys, d.q_in + s * keys, keys);
            if (delta) reads += T::dot(x.reader_in + s * keys, d.reader_in + s * keys, keys);
            head.put_head_decay(x.t + s, total[s] + reads);
        }
    }

    // Where a decay stands: between what is written and what reads it.
    struct Side {
        const A *decay, *q, *reader, *q_in, *reader_in, *across;
        A *to_q, *to_reader, *to_decay;
        i64 ld;
    };
    struct Met {
        const A *key, *left, *pairs, *solve;
        A* to;
    };
    void leave_channels(const Tape& x, const Slope& d) const {
        const Side side{x.decay, x.q, x.reader, d.q_in, d.reader_in, d.across, d.q, d.reader, d.decay, keys};
        const Met own{x.own.key, d.own.left, d.own.pairs, d.own.solve, d.own.key};
        const Met second{x.second.key, d.second.left, d.second.pairs, d.second.solve, d.second.key};
        this->choose([&](auto early_, auto reader_) {
            constexpr Reader R = reader_.value;
            for (i64 c = 0; c < keys; c += L)
                if constexpr (R == Base::BEFORE) leave<early_.value, R>(side, x.n, c, own, second);
                else leave<early_.value, R>(side, x.n, c, own);
        });
        if (early) leave_own(x, d);
        if (grouped) leave_together(x, d, d.own.pairs);
        for (i64 i = 0; i < x.n; ++i) head.put_decay(x.t + i, d.decay + i * keys);
    }
    void leave_columns(const Tape& x, const Slope& d) const {
        this->columns_of(x, d.past, x.error).backward(d.o, d.across_row, d.own.values, d.forget);
        for (i64 i = 0; i < x.n; ++i) {
            head.put_value_decay(x.t + i, d.forget + i * width);
            if (delta) put_written(x, i, d.own.values + i * width);
        }
        if (delta) head.clear(d.own.values, x.n * width, C * width);
    }

    // A register of channels at every step.
    template <Reader READER>
    struct Walk {
        V decay[16], q[16], reader[16], dq[16], dreader[16], ddecay[16], kept[16];
    };
    // A register of channels: forward what is kept of the memory and of each key, then its gradient back.
    template <bool EARLY, Reader READER, class... Mets>
    void leave(const Side& x, i64 n, i64 c, const Mets&... met) const {
        Walk<READER> l;
        V running = A(1) + V{};
        for (i64 i = 0; i < n; ++i) {
            const i64 at = i * x.ld + c;
            l.decay[i] = T::load(x.decay + at), l.q[i] = T::load(x.q + at);
            const V before = running;
            l.kept[i] = running = running * l.decay[i];
            l.dq[i] = (EARLY ? before : running) * T::load(x.q_in + at);
            if (READER != NONE) {
                l.reader[i] = T::load(x.reader + at);
                l.dreader[i] = (READER == BEFORE ? before : running) * T::load(x.reader_in + at);
            }
        }
        V z = T::load(x.across + c);
        for (i64 i = n - 1; i >= 0; --i) {
            const i64 at = i * x.ld + c;
            const V read = l.q[i] * T::load(x.q_in + at);
            if (!EARLY) z += read;
            if (READER == AFTER) z += l.reader[i] * T::load(x.reader_in + at);
            l.ddecay[i] = z * l.kept[i];
            z = z * l.decay[i];
            if (EARLY) z += read;
            if (READER == BEFORE) z += l.reader[i] * T::load(x.reader_in + at);
        }
        (leave_write<EARLY, READER>(l, met, x.ld, n, c), ...);
        for (i64 i = 0; i < n; ++i) {
            T::store(x.to_q + i * x.ld + c, l.dq[i]);
            if (READER == BEFORE) T::store(x.to_reader + i * x.ld + c, l.dreader[i]);
            T::store(x.to_decay + i * x.ld + c, l.ddecay[i]);
        }
    }
    template <bool EARLY, Reader READER>
    LINRNN_INLINE void leave_write(Walk<READER>& l, const Met& met, i64 ld, i64 n, i64 c) const {
        for (i64 j = 0; j < n; ++j) {
            const A *pairs = met.pairs + j, *solve = READER != NONE ? met.solve + j : nullptr;
            V left = T::load(met.key + j * ld + c);
            if (!EARLY) l.dq[j] += pairs[j * C] * left;
            for (i64 i = j + 1; i < n; ++i) {
                if (EARLY) l.dq[i] += pairs[i * C] * left;
                if (READER == BEFORE) l.dreader[i] += solve[i * C] * left;
                l.kept[i] = left = left * l.decay[i];
                if (!EARLY) l.dq[i] += pairs[i * C] * left;
                if (READER == AFTER) l.dreader[i] += solve[i * C] * left;
            }
            V z = T::load(met.left + j * ld + c);
            for (i64 i = n - 1; i > j; --i) {
                if (!EARLY) z += pairs[i * C] * l.q[i];
                if (READER == AFTER) z += solve[i * C] * l.reader[i];
                l.ddecay[i] += z * l.kept[i];
                z = z * l.decay[i];
                if (EARLY) z += pairs[i * C] * l.q[i];
                if (READER == BEFORE) z += solve[i * C] * l.reader[i];
            }
            if (!EARLY) z += pairs[j * C] * l.q[j];
            // by the delta rule the key is what reads
            T::store(met.to + j * ld + c, READER == AFTER ? l.dreader[j] + z : z);
        }
    }
    // What the bonus adds.
    void leave_own(const Tape& x, const Slope& d) const {
        const A* bonus = reinterpret_cast<const A*>(args.bonus) + head.h * args.keys;
        double* sums = head.sums(1);
        for (i64 i = 0; i < x.n; ++i) {
            const A slope = d.own.pairs[i * C + i];
            for (i64 c = 0; c < args.keys; ++c) {
                const A q = x.q[i * keys + c], k = x.own.key[i * keys + c];
                d.q[i * keys + c] += slope * bonus[c] * k;
                d.own.key[i * keys + c] += slope * bonus[c] * q;
                sums[c] += double(slope * q * k);
            }
        }
    }
};

}  // namespace
}  // namespace LINRNN_ISA
}  // namespace linrnn
