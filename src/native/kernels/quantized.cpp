// Weights of 8 or 4 bits: their products with a few rows, and the weights themselves as floats, for
// the products of PyTorch where there are many rows.
//
// Compiled once for every instruction set: see scan.cpp.
#include "../quantized.h"
#include "../quantized_args.h"

namespace linrnn {
namespace LINRNN_ISA {
namespace {

QuantizedMatrix matrix_of(const QuantizedArgs& args) {
    return {args.bits, args.outputs, args.inputs, args.group, args.groups,
            reinterpret_cast<const std::uint8_t*>(args.weight),
            reinterpret_cast<const bf16*>(args.scales), args.zeros != 0};
}

template <class S>
int multiply(const QuantizedArgs& args) {
    const auto* x = reinterpret_cast<const S*>(args.x);
    const auto* bias = reinterpret_cast<const S*>(args.bias);
    auto* y = reinterpret_cast<S*>(args.y);
    const bool done = quantized_product(
        matrix_of(args), args.rows, args.digits, args.threads,
        [&](QuantizedRows& to, i64 at, i64 row) { to.fill(at, x + row * args.x_step); },
        [&](i64 row, i64 o, float value) {
            if (bias) value += widen(bias[o]);
            put(y + row * args.y_step + o, &value, 1);
        });
    return done ? 0 : 1;
}

// 8 neighbours of an output, less their zero, times their scale.
inline void write_eight(std::uint64_t bytes, std::int32_t zero, float scale, float* to) {
#ifdef __GNUC__
    typename VectorOf<std::uint8_t, 8>::type u;
    std::memcpy(&u, &bytes, sizeof u);
    const auto whole = __builtin_convertvector(u, typename VectorOf<std::int32_t, 8>::type) - zero;
    const auto y = __builtin_convertvector(whole, typename VectorOf<float, 8>::type) * scale;
    std::memcpy(to, &y, sizeof y);
#else
    for (int j = 0; j < 8; ++j) to[j] = float(std::int32_t((bytes >> (8 * j)) & 255u) - zero) * scale;
#endif
}

template <bool FOUR>
void write_group(const std::uint8_t* block, i64 size, std::int32_t zero, float scale, float* to) {
    auto word = [&](i64 at) {
        std::uint32_t bytes;
        std::memcpy(&bytes, block + at * TILE_ROWS, sizeof bytes);
        return bytes;
    };
    for (i64 i = 0; i < size; i += 8) {
        const std::uint64_t first = word(FOUR ? i / 2 : i), half = 0x0f0f0f0fu;
        const std::uint64_t bytes = FOUR ? (first & half) | ((first >> 4) & half) << 32
                                         : first | std::uint64_t(word(i + 4)) << 32;
        if (i + 8 <= size) {
            write_eight(bytes, zero, scale, to + i);
            continue;
        }
        float last[8];
        write_eight(bytes, zero, scale, last);
        std::memcpy(to + i, last, size_t(size - i) * sizeof(float));
    }
}

// Rows first to first + count of the weights, as floats; first is that of a tile.
void write_out(const QuantizedArgs& args) {
    const QuantizedMatrix w = matrix_of(args);
    auto* y = reinterpret_cast<float*>(args.y);
    const i64 tiles = (args.count + TILE_ROWS - 1) / TILE_ROWS, before = args.first / TILE_ROWS;
#pragma omp parallel for num_threads(int(args.threads)) if (args.threads > 1) schedule(static)
    for (i64 t = 0; t < tiles; ++t) {
        const i64 n = args.count - t * TILE_ROWS < TILE_ROWS ? args.count - t * TILE_ROWS : TILE_ROWS;
        float scale[TILE_ROWS];
        std::int32_t zero[TILE_ROWS];
        for (i64 g = 0; g < w.groups; ++g) {
            w.read(before + t, g, scale, zero);
            const i64 start = g * w.group, size = w.inputs - start < w.group ? w.inputs - start : w.group;
            for (i64 l = 0; l < n; ++l) {
                const std::uint8_t* block = w.weights_of(before + t, g) + 4 * l;
                float* to = y + (t * TILE_ROWS + l) * args.y_step + start;
                if (w.bits == 4) write_group<true>(block, size, zero[l], scale[l], to);
                else write_group<false>(block, size, zero[l], scale[l], to);
            }
        }
    }
}

}  // namespace

int quantized(const void* record) {
    const auto& args = *static_cast<const QuantizedArgs*>(record);
    if (args.size != i64(sizeof(QuantizedArgs))) return 3;
    if (!args.x) return write_out(args), 0;
    switch (args.dtype) {
        case F32: return multiply<float>(args);
        case BF16: return multiply<bf16>(args);
        case F16: return multiply<f16>(args);
    }
    return 2;
}

}  // namespace LINRNN_ISA
}  // namespace linrnn
