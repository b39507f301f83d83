// Products of a memory with rows of bfloat16 numbers: both factors are rounded and packed, then
// multiplied by pairs and summed in float32. What a memory keeps is never rounded.
#pragma once
#include "half_tiles.h"
#include "memory_scan_args.h"
#include "memory_tile.h"

namespace linrnn {
namespace LINRNN_ISA {
namespace {

template <class A>
struct Halves {
    static constexpr bool exist = false;
};

#ifdef LINRNN_HALF_PRODUCTS
template <>
struct Halves<float> {
    static constexpr bool exist = true;
    using T = Tile<float>;
    using Factors = T::Factors;
    static constexpr i64 L = T::L;
    static_assert(L == 16, "a pair of halves lies in each lane");

    static bool usable(const MemoryScanArgs& args) { return args.dtype == BF16 && has_half_products(); }
    // Numbers of room for any product of a memory: of this size, or with rows of up to two chunks.
    static i64 room(i64 keys, i64 width) { return keys * width / 2 + 2 * T::STEPS * (keys + width); }

    // What products of a call need until its end. A product whose depth is no multiple of 8 pairs has other
    // shapes. Rows that a last tile has too many are read of the factor beside, and not handed on.
#ifdef LINRNN_HALF_TILES
    static HalfTiles registers(bool use) { return HalfTiles(L, L / 2, use && has_half_tiles()); }
#else
    static int registers(bool) { return 0; }
#endif

    static i64 pairs(i64 depth) { return (depth + 1) / 2; }
    // A row of n numbers as pairs.
    LINRNN_BF16_TARGET static void pack_row(const float* from, i64 n, HalfPair* to) {
        if (n % 2) to[n / 2] = HalfPair{0};
        to_halves(from, to, n);
    }
    // Two rows, of which numbers above one another become pairs; the second may be missing.
    LINRNN_BF16_TARGET static void pack_rows(const float* first, const float* second, i64 n, HalfPair* to) {
        alignas(64) std::uint16_t order[32];
        for (int i = 0; i < 32; ++i) order[i] = std::uint16_t(i / 2 + i % 2 * 16);
        const __m512i turn = _mm512_load_si512(order);
        for (i64 i = 0; i < n; i += L) {
            const __m512 a = _mm512_loadu_ps(first + i);
            const __m512 b = second ? _mm512_loadu_ps(second + i) : _mm512_setzero_ps();
            const __m512bh both = _mm512_cvtne2ps_pbh(b, a);
            _mm512_storeu_si512(to + i, _mm512_permutexvar_epi16(turn, (__m512i)both));
        }
    }

    // The factors of a product side by side: (rows, depth) and (depth, columns).
    struct Packed {
        HalfPair *left, *right;
        i64 depth, columns;  // pairs, numbers
    };
    static void pack(const Packed& x, const Factors& f, i64 rows, i64& at) {
        for (i64 i = 0; i < rows; ++i) pack_row(f.left + i * f.row, f.depth, x.left + i * x.depth + at);
        for (i64 p = 0; p < f.depth; p += 2, ++at) {
            const float* row = f.right + p * f.ld;
            pack_rows(row, p + 1 < f.depth ? row + f.ld : nullptr, x.columns, x.right + at * x.columns);
        }
    }
    template <int R, int W, class Begin>
    LINRNN_BF16_TARGET static void tile(const Packed& x, float* to, i64 ld, const Begin& begin, i64 i, i64 n) {
        __m512 sum[R][W];
        for (int r = 0; r < R; ++r)
            for (int w = 0; w < W; ++w) sum[r][w] = __m512(begin(i + r, n + w * L));
        const HalfPair *left = x.left + i * x.depth, *right = x.right + n;
        for (i64 p = 0; p < x.depth; ++p, ++left, right += x.columns) {
            __m512bh b[W];
            for (int w = 0; w < W; ++w) std::memcpy(&b[w], right + w * L, 64);
            for (int r = 0; r < R; ++r) {
                const __m512bh a = (__m512bh)_mm512_set1_epi32(int(left[r * x.depth].bits));
                for (int w = 0; w < W; ++w) sum[r][w] = _mm512_dpbf16_ps(sum[r][w], a, b[w]);
            }
        }
        for (int r = 0; r < R; ++r)
            for (int w = 0; w < W; ++w) _mm512_storeu_ps(to + (i + r) * ld + n + w * L, sum[r][w]);
    }
    // `Tile::product`, whose left factors lie row by row.
    template <class Begin, class... Fs>
    static void product(float* work, float* to, i64 ld, i64 rows, i64 columns, const Begin& begin, const Fs&... fs) {
        Packed x{reinterpret_cast<HalfPair*>(work), nullptr, (pairs(fs.depth) + ...), columns};
        const i64 padded = (rows + 7) / 8 * 8;
        x.right = x.left + (padded * x.depth + L - 1) / L * L;
        i64 at = 0;
        (pack(x, fs, padded, at), ...);
#ifdef LINRNN_HALF_TILES
        if (has_half_tiles()) return product_of_tiles(x, to, ld, padded, begin);
#endif
        T::tiles(rows, columns, [&](auto r_, auto w_, i64 i, i64 n) {
            tile<decltype(r_)::value, decltype(w_)::value>(x, to, ld, begin, i, n);
        });
    }
#ifdef LINRNN_HALF_TILES
    template <class Begin>
    static void product_of_tiles(const Packed& x, float* to, i64 ld, i64 rows, const Begin& begin) {
        if (x.depth % (L / 2)) HalfTiles::shape(L, x.depth);
        for (i64 i = 0; i < rows; i += L) rows_of_tiles(x, to, ld, i, rows - i < L ? rows - i : L, begin);
        if (x.depth % (L / 2)) HalfTiles::shape(L, L / 2);
    }
    template <class Begin>
    static void rows_of_tiles(const Packed& x, float* to, i64 ld, i64 i, i64 count, const Begin& begin) {
        T::panels(x.columns, [&](auto w_, i64 n) {
            constexpr int W = decltype(w_)::value;
            alignas(64) float sums[L][W * L];
            HalfTiles::multiply<W>(x.left + i * x.depth, x.depth, x.right + n, x.columns, x.depth, sums[0], W * L);
            for (i64 r = 0; r < count; ++r)
                for (int w = 0; w < W; ++w)
                    T::store(to + (i + r) * ld + n + w * L, begin(i + r, n + w * L) + T::load(sums[r] + w * L));
        });
    }
#endif
};
#endif

}  // namespace
}  // namespace LINRNN_ISA
}  // namespace linrnn
