// Products of factors that lie packed as bfloat16 numbers, with sums in float32: by tiles where the
// processor has them, else by pairs. Packing them is here too.
#pragma once
#include <utility>

#include "memory_halves.h"

namespace linrnn {
namespace LINRNN_ISA {
namespace {

template <class A>
struct HalfFactors {
    static constexpr bool exist = false;
};

#ifdef LINRNN_HALF_PRODUCTS
template <>
struct HalfFactors<float> {
    static constexpr bool exist = true;
    using T = Tile<float>;
    using V = T::V;
    using Pack = Halves<float>;
    static constexpr i64 L = T::L, C = 64, PAIRS = C / 2;

    using Steps = std::make_integer_sequence<int, int(L)>;

    HalfPair *turned_first, *turned_second;  // of a product whose left factors lie as columns

    // What products of a call need until its end: depths are multiples of 8 pairs.
#ifdef LINRNN_HALF_TILES
    static HalfTiles registers() { return HalfTiles(L, L / 2, has_half_tiles()); }
#else
    static int registers() { return 0; }
#endif

    // ----------------------------------------------------------------------------------- products

    // left(i, p) = left[i row + p step] and rows of the right factor, pairs of steps, keys or columns.
    // Row i takes those before its block of 16 steps, up to it or from it on, as the range says.
    enum Range { ALL, BEFORE, UP_TO, FROM };
    struct Factors {
        const HalfPair* left;
        i64 row, step;
        const HalfPair* right;
        i64 ld, pairs;
        Range range = ALL;
        i64 first(i64 i) const { return range == FROM ? i / L * (L / 2) : 0; }
        i64 end(i64 i) const {
            return range == BEFORE ? i / L * (L / 2) : range == UP_TO ? (i / L + 1) * (L / 2) : pairs;
        }
    };
    template <int R, int W>
    LINRNN_BF16_TARGET static LINRNN_INLINE void multiply(V (&sum)[R][W], const Factors& f, i64 i, i64 n) {
        const i64 first = f.first(i), end = f.end(i);
        const HalfPair *left = f.left + i * f.row + first * f.step, *right = f.right + first * f.ld + n;
        for (i64 p = first; p < end; ++p, left += f.step, right += f.ld) {
            __m512bh b[W];
            for (int w = 0; w < W; ++w) std::memcpy(&b[w], right + w * L, 64);
            for (int r = 0; r < R; ++r) {
                const __m512bh a = (__m512bh)_mm512_set1_epi32(int(left[r * f.row].bits));
                for (int w = 0; w < W; ++w) sum[r][w] = V(_mm512_dpbf16_ps(__m512(sum[r][w]), a, b[w]));
            }
        }
    }
    // finish(between(first) + second) of every tile.
    template <int R, int W, class Between, class Finish>
    LINRNN_BF16_TARGET static void tile(const Factors& first, const Between& between, const Factors* second,
                                        const Finish& finish, i64 i, i64 n) {
        V sum[R][W] = {};
        multiply(sum, first, i, n);
        between(sum, i, n);
        if (second) multiply(sum, *second, i, n);
        finish(sum, i, n);
    }
    template <class Between, class Finish>
    void product(i64 rows, i64 columns, const Factors& first, const Between& between, const Factors* second,
                 const Finish& finish) const {
#ifdef LINRNN_HALF_TILES
        if (has_half_tiles()) return product_of_tiles(rows, columns, first, between, second, finish);
#endif
        T::tiles(rows, columns, [&](auto r_, auto w_, i64 i, i64 n) {
            tile<decltype(r_)::value, decltype(w_)::value>(first, between, second, finish, i, n);
        });
    }
    template <class Finish>
    void product(i64 rows, i64 columns, const Factors& f, const Finish& finish) const {
        product(rows, columns, f, [](auto&, i64, i64) {}, nullptr, finish);
    }
#ifdef LINRNN_HALF_TILES
    // The same by tiles of 16 rows. Factors are handed on by reference: a copy in registers has to wait for
    // all that is stored before it.
    template <class Between, class Finish>
    void product_of_tiles(i64 rows, i64 columns, const Factors& first, const Between& between, const Factors* second,
                          const Finish& finish) const {
        Factors turned[2];
        const Factors* factors[2] = {&first, second};
        for (int i = 0; i < 2; ++i)
            if (factors[i] && factors[i]->step != 1) {
                turned[i] = *factors[i];
                turn_left(turned[i], rows, i ? turned_second : turned_first);
                factors[i] = &turned[i];
            }
        T::panels(columns, [&](auto w_, i64 n) {
            panel_of_tiles<decltype(w_)::value>(rows, n, *factors[0], between, factors[1], finish);
        });
    }
    // Sums of tiles are handed on some rows at a time, when those of the next 16 rows are under way.
    template <int W, class Between, class Finish>
    void panel_of_tiles(i64 rows, i64 n, const Factors& first, const Between& between, const Factors* second,
                        const Finish& finish) const {
        constexpr int R = T::template ROWS<W>;
        alignas(64) float sums[2][L][W * L], more[2][L][W * L];
        auto begin = [&](i64 b) {
            tiles_of<W>(first, b, n, sums[b / L % 2][0]);
            if (second) tiles_of<W>(*second, b, n, more[b / L % 2][0]);
        };
        begin(0);
        for (i64 b = 0; b < rows; b += L) {
            if (b + L < rows) begin(b + L);
            for (i64 i = 0; i < L; i += R) {
                V sum[R][W];
                for (int r = 0; r < R; ++r)
                    for (int w = 0; w < W; ++w) sum[r][w] = T::load(sums[b / L % 2][i + r] + w * L);
                between(sum, b + i, n);
                if (second) add_rows(sum, more[b / L % 2] + i);
                finish(sum, b + i, n);
            }
        }
    }
    template <int R, int W>
    static LINRNN_INLINE void add_rows(V (&sum)[R][W], const float (*more)[W * L]) {
        for (int r = 0; r < R; ++r)
            for (int w = 0; w < W; ++w) sum[r][w] += T::load(more[r] + w * L);
    }
    template <int W>
    static void tiles_of(const Factors& f, i64 i, i64 n, float* to) {
        const i64 first = f.first(i), end = f.end(i);
        HalfTiles::multiply<W>(f.left + i * f.row + first, f.row, f.right + first * f.ld + n, f.ld, end - first, to,
                               W * L);
    }
    // A left factor whose rows lie as columns, row by row.
    static void turn_left(Factors& f, i64 rows, HalfPair* to) {
        turn_pairs(f.left, f.step, to, PAIRS, (f.pairs + L - 1) / L * L, rows);
        f.left = to, f.row = PAIRS, f.step = 1;
    }
#endif
    template <int R, int W>
    static LINRNN_INLINE void scale_rows(V (&sum)[R][W], const float* by) {
        for (int r = 0; r < R; ++r)
            for (int w = 0; w < W; ++w) sum[r][w] = by[r] * sum[r][w];
    }

    // ------------------------------------------------------------------------------------ packing

    // Two rows of n numbers, of which those above one another become pairs, each row times a number.
    LINRNN_BF16_TARGET static void pair_rows(const float* first, float x, const float* second, float y, i64 n,
                                             HalfPair* to) {
        const __m512i turn = even_odd();
        for (i64 i = 0; i < n; i += L) {
            const __m512 a = __m512(x * T::load(first + i)), b = __m512(y * T::load(second + i));
            _mm512_storeu_si512(to + i, _mm512_permutexvar_epi16(turn, (__m512i)_mm512_cvtne2ps_pbh(b, a)));
        }
    }
    static LINRNN_INLINE __m512i even_odd() {
        alignas(64) std::uint16_t order[32];
        for (int i = 0; i < 32; ++i) order[i] = std::uint16_t(i / 2 + i % 2 * 16);
        return _mm512_load_si512(order);
    }
    // How far apart rows of pairs lie that a product takes a panel of: not by a multiple of 512 bytes, which
    // would put them into an eighth of a processor's first cache.
    static constexpr i64 apart(i64 columns) { return columns % 128 ? columns : columns + L; }
    // All rows of a matrix, (rows, columns) to (rows / 2, columns).
    static void pair_all(const float* from, i64 ld, i64 n, i64 columns, HalfPair* to, i64 to_ld) {
        for (i64 i = 0; i < n; i += 2)
            pair_rows(from + i * ld, 1, from + (i + 1) * ld, 1, columns, to + i / 2 * to_ld);
    }
    static void pair_all(const float* from, i64 ld, i64 n, i64 columns, HalfPair* to) {
        pair_all(from, ld, n, columns, to, columns);
    }
    static void pair_scaled(const float* from, const float* by, i64 n, i64 columns, HalfPair* to) {
        for (i64 i = 0; i < n; i += 2)
            pair_rows(from + i * columns, by[i], from + (i + 1) * columns, by[i + 1], columns, to + i / 2 * columns);
    }
    // The same of rows that are bfloat16 already.
    static void pair_stored(const HalfPair* from, i64 n, i64 columns, HalfPair* to) {
        pair_stored(from, n, columns, to, columns);
    }
    static void pair_stored(const HalfPair* from, i64 n, i64 columns, HalfPair* to, i64 to_ld) {
        const __m512i turn = even_odd();
        auto halves = reinterpret_cast<const std::uint16_t*>(from);
        for (i64 i = 0; i < n; i += 2)
            for (i64 c = 0; c < columns; c += L) {
                __m256i a, b;
                std::memcpy(&a, halves + i * columns + c, sizeof a);
                std::memcpy(&b, halves + (i + 1) * columns + c, sizeof b);
                const __m512i both = _mm512_inserti64x4(_mm512_castsi256_si512(a), b, 1);
                _mm512_storeu_si512(to + i / 2 * to_ld + c, _mm512_permutexvar_epi16(turn, both));
            }
    }
    static LINRNN_INLINE V widened(const HalfPair* row, i64 at) {
        __m256i x;
        std::memcpy(&x, reinterpret_cast<const std::uint16_t*>(row) + at, sizeof x);
        return V(_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(x), 16)));
    }
    // (rows, columns) pairs, both multiples of 16, turned around.
    static void turn_pairs(const HalfPair* from, i64 ld, HalfPair* to, i64 to_ld, i64 n, i64 columns) {
        T::transpose(reinterpret_cast<const float*>(from), ld, reinterpret_cast<float*>(to), to_ld, n, columns);
    }
    // Rows of columns as pairs of neighbours, in whole vectors: (n, columns) to (columns / 2, n), by way
    // of (n, columns / 2). A last half vector of pairs is filled up with zeros.
    static void turn_rows(HalfPair* from, i64 columns, HalfPair* to, i64 to_ld, i64 n) {
        const i64 pairs = columns / 2, whole = pairs / L * L;
        turn_pairs(from, pairs, to, to_ld, n, whole);
        for (i64 p = whole; p < pairs; ++p)
            for (i64 i = 0; i < n; ++i) to[p * to_ld + i] = from[i * pairs + p];
    }

    // ----------------------------------------------------------------- sixteen steps of 16 columns

    // x times a column of pairs is added to the rows of steps FIRST and later, or times a row to earlier ones.
    // Rows of pairs are LD long.
    template <int FIRST, int LD, int... I>
    static LINRNN_INLINE void add_later(V (&sum)[L], const float* column, V x, std::integer_sequence<int, I...>) {
        ((I >= FIRST ? void(sum[I] += column[I * LD] * x) : void()), ...);
    }
    template <int END, int... I>
    static LINRNN_INLINE void add_earlier(V (&sum)[L], const float* row, V x, std::integer_sequence<int, I...>) {
        ((I < END ? void(sum[I] += row[I] * x) : void()), ...);
    }
    template <int... I>
    static LINRNN_INLINE void load_steps(V (&sum)[L], const float* from, i64 ld, std::integer_sequence<int, I...>) {
        ((sum[I] = T::load(from + I * ld)), ...);
    }
    template <int... I>
    static LINRNN_INLINE void store_steps(const V (&sum)[L], float* to, i64 ld, std::integer_sequence<int, I...>) {
        (T::store(to + I * ld, sum[I]), ...);
    }

    // -------------------------------------------------------------------------------------- rooms

    static HalfPair* stored_pairs(const Array& x, i64 t, i64 channel) {
        return reinterpret_cast<HalfPair*>(reinterpret_cast<bf16*>(x.data) + t * x.step + channel);
    }

    static float* take(float*& work, i64 numbers) {
        float* room = work;
        work += (numbers + L - 1) / L * L;
        return room;
    }
    static HalfPair* take_pairs(float*& work, i64 pairs) { return reinterpret_cast<HalfPair*>(take(work, pairs)); }
};
#endif

}  // namespace
}  // namespace LINRNN_ISA
}  // namespace linrnn
