// The channels of each head times a number of its step, y = scale x, and the adjoint.
//
// Compiled once for every instruction set: see scan.cpp.
#include "../flush_subnormals.h"
#include "../large_pages.h"
#include "../operands.h"
#include "../prefetch.h"
#include "../scale_heads_args.h"

namespace linrnn {
namespace LINRNN_ISA {
namespace {

template <class S>
struct ScaleHeads {
    using A = typename Accumulator<S>::type;
    static constexpr i64 BLOCK = 32;  // rows of a unit of work
    static constexpr i64 AHEAD = 2;   // rows between naming one and reading it
    const ScaleHeadsArgs& args;
    const i64 n = args.channels;

    // Head h of a row.
    void forward(const S* __restrict x, A scale, S* __restrict y) const {
#ifdef LINRNN_HALF_PRODUCTS
        if constexpr (std::is_same<S, bf16>::value)
            if (has_half_products()) return forward_lanes(x, scale, y, n);
#endif
        LINRNN_INDEPENDENT
        for (i64 c = 0; c < n; ++c) store(scale * widen(x[c]), y[c]);
    }
    A backward(const S* __restrict x, A scale, const S* __restrict into, S* __restrict to) const {
#ifdef LINRNN_HALF_PRODUCTS
        if constexpr (std::is_same<S, bf16>::value)
            if (has_half_products()) return backward_lanes(x, scale, into, to, n);
#endif
        alignas(64) A parts[LANES] = {};
        i64 c = 0;
        for (; c + LANES <= n; c += LANES)
            for (i64 l = 0; l < LANES; ++l) {
                const A slope = widen(into[c + l]);
                parts[l] += slope * widen(x[c + l]);
                store(scale * slope, to[c + l]);
            }
        for (i64 l = 0; c < n; ++c, ++l) {
            const A slope = widen(into[c]);
            parts[l] += slope * widen(x[c]);
            store(scale * slope, to[c]);
        }
        return sum_of_lanes(parts);
    }
#ifdef LINRNN_HALF_PRODUCTS
    // The same of bfloat16 numbers.
    LINRNN_BF16_TARGET static void forward_lanes(const bf16* x, float scale, bf16* y, i64 n) {
        const __m512 by = _mm512_set1_ps(scale);
        for (i64 c = 0; c < n; c += LANES) {
            const __mmask16 some = lanes_left(n - c);
            store_lanes(y + c, some, _mm512_mul_ps(by, load_lanes(x + c, some)));
        }
    }
    LINRNN_BF16_TARGET static float backward_lanes(const bf16* x, float scale, const bf16* into, bf16* to, i64 n) {
        const __m512 by = _mm512_set1_ps(scale);
        __m512 sum = _mm512_setzero_ps();
        for (i64 c = 0; c < n; c += LANES) {
            const __mmask16 some = lanes_left(n - c);
            const __m512 slope = load_lanes(into + c, some);
            sum = _mm512_fmadd_ps(slope, load_lanes(x + c, some), sum);
            store_lanes(to + c, some, _mm512_mul_ps(by, slope));
        }
        alignas(64) float parts[LANES];
        _mm512_store_ps(parts, sum);
        return sum_of_lanes(parts);
    }
#endif
    static LINRNN_INLINE void store(A value, S& to) {
        if constexpr (sizeof(S) == sizeof(A)) to = S(value);
        else narrow(value, to);
    }

    int dispatch() const {
        const i64 rows = args.rows, row = args.heads * n, numbers = rows * row;
        if (!numbers) return 0;
        const i64 units = (rows + BLOCK - 1) / BLOCK;
        advise(args.backward ? args.grad_x : args.y, numbers * i64(sizeof(S)));
        auto xs = reinterpret_cast<const S*>(args.x);
        auto scales = reinterpret_cast<const A*>(args.scales);
        auto ys = reinterpret_cast<S*>(args.y), grad_xs = reinterpret_cast<S*>(args.grad_x);
        auto grad_scales = reinterpret_cast<A*>(args.grad_scales);
        return for_each<A>(units, threads_for(units, numbers, args.threads), 1, [&](i64 unit, A*) {
            FlushSubnormals flush;
            const i64 end = (unit + 1) * BLOCK < rows ? (unit + 1) * BLOCK : rows;
            for (i64 i = unit * BLOCK; i < end; ++i)
                for (i64 h = 0; h < args.heads; ++h) {
                    const S* x = xs + i * args.x_row + h * n;
                    prefetch(reinterpret_cast<i64>(x + AHEAD * args.x_row), n * i64(sizeof(S)));
                    const i64 head = i * args.heads + h;
                    if (args.backward) grad_scales[head] = backward(x, scales[head], ys + head * n, grad_xs + head * n);
                    else forward(x, scales[head], ys + head * n);
                }
        });
    }
};

}  // namespace

int scale_heads(const void* record) {
    const auto& args = *static_cast<const ScaleHeadsArgs*>(record);
    if (args.size != i64(sizeof(ScaleHeadsArgs))) return 3;
    switch (args.dtype) {
        case F32: return ScaleHeads<float>{args}.dispatch();
        case F64: return ScaleHeads<double>{args}.dispatch();
        case BF16: return ScaleHeads<bf16>{args}.dispatch();
        case F16: return ScaleHeads<f16>{args}.dispatch();
    }
    return 2;
}

}  // namespace LINRNN_ISA
}  // namespace linrnn
