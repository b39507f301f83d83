// Mixes of each input with the one before, which is zero where a sequence begins anew:
//   y_i,t = x_t + m_i,t (x_{t-1} - x_t),   m_i,t = mu_i + moved_i,t
// and their adjoint, which has one pass over the gradients of all mixes.
//
// Compiled once for every instruction set: see scan.cpp.
#include <cstring>
#include <utility>

#include "../half_rows.h"
#include "../large_pages.h"
#include "../operands.h"
#include "../prefetch.h"
#include "../token_mix_args.h"

namespace linrnn {
namespace LINRNN_ISA {
namespace {

template <class A>
struct TokenMix {
    static constexpr i64 CHUNK = 64;  // steps of a unit of work
    static constexpr i64 AHEAD = 2;   // steps between naming a row and reading it
    const TokenMixArgs& args;
    const i64 n = args.channels;

    i64 chunks() const { return (args.time + CHUNK - 1) / CHUNK; }
    i64 units() const { return args.seqs * chunks(); }
    bool resets(i64 s, i64 t) const {
        auto mask = reinterpret_cast<const unsigned char*>(args.reset.data);
        return mask && mask[s * args.reset.seq + t * args.reset.step];
    }
    // A row of n numbers that lie side by side, from number `at` on.
    const A* row(i64 data, i64 dtype, i64 at, A* buffer) const {
        return read(Operand{data + at * bytes_of(dtype), dtype, 0, 0, 1}, 0, 0, n, buffer);
    }
    const A* input(i64 s, i64 t, A* buffer) const {
        return row(args.x.data, args.x_dtype, s * args.x.seq + t * args.x.step, buffer);
    }
    // The input before step t, or null where nothing is.
    const A* before(i64 s, i64 t, A* buffer) const {
        if (resets(s, t)) return nullptr;
        return t ? input(s, t - 1, buffer) : reinterpret_cast<const A*>(args.past) + s * n;
    }
    i64 moved_at(i64 s, i64 t, i64 i) const {
        return s * args.moved.seq + t * args.moved.step + i * args.moved_mix;
    }
    // The factor of mix i at step t.
    const A* factor(i64 s, i64 t, i64 i, A* __restrict buffer) const {
        const A* mu = reinterpret_cast<const A*>(args.mu) + i * n;
        if (!args.moved.data) return mu;
        const A* moved = row(args.moved.data, args.moved_dtype, moved_at(s, t, i), buffer);
        for (i64 c = 0; c < n; ++c) buffer[c] = mu[c] + moved[c];
        return buffer;
    }
    i64 output(i64 i) const { return reinterpret_cast<const i64*>(args.outputs)[i]; }
    i64 place(i64 s, i64 t) const { return (s * args.time + t) * n; }
    static void way(const A* x, const A* before, A* __restrict to, i64 n) {
        if (before)
            for (i64 c = 0; c < n; ++c) to[c] = before[c] - x[c];
        else
            for (i64 c = 0; c < n; ++c) to[c] = -x[c];
    }

    // Names what step t reads and writes.
    void ask(i64 s, i64 t) const {
        if (t < 0 || t >= args.time) return;
        const i64 wide = bytes_of(args.output_dtype), x = bytes_of(args.x_dtype), moved = bytes_of(args.moved_dtype);
        prefetch(args.x.data + (s * args.x.seq + t * args.x.step) * x, n * x);
        for (i64 i = 0; i < args.mixes; ++i) {
            prefetch(output(i) + place(s, t) * wide, n * wide);
            if (args.moved.data) prefetch(args.moved.data + moved_at(s, t, i) * moved, n * moved);
            if (args.grad_moved) prefetch(args.grad_moved + moved_at(s, t, i) * moved, n * moved);
        }
        if (args.backward) prefetch(args.grad_x + place(s, t) * x, n * x);
    }

    // work has room for ROOM rows
    static constexpr i64 ROOM = 15;
    // N mixes of a step, from the first of `mu` on.
    template <int N, bool MOVED, class S>
    static void mix(const A* x, const A* back, const A* mu, const S* const* from, S* const* to, i64 n) {
        const S* moved[N];
        S* y[N];
        for (int i = 0; i < N; ++i) moved[i] = from[i], y[i] = to[i];
        LINRNN_INDEPENDENT
        for (i64 c = 0; c < n; ++c)
            for (int i = 0; i < N; ++i) {
                A m = mu[i * n + c];
                if constexpr (MOVED) m += A(widen(moved[i][c]));
                put_one(x[c] + m * back[c], y[i][c]);
            }
    }
#ifdef LINRNN_HALF_PRODUCTS
    // The same of bfloat16. Two registers make a whole line of what is stored: by half lines a store
    // waits twice for memory.
    struct Pair {
        __m512 low, high;
    };
    LINRNN_BF16_TARGET static LINRNN_INLINE Pair load_pair(const bf16* from, __mmask32 some) {
        const __m512i x = _mm512_maskz_loadu_epi16(some, from);
        auto wide = [](__m256i half) LINRNN_BF16_TARGET {
            return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
        };
        return {wide(_mm512_castsi512_si256(x)), wide(_mm512_extracti64x4_epi64(x, 1))};
    }
    LINRNN_BF16_TARGET static LINRNN_INLINE Pair load_pair(const float* from, __mmask32 some) {
        return {load_lanes(from, __mmask16(some)), load_lanes(from + 16, __mmask16(some >> 16))};
    }
    LINRNN_BF16_TARGET static LINRNN_INLINE void store_pair(bf16* to, __mmask32 some, const Pair& x) {
        _mm512_mask_storeu_epi16(to, some, (__m512i)_mm512_cvtne2ps_pbh(x.high, x.low));
    }
    LINRNN_BF16_TARGET static LINRNN_INLINE void store_pair(float* to, __mmask32 some, const Pair& x) {
        store_lanes(to, __mmask16(some), x.low), store_lanes(to + 16, __mmask16(some >> 16), x.high);
    }
    LINRNN_BF16_TARGET static LINRNN_INLINE Pair plus(const Pair& x, const Pair& y) {
        return {_mm512_add_ps(x.low, y.low), _mm512_add_ps(x.high, y.high)};
    }
    LINRNN_BF16_TARGET static LINRNN_INLINE Pair less(const Pair& x, const Pair& y) {
        return {_mm512_sub_ps(x.low, y.low), _mm512_sub_ps(x.high, y.high)};
    }
    LINRNN_BF16_TARGET static LINRNN_INLINE Pair times(const Pair& x, const Pair& y) {
        return {_mm512_mul_ps(x.low, y.low), _mm512_mul_ps(x.high, y.high)};
    }
    LINRNN_BF16_TARGET static LINRNN_INLINE Pair times_plus(const Pair& x, const Pair& y, const Pair& z) {
        return {_mm512_fmadd_ps(x.low, y.low, z.low), _mm512_fmadd_ps(x.high, y.high, z.high)};
    }
    static __mmask32 pairs_left(i64 n) { return n < 32 ? (__mmask32(1) << n) - 1 : ~__mmask32(0); }
    template <int N, bool MOVED>
    LINRNN_BF16_TARGET static void mix_halves(const float* x, const float* back, const float* mu,
                                              const bf16* const* from, bf16* const* to, i64 n) {
        for (i64 c = 0; c < n; c += 32) {
            const __mmask32 some = pairs_left(n - c);
            const Pair x_c = load_pair(x + c, some), back_c = load_pair(back + c, some);
            for (int i = 0; i < N; ++i) {
                Pair m = load_pair(mu + i * n + c, some);
                if constexpr (MOVED) m = plus(m, load_pair(from[i] + c, some));
                store_pair(to[i] + c, some, times_plus(m, back_c, x_c));
            }
        }
    }
#endif
    // Whether numbers are bfloat16 and computed with as such.
    template <class S>
    static constexpr bool HALVES = std::is_same<S, bf16>::value && std::is_same<A, float>::value;
    template <int N, bool MOVED, class S>
    static void mix_some(const A* x, const A* back, const A* mu, const S* const* from, S* const* to, i64 n) {
#ifdef LINRNN_HALF_PRODUCTS
        if constexpr (HALVES<S>)
            if (has_half_products()) return mix_halves<N, MOVED>(x, back, mu, from, to, n);
#endif
        mix<N, MOVED>(x, back, mu, from, to, n);
    }
    template <bool MOVED, class S>
    static void mix(i64 count, const A* x, const A* back, const A* mu, const S* const* from, S* const* to, i64 n) {
        if (count == 3) mix_some<3, MOVED>(x, back, mu, from, to, n);
        else if (count == 2) mix_some<2, MOVED>(x, back, mu, from, to, n);
        else mix_some<1, MOVED>(x, back, mu, from, to, n);
    }
    // Mixes [i, i + count) of step t, where their rows are stored as S.
    template <class S>
    void mix_stored(i64 s, i64 t, i64 i, i64 count, const A* x, const A* back) const {
        const A* mu = reinterpret_cast<const A*>(args.mu) + i * n;
        const S* moved[MOST] = {};
        S* y[MOST] = {};
        for (i64 j = 0; j < count; ++j) {
            y[j] = reinterpret_cast<S*>(output(i + j)) + place(s, t);
            if (args.moved.data) moved[j] = reinterpret_cast<const S*>(args.moved.data) + moved_at(s, t, i + j);
        }
        if (args.moved.data) mix<true>(count, x, back, mu, moved, y, n);
        else mix<false>(count, x, back, mu, moved, y, n);
    }
    // Of any dtype.
    void mix_copied(i64 s, i64 t, i64 i, const A* x, const A* back, A* work) const {
        const A* m = factor(s, t, i, work);
        A* y = work + n;
        mix<1, false, A>(x, back, m, &m, &y, n);
        write(output(i), args.output_dtype, place(s, t), n, y);
    }
    void forward(i64 s, i64 t0, i64 t1, A* work) const {
        A* back = work + 2 * n;
        for (i64 t = t0; t < t1; ++t) {
            ask(s, t + AHEAD);
            const A* x = input(s, t, work);
            way(x, before(s, t, work + n), back, n);
            for (i64 i = 0, count; i < args.mixes; i += count) {
                count = args.mixes - i < MOST ? args.mixes - i : MOST;
                if (stored_as<bf16>(BF16)) mix_stored<bf16>(s, t, i, count, x, back);
                else if (stored_as<A>(sizeof(A) == 8 ? F64 : F32)) mix_stored<A>(s, t, i, count, x, back);
                else mix_copied(s, t, i, x, back, work + 3 * n), count = 1;
            }
        }
    }

    // Rows of some mixes at one step, as they are stored.
    static constexpr int MOST = 3;
    template <class S>
    struct Some {
        const S *slopes[MOST], *moved[MOST];
        S* into_moved[MOST];
        const A* mu;  // (mixes, n) from the first of these on
        A* parts;     // alike: sums for mu
    };
    static LINRNN_INLINE void put_one(float x, float& to) { to = x; }
    static LINRNN_INLINE void put_one(double x, double& to) { to = x; }
    static LINRNN_INLINE void put_one(A x, bf16& to) { narrow(float(x), to); }
    // Adds to the gradients of the input before a step, and of that of the step, what N mixes give;
    // with PARTS also to the sums for mu, and writes the gradients of `moved`.
    template <int N, bool MOVED, bool PARTS, class S>
    static void slopes(const Some<S>& x, const A* back, A* of_before, A* of_x, i64 n) {
        const S *slopes[N], *moved[N];
        S* into_moved[N];
        for (int i = 0; i < N; ++i)
            slopes[i] = x.slopes[i], moved[i] = x.moved[i], into_moved[i] = x.into_moved[i];
        const A* mu = x.mu;
        A* parts = x.parts;
        LINRNN_INDEPENDENT
        for (i64 c = 0; c < n; ++c) {
            A before = of_before[c], own = of_x[c];
            for (int i = 0; i < N; ++i) {
                A g = A(widen(slopes[i][c])), m = mu[i * n + c];
                if constexpr (MOVED) m += A(widen(moved[i][c]));
                const A share = g * m;
                before += share, own += g - share;
                if constexpr (PARTS) {
                    const A product = g * back[c];
                    parts[i * n + c] += product;
                    if constexpr (MOVED) put_one(product, into_moved[i][c]);
                }
            }
            of_before[c] = before, of_x[c] = own;
        }
    }
#ifdef LINRNN_HALF_PRODUCTS
    // The same of bfloat16.
    template <int N, bool MOVED, bool PARTS>
    LINRNN_BF16_TARGET static void slopes_halves(const Some<bf16>& x, const float* back, float* of_before, float* of_x,
                                                 i64 n) {
        for (i64 c = 0; c < n; c += 32) {
            const __mmask32 some = pairs_left(n - c);
            Pair before = load_pair(of_before + c, some), own = load_pair(of_x + c, some), back_c = own;
            if constexpr (PARTS) back_c = load_pair(back + c, some);
            for (int i = 0; i < N; ++i) {
                const Pair g = load_pair(x.slopes[i] + c, some);
                Pair m = load_pair(x.mu + i * n + c, some);
                if constexpr (MOVED) m = plus(m, load_pair(x.moved[i] + c, some));
                const Pair share = times(g, m);
                before = plus(before, share);
                own = plus(own, less(g, share));
                if constexpr (PARTS) {
                    float* part = x.parts + i * n + c;
                    store_pair(part, some, times_plus(g, back_c, load_pair(part, some)));
                    if constexpr (MOVED) store_pair(x.into_moved[i] + c, some, times(g, back_c));
                }
            }
            store_pair(of_before + c, some, before);
            store_pair(of_x + c, some, own);
        }
    }
#endif
    template <int N, bool MOVED, bool PARTS, class S>
    static void slopes_some(const Some<S>& x, const A* back, A* of_before, A* of_x, i64 n) {
#ifdef LINRNN_HALF_PRODUCTS
        if constexpr (HALVES<S>)
            if (has_half_products()) return slopes_halves<N, MOVED, PARTS>(x, back, of_before, of_x, n);
#endif
        slopes<N, MOVED, PARTS>(x, back, of_before, of_x, n);
    }
    template <int N, class S>
    void slopes(const Some<S>& x, const A* back, A* of_before, A* of_x) const {
        const bool moved = args.moved.data != 0;
        if (!back) moved ? slopes_some<N, true, false>(x, back, of_before, of_x, n)
                         : slopes_some<N, false, false>(x, back, of_before, of_x, n);
        else moved ? slopes_some<N, true, true>(x, back, of_before, of_x, n)
                   : slopes_some<N, false, true>(x, back, of_before, of_x, n);
    }
    template <class S>
    void slopes(i64 count, const Some<S>& x, const A* back, A* of_before, A* of_x) const {
        if (count == 3) slopes<3>(x, back, of_before, of_x);
        else if (count == 2) slopes<2>(x, back, of_before, of_x);
        else slopes<1>(x, back, of_before, of_x);
    }
    // Whether rows of gradients and of `moved` are all stored as S.
    template <class S>
    bool stored_as(i64 number) const {
        return args.output_dtype == number && (!args.moved.data || args.moved_dtype == number);
    }
    // Mixes [i, i + count) of step t, where their rows are stored as S.
    template <class S>
    void slopes_stored(i64 s, i64 t, i64 i, i64 count, const A* back, A* of_before, A* of_x, A* parts) const {
        Some<S> x{{}, {}, {}, reinterpret_cast<const A*>(args.mu) + i * n, parts + i * n};
        for (i64 j = 0; j < count; ++j) {
            const i64 moved = moved_at(s, t, i + j);
            x.slopes[j] = reinterpret_cast<const S*>(output(i + j)) + place(s, t);
            x.moved[j] = reinterpret_cast<const S*>(args.moved.data) + moved;
            x.into_moved[j] = reinterpret_cast<S*>(args.grad_moved) + moved;
        }
        slopes(count, x, back, of_before, of_x);
    }
    // The same of any dtype: work has room for 3 MOST rows.
    void slopes_copied(i64 s, i64 t, i64 i, i64 count, const A* back, A* of_before, A* of_x, A* parts,
                       A* work) const {
        Some<A> x{{}, {}, {}, reinterpret_cast<const A*>(args.mu) + i * n, parts + i * n};
        for (i64 j = 0; j < count; ++j) {
            A* rows = work + 3 * j * n;
            x.slopes[j] = row(output(i + j), args.output_dtype, place(s, t), rows);
            if (args.moved.data)
                x.moved[j] = row(args.moved.data, args.moved_dtype, moved_at(s, t, i + j), rows + n);
            x.into_moved[j] = rows + 2 * n;
        }
        slopes(count, x, back, of_before, of_x);
        for (i64 j = 0; j < count && back && args.moved.data; ++j)
            write(args.grad_moved, args.moved_dtype, moved_at(s, t, i + j), n, x.into_moved[j]);
    }
    // Of all mixes at step t: the gradients of the input before and of the step's own. Without `back`,
    // x_{t-1} - x_t, no others.
    void slopes(i64 s, i64 t, const A* back, A* of_before, A* of_x, A* parts, A* work) const {
        for (A* row : {of_before, of_x}) std::memset(row, 0, size_t(n) * sizeof(A));
        for (i64 i = 0, count; i < args.mixes; i += count) {
            count = args.mixes - i < MOST ? args.mixes - i : MOST;
            if (stored_as<bf16>(BF16)) slopes_stored<bf16>(s, t, i, count, back, of_before, of_x, parts);
            else if (stored_as<A>(sizeof(A) == 8 ? F64 : F32))
                slopes_stored<A>(s, t, i, count, back, of_before, of_x, parts);
            else slopes_copied(s, t, i, count, back, of_before, of_x, parts, work);
        }
        if (resets(s, t)) std::memset(of_before, 0, size_t(n) * sizeof(A));
    }
    // Writes the gradient of the input at step t.
    void put_slope(i64 s, i64 t, A* own, const A* later) const {
        for (i64 c = 0; c < n; ++c) own[c] += later[c];
        write(args.grad_x, args.x_dtype, place(s, t), n, own);
    }
    // In the order in which the inputs lie, which a processor foresees.
    void backward(i64 s, i64 t0, i64 t1, double* sums, A* work) const {
        A *back = work + 2 * n, *of_x = work + 3 * n, *own = work + 4 * n, *of_before = work + 5 * n;
        A *rows = work + 6 * n, *parts = work + ROOM * n;
        std::memset(parts, 0, size_t(args.mixes * n) * sizeof(A));
        for (i64 t = t0; t < t1; ++t) {
            ask(s, t + AHEAD);
            const A* x = input(s, t, work);
            way(x, before(s, t, work + n), back, n);
            slopes(s, t, back, of_before, of_x, parts, rows);
            if (t > t0) put_slope(s, t - 1, own, of_before);
            else if (t == 0) copy(reinterpret_cast<A*>(args.grad_past) + s * n, of_before, n);
            std::swap(own, of_x);
        }
        if (t1 < args.time) slopes(s, t1, nullptr, of_before, of_x, parts, rows);
        else std::memset(of_before, 0, size_t(n) * sizeof(A));
        put_slope(s, t1 - 1, own, of_before);
        for (i64 i = 0; i < args.mixes * n; ++i) sums[i] += double(parts[i]);
    }

    int dispatch() const {
        if (!units() || !n) return 0;
        const i64 numbers = args.seqs * args.time * n;
        for (i64 i = 0; i < args.mixes && !args.backward; ++i)
            advise(output(i), numbers * bytes_of(args.output_dtype));
        if (args.backward) {
            advise(args.grad_x, numbers * bytes_of(args.x_dtype));
            if (args.grad_moved) advise(args.grad_moved, args.mixes * numbers * bytes_of(args.moved_dtype));
        }
        const i64 groups = args.backward ? args.parts : units(), share = (units() + groups - 1) / groups;
        const i64 threads = threads_for(groups, 2 * numbers * args.mixes, args.threads);
        const i64 room = (ROOM + (args.backward ? args.mixes : 0)) * n;
        return for_each<A>(groups, threads, room, [&](i64 group, A* work) {
            double* sums = reinterpret_cast<double*>(args.sums) + group * args.mixes * n;
            for (i64 u = group * share; u < units() && u < (group + 1) * share; ++u) {
                const i64 s = u / chunks(), t0 = u % chunks() * CHUNK;
                const i64 t1 = t0 + CHUNK < args.time ? t0 + CHUNK : args.time;
                if (args.backward) backward(s, t0, t1, sums, work);
                else forward(s, t0, t1, work);
            }
        });
    }
};

}  // namespace

int token_mix(const void* record) {
    const auto& args = *static_cast<const TokenMixArgs*>(record);
    if (args.size != i64(sizeof(TokenMixArgs))) return 3;
    switch (args.dtype) {
        case F32: return TokenMix<float>{args}.dispatch();
        case F64: return TokenMix<double>{args}.dispatch();
    }
    return 2;
}

}  // namespace LINRNN_ISA
}  // namespace linrnn
