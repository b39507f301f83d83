// The sum y = z + weight x of two sequences, the second by channel, and its adjoint.
//
// Compiled once for every instruction set: see scan.cpp.
#include "../rows_by_channel.h"
#include "../skip_args.h"
#include "../streamed.h"

namespace linrnn {
namespace LINRNN_ISA {
namespace {

template <class A>
struct Skip {
    const SkipArgs& args;
    const i64 n = args.channels;

    const A* row(i64 data, i64 dtype, i64 i, A* buffer) const {
        return read(Operand{data, dtype, n, 0, 1}, i, 0, n, buffer);
    }
    void forward(i64 i, A* work) const {
        const A *z = row(args.z, args.z_dtype, i, work), *x = row(args.x, args.x_dtype, i, work + n);
        const A* weight = reinterpret_cast<const A*>(args.weight);
        A* y = reinterpret_cast<A*>(args.y) + i * n;
#ifdef LINRNN_HALF_PRODUCTS
        if constexpr (std::is_same<A, float>::value)
            if (n % 16 == 0 && streams(args.rows * n * i64(sizeof(A)), y)) return stream_sum(z, weight, x, y);
#endif
        LINRNN_INDEPENDENT
        for (i64 c = 0; c < n; ++c) y[c] = z[c] + weight[c] * x[c];
    }
#ifdef LINRNN_HALF_PRODUCTS
    LINRNN_BF16_TARGET void stream_sum(const float* z, const float* weight, const float* x, float* y) const {
        for (i64 c = 0; c < n; c += 16) {
            const __m512 w = _mm512_loadu_ps(weight + c), before = _mm512_loadu_ps(z + c);
            _mm512_stream_ps(y + c, _mm512_fmadd_ps(w, _mm512_loadu_ps(x + c), before));
        }
    }
#endif
    void backward(i64 i, A* work, A* parts) const {
        const A *x = row(args.x, args.x_dtype, i, work), *weight = reinterpret_cast<const A*>(args.weight);
        const A* into = reinterpret_cast<const A*>(args.y) + i * n;
        A* to = work + n;
        LINRNN_INDEPENDENT
        for (i64 c = 0; c < n; ++c) {
            to[c] = weight[c] * into[c];
            parts[c] += into[c] * x[c];
        }
        if (args.grad_x) write(args.grad_x, args.x_dtype, i * n, n, to);
        write(args.grad_z, args.z_dtype, i * n, n, into);
    }

    int dispatch() const {
        return for_each_row<A>(
            args, args.y, 1, [&](i64 i, A* work) { forward(i, work); },
            [&](i64 i, A* work, A* parts) { backward(i, work, parts); });
    }
};

}  // namespace

int skip(const void* record) {
    const auto& args = *static_cast<const SkipArgs*>(record);
    if (args.size != i64(sizeof(SkipArgs))) return 3;
    switch (args.dtype) {
        case F32: return Skip<float>{args}.dispatch();
        case F64: return Skip<double>{args}.dispatch();
    }
    return 2;
}

}  // namespace LINRNN_ISA
}  // namespace linrnn
