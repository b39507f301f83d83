// The gradient of a weight, grad^T x, of two sequences of bfloat16 numbers, summed in float32 by the
// matrix tiles of AMX. Libraries for products are several times slower at it than at other products
// of that size, and round the sum to bfloat16.
//
// Rows go in blocks, of which both factors fit in second-level cache beside the result. Of each block
// they are packed as tiles read them: neighbouring rows make a pair, and pairs of grad are transposed.
// Then each square of 2 x 2 tiles of the result adds the block. The order of every sum follows from the
// shape alone, and no sum is shared: the same bits for any number of threads.
#include <cstdlib>
#include <cstring>

#include "../half_rows.h"
#include "../half_tiles.h"
#include "../weight_gradient_args.h"

namespace linrnn {
namespace LINRNN_ISA {
namespace {

constexpr int NO_TILES = 5;

#ifdef LINRNN_HALF_TILES

struct Packed {
    using Pair = std::uint32_t;
    static constexpr i64 ROWS = 256, PAIRS = ROWS / 2, SIDE = 32;  // of a block; of a square

    i64 steps;  // of 32 rows, in this block

    static i64 squares(i64 n) { return (n + SIDE - 1) / SIDE; }
    static i64 numbers(i64 n) { return squares(n) * SIDE * PAIRS; }

    // Two rows of 16 numbers as 16 pairs; rows and numbers beyond the last are zero.
    static LINRNN_TILES_TARGET __m512i pairs(const std::uint16_t* from, i64 step, i64 rows, __mmask16 some) {
        if (rows < 1) return _mm512_setzero_si512();
        const __m512i low = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(some, from));
        if (rows < 2) return low;
        const __m512i high = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(some, from + step));
        return _mm512_or_si512(low, _mm512_slli_epi32(high, 16));
    }

    // 32 rows of columns [c, c + 32), of which there are `width`: two tiles of 16 pairs of rows and 16
    // columns, or turned around. Prefetches the rows that come 32 later.
    template <bool TURN>
    static LINRNN_TILES_TARGET void pack(const std::uint16_t* from, i64 step, i64 rows, i64 c, i64 width, Pair* to) {
        for (i64 row = 32; row < 64 && row < rows; ++row) __builtin_prefetch(from + row * step + c);
        for (i64 half = 0; half < 2; ++half, c += 16, to += 256) {
            const __mmask16 some = lanes_left(width < c ? 0 : width - c);
            __m512i r[16];
            for (i64 p = 0; p < 16; ++p) r[p] = pairs(from + 2 * p * step + c, step, rows - 2 * p, some);
            if (TURN) transpose(r);
            for (i64 p = 0; p < 16; ++p) _mm512_storeu_si512(to + 16 * p, r[p]);
        }
    }
    static LINRNN_TILES_TARGET inline void transpose(__m512i (&r)[16]) {
        __m512i t[16];
        for (int i = 0; i < 16; i += 2) {
            t[i] = _mm512_unpacklo_epi32(r[i], r[i + 1]);
            t[i + 1] = _mm512_unpackhi_epi32(r[i], r[i + 1]);
        }
        for (int i = 0; i < 16; i += 4)
            for (int j = 0; j < 2; ++j) {
                r[i + 2 * j] = _mm512_unpacklo_epi64(t[i + j], t[i + 2 + j]);
                r[i + 2 * j + 1] = _mm512_unpackhi_epi64(t[i + j], t[i + 2 + j]);
            }
        for (int i = 0; i < 16; i += 8)
            for (int j = 0; j < 4; ++j) {
                t[i + j] = _mm512_shuffle_i32x4(r[i + j], r[i + 4 + j], 0x88);
                t[i + 4 + j] = _mm512_shuffle_i32x4(r[i + j], r[i + 4 + j], 0xdd);
            }
        for (int j = 0; j < 8; ++j) {
            r[j] = _mm512_shuffle_i32x4(t[j], t[8 + j], 0x88);
            r[8 + j] = _mm512_shuffle_i32x4(t[j], t[8 + j], 0xdd);
        }
    }

    // Adds a square of the block's product to `to`, whose rows lie `apart` numbers from one another.
    LINRNN_TILES_TARGET void add_square(const Pair* left, const Pair* right, float* to, i64 apart, bool fresh) const {
        const i64 bytes = apart * 4;
        if (fresh) {
            _tile_zero(0);
            _tile_zero(1);
            _tile_zero(2);
            _tile_zero(3);
        } else {
            _tile_loadd(0, to, bytes);
            _tile_loadd(1, to + 16, bytes);
            _tile_loadd(2, to + 16 * apart, bytes);
            _tile_loadd(3, to + 16 * apart + 16, bytes);
        }
        for (i64 k = 0; k < steps; ++k, left += 512, right += 512) {
            _tile_loadd(4, left, 64);
            _tile_loadd(6, right, 64);
            _tile_dpbf16ps(0, 4, 6);
            _tile_loadd(7, right + 256, 64);
            _tile_dpbf16ps(1, 4, 7);
            _tile_loadd(5, left + 256, 64);
            _tile_dpbf16ps(2, 5, 6);
            _tile_dpbf16ps(3, 5, 7);
        }
        _tile_stored(0, to, bytes);
        _tile_stored(1, to + 16, bytes);
        _tile_stored(2, to + 16 * apart, bytes);
        _tile_stored(3, to + 16 * apart + 16, bytes);
    }

    // Adds the sums of 32 columns of the block's left factor: its product with ones, in 16 equal columns.
    LINRNN_TILES_TARGET void add_sums(const Pair* left, const Pair* ones, float* to, bool fresh) const {
        if (fresh) {
            _tile_zero(0);
            _tile_zero(1);
        } else {
            _tile_loadd(0, to, 64);
            _tile_loadd(1, to + 256, 64);
        }
        _tile_loadd(6, ones, 64);
        for (i64 k = 0; k < steps; ++k, left += 512) {
            _tile_loadd(4, left, 64);
            _tile_dpbf16ps(0, 4, 6);
            _tile_loadd(5, left + 256, 64);
            _tile_dpbf16ps(1, 5, 6);
        }
        _tile_stored(0, to, 64);
        _tile_stored(1, to + 256, 64);
    }
};

struct WeightGradient {
    using Pair = Packed::Pair;
    static constexpr i64 PANEL = Packed::SIDE * Packed::PAIRS;
    static constexpr i64 LANES = 16, ONES = 256;  // columns and pairs of a tile
    const WeightGradientArgs& args;
    const i64 down = Packed::squares(args.outputs), across = Packed::squares(args.inputs);

    // 32 rows of both factors.
    LINRNN_TILES_TARGET void pack(i64 row, Pair* left, Pair* right) const {
        auto grad = reinterpret_cast<const std::uint16_t*>(args.grad) + row * args.grad_step;
        auto x = reinterpret_cast<const std::uint16_t*>(args.x) + row * args.x_step;
        const i64 rows = args.rows - row, side = Packed::SIDE;
        for (i64 i = 0; i < down; ++i)
            Packed::pack<true>(grad, args.grad_step, rows, i * side, args.outputs, left + i * PANEL);
        for (i64 i = 0; i < across; ++i)
            Packed::pack<false>(x, args.x_step, rows, i * side, args.inputs, right + i * PANEL);
    }

    int dispatch() const {
        if (!has_half_tiles()) return NO_TILES;
        const i64 height = down * Packed::SIDE, width = across * Packed::SIDE;
        if (!args.outputs || !(args.inputs || args.sums)) return 0;
        auto weight = reinterpret_cast<float*>(args.weight);
        auto sums = reinterpret_cast<float*>(args.sums);
        if (args.rows < 1) {
            if (sums) std::memset(sums, 0, size_t(args.outputs) * 4);
            return std::memset(weight, 0, size_t(args.outputs * args.inputs) * 4), 0;
        }
        const bool whole = height == args.outputs && width == args.inputs;
        const i64 room = Packed::numbers(args.outputs) + Packed::numbers(args.inputs) + (whole ? 0 : height * width) +
                         (sums ? ONES + height * LANES : 0);
        void* memory = std::malloc(size_t(room) * 4 + 64);
        if (!memory) return 1;
        auto left = reinterpret_cast<Pair*>((reinterpret_cast<std::uintptr_t>(memory) + 63) & ~std::uintptr_t(63));
        Pair* right = left + Packed::numbers(args.outputs);
        float* sum = whole ? weight : reinterpret_cast<float*>(right + Packed::numbers(args.inputs));
        auto ones = reinterpret_cast<Pair*>(right + Packed::numbers(args.inputs) + (whole ? 0 : height * width));
        auto columns = reinterpret_cast<float*>(ones + ONES);  // of sums
        for (i64 i = 0; sums && i < ONES; ++i) ones[i] = 0x3f803f80u;
        const i64 worth = args.rows * args.outputs * args.inputs >> 23;  // a thread's in about 10 us
        const i64 threads = worth < 1 ? 1 : worth < args.threads ? worth : args.threads;
#pragma omp parallel num_threads(int(threads)) if (threads > 1)
        {
            const HalfTiles registers(16, 16);  // all eight whole
            for (i64 first = 0; first < args.rows; first += Packed::ROWS) {
                const i64 rows = args.rows - first < Packed::ROWS ? args.rows - first : Packed::ROWS;
                const Packed block{(rows + 31) / 32};
#pragma omp for schedule(static)
                for (i64 k = 0; k < block.steps; ++k) pack(first + 32 * k, left + k * 512, right + k * 512);
#pragma omp for schedule(static)
                for (i64 i = 0; i < down; ++i) {
                    for (i64 j = 0; j < across; ++j)
                        block.add_square(left + i * PANEL, right + j * PANEL,
                                         sum + i * Packed::SIDE * width + j * Packed::SIDE, width, first == 0);
                    if (sums) block.add_sums(left + i * PANEL, ones, columns + i * Packed::SIDE * LANES, first == 0);
                }
            }
        }
        for (i64 i = 0; !whole && i < args.outputs; ++i)
            std::memcpy(weight + i * args.inputs, sum + i * width, size_t(args.inputs) * 4);
        for (i64 i = 0; sums && i < args.outputs; ++i) sums[i] = columns[i * LANES];
        std::free(memory);
        return 0;
    }
};
#endif

}  // namespace

int weight_gradient(const void* record) {
    const auto& args = *static_cast<const WeightGradientArgs*>(record);
    if (args.size != i64(sizeof(WeightGradientArgs))) return 3;
    if (args.dtype != BF16) return 2;
#ifdef LINRNN_HALF_TILES
    return WeightGradient{args}.dispatch();
#else
    return NO_TILES;
#endif
}

}  // namespace LINRNN_ISA
}  // namespace linrnn
