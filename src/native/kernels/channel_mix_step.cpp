// One time step of RWKV-4 channel mixing in one call; see mamba_step.cpp for why.
//
// Compiled once for every instruction set: see scan.cpp.
#include <cstdlib>
#include <cstring>

#include "../gemv.h"
#include "../rwkv_step_args.h"
#include "../token_shift.h"
#include "../vecmath.h"

namespace linrnn {
namespace LINRNN_ISA {
namespace {

template <class A>
struct ChannelMixStep {
    const ChannelMixStepArgs& args;

    static const A* read(i64 p) { return reinterpret_cast<const A*>(p); }
    static A* write(i64 p) { return reinterpret_cast<A*>(p); }

    void multiply(i64 matrix, const A* x, A* y, i64 rows, i64 n) const {
        Gemv<A>::multiply(read(matrix), nullptr, x, y, rows, n, args.batch, args.threads);
    }

    int run() const {
        const i64 D = args.model, N = args.inner, batch = args.batch;
        const A *x = read(args.x), *past = read(args.past);
        A* work = static_cast<A*>(std::malloc(size_t(batch * (2 * D + N)) * sizeof(A)));
        if (!work) return 1;
        A *mixed = work, *gate = mixed + batch * D, *k = gate + batch * D, *y = write(args.y);
        token_shift(read(args.mu_k), x, past, mixed, D, batch);
        multiply(args.key, mixed, k, N, D);
        for (i64 i = 0; i < batch * N; ++i) {
            A positive = k[i] < A(0) ? A(0) : k[i];  // a NaN stays
            k[i] = positive * positive;
        }
        token_shift(read(args.mu_r), x, past, mixed, D, batch);
        multiply(args.receptance, mixed, gate, D, D);
        multiply(args.value, k, y, D, N);
        for (i64 i = 0; i < batch * D; ++i) y[i] *= vsigmoid(gate[i]);
        std::memcpy(write(args.new_past), x, size_t(batch * D) * sizeof(A));
        std::free(work);
        return 0;
    }
};

}  // namespace

int channel_mix_step(const void* record) {
    const auto& args = *static_cast<const ChannelMixStepArgs*>(record);
    if (args.size != i64(sizeof(ChannelMixStepArgs))) return 3;
    if (args.dtype == F32) return ChannelMixStep<float>{args}.run();
    if (args.dtype == F64) return ChannelMixStep<double>{args}.run();
    return 2;
}

}  // namespace LINRNN_ISA
}  // namespace linrnn
