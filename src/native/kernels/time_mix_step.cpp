// One time step of RWKV-4 time mixing in one call; see mamba_step.cpp for why.
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
struct TimeMixStep {
    const TimeMixStepArgs& args;

    static const A* read(i64 p) { return reinterpret_cast<const A*>(p); }
    static A* write(i64 p) { return reinterpret_cast<A*>(p); }

    void project(i64 mu, i64 matrix, A* mixed, A* to) const {
        const A* x = read(args.x);
        if (mu) {
            token_shift(read(mu), x, read(args.shift), mixed, args.model, args.batch);
            x = mixed;
        }
        Gemv<A>::multiply(read(matrix), nullptr, x, to, args.state, args.model, args.batch,
                          args.threads);
    }

    // The new mean and norm of a sequence, and sigmoid(r) times what is read, left in r: the past
    // as it was, and the current value with its bonus.
    void advance(i64 b, const A* __restrict k, const A* __restrict v, A* __restrict r) const {
        const i64 n = args.state;
        const A* __restrict mean = read(args.mean) + b * n;
        const A* __restrict norm = read(args.log_norm) + b * n;
        const A *decay = read(args.time_decay), *bonus = read(args.time_first);
        A* __restrict new_mean = write(args.new_mean) + b * n;
        A* __restrict new_norm = write(args.new_log_norm) + b * n;
        for (i64 c = 0; c < n; ++c) {
            Sigmoid<A> now = vsigmoid_both(bonus[c] + k[c] - norm[c]);
            r[c] = vsigmoid(r[c]) * (now.rest * mean[c] + now.value * v[c]);
        }
        for (i64 c = 0; c < n; ++c) {
            A kept = norm[c] - vexp(decay[c]), odds = kept - k[c];
            Sigmoid<A> past = vsigmoid_both(odds);
            new_mean[c] = past.value * mean[c] + past.rest * v[c];
            new_norm[c] = if_negative(odds, k[c], kept) + log1p_finite(vexp(-magnitude(odds)));
        }
    }

    int run() const {
        const i64 batch = args.batch, n = args.state;
        A* work = static_cast<A*>(std::malloc(size_t(batch * (args.model + 3 * n)) * sizeof(A)));
        if (!work) return 1;
        A *mixed = work, *k = mixed + batch * args.model, *v = k + batch * n, *r = v + batch * n;
        project(args.mu_k, args.key, mixed, k);
        project(args.mu_v, args.value, mixed, v);
        project(args.mu_r, args.receptance, mixed, r);
        for (i64 b = 0; b < batch; ++b) advance(b, k + b * n, v + b * n, r + b * n);
        Gemv<A>::multiply(read(args.output), nullptr, r, write(args.y), args.model, n, batch,
                          args.threads);
        if (args.shift)
            std::memcpy(write(args.new_shift), read(args.x),
                        size_t(batch * args.model) * sizeof(A));
        std::free(work);
        return 0;
    }
};

}  // namespace

int time_mix_step(const void* record) {
    const auto& args = *static_cast<const TimeMixStepArgs*>(record);
    if (args.size != i64(sizeof(TimeMixStepArgs))) return 3;
    if (args.dtype == F32) return TimeMixStep<float>{args}.run();
    if (args.dtype == F64) return TimeMixStep<double>{args}.run();
    return 2;
}

}  // namespace LINRNN_ISA
}  // namespace linrnn
