// The operations of the machine as a table of plain loops over rows, which compilers make vector
// code of, and the product of a matrix with a few rows.
#pragma once
#include "functions.h"
#include "gemv.h"
#include "half_rows.h"
#include "half_tiles.h"
#include "machine_args.h"

// A loop that is written out, so that what it works on stays in registers.
#if defined(__clang__)
#define LINRNN_UNROLL _Pragma("clang loop unroll(full)")
#elif defined(__GNUC__)
#define LINRNN_UNROLL _Pragma("GCC unroll 16")
#endif

namespace linrnn {
namespace LINRNN_ISA {
namespace {

// The number of each operation, and how many there are.
#define LINRNN_MACHINE_NAME(name, value) OP_##name,
enum OpName : i64 { LINRNN_MACHINE_OPS(LINRNN_MACHINE_NAME) OPS };
#undef LINRNN_MACHINE_NAME

template <class A>
struct Ops {
    using Loop = void (*)(A* d, const A* a, const A* b, A* c, A v, i64 n);

#define LINRNN_MACHINE_LOOP(name, value)                                                     \
    static void op_##name(A* d, const A* a, const A* b, A* c, A v, i64 n) {                  \
        (void)b, (void)c, (void)v;                                                           \
        LINRNN_INDEPENDENT                                                                   \
        for (i64 i = 0; i < n; ++i) {                                                        \
            const A x = a[i];                                                                \
            [[maybe_unused]] const A y = b[i], z = c[i];                                     \
            d[i] = value;                                                                    \
        }                                                                                    \
    }
    LINRNN_MACHINE_OPS(LINRNN_MACHINE_LOOP)
#undef LINRNN_MACHINE_LOOP

    static bool far(A x) { return !(magnitude(x) < A(Turn<A>::FAR)); }
    static bool any_far(const A* a, i64 n) {
        int beyond = 0;
        for (i64 i = 0; i < n; ++i) beyond |= far(a[i]);
        return beyond;
    }
    static void sin_of(A x, A& y, A&) { y = far_sin(x); }
    static void cos_of(A x, A& y, A&) { y = far_cos(x); }
    static void both_of(A x, A& y, A& z) { y = far_cos(x), z = far_sin(x); }
    // A number far from 0 takes a separate call, and its neighbours come out as they do alone.
    template <Loop loop, void (*call)(A, A&, A&), bool two = false>
    static void anywhere(A* d, const A* a, const A* b, A* c, A v, i64 n) {
        if (!any_far(a, n)) return loop(d, a, b, c, v, n);
        constexpr i64 PIECE = 64 / i64(sizeof(A));
        alignas(64) A x[PIECE], y[PIECE], z[PIECE];
        for (i64 i = 0; i < n; i += PIECE) {
            const i64 most = n - i < PIECE ? n - i : PIECE;
            copy(x, a + i, most);
            loop(y, x, x, z, A(0), most);
            for (i64 k = 0; k < most; ++k)
                if (far(x[k])) call(x[k], y[k], z[k]);
            copy(d + i, y, most);
            if (two) copy(c + i, z, most);
        }
    }

    static Loop find(i64 op) {
#define LINRNN_MACHINE_ENTRY(name, value) op_##name,
        static constexpr Loop table[] = {LINRNN_MACHINE_OPS(LINRNN_MACHINE_ENTRY)};
#undef LINRNN_MACHINE_ENTRY
        switch (op) {
            case OP_sin: return anywhere<op_sin, sin_of>;
            case OP_cos: return anywhere<op_cos, cos_of>;
            case OP_sin_cos: return anywhere<op_sin_cos, both_of, true>;
        }
        return table[op];
    }
};

#ifdef LINRNN_HALF_PRODUCTS
// The functions that take most of a step's time, as good as a result of bfloat16 shows, for rows of
// float32. Called only where `has_half_products`.
struct HalfOps {
    using Loop = Ops<float>::Loop;
    template <__m512 (*function)(__m512)>
    LINRNN_BF16_TARGET static void each(float* d, const float* a, const float*, float*, float, i64 n) {
        for (i64 i = 0; i < n; i += 16) {
            const __mmask16 some = lanes_left(n - i);
            store_lanes(d + i, some, function(load_lanes(a + i, some)));
        }
    }
    LINRNN_BF16_TARGET static __m512 sigmoid(__m512 x) { return lanes_sigmoid(x).value; }
    LINRNN_BF16_TARGET static void sigmoid_both(float* d, const float* a, const float*, float* c, float, i64 n) {
        for (i64 i = 0; i < n; i += 16) {
            const __mmask16 some = lanes_left(n - i);
            const LanesSigmoid both = lanes_sigmoid(load_lanes(a + i, some));
            store_lanes(d + i, some, both.value);
            store_lanes(c + i, some, both.rest);
        }
    }
    // Or null: the others are as they are elsewhere.
    static Loop find(i64 op) {
        switch (op) {
            case OP_exp: return each<lanes_exp_to_infinity>;
            case OP_sigmoid: return each<sigmoid>;
            case OP_sigmoid_both: return sigmoid_both;
            case OP_tanh: return each<lanes_tanh>;
        }
        return nullptr;
    }
};
#endif

// Rows that repeat another, and sums of parts of one; `narrow` numbers, n times. No two rows overlap.
template <class A>
struct Spreads {
    using Loop = void (*)(A* d, const A* a, i64 narrow, i64 n);

    static void spread(A* d, const A* a, i64 narrow, i64 n) {
        for (i64 k = 0; k < n; ++k) copy(d + k * narrow, a, narrow);
    }
    static void spread_each(A* d, const A* a, i64 narrow, i64 n) {
        for (i64 i = 0; i < narrow; ++i, d += n) {
            const A x = a[i];
            LINRNN_INDEPENDENT
            for (i64 k = 0; k < n; ++k) d[k] = x;
        }
    }
    static void fold(A* d, const A* a, i64 narrow, i64 n) {
        copy(d, a, narrow);
        for (i64 k = 1; k < n; ++k) {
            const A* part = a + k * narrow;
            LINRNN_INDEPENDENT
            for (i64 i = 0; i < narrow; ++i) d[i] += part[i];
        }
    }
    // Several sums at once, of which one is made: as many on every processor.
    static void fold_each(A* d, const A* a, i64 narrow, i64 n) {
        constexpr i64 L = 64 / i64(sizeof(A));
        for (i64 i = 0; i < narrow; ++i, a += n) {
            alignas(64) A sums[L] = {};
            i64 k = 0;
            for (; k + L <= n; k += L)
                for (i64 j = 0; j < L; ++j) sums[j] += a[k + j];
            for (i64 j = 0; k < n; ++k, ++j) sums[j] += a[k];
            for (i64 half = L / 2; half > 0; half /= 2)
                for (i64 j = 0; j < half; ++j) sums[j] += sums[j + half];
            d[i] = sums[0];
        }
    }
    static void roll(A* d, const A* a, i64 narrow, i64 n) {
        const i64 on = (n % narrow + narrow) % narrow;
        copy(d + on, a, narrow - on);
        copy(d, a + narrow - on, on);
    }

    static Loop find(i64 number) {
#define LINRNN_MACHINE_SPREAD(name) name,
        static constexpr Loop table[] = {LINRNN_MACHINE_SPREADS(LINRNN_MACHINE_SPREAD)};
#undef LINRNN_MACHINE_SPREAD
        return table[number];
    }
};

// A matrix of `blocks` blocks of m by n along the diagonal times q vectors. The matrix is laid out
// anew once a call: panels of a few columns of vectors each, in the order in which they are read.
// Each number is a sum in the order of the columns whatever q is, so grouping changes no bit.
template <class A>
struct Product {
#if defined(__AVX512F__)
    static constexpr int BYTES = 64, ROWS = 8;  // as many sums as there are registers for
#elif defined(__AVX__)
    static constexpr int BYTES = 32, ROWS = 4;
#else
    static constexpr int BYTES = 16, ROWS = 4;
#endif
    static constexpr int V = 2;
    static constexpr i64 L = BYTES / i64(sizeof(A)), WIDTH = V * L;

    static i64 panels(i64 n) { return (n + WIDTH - 1) / WIDTH; }
    static i64 size(i64 blocks, i64 m, i64 n) { return blocks * panels(m) * WIDTH * n; }

    template <class W>
    static void pack(const W* matrix, bool turned, A* to, i64 blocks, i64 m, i64 n) {
        for (i64 h = 0; h < blocks; ++h, matrix += m * n)
            for (i64 i = 0; i < panels(m) * WIDTH; i += WIDTH)
                for (i64 j = 0; j < n; ++j)
                    for (i64 k = i; k < i + WIDTH; ++k)
                        *to++ = k >= m ? A(0) : A(widen(matrix[turned ? j * m + k : k * n + j]));
    }

#ifdef LINRNN_HALF_PRODUCTS
    // Of two columns at a time, rounded; n is even.
    template <class W>
    static void pack_halves(const W* matrix, bool turned, A* to, i64 blocks, i64 m, i64 n) {
        auto halves = reinterpret_cast<bf16*>(to);
        for (i64 h = 0; h < blocks; ++h, matrix += m * n)
            for (i64 i = 0; i < panels(m) * WIDTH; i += WIDTH)
                for (i64 j = 0; j < n; j += 2)
                    for (i64 k = i; k < i + WIDTH; ++k)
                        for (i64 l = j; l < j + 2; ++l) {
                            const i64 at = turned ? l * m + k : k * n + l;
                            narrow(k >= m ? 0.0f : float(widen(matrix[at])), *halves++);
                        }
    }
#endif

#ifdef __GNUC__
    using Vector = typename VectorOf<A, L>::type;

    template <int Q, int P>
    static void panel(const A* w, const A* x, i64 apart, i64 n, A (*sums)[P * WIDTH]) {
        Vector sum[Q][P * V] = {};
        for (i64 j = 0; j < n; ++j, w += WIDTH) {
            Vector column[P * V];
            // vector by vector: a longer piece is copied through memory, narrower than it is read
            LINRNN_UNROLL
            for (int v = 0; v < P * V; ++v)
                std::memcpy(&column[v], w + v / V * n * WIDTH + v % V * L, BYTES);
            for (int q = 0; q < Q; ++q) {
                LINRNN_UNROLL
                for (int v = 0; v < P * V; ++v) sum[q][v] += x[q * apart + j] * column[v];
            }
        }
        std::memcpy(sums, sum, sizeof sum);
    }
#else
    template <int Q, int P>
    static void panel(const A* w, const A* x, i64 apart, i64 n, A (*sums)[P * WIDTH]) {
        std::memset(sums, 0, sizeof(A) * Q * P * WIDTH);
        for (int p = 0; p < P; ++p, w += n * WIDTH)
            for (i64 j = 0; j < n; ++j)
                for (int q = 0; q < Q; ++q)
                    for (i64 v = 0; v < WIDTH; ++v)
                        sums[q][p * WIDTH + v] += x[q * apart + j] * w[j * WIDTH + v];
    }
#endif
    // What is multiplied: rows of a block, their length, and from one vector to the next.
    struct Shape {
        i64 blocks, m, n, x, y;
    };

    template <int Q, int P>
    static void part(const A* w, const A* x, const Shape& of, A (*sums)[P * WIDTH]) {
        panel<Q, P>(w, x, of.x, of.n, sums);
    }
#ifdef LINRNN_HALF_PRODUCTS
    template <int Q, int P>
    static void part(const A* w, const HalfPair* x, const Shape& of, A (*sums)[P * WIDTH]) {
        half_panel<Q, P * V, V>(w, x, of.x / 2, of.n / 2, sums[0]);
    }
#endif

    template <int Q, int P, class X>
    static void some(const A* w, const X* x, const A* add, A* y, const Shape& of, i64 i) {
        alignas(64) A sums[Q][P * WIDTH];
        part<Q, P>(w, x, of, sums);
        const i64 most = of.m - i < P * WIDTH ? of.m - i : P * WIDTH;
        put(sums, add ? add + i : nullptr, y + i, of.y, Q, most);
    }
    // y = sums + add, of q vectors that lie `apart` and n numbers of each.
    template <i64 N>
    static LINRNN_INLINE void put(const A (*sums)[N], const A* add, A* y, i64 apart, i64 q, i64 n) {
        for (i64 k = 0; k < q; ++k)
            for (i64 i = 0; i < n; ++i) y[k * apart + i] = add ? sums[k][i] + add[k * apart + i] : sums[k][i];
    }

    // y = matrix x + add, of q vectors; x are numbers of A or pairs of halves.
    template <class X>
    static void multiply(const A* packed, const X* x, const A* add, A* y, const Shape& of, i64 q) {
        const i64 column = std::is_same<X, A>::value ? of.n : of.n / 2;
        for (i64 h = 0; h < of.blocks; ++h, x += column, y += of.m, add += add ? of.m : 0) {
            for (i64 i = 0; i < of.m;) {
                const i64 taken = of.m - i > WIDTH ? 2 : 1;
                if (taken == 2) rows<2>(packed, x, add, y, of, q, i, column);
                else rows<1>(packed, x, add, y, of, q, i, column);
                i += taken * WIDTH, packed += taken * WIDTH * column;
            }
        }
    }
    // P panels times all vectors: the fewer of these at once, the more panels.
    template <int P, class X>
    static void rows(const A* w, const X* x, const A* add, A* y, const Shape& of, i64 q, i64 i,
                     i64 column) {
        const i64 apart = of.x / (of.n / column);
        i64 k = 0;
        auto from = [&] { return x + k * apart; };
        auto more = [&] { return add ? add + k * of.y : nullptr; };
        for (; k + ROWS <= q; k += ROWS)
            for (int p = 0; p < P; ++p)
                some<ROWS, 1>(w + p * column * WIDTH, from(), more(), y + k * of.y, of, i + p * WIDTH);
        if (ROWS > 4 && k + 4 <= q) {
            some<4, P>(w, from(), more(), y + k * of.y, of, i);
            k += 4;
        }
        for (; k + 2 <= q; k += 2) some<2, P>(w, from(), more(), y + k * of.y, of, i);
        if (k < q) some<1, P>(w, from(), more(), y + k * of.y, of, i);
    }

#ifdef LINRNN_HALF_TILES
    // Columns from which tiles pay. A training step of gru and lstm takes 1.0 to 1.3 of its time by vectors
    // at 64 columns, 0.9 to 1.06 at 96, 0.83 to 1.09 at 128 (1 to 4 sequences, Xeon with AMX).
    static constexpr i64 WORTH_TILES = 96;
    static void multiply_tiles(const A* packed, const HalfPair* x, const A* add, A* y, const Shape& of, i64 q) {
        constexpr i64 ROWS_OF_TILE = 16;
        const i64 pairs = of.n / 2;
        for (i64 k = 0; k < q; k += ROWS_OF_TILE) {
            const i64 taken = q - k < ROWS_OF_TILE ? q - k : ROWS_OF_TILE;
            const HalfTiles tiles(taken, pairs);
            const A* panel = packed;
            for (i64 h = 0; h < of.blocks; ++h)
                for (i64 i = 0; i < of.m; i += WIDTH, panel += pairs * WIDTH) {
                    alignas(64) A sums[ROWS_OF_TILE][WIDTH];
                    auto right = reinterpret_cast<const HalfPair*>(panel);
                    HalfTiles::multiply<V>(x + k * (of.x / 2) + h * pairs, of.x / 2, right, WIDTH, pairs, sums[0], WIDTH);
                    const i64 at = k * of.y + h * of.m + i;
                    put(sums, add ? add + at : nullptr, y + at, of.y, taken, of.m - i < WIDTH ? of.m - i : WIDTH);
                }
        }
    }
#endif

    // The same for few steps in all: the matrix as it lies in memory.
    static void multiply_once(const A* matrix, bool turned, const A* x, const A* add, A* y,
                              const Shape& of, i64 q) {
        for (i64 k = 0; k < q; ++k)
            for (i64 h = 0; h < of.blocks; ++h) {
                const i64 at = k * of.y + h * of.m;
                once(matrix + h * of.m * of.n, turned, x + k * of.x + h * of.n, y + at, of);
                for (i64 i = 0; add && i < of.m; ++i) y[at + i] += add[at + i];
            }
    }
    static void once(const A* matrix, bool turned, const A* x, A* y, const Shape& of) {
        if (!turned) {
            for (i64 i = 0; i < of.m; ++i) y[i] = Gemv<A>::dot(matrix + i * of.n, x, of.n);
            return;
        }
        for (i64 i = 0; i < of.m; ++i) y[i] = A(0);
        for (i64 j = 0; j < of.n; ++j) {
            const A factor = x[j];
            LINRNN_INDEPENDENT
            for (i64 i = 0; i < of.m; ++i) y[i] += factor * matrix[j * of.m + i];
        }
    }
};

}  // namespace
}  // namespace LINRNN_ISA
}  // namespace linrnn
