// Numbers of float32 to the nearest of bfloat16, ties to even.
#include "../half_rows.h"
#include "../round_args.h"

namespace linrnn {
namespace LINRNN_ISA {
namespace {

constexpr i64 PIECE = 64 * 1024;  // numbers that occupy a thread for long enough

void round_piece(const float* x, bf16* y, i64 n) {
#ifdef LINRNN_HALF_PRODUCTS
    // treats subnormals as zero
    if (has_half_products()) return to_halves(x, reinterpret_cast<HalfPair*>(y), n);
#endif
    for (i64 i = 0; i < n; ++i) narrow(x[i], y[i]);
}

}  // namespace

int round(const void* record) {
    const auto& args = *static_cast<const RoundArgs*>(record);
    if (args.size != i64(sizeof(RoundArgs))) return 3;
    if (args.dtype != BF16) return 2;
    const i64 pieces = (args.count + PIECE - 1) / PIECE, threads = pieces < args.threads ? pieces : args.threads;
#pragma omp parallel for num_threads(int(threads)) schedule(static) if (threads > 1)
    for (i64 i = 0; i < pieces; ++i) {
        const i64 first = i * PIECE, left = args.count - first;
        round_piece(reinterpret_cast<const float*>(args.x) + first, reinterpret_cast<bf16*>(args.y) + first,
                    left < PIECE ? left : PIECE);
    }
    return 0;
}

}  // namespace LINRNN_ISA
}  // namespace linrnn
