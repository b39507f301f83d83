// Numbers of float32 to the nearest of bfloat16, ties to even, or those of bfloat16 to float32.
#include "../round_args.h"
#include "../streamed.h"

namespace linrnn {
namespace LINRNN_ISA {
namespace {

constexpr i64 PIECE = 64 * 1024;  // numbers that occupy a thread for long enough

void convert(const float* x, bf16* y, i64 n) {
#ifdef LINRNN_HALF_PRODUCTS
    // treats subnormals as zero
    if (has_half_products()) return to_halves(x, reinterpret_cast<HalfPair*>(y), n);
#endif
    for (i64 i = 0; i < n; ++i) narrow(x[i], y[i]);
}
void convert(const bf16* x, float* y, i64 n) {
    for (i64 i = 0; i < n; ++i) y[i] = widen(x[i]);
}

template <class From, class To>
int run(const RoundArgs& args) {
    const auto x = reinterpret_cast<const From*>(args.x);
    const auto y = reinterpret_cast<To*>(args.y);
    const i64 pieces = (args.count + PIECE - 1) / PIECE, threads = pieces < args.threads ? pieces : args.threads;
#pragma omp parallel for num_threads(int(threads)) schedule(static) if (threads > 1)
    for (i64 i = 0; i < pieces; ++i) {
        const i64 first = i * PIECE, left = args.count - first;
#ifdef LINRNN_HALF_PRODUCTS
        if (left >= PIECE && streams(args.count * i64(sizeof(To)), y)) {
            stream_row(x + first, y + first, PIECE);
            end_streams();
            continue;
        }
#endif
        convert(x + first, y + first, left < PIECE ? left : PIECE);
    }
    return 0;
}

}  // namespace

int round(const void* record) {
    const auto& args = *static_cast<const RoundArgs*>(record);
    if (args.size != i64(sizeof(RoundArgs))) return 3;
    if (args.dtype != BF16) return 2;
    return args.widens ? run<bf16, float>(args) : run<float, bf16>(args);
}

}  // namespace LINRNN_ISA
}  // namespace linrnn
