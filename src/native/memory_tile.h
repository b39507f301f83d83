// Products of small matrices in registers, the whole arithmetic of a memory: rows of the right factor
// lie along the lanes, numbers of the left one are handed to all lanes.
#pragma once
#include <cstring>

#include "lanes.h"
#include "storage.h"
#include "vecmath.h"

namespace linrnn {
namespace LINRNN_ISA {
namespace {

#if defined(__AVX512F__)
constexpr int REGISTER = 64;
#elif defined(__AVX__)
constexpr int REGISTER = 32;
#else
constexpr int REGISTER = 16;
#endif

#ifndef __GNUC__
// A vector for compilers that have none of their own.
template <class A, int L>
struct Several {
    A x[L];
    A& operator[](int i) { return x[i]; }
    A operator[](int i) const { return x[i]; }
#define LINRNN_EACH(op)                                                                     \
    friend Several operator op(Several a, Several b) {                                      \
        for (int i = 0; i < L; ++i) a.x[i] = a.x[i] op b.x[i];                              \
        return a;                                                                           \
    }                                                                                       \
    friend Several operator op(A a, Several b) {                                            \
        for (int i = 0; i < L; ++i) b.x[i] = a op b.x[i];                                   \
        return b;                                                                           \
    }                                                                                       \
    Several& operator op##=(const Several& b) { return *this = *this op b; }
    LINRNN_EACH(+) LINRNN_EACH(-) LINRNN_EACH(*)
#undef LINRNN_EACH
};
#endif

template <int N>
struct Count {
    static constexpr int value = N;
};

template <class A>
struct Tile {
    static constexpr int L = REGISTER / int(sizeof(A));
    static constexpr i64 STEPS = 16;              // of a chunk
    static constexpr i64 UNIT = L < 8 ? 8 : L;    // rows and columns are filled up to a multiple
    static constexpr int WIDE = REGISTER == 64 ? 4 : 2;
    template <int W>
    static constexpr int ROWS = W == WIDE ? 4 : 8;
#ifdef __GNUC__
    using V = typename VectorOf<A, L>::type;
#else
    using V = Several<A, L>;
#endif

    static i64 padded(i64 n) { return (n + UNIT - 1) / UNIT * UNIT; }

    static LINRNN_INLINE V load(const A* p) {
        V v;
        std::memcpy(&v, p, sizeof v);
        return v;
    }
    static LINRNN_INLINE void store(A* p, const V& v) { std::memcpy(p, &v, sizeof v); }
    static LINRNN_INLINE A sum(const V& v) {
        alignas(64) A x[L];
        store(x, v);
        return sum_by_halves<L>(x);
    }
    // Of two rows, n a multiple of L.
    static A dot(const A* x, const A* y, i64 n) {
        V total{};
        for (i64 i = 0; i < n; i += L) total += load(x + i) * load(y + i);
        return sum(total);
    }

    // What is added to a product: left(i, p) = left[i row + p step] and rows of the right factor.
    struct Factors {
        const A* left;
        i64 row, step;
        const A* right;
        i64 ld, depth;
    };
    template <int R, int W>
    static LINRNN_INLINE void multiply(V (&to)[R][W], const Factors& f, i64 i, i64 n, i64 depth) {
        const A *left = f.left + i * f.row, *right = f.right + n;
        for (i64 p = 0; p < depth; ++p, left += f.step, right += f.ld) {
            V b[W];
            for (int w = 0; w < W; ++w) b[w] = load(right + w * L);
            for (int r = 0; r < R; ++r)
                for (int w = 0; w < W; ++w) to[r][w] += left[r * f.row] * b[w];
        }
    }
    template <int R, int W>
    static LINRNN_INLINE void put_tile(const V (&from)[R][W], A* to, i64 ld) {
        for (int r = 0; r < R; ++r)
            for (int w = 0; w < W; ++w) store(to + r * ld + w * L, from[r][w]);
    }

    // Calls f(vectors, n) for every panel of columns, of which there is a multiple of L.
    template <class F>
    static LINRNN_INLINE void panels(i64 columns, F f) {
        i64 n = 0;
        for (; n + WIDE * L <= columns; n += WIDE * L) f(Count<WIDE>(), n);
        if constexpr (WIDE > 2)
            for (; n + 2 * L <= columns; n += 2 * L) f(Count<2>(), n);
        for (; n < columns; n += L) f(Count<1>(), n);
    }
    // Calls f(rows, vectors, i, n) for every tile; rows a multiple of 8, columns of L.
    template <class F>
    static LINRNN_INLINE void tiles(i64 rows, i64 columns, F f) {
        panels(columns, [&](auto w_, i64 n) { down<decltype(w_)::value>(rows, n, f); });
    }
    template <int W, class F>
    static LINRNN_INLINE void down(i64 rows, i64 n, F& f) {
        for (i64 i = 0; i < rows; i += ROWS<W>) f(Count<ROWS<W>>(), Count<W>(), i, n);
    }

    // to(i, n) = begin(i, n) + products.
    template <class Begin, class... Fs>
    static void product(A* to, i64 ld, i64 rows, i64 columns, Begin begin, const Fs&... fs) {
        tiles(rows, columns, [&](auto r_, auto w_, i64 i, i64 n) {
            constexpr int R = decltype(r_)::value, W = decltype(w_)::value;
            V acc[R][W];
            for (int r = 0; r < R; ++r)
                for (int w = 0; w < W; ++w) acc[r][w] = begin(i + r, n + w * L);
            (multiply(acc, fs, i, n, fs.depth), ...);
            put_tile(acc, to + i * ld + n, ld);
        });
    }
    struct Zero {
        V operator()(i64, i64) const { return V{}; }
    };

    // The transpose of (rows, columns), both multiples of L.
    static void transpose(const A* from, i64 ld, A* to, i64 to_ld, i64 rows, i64 columns) {
        for (i64 i = 0; i < rows; i += L)
            for (i64 j = 0; j < columns; j += L)
                square(from + i * ld + j, ld, to + j * to_ld + i, to_ld);
    }
    static LINRNN_INLINE void square(const A* from, i64 ld, A* to, i64 to_ld) {
#if defined(__GNUC__) && !defined(__clang__)
        V x[L];
        for (int i = 0; i < L; ++i) x[i] = load(from + i * ld);
        swap_blocks<1>(x);
        for (int i = 0; i < L; ++i) store(to + i * to_ld, x[i]);
#else
        for (int i = 0; i < L; ++i)
            for (int j = 0; j < L; ++j) to[j * to_ld + i] = from[i * ld + j];
#endif
    }
#if defined(__GNUC__) && !defined(__clang__)
    // Blocks of B beside the diagonal change places, then those of twice the size.
    template <int B>
    static LINRNN_INLINE void swap_blocks(V (&x)[L]) {
        using Lane = Lanes<A, false, L>;
        if constexpr (B < L) {
            const auto low = Lane::index([](int l) { return l & B ? L + l - B : l; });
            const auto high = Lane::index([](int l) { return l & B ? L + l : l + B; });
            for (int i = 0; i < L; ++i)
                if (!(i & B)) {
                    V a = x[i], b = x[i + B];
                    x[i] = __builtin_shuffle(a, b, low), x[i + B] = __builtin_shuffle(a, b, high);
                }
            swap_blocks<2 * B>(x);
        }
    }
#endif
};

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

}  // namespace
}  // namespace LINRNN_ISA
}  // namespace linrnn
