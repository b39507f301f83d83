// Products of tiles of bfloat16 numbers, summed in float32 (AMX): one instruction multiplies 16 rows of
// 32 numbers by 16 columns of them, as much as 256 of AVX-512-BF16. The factors lie as for those: rows
// of the left one as pairs of neighbours, the right one as pairs of numbers above one another. Where the
// processor or the system lacks tiles nothing here is called. Each sum has the order of its pairs;
// subnormals count as zero.
#pragma once
#include "half_products.h"

#if defined(LINRNN_HALF_PRODUCTS) && defined(__linux__)
#define LINRNN_HALF_TILES 1
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#define LINRNN_TILES_TARGET \
    __attribute__((target("amx-tile,amx-bf16,avx512bf16,avx512f,avx512bw,avx512dq,avx512vl")))
#endif

namespace linrnn {
namespace LINRNN_ISA {
namespace {

#ifdef LINRNN_HALF_TILES

// Linux gives a process the 8 KB of tile registers when it asks for them. LINRNN_ISA=avx512bf16 forbids
// them: for tests, and for reports of errors.
inline bool has_half_tiles() {
    static const bool usable = [] {
        const char* wish = std::getenv("LINRNN_ISA");
        if (!has_half_products() || (wish && !std::strcmp(wish, "avx512bf16"))) return false;
        unsigned a, b, c, d = 0, low, high;
        constexpr unsigned BF16_TILES = 1u << 22, TILES = 1u << 24, TILE_STATES = 3u << 17;
        __get_cpuid_count(7, 0, &a, &b, &c, &d);
        if (!(d & BF16_TILES) || !(d & TILES)) return false;
        __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
        constexpr long REQUEST = 0x1023, TILE_DATA = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
        return (low & TILE_STATES) == TILE_STATES && syscall(SYS_arch_prctl, REQUEST, TILE_DATA) == 0;
    }();
    return usable;
}

// Tiles have their numbers in the instruction: 4 and 5, or 6 and 7, are the factors a and b.
#define LINRNN_ADD_TILE(sum, left, right)    \
    _tile_loadd(right, b + sum * 16, ld * 4); \
    _tile_dpbf16ps(sum, left, right);
#define LINRNN_ADD_TILES(left, right)                                                     \
    _tile_loadd(left, a, row * 4);                                                        \
    LINRNN_ADD_TILE(0, left, right)                                                       \
    if constexpr (W > 1) { LINRNN_ADD_TILE(1, left, right) }                              \
    if constexpr (W > 2) { LINRNN_ADD_TILE(2, left, right) LINRNN_ADD_TILE(3, left, right) }

// The tile registers of this thread, shaped for up to 16 rows and for depths of a number of pairs; they
// are released at the end. Four hold sums, side by side; then the left factor, the right one, and both
// of the last pairs, which do not fill a tile.
class HalfTiles {
    static constexpr i64 PAIRS = 16, BYTES = 64;
    static constexpr int SUMS = 4, LEFT = 4, RIGHT = 5, LAST_LEFT = 6, LAST_RIGHT = 7;
    struct alignas(64) Shapes {  // as the processor reads them
        std::uint8_t palette, start, reserved[14];
        std::uint16_t bytes[16];
        std::uint8_t rows[16];
    };
    const bool usable;

public:
    // Of no use where it is not to be: it then leaves the registers alone.
    LINRNN_TILES_TARGET HalfTiles(i64 rows, i64 pairs, bool use = true) : usable(use) {
        if (usable) shape(rows, pairs);
    }
    // Other shapes, until the end or the next ones.
    LINRNN_TILES_TARGET static void shape(i64 rows, i64 pairs) {
        const i64 last = pairs % PAIRS;
        Shapes shapes{};
        shapes.palette = 1;
        for (int i = 0; i < SUMS; ++i) shape(shapes, i, rows, BYTES);
        shape(shapes, LEFT, rows, BYTES), shape(shapes, RIGHT, PAIRS, BYTES);
        const i64 rest = last ? last : PAIRS;
        shape(shapes, LAST_LEFT, rows, rest * 4), shape(shapes, LAST_RIGHT, rest, BYTES);
        // not by the intrinsic: of its argument GCC 12 believes that eight bytes are read
        __asm__ volatile("ldtilecfg %0" ::"m"(shapes));
    }
    LINRNN_TILES_TARGET ~HalfTiles() {
        if (usable) _tile_release();
    }
    HalfTiles(const HalfTiles&) = delete;

    // to(r, c) = the sum over pairs p of left[r row + p] right[p ld + c], of W times 16 columns.
    template <int W>
    LINRNN_TILES_TARGET static void multiply(const HalfPair* left, i64 row, const HalfPair* right, i64 ld, i64 pairs,
                                             float* to, i64 to_ld) {
        _tile_zero(0);
        if constexpr (W > 1) _tile_zero(1);
        if constexpr (W > 2) {
            _tile_zero(2);
            _tile_zero(3);
        }
        i64 p = 0;
        for (; p + PAIRS <= pairs; p += PAIRS) {
            const HalfPair *a = left + p, *b = right + p * ld;
            LINRNN_ADD_TILES(4, 5)
        }
        if (p < pairs) {
            const HalfPair *a = left + p, *b = right + p * ld;
            LINRNN_ADD_TILES(6, 7)
        }
        _tile_stored(0, to, to_ld * 4);
        if constexpr (W > 1) _tile_stored(1, to + 16, to_ld * 4);
        if constexpr (W > 2) {
            _tile_stored(2, to + 32, to_ld * 4);
            _tile_stored(3, to + 48, to_ld * 4);
        }
    }
#undef LINRNN_ADD_TILES
#undef LINRNN_ADD_TILE

private:
    static void shape(Shapes& shapes, int tile, i64 rows, i64 bytes) {
        shapes.rows[tile] = std::uint8_t(rows), shapes.bytes[tile] = std::uint16_t(bytes);
    }
};
#endif

}  // namespace
}  // namespace LINRNN_ISA
}  // namespace linrnn
