// One time step of RWKV-4 channel mixing in one call; see mamba_step.cpp for why.
//
// Compiled once for every instruction set: see scan.cpp.
#include <cstdlib>

#include "../gemv.h"
#include "../rwkv_step_args.h"
#include "../step.h"
#include "../token_shift.h"
#include "../vecmath.h"

namespace linrnn {
namespace LINRNN_ISA {
namespace {

template <class A, class W>
struct ChannelMixStep : Pointers<A, W> {
    using P = Pointers<A, W>;
    const ChannelMixStepArgs& args;

    void multiply(i64 matrix, const A* x, A* y, i64 rows, i64 n) const {
        Gemv<A, W>::multiply(P::weight(matrix), nullptr, x, y, rows, n, args.batch, args.threads);
    }

    int run() const {
        const i64 D = args.model, N = args.inner, batch = args.batch;
        const A *x = P::read(args.x), *past = P::read(args.past);
        A* work = static_cast<A*>(std::malloc(size_t(batch * (2 * D + N)) * sizeof(A)));
        if (!work) return 1;
        A *mixed = work, *gate = mixed + batch * D, *k = gate + batch * D, *y = P::write(args.y);
        token_shift(P::weight(args.mu_k), x, past, mixed, D, batch);
        multiply(args.key, mixed, k, N, D);
        for (i64 i = 0; i < batch * N; ++i) {
            A positive = k[i] < A(0) ? A(0) : k[i];  // a NaN stays
            k[i] = positive * positive;
        }
        token_shift(P::weight(args.mu_r), x, past, mixed, D, batch);
        multiply(args.receptance, mixed, gate, D, D);
        multiply(args.value, k, y, D, N);
        for (i64 i = 0; i < batch * D; ++i) y[i] *= vsigmoid(gate[i]);
        copy(P::write(args.new_past), x, batch * D);
        std::free(work);
        return 0;
    }
};

}  // namespace

int channel_mix_step(const void* record) {
    return run_step<ChannelMixStep, ChannelMixStepArgs>(record);
}

}  // namespace LINRNN_ISA
}  // namespace linrnn
