// A chunk of 16 steps of one head at once. Time lies along the lanes where pairs of steps meet, columns
// of the memory where it is read and written. What is kept between two steps are running products of
// decays, never quotients or differences of sums: nothing overflows or cancels. With P the products
// since the chunk began and D those from step j to i,
//   o = (q P) S + A u,   A_ij = q_i k_j D_ij,   S <- P S + (k D)' u,
// and by the delta rule u = beta (v - (k P) S - M u) by substitution, M_ij = k_i k_j D_ij. A second
// write is one more u, of another key, r = (a P) S + M u + N r. It reads the memory before it
// decays: P and D end a step earlier. Decays of columns are of the same kind, but of what is written:
// it is carried from step to step beside the pairs.
#pragma once
#include <utility>

#include "flush_subnormals.h"
#include "memory_columns.h"
#include "memory_halves.h"

namespace linrnn {
namespace LINRNN_ISA {
namespace {

template <class A>
struct Chunk {
    using T = Tile<A>;
    using V = typename T::V;
    using Factors = typename T::Factors;
    static constexpr i64 L = T::L, C = T::STEPS;
    // What reads the memory beside q: nothing, each key after its step's decay, or a before it.
    enum Reader { NONE, AFTER, BEFORE };

    const Head<A>& head;
    const MemoryScanArgs& args = head.args;
    const i64 keys = head.keys(), width = head.width(), size = head.size();
    const bool early = head.early(), delta = args.delta, low_rank = head.low_rank();
    const bool two_sided = args.value_decay.data != 0;
    const bool channels = args.channels == 2 || early || low_rank;
    // Of a step's several writes only one is beside a read, or all reads see all of them.
    const bool sparse = args.rank > 1 && args.reads == 1 && !two_sided, grouped = args.reads > 1;
    const bool apart = args.rank > 1 || args.before;
    const i64 most = grouped ? C / args.rank * args.rank : C;  // steps of a chunk
    const Reader reader = low_rank ? BEFORE : delta ? AFTER : NONE;

    A* const halves;  // room for factors of products in bfloat16; null: they are of A

    // `work` begins with `halves_room` numbers.
    Chunk(const Head<A>& of, A* work) : head(of), halves(halves_room(of) ? work : nullptr) {}
    static i64 halves_room(const Head<A>& of) {
        if constexpr (Halves<A>::exist)
            if (Halves<A>::usable(of.args)) return Halves<A>::room(of.keys(), of.width());
        return 0;
    }
    // A product with a memory, or of all that a chunk adds to one: rows of the left factors lie in order.
    template <class... Xs>
    void product(const Xs&... xs) const {
        if constexpr (Halves<A>::exist)
            if (halves) return Halves<A>::product(halves, xs...);
        T::product(xs...);
    }

    // What is written to a key of every step: rows of keys, rows of columns, transposes and pairs (i, j).
    struct Write {
        A *key, *left_rows;   // (C, keys)
        A* left;              // (keys, C): the key as it is left at the end
        A *values, *kept;     // (C, width): as written and as left at the end
        A* turned;            // (width, C): kept
        A *pairs, *solve;     // (C, C): as q and as the reader see it
    };
    // What a chunk is computed from.
    struct Tape {
        i64 t, n;
        A *q, *reader, *decay, *q_in, *reader_in;  // (C, keys)
        A *error, *o, *forget, *since_row;         // (C, width)
        A *across, *across_row;                    // (keys), (width): what the whole chunk keeps
        A* between;                                // (C, C)
        A *rates, *read_past;  // (C, width): rates of all columns, what the reader reads of the memory
        A beta[C], since[C], until[C];
        i64 m, at[C], ends[C];  // steps that read, and how many of the chunk's writes each sees
        Write own, second;
        A* memory;  // (width, keys): before it
    };
    i64 write_room() const { return 3 * C * keys + (2 + two_sided) * C * width + 2 * C * C; }
    i64 tape_room() const {
        const i64 columns = 2 + 3 * two_sided + (args.rates != 0);
        return 5 * C * keys + columns * C * width + keys + 2 * width + C * C +
               (1 + low_rank) * write_room();
    }
    LINRNN_INLINE A* lay_out(A* p, Write& x) const {
        for (A** rows : {&x.key, &x.left_rows, &x.left}) *rows = p, p += C * keys;
        for (A** rows : {&x.values, &x.turned}) *rows = p, p += C * width;
        x.kept = x.values;
        if (two_sided) x.kept = p, p += C * width;
        for (A** pairs : {&x.pairs, &x.solve}) *pairs = p, p += C * C;
        return p;
    }
    LINRNN_INLINE A* lay_out(A* p, Tape& x) const {
        for (A** rows : {&x.q, &x.reader, &x.decay, &x.q_in, &x.reader_in}) *rows = p, p += C * keys;
        for (A** rows : {&x.error, &x.o}) *rows = p, p += C * width;
        x.between = p, p += C * C;
        x.across = p, p += keys;
        x.across_row = p, p += width;
        x.rates = nullptr;
        if (args.rates) x.rates = p, p += C * width;
        if (two_sided) {
            for (A** rows : {&x.forget, &x.read_past, &x.since_row}) *rows = p, p += C * width;
            p += width;  // one more row of since_row
        }
        p = lay_out(p, x.own);
        if (reader == AFTER) x.reader = x.own.key;
        return low_rank ? lay_out(p, x.second) : p;
    }
    // How many steps from t on make a chunk.
    i64 steps(i64 t, i64 end) const { return end - t < most ? end - t : most; }
    static i64 rows(i64 n) { return n > 8 ? 16 : n > 4 ? 8 : 4; }

    // A step of a chunk as it is given.
    void load_step(i64 t, i64 i, Tape& x) const {
        head.query_row(t, x.q + i * keys);
        head.key_row(args.k, head.k_head, t, x.own.key + i * keys);
        head.value_row(t, x.own.values + i * width);
        if (low_rank) head.key_row(args.a, head.a_head, t, x.reader + i * keys);
        if (low_rank) head.key_row(args.b, head.b_head, t, x.second.key + i * keys);
        x.beta[i] = head.beta(t);
        if (x.rates) head.rates(t, x.rates + i * width);
        if (channels) head.key_decay(t, x.decay + i * keys);
        else x.decay[i] = head.head_decay(t);
        if (two_sided) head.value_decay(t, x.forget + i * width);
    }
    // Steps that there are not write nothing and forget nothing. From `next` on lies what is loaded
    // then: it is named step by step, as a processor drops what is named at once.
    void load(i64 t, i64 n, Tape& x, i64 next) const {
        x.t = t, x.n = n;
        for (i64 i = 0; i < n; ++i) load_step(t + i, i, x), head.ask(next + i);
        for (i64 i = n; i < C; ++i) {
            head.clear(x.q + i * keys, 0, keys);
            head.clear(x.own.key + i * keys, 0, keys);
            head.clear(x.own.values + i * width, 0, width);
            x.beta[i] = A(0);
            if (x.rates) head.clear(x.rates + i * width, 0, width);
            for (i64 c = 0; c < (channels ? keys : 1); ++c) x.decay[i * (channels ? keys : 1) + c] = A(1);
            for (i64 v = 0; two_sided && v < width; ++v) x.forget[i * width + v] = A(1);
        }
        T::transpose(x.own.key, keys, x.own.left, C, C, keys);
        if (low_rank) load_second(x);
        if (channels) by_channel(x);
        else by_head(x);
        if (two_sided) by_column(x);
        if (grouped && channels) read_together(x);
        x.m = n;
        if (apart) place_reads(x);
    }
    V rate(const Tape& x, i64 i, i64 v) const {
        return x.rates ? T::load(x.rates + i * width + v) : x.beta[i] + V{};
    }
    void load_second(Tape& x) const {
        copy(x.error, x.own.values, x.n * width);
        for (i64 i = 0; i < x.n; ++i)
            for (i64 v = 0; v < width; v += L)
                T::store(x.own.values + i * width + v, rate(x, i, v) * T::load(x.error + i * width + v));
        head.clear(x.reader, x.n * keys, C * keys);
        head.clear(x.second.key, x.n * keys, C * keys);
        head.clear(x.second.values, x.n * width, C * width);
        T::transpose(x.second.key, keys, x.second.left, C, C, keys);
    }

    // Decays of a head are products of their own.
    void by_head(Tape& x) const {
        A running = A(1);
        for (i64 i = 0; i < C; ++i) {
            A* row = x.between + i * C;
            for (i64 j = 0; j < i; ++j) row[j] = x.decay[i] * row[j - C];
            row[i] = A(1);
            for (i64 j = i + 1; j < C; ++j) row[j] = j < seen(i) ? A(1) : A(0);
            running *= x.decay[i];
            x.since[i] = running;
        }
        copy(x.until, x.between + (C - 1) * C, C);
        raw_pairs(x.q, x, x.own.pairs, true);
        if (delta) raw_pairs(x.own.key, x, x.own.solve, false);
        for (i64 i = 0; i < C; ++i)
            for (i64 c = 0; c < keys; c += L) {
                T::store(x.q_in + i * keys + c, x.since[i] * T::load(x.q + i * keys + c));
                if (delta) T::store(x.reader_in + i * keys + c, x.since[i] * T::load(x.reader + i * keys + c));
            }
        for (i64 c = 0; c < keys; ++c) {
            x.across[c] = running;
            for (i64 j = 0; j < C; j += L)
                T::store(x.own.left + c * C + j, T::load(x.until + j) * T::load(x.own.left + c * C + j));
        }
    }
    // The writes of a chunk before the first that a read at step i does not see.
    LINRNN_INLINE i64 seen(i64 i) const {
        const i64 first = grouped ? i - i % int(args.rank) : i;
        const i64 end = args.before ? first : grouped ? first + args.rank : i + 1;
        return end < C ? end : C;
    }
    void raw_pairs(const A* rows, const Tape& x, A* to, bool reads) const {
        T::product(to, C, C, C, typename T::Zero(), Factors{rows, keys, 1, x.own.left, C, args.keys});
        for (i64 i = 0; i < C; ++i) {
            const i64 end = reads ? seen(i) : i;
            for (i64 j = 0; j < C; ++j) {
                A both = to[i * C + j] * x.between[i * C + j];
                to[i * C + j] = j < end ? both : A(0);
            }
        }
    }

    void by_channel(Tape& x) const {
        for (i64 c = 0; c < keys; c += L) {
            V running = A(1) + V{};
            for (i64 i = 0; i < C; ++i) {
                const V before = running;
                running = running * T::load(x.decay + i * keys + c);
                const V &q_sees = early ? before : running, &reader_sees = low_rank ? before : running;
                T::store(x.q_in + i * keys + c, q_sees * T::load(x.q + i * keys + c));
                if (delta) T::store(x.reader_in + i * keys + c, reader_sees * T::load(x.reader + i * keys + c));
            }
            T::store(x.across + c, running);
        }
        meet_keys(x, x.own);
        if (low_rank) meet_keys(x, x.second);
        if (early) write_own(x);
    }
    void meet_keys(const Tape& x, const Write& w) const {
        const Meeting all{x.decay, x.q, x.reader, keys, args.keys, w.left, w.pairs, w.solve};
        choose([&](auto early_, auto reader_) { meet<early_.value, reader_.value>(all); });
        const bool itself = !early && !args.before;
        for (i64 i = 0; i < C; ++i) {
            for (i64 j = i + itself; j < C; ++j) w.pairs[i * C + j] = A(0);
            if (delta)
                for (i64 j = i; j < C; ++j) w.solve[i * C + j] = A(0);
        }
    }
    // Calls f with how q and the reader see decays, known to the compiler.
    template <class F>
    void choose(F f) const {
        if (early) choose_reader<true>(f);
        else choose_reader<false>(f);
    }
    template <bool EARLY, class F>
    void choose_reader(F& f) const {
        const std::integral_constant<bool, EARLY> early_{};
        if (low_rank) f(early_, std::integral_constant<Reader, BEFORE>());
        else if (delta) f(early_, std::integral_constant<Reader, AFTER>());
        else f(early_, std::integral_constant<Reader, NONE>());
    }
    void write_own(Tape& x) const {
        const A* bonus = reinterpret_cast<const A*>(args.bonus) + head.h * args.keys;
        for (i64 i = 0; i < x.n; ++i) {
            A total = A(0);
            for (i64 c = 0; c < args.keys; ++c) total += x.q[i * keys + c] * x.own.key[i * keys + c] * bonus[c];
            x.own.pairs[i * C + i] = total;
        }
    }

    // Rows of readers with all that is left of `depth` channels, (depth, C): sums over the channels.
    struct Meeting {
        const A *decay, *q, *reader;
        i64 ld, depth;
        A *left, *pairs, *solve;
    };
    template <bool EARLY, Reader READER>
    static void meet(const Meeting& x) {
        meet_lanes<EARLY, READER>(x, std::make_integer_sequence<int, int(C / L)>());
    }
    template <bool EARLY, Reader READER, int... J>
    static void meet_lanes(const Meeting& x, std::integer_sequence<int, J...>) {
        ((meet_block<EARLY, READER, 0, J * int(L)>(x, std::make_integer_sequence<int, 8>()),
          meet_block<EARLY, READER, 8, J * int(L)>(x, std::make_integer_sequence<int, 8>())), ...);
    }
    // Steps I to I + 8 with those that lie in the register from J on: every channel keeps the rest
    // of it in a register, which decays and is read as time goes on.
    template <bool EARLY, Reader READER, int I, int J, int... R>
    static void meet_block(const Meeting& x, std::integer_sequence<int, R...>) {
        V reads[8] = {}, solves[8] = {};
        const A *decay = x.decay + I * x.ld, *q = x.q + I * x.ld;
        const A* reader = READER != NONE ? x.reader + I * x.ld : q;
        if (I + 8 > J)
            for (i64 c = 0; c < x.depth; ++c) {
                V left = T::load(x.left + c * C + J);
                (meet_step<EARLY, READER, I + R - J>(left, reads[R], solves[R], decay[R * x.ld + c],
                                                     q[R * x.ld + c], reader[R * x.ld + c]), ...);
                T::store(x.left + c * C + J, left);
            }
        (T::store(x.pairs + (I + R) * C + J, reads[R]), ...);
        if constexpr (READER != NONE) (T::store(x.solve + (I + R) * C + J, solves[R]), ...);
    }
    template <bool EARLY, Reader READER, int BEFORE_LANE>
    static LINRNN_INLINE void meet_step(V& left, V& read, V& solve, A decay, A q, A reader) {
        if constexpr (EARLY) read += q * left;
        if constexpr (READER == BEFORE) solve += reader * left;
        left = scale_before<BEFORE_LANE>(left, decay);
        if constexpr (!EARLY) read += q * left;
        if constexpr (READER == AFTER) solve += reader * left;
    }

    // ---------------------------------------------------------------------------- several writes a step

    // All reads of a step see all its writes, or none, at no decay.
    void read_together(Tape& x) const {
        for (i64 i = 0; i < x.n; ++i)
            for (i64 j = i / args.rank * args.rank, end = j + args.rank; j < end; ++j) {
                A& pair = x.own.pairs[i * C + j];
                if (args.before) pair = A(0);
                else if (j > i) pair = T::dot(x.q + i * keys, x.own.key + j * keys, keys);
            }
    }
    i64 place(const Tape& x, i64 i) const { return apart ? x.at[i] : i; }
    // Steps that read, their rows moved together.
    void place_reads(Tape& x) const {
        x.m = 0;
        for (i64 i = 0; i < x.n; ++i) {
            if (sparse && !head.reads(x.t + i)) continue;
            const i64 first = grouped ? i / args.rank * args.rank : i;
            x.at[x.m] = i;
            x.ends[x.m++] = first + (args.before ? 0 : grouped ? args.rank : 1);
        }
        for (i64 i = x.m; i < C; ++i) x.ends[i] = x.m ? x.ends[x.m - 1] : 0;
        if (!sparse) return;
        gather(x, x.q_in, keys);
        gather(x, x.own.pairs, C);
        if (low_rank) gather(x, x.second.pairs, C);
    }
    void gather(const Tape& x, A* rows, i64 ld) const {
        for (i64 i = 0; i < x.m; ++i)
            if (x.at[i] != i) copy(rows + i * ld, rows + x.at[i] * ld, ld);
        head.clear(rows, x.m * ld, C * ld);
    }

    // ---------------------------------------------------------------------------- decays of columns

    // What the memory before the chunk keeps until before each step, and until the end.
    void by_column(Tape& x) const {
        for (i64 v = 0; v < width; v += L) {
            V running = A(1) + V{};
            T::store(x.since_row + v, running);
            for (i64 i = 0; i < C; ++i) {
                running = running * T::load(x.forget + i * width + v);
                T::store(x.since_row + (i + 1) * width + v, running);
            }
            T::store(x.across_row + v, running);
        }
    }
    Columns<A> columns_of(const Tape& x, const A* past, A* error) const {
        return {x.n, width, early, x.forget, x.since_row, x.own.pairs, delta ? x.own.solve : nullptr, past,
                x.read_past, x.beta, x.rates, x.own.values, error};
    }
    // The remaining share of each write at the end.
    void keep_columns(const Tape& x) const {
        for (i64 v = 0; v < width; v += L) {
            V until = A(1) + V{};
            for (i64 i = C - 1; i >= 0; --i) {
                T::store(x.own.kept + i * width + v, until * T::load(x.own.values + i * width + v));
                until = until * T::load(x.forget + i * width + v);
            }
        }
    }

    // --------------------------------------------------------------------------------- substitution

    // What is read of the steps of a chunk before each, or of itself too. What is written later is
    // not touched: it may not be finite.
    template <bool ITSELF, int R, int W>
    LINRNN_INLINE void read(V (&acc)[R][W], const A* pairs, const A* values, i64 i, i64 n) const {
        T::multiply(acc, Factors{pairs, C, 1, values, width, 0}, i, n, i);
        for (int s = 0; s < R; ++s)
            for (int w = 0; w < W; ++w) {
                V u = T::load(values + (i + s) * width + n + w * L);
                for (int r = s + !ITSELF; r < R; ++r) acc[r][w] += pairs[(i + r) * C + i + s] * u;
            }
    }
    // The same where reads are not as many as writes, or not in turn with them.
    template <int R, int W>
    LINRNN_INLINE void read_apart(V (&acc)[R][W], const Tape& x, const Write& w, i64 i, i64 n) const {
        T::multiply(acc, Factors{w.pairs, C, 1, w.values, width, 0}, i, n, x.ends[i]);
        for (i64 s = x.ends[i]; s < x.ends[i + R - 1]; ++s)
            for (int v = 0; v < W; ++v) {
                const V u = T::load(w.values + s * width + n + v * L);
                for (int r = 0; r < R; ++r)
                    if (s < x.ends[i + r]) acc[r][v] += w.pairs[(i + r) * C + s] * u;
            }
    }
    // What q reads of the memory S before the chunk and of the chunk's writes.
    void read_out(const Tape& x, const A* S) const {
        read_out(x, S, [&](auto& acc, i64 i, i64 column) {
            read<true>(acc, x.own.pairs, x.own.values, i, column);
            if (low_rank) read<true>(acc, x.second.pairs, x.second.values, i, column);
        });
    }
    void read_out_apart(const Tape& x, const A* S) const {
        read_out(x, S, [&](auto& acc, i64 i, i64 column) {
            read_apart(acc, x, x.own, i, column);
            if (low_rank) read_apart(acc, x, x.second, i, column);
        });
    }
    template <class Near>
    void read_out(const Tape& x, const A* S, Near near) const {
        const Factors memory{x.q_in, keys, 1, S, width, args.keys};
        if (halves) product(x.o, width, rows(x.m), width, typename T::Zero(), memory);
        T::tiles(rows(x.m), width, [&](auto r_, auto w_, i64 i, i64 column) {
            V acc[decltype(r_)::value][decltype(w_)::value] = {};
            if (halves) load_rows(acc, x.o, i, column);
            else T::multiply(acc, memory, i, column, args.keys);
            near(acc, i, column);
            T::put_tile(acc, x.o + i * width + column, width);
        });
    }
    // What is written from the values, of which `acc` is already known of the memory before the chunk.
    template <bool KEEP, bool RATES, int R, int W>
    LINRNN_INLINE void substitute(V (&acc)[R][W], const Tape& x, i64 i, i64 n) const {
        T::multiply(acc, Factors{x.own.solve, C, 1, x.own.values, width, 0}, i, n, i);
        for (int r = 0; r < R; ++r) {
            const A* row = x.own.solve + (i + r) * C + i;
            for (int w = 0; w < W; ++w) {
                A* place = x.own.values + (i + r) * width + n + w * L;
                V error = T::load(place) - acc[r][w];
                for (int s = 0; s < r; ++s) error -= row[s] * acc[s][w];
                if constexpr (KEEP) T::store(x.error + (i + r) * width + n + w * L, error);
                if constexpr (RATES) acc[r][w] = T::load(x.rates + (i + r) * width + n + w * L) * error;
                else acc[r][w] = x.beta[i + r] * error;
                T::store(place, acc[r][w]);
            }
        }
    }
    // The second write is what is read.
    template <int R, int W>
    LINRNN_INLINE void substitute_second(V (&acc)[R][W], const Tape& x, i64 i, i64 n) const {
        read<false>(acc, x.own.solve, x.own.values, i, n);
        T::multiply(acc, Factors{x.second.solve, C, 1, x.second.values, width, 0}, i, n, i);
        for (int r = 0; r < R; ++r) {
            const A* row = x.second.solve + (i + r) * C + i;
            for (int w = 0; w < W; ++w)
                for (int s = 0; s < r; ++s) acc[r][w] += row[s] * acc[s][w];
        }
        T::put_tile(acc, x.second.values + i * width + n, width);
    }
    // `past` begins a tile with what is read of the memory before the chunk.
    template <bool KEEP, class Past>
    void solve(const Tape& x, Past past) const {
        x.rates ? solve<KEEP, true>(x, past) : solve<KEEP, false>(x, past);
    }
    template <bool KEEP, bool RATES, class Past>
    void solve(const Tape& x, Past past) const {
        T::tiles(rows(x.n), width, [&](auto r_, auto w_, i64 i, i64 column) {
            V acc[decltype(r_)::value][decltype(w_)::value] = {};
            past(acc, i, column);
            if (low_rank) substitute_second(acc, x, i, column);
            else substitute<KEEP, RATES>(acc, x, i, column);
        });
    }
    // The same, where that lies in rows.
    template <bool KEEP>
    void solve_rows(const Tape& x, const A* past) const {
        solve<KEEP>(x, [&](auto& acc, i64 i, i64 column) { load_rows(acc, past, i, column); });
    }
    template <int R, int W>
    LINRNN_INLINE void load_rows(V (&to)[R][W], const A* rows, i64 i, i64 n) const {
        for (int r = 0; r < R; ++r)
            for (int w = 0; w < W; ++w) to[r][w] = T::load(rows + (i + r) * width + n + w * L);
    }

    i64 room() const { return tape_room(); }

    // Steps [t, end), of which none resets but the first, from the memory S (keys, width).
    void forward(i64 t, i64 n, A* S, A* work) const {
        Tape x;
        lay_out(work, x);
        load(t, n, x, t + n);
        auto read_memory = [&](const A* in, i64 m, A* to) {
            product(to, width, rows(m), width, typename T::Zero(), Factors{in, keys, 1, S, width, args.keys});
        };
        if (delta && two_sided) read_memory(x.reader_in, n, x.read_past);
        else if (delta && halves) read_memory(x.reader_in, n, x.o), solve_rows<false>(x, x.o);
        else if (delta)
            solve<false>(x, [&](auto& acc, i64 i, i64 column) {
                T::multiply(acc, Factors{x.reader_in, keys, 1, S, width, 0}, i, column, args.keys);
            });
        if (two_sided) {
            read_memory(x.q_in, n, x.o);
            columns_of(x, x.o, nullptr).forward(x.o);
            keep_columns(x);
        } else if (apart) {
            read_out_apart(x, S);
        } else {
            read_out(x, S);
        }
        for (i64 i = 0; i < x.m; ++i) head.put_out(t + place(x, i), x.o + i * width);
        const Factors own{x.own.left, C, 1, x.own.kept, width, n};
        auto kept = [&](i64 c, i64 v) { return x.across[c] * T::load(S + c * width + v); };
        if (two_sided)
            product(S, width, keys, width,
                    [&](i64 c, i64 v) { return T::load(x.across_row + v) * kept(c, v); }, own);
        else if (low_rank)
            product(S, width, keys, width, kept, own, Factors{x.second.left, C, 1, x.second.values, width, n});
        else
            product(S, width, keys, width, kept, own);
    }
};

}  // namespace
}  // namespace LINRNN_ISA
}  // namespace linrnn
