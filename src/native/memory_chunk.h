// A chunk of 16 steps of one head at once, and its adjoint. Time lies along the lanes where pairs of
// steps meet, columns of the memory where it is read and written. What is kept between two steps
// are running products of decays, never quotients or differences of sums: nothing overflows or
// cancels. With P the products since the chunk began and D those from step j to i,
//   o = (q P) S + A u,   A_ij = q_i k_j D_ij,   S <- P S + (k D)' u,
// and by the delta rule u = beta (v - (k P) S - M u) by substitution, M_ij = k_i k_j D_ij.
#pragma once
#include <utility>

#include "flush_subnormals.h"
#include "memory_head.h"

namespace linrnn {
namespace LINRNN_ISA {
namespace {

// The lanes before B times a.
template <int B, class A, class V>
LINRNN_INLINE V scale_before(V x, A a) {
    constexpr int L = Tile<A>::L;
    if constexpr (B <= 0) {
        return x;
    } else if constexpr (B >= L) {
        return a * x;
    } else {
#if defined(__AVX512F__)
        if constexpr (sizeof(A) == 4)
            return V(_mm512_mask_mul_ps(__m512(x), __mmask16((1 << B) - 1), __m512(x), _mm512_set1_ps(a)));
        else
            return V(_mm512_mask_mul_pd(__m512d(x), __mmask8((1 << B) - 1), __m512d(x), _mm512_set1_pd(a)));
#else
        V y = a * x;
        for (int l = B; l < L; ++l) y[l] = x[l];
        return y;
#endif
    }
}

template <class A>
struct Chunk {
    using T = Tile<A>;
    using V = typename T::V;
    using Factors = typename T::Factors;
    static constexpr i64 L = T::L, C = T::STEPS, MOST = 4;  // chunks of a window

    const Head<A>& head;
    const MemoryScanArgs& args = head.args;
    const i64 keys = head.keys(), width = head.width(), size = head.size();
    const bool early = head.early(), delta = args.delta, channels = args.channels == 2 || early;

    // What a chunk is computed from: rows of keys, rows of columns, transposes and pairs (i, j).
    struct Tape {
        i64 t, n;
        A *q, *k, *decay, *q_in, *k_in, *left_rows;  // (C, keys)
        A *values, *error, *o;                       // (C, width)
        A* left;                                     // (keys, C): k as it is left at the end
        A* turned;                                   // (width, C): values
        A *across;                                   // (keys): what the whole chunk keeps
        A *pairs, *solve, *between;                  // (C, C)
        A beta[C], since[C], until[C], own[C];       // own: weights of the bonus
        A* memory;                                   // (width, keys): before it
    };
    i64 tape_room() const { return 7 * C * keys + 4 * C * width + keys + 3 * C * C; }
    A* lay_out(A* p, Tape& x) const {
        for (A** rows : {&x.q, &x.k, &x.decay, &x.q_in, &x.k_in, &x.left_rows, &x.left})
            *rows = p, p += C * keys;
        for (A** rows : {&x.values, &x.error, &x.o, &x.turned}) *rows = p, p += C * width;
        for (A** pairs : {&x.pairs, &x.solve, &x.between}) *pairs = p, p += C * C;
        x.across = p;
        return p + keys;
    }
    // How many steps from t on make a chunk.
    static i64 steps(i64 t, i64 end) { return end - t < C ? end - t : C; }
    static i64 rows(i64 n) { return n > 8 ? 16 : 8; }

    // ------------------------------------------------------------------------------------ a chunk

    // Steps that there are not write nothing and forget nothing.
    void load(i64 t, i64 n, Tape& x) const {
        x.t = t, x.n = n;
        for (i64 i = 0; i < n; ++i) {
            head.query_row(t + i, x.q + i * keys);
            head.key_row(args.k, t + i, x.k + i * keys);
            head.value_row(t + i, x.values + i * width);
            x.beta[i] = head.beta(t + i);
            if (channels) head.key_decay(t + i, x.decay + i * keys);
            else x.decay[i] = head.head_decay(t + i);
        }
        for (i64 i = n; i < C; ++i) {
            head.clear(x.q + i * keys, 0, keys);
            head.clear(x.k + i * keys, 0, keys);
            head.clear(x.values + i * width, 0, width);
            x.beta[i] = A(0);
            for (i64 c = 0; c < (channels ? keys : 1); ++c) x.decay[i * (channels ? keys : 1) + c] = A(1);
        }
        T::transpose(x.k, keys, x.left, C, C, keys);
        if (channels) by_channel(x);
        else by_head(x);
    }

    // Decays of a head are products of their own.
    void by_head(Tape& x) const {
        A running = A(1);
        for (i64 i = 0; i < C; ++i) {
            A* row = x.between + i * C;
            for (i64 j = 0; j < i; ++j) row[j] = x.decay[i] * row[j - C];
            row[i] = A(1);
            for (i64 j = i + 1; j < C; ++j) row[j] = A(0);
            running *= x.decay[i];
            x.since[i] = running;
        }
        copy(x.until, x.between + (C - 1) * C, C);
        raw_pairs(x.q, x, x.pairs, true);
        if (delta) raw_pairs(x.k, x, x.solve, false);
        for (i64 i = 0; i < C; ++i)
            for (i64 c = 0; c < keys; c += L) {
                T::store(x.q_in + i * keys + c, x.since[i] * T::load(x.q + i * keys + c));
                if (delta) T::store(x.k_in + i * keys + c, x.since[i] * T::load(x.k + i * keys + c));
            }
        for (i64 c = 0; c < keys; ++c) {
            x.across[c] = running;
            for (i64 j = 0; j < C; j += L)
                T::store(x.left + c * C + j, T::load(x.until + j) * T::load(x.left + c * C + j));
        }
    }
    void raw_pairs(const A* reader, const Tape& x, A* to, bool itself) const {
        T::product(to, C, C, C, typename T::Zero(), Factors{reader, keys, 1, x.left, C, args.keys});
        for (i64 i = 0; i < C; ++i)
            for (i64 j = 0; j < C; ++j) {
                A both = to[i * C + j] * x.between[i * C + j];
                to[i * C + j] = j < i + itself ? both : A(0);
            }
    }

    void by_channel(Tape& x) const {
        for (i64 c = 0; c < keys; c += L) {
            V running = A(1) + V{};
            for (i64 i = 0; i < C; ++i) {
                const V before = running;
                running = running * T::load(x.decay + i * keys + c);
                const V& seen = early ? before : running;
                T::store(x.q_in + i * keys + c, seen * T::load(x.q + i * keys + c));
                if (delta) T::store(x.k_in + i * keys + c, running * T::load(x.k + i * keys + c));
            }
            T::store(x.across + c, running);
        }
        if (delta) meet<true>(x, std::make_integer_sequence<int, int(C / L)>());
        else meet<false>(x, std::make_integer_sequence<int, int(C / L)>());
        for (i64 i = 0; i < C; ++i) {
            for (i64 j = i + !early; j < C; ++j) x.pairs[i * C + j] = A(0);
            if (delta)
                for (i64 j = i; j < C; ++j) x.solve[i * C + j] = A(0);
        }
        if (early) write_own(x);
    }
    template <bool BOTH, int... J>
    void meet(const Tape& x, std::integer_sequence<int, J...>) const {
        ((meet_block<BOTH, 0, J * int(L)>(x, std::make_integer_sequence<int, 8>()),
          meet_block<BOTH, 8, J * int(L)>(x, std::make_integer_sequence<int, 8>())), ...);
    }
    // Steps I to I + 8 with those that lie in the register from J on: every key keeps what is left of
    // it in a register, which decays and is read as time goes on.
    template <bool BOTH, int I, int J, int... R>
    void meet_block(const Tape& x, std::integer_sequence<int, R...>) const {
        V reads[8] = {}, solves[8] = {};
        const A *decay = x.decay + I * keys, *q = x.q + I * keys, *k = x.k + I * keys;
        if (I + 8 > J) {
            if (early)
                for (i64 c = 0; c < args.keys; ++c) {
                    V left = T::load(x.left + c * C + J);
                    ((reads[R] += q[R * keys + c] * left,
                      left = scale_before<I + R - J>(left, decay[R * keys + c])), ...);
                    T::store(x.left + c * C + J, left);
                }
            else
                for (i64 c = 0; c < args.keys; ++c) {
                    V left = T::load(x.left + c * C + J);
                    ((left = scale_before<I + R - J>(left, decay[R * keys + c]),
                      reads[R] += q[R * keys + c] * left,
                      solves[R] += (BOTH ? k[R * keys + c] : A(0)) * left), ...);
                    T::store(x.left + c * C + J, left);
                }
        }
        (T::store(x.pairs + (I + R) * C + J, reads[R]), ...);
        if constexpr (BOTH) (T::store(x.solve + (I + R) * C + J, solves[R]), ...);
    }
    void write_own(Tape& x) const {
        const A* bonus = reinterpret_cast<const A*>(args.bonus) + head.h * args.keys;
        for (i64 i = 0; i < x.n; ++i) {
            A total = A(0);
            for (i64 c = 0; c < args.keys; ++c) total += x.q[i * keys + c] * x.k[i * keys + c] * bonus[c];
            x.pairs[i * C + i] = total;
        }
    }

    // By substitution: what is written from the values, of which `past` is already known of the
    // memory before the chunk.
    template <bool KEEP, int R, int W>
    LINRNN_INLINE void substitute(V (&acc)[R][W], const Tape& x, i64 i, i64 n) const {
        T::multiply(acc, Factors{x.solve, C, 1, x.values, width, i}, i, n, i);
        for (int r = 0; r < R; ++r) {
            const A* row = x.solve + (i + r) * C + i;
            for (int w = 0; w < W; ++w) {
                A* place = x.values + (i + r) * width + n + w * L;
                V error = T::load(place) - acc[r][w];
                for (int s = 0; s < r; ++s) error -= row[s] * acc[s][w];
                if constexpr (KEEP) T::store(x.error + (i + r) * width + n + w * L, error);
                acc[r][w] = x.beta[i + r] * error;
                T::store(place, acc[r][w]);
            }
        }
    }

    // ------------------------------------------------------------------------------------ forward

    i64 room() const { return tape_room(); }

    // Steps [t, end), of which none resets but the first, from the memory S (keys, width).
    void forward(i64 t, i64 n, A* S, A* work) const {
        Tape x;
        lay_out(work, x);
        load(t, n, x);
        if (delta)
            T::tiles(rows(n), width, [&](auto r_, auto w_, i64 i, i64 column) {
                V acc[decltype(r_)::value][decltype(w_)::value] = {};
                T::multiply(acc, Factors{x.k_in, keys, 1, S, width, 0}, i, column, args.keys);
                substitute<false>(acc, x, i, column);
            });
        T::tiles(rows(n), width, [&](auto r_, auto w_, i64 i, i64 column) {
            constexpr int R = decltype(r_)::value, W = decltype(w_)::value;
            V acc[R][W] = {};
            T::multiply(acc, Factors{x.q_in, keys, 1, S, width, 0}, i, column, args.keys);
            T::multiply(acc, Factors{x.pairs, C, 1, x.values, width, 0}, i, column, i);
            for (int s = 0; s < R; ++s)
                for (int w = 0; w < W; ++w) {
                    V u = T::load(x.values + (i + s) * width + column + w * L);
                    for (int r = s; r < R; ++r) acc[r][w] += x.pairs[(i + r) * C + i + s] * u;
                }
            T::put_tile(acc, x.o + i * width + column, width);
        });
        for (i64 i = 0; i < n; ++i) head.put_out(t + i, x.o + i * width);
        T::product(S, width, keys, width,
                   [&](i64 c, i64 column) { return x.across[c] * T::load(S + c * width + column); },
                   Factors{x.left, C, 1, x.values, width, n});
    }

    // ----------------------------------------------------------------------------------- backward

    // Gradients of a chunk.
    struct Slope {
        A *q, *k, *q_in, *k_in, *left, *decay;  // (C, keys)
        A *o, *u;                               // (C, width); u is then of the read, negated for delta
        A *o_turned, *u_turned;                 // (width, C)
        A *pairs, *solve;                       // (C, C)
        A* across;                              // (keys)
        A* turned_keys;                         // (keys, C)
    };
    i64 backward_room() const {
        return MOST * tape_room() + (MOST + 1) * size + 7 * C * keys + 4 * C * width + 2 * C * C + keys;
    }
    A* lay_out(A* p, Slope& d) const {
        for (A** rows : {&d.q, &d.k, &d.q_in, &d.k_in, &d.left, &d.decay, &d.turned_keys})
            *rows = p, p += C * keys;
        for (A** rows : {&d.o, &d.u, &d.o_turned, &d.u_turned}) *rows = p, p += C * width;
        for (A** pairs : {&d.pairs, &d.solve}) *pairs = p, p += C * C;
        d.across = p;
        return p + keys;
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
        for (i64 t = begin; t < end; t += C, ++count) {
            Tape& x = tapes[count];
            work = lay_out(work, x);
            load(t, steps(t, end), x);
            x.memory = states + count * size;
            replay(x, t + C < end ? x.memory + size : nullptr, d);
        }
        while (count--) retreat(tapes[count], R, d);
    }

    // What the chunk writes, and the memory after it where that is wanted.
    void replay(Tape& x, A* after, const Slope& d) const {
        const A* S = x.memory;
        if (delta) {
            T::transpose(x.k_in, keys, d.turned_keys, C, C, keys);
            T::product(d.u_turned, C, width, C, typename T::Zero(), Factors{S, keys, 1, d.turned_keys, C, args.keys});
            T::transpose(d.u_turned, C, d.u, width, width, C);
            T::tiles(rows(x.n), width, [&](auto r_, auto w_, i64 i, i64 column) {
                constexpr int R = decltype(r_)::value, W = decltype(w_)::value;
                V acc[R][W];
                for (int r = 0; r < R; ++r)
                    for (int w = 0; w < W; ++w) acc[r][w] = T::load(d.u + (i + r) * width + column + w * L);
                substitute<true>(acc, x, i, column);
            });
        }
        T::transpose(x.values, width, x.turned, C, C, width);
        T::transpose(x.left, C, x.left_rows, keys, keys, C);
        if (after)
            T::product(after, keys, width, keys,
                       [&](i64 v, i64 c) { return T::load(x.across + c) * T::load(S + v * keys + c); },
                       Factors{x.turned, C, 1, x.left_rows, keys, x.n});
    }

    // From the gradient R of the memory after a chunk to that before it.
    void retreat(Tape& x, A* R, const Slope& d) const {
        const A* S = x.memory;
        const i64 n = x.n, some = rows(n);
        for (i64 i = 0; i < n; ++i) head.out_row(x.t + i, d.o + i * width);
        head.clear(d.o, n * width, C * width);
        T::transpose(d.o, width, d.o_turned, C, C, width);
        T::product(d.u_turned, C, width, C, typename T::Zero(), Factors{R, keys, 1, x.left, C, args.keys},
                   Factors{d.o_turned, C, 1, x.pairs, C, n});
        T::transpose(d.u_turned, C, d.u, width, width, C);
        if (delta) resolve(x, d);
        for (i64 i = 0; i < n && !delta; ++i) head.put_values(x.t + i, d.u + i * width);
        const i64 depth = head.count;
        T::product(d.pairs, C, C, C, typename T::Zero(), Factors{d.o, width, 1, x.turned, C, depth});
        T::product(d.q_in, keys, some, keys, typename T::Zero(), Factors{d.o, width, 1, S, keys, depth});
        T::product(d.left, keys, some, keys, typename T::Zero(), Factors{x.values, width, 1, R, keys, depth});
        for (i64 c = 0; c < keys; c += L) {
            V total{};
            for (i64 v = 0; v < depth; ++v) total += T::load(R + v * keys + c) * T::load(S + v * keys + c);
            T::store(d.across + c, total);
        }
        auto kept = [&](i64 v, i64 c) { return T::load(x.across + c) * T::load(R + v * keys + c); };
        const Factors reads{d.o_turned, C, 1, x.q_in, keys, n};
        if (delta) {
            T::product(d.solve, C, C, C, typename T::Zero(), Factors{d.u, width, 1, x.turned, C, depth});
            T::product(d.k_in, keys, some, keys, typename T::Zero(), Factors{d.u, width, 1, S, keys, depth});
            T::product(R, keys, width, keys, kept, reads, Factors{d.u_turned, C, 1, x.k_in, keys, n});
        } else {
            T::product(R, keys, width, keys, kept, reads);
        }
        if (channels) leave_channels(x, d);
        else leave_head(x, d);
        for (i64 i = 0; i < n; ++i) {
            head.add_keys(args.grad_q, x.t + i, d.q + i * keys, A(args.scale));
            head.add_keys(args.grad_k, x.t + i, d.k + i * keys, A(1));
        }
    }

    // The substitution backward: from the gradient of what is written to that of what is read, which
    // is left negated in d.u.
    void resolve(const Tape& x, const Slope& d) const {
        for (i64 j = x.n - 1; j >= 0; --j) {
            A* row = d.u + j * width;
            for (i64 i = j + 1; i < x.n; ++i) {
                const A m = x.solve[i * C + j];
                for (i64 v = 0; v < width; v += L)
                    T::store(row + v, T::load(row + v) + m * T::load(d.u + i * width + v));
            }
            head.put_beta(x.t + j, T::dot(row, x.error + j * width, width));
            for (i64 v = 0; v < width; v += L) T::store(row + v, x.beta[j] * T::load(row + v));
            head.put_values(x.t + j, row);
            for (i64 v = 0; v < width; v += L) T::store(row + v, A(-1) * T::load(row + v));
        }
        head.clear(d.u, x.n * width, C * width);
        T::transpose(d.u, width, d.u_turned, C, C, width);
    }

    // Every term of the gradient of a decay is a sum of its own: of the pairs, reads and writes that
    // it stands between, and of what the whole chunk keeps.
    void leave_head(const Tape& x, const Slope& d) const {
        alignas(64) A total[C] = {}, inner[C * C];
        for (i64 i = 0; i < C; ++i)
            for (i64 j = 0; j < C; ++j) {
                A w = j < i ? d.pairs[i * C + j] * x.pairs[i * C + j] : A(0);
                if (delta && j < i) w += d.solve[i * C + j] * x.solve[i * C + j];
                inner[i * C + j] = w;
                d.pairs[i * C + j] = j > i ? A(0) : d.pairs[i * C + j] * x.between[i * C + j];
                if (delta) d.solve[i * C + j] = j < i ? d.solve[i * C + j] * x.between[i * C + j] : A(0);
            }
        if (args.channels) {
            A all = A(0), writes = A(0), reads = A(0);
            for (i64 c = 0; c < args.keys; ++c) all += x.across[c] * d.across[c];
            for (i64 s = 0; s < x.n; ++s) {
                // inner(i, s): the pairs of i with those before s
                total[s] = all + writes;
                writes += T::dot(x.left_rows + s * keys, d.left + s * keys, keys);
                for (i64 i = s; i < x.n; ++i) {
                    A before = s ? inner[i * C + s - 1] : A(0);
                    total[s] += before;
                    if (s) inner[i * C + s] += before;
                }
            }
            for (i64 s = x.n - 1; s >= 0; --s) {
                reads += T::dot(x.q_in + s * keys, d.q_in + s * keys, keys);
                if (delta) reads += T::dot(x.k_in + s * keys, d.k_in + s * keys, keys);
                head.put_head_decay(x.t + s, total[s] + reads);
            }
        }
        const i64 n = x.n;
        T::product(d.q, keys, rows(n), keys,
                   [&](i64 i, i64 c) { return x.since[i] * T::load(d.q_in + i * keys + c); },
                   Factors{d.pairs, C, 1, x.k, keys, n});
        auto left = [&](i64 j, i64 c) { return x.until[j] * T::load(d.left + j * keys + c); };
        const Factors read{d.pairs, 1, C, x.q, keys, n};
        if (!delta) return T::product(d.k, keys, rows(n), keys, left, read);
        T::product(d.k, keys, rows(n), keys,
                   [&](i64 j, i64 c) { return left(j, c) + x.since[j] * T::load(d.k_in + j * keys + c); },
                   read, Factors{d.solve, 1, C, x.k, keys, n}, Factors{d.solve, C, 1, x.k, keys, n});
    }

    void leave_channels(const Tape& x, const Slope& d) const {
        for (i64 c = 0; c < keys; c += L) {
            if (early) leave<true, false>(x, d, c);
            else if (delta) leave<false, true>(x, d, c);
            else leave<false, false>(x, d, c);
        }
        if (early) leave_own(x, d);
        for (i64 i = 0; i < x.n; ++i) head.put_decay(x.t + i, d.decay + i * keys);
    }
    // A register of keys: forward what is kept of the memory and of each key, then its gradient back.
    template <bool EARLY, bool DELTA>
    void leave(const Tape& x, const Slope& d, i64 c) const {
        const int n = int(x.n);
        V a[C], q[C], k[C], dq[C], dk[C], dg[C], kept[C];
        V running = A(1) + V{};
        for (int i = 0; i < n; ++i) {
            a[i] = T::load(x.decay + i * keys + c);
            q[i] = T::load(x.q + i * keys + c), k[i] = T::load(x.k + i * keys + c);
            const V before = running;
            kept[i] = running = running * a[i];
            dq[i] = (EARLY ? before : running) * T::load(d.q_in + i * keys + c);
            dk[i] = DELTA ? running * T::load(d.k_in + i * keys + c) : V{};
        }
        V z = T::load(d.across + c);
        for (int i = n - 1; i >= 0; --i) {
            if (!EARLY) z += q[i] * T::load(d.q_in + i * keys + c);
            if (DELTA) z += k[i] * T::load(d.k_in + i * keys + c);
            dg[i] = z * kept[i];
            z = z * a[i];
            if (EARLY) z += q[i] * T::load(d.q_in + i * keys + c);
        }
        for (int j = 0; j < n; ++j) {
            const A *pairs = d.pairs + j, *solve = d.solve + j;
            V left = k[j];
            if (!EARLY) dq[j] += pairs[j * C] * left;
            for (int i = j + 1; i < n; ++i) {
                if (EARLY) dq[i] += pairs[i * C] * left;
                kept[i] = left = left * a[i];
                if (!EARLY) dq[i] += pairs[i * C] * left;
                if (DELTA) dk[i] += solve[i * C] * left;
            }
            z = T::load(d.left + j * keys + c);
            for (int i = n - 1; i > j; --i) {
                if (!EARLY) z += pairs[i * C] * q[i];
                if (DELTA) z += solve[i * C] * k[i];
                dg[i] += z * kept[i];
                z = z * a[i];
                if (EARLY) z += pairs[i * C] * q[i];
            }
            if (!EARLY) z += pairs[j * C] * q[j];
            dk[j] += z;
        }
        for (int i = 0; i < n; ++i) {
            T::store(d.q + i * keys + c, dq[i]);
            T::store(d.k + i * keys + c, dk[i]);
            T::store(d.decay + i * keys + c, dg[i]);
        }
    }
    // What the bonus adds.
    void leave_own(const Tape& x, const Slope& d) const {
        const A* bonus = reinterpret_cast<const A*>(args.bonus) + head.h * args.keys;
        double* sums = head.sums(1);
        for (i64 i = 0; i < x.n; ++i) {
            const A slope = d.pairs[i * C + i];
            for (i64 c = 0; c < args.keys; ++c) {
                const A q = x.q[i * keys + c], k = x.k[i * keys + c];
                d.q[i * keys + c] += slope * bonus[c] * k;
                d.k[i * keys + c] += slope * bonus[c] * q;
                sums[c] += double(slope * q * k);
            }
        }
    }
};

}  // namespace
}  // namespace LINRNN_ISA
}  // namespace linrnn
