// One time step of RWKV-4 time mixing in one call; see mamba_step.cpp for why.
//
// Compiled once for every instruction set: see scan.cpp.
#include <cstdlib>
#include <limits>

#include "../gemv.h"
#include "../rwkv_step_args.h"
#include "../step.h"
#include "../token_shift.h"
#include "../vecmath.h"

namespace linrnn {
namespace LINRNN_ISA {
namespace {

template <class A, class W>
struct TimeMixStep : Pointers<A, W> {
    using P = Pointers<A, W>;
    const TimeMixStepArgs& args;

    void multiply(i64 matrix, const A* x, A* y, i64 rows, i64 n) const {
        Gemv<A, W>::multiply(P::weight(matrix), nullptr, x, y, rows, n, args.batch, args.threads);
    }

    void project(i64 mu, i64 matrix, A* mixed, A* to) const {
        const A* x = P::read(args.x);
        if (mu) {
            token_shift(P::weight(mu), x, P::read(args.shift), mixed, args.model, args.batch);
            x = mixed;
        }
        multiply(matrix, x, to, args.state, args.model);
    }

    // The logarithm of a sum of weights as a state keeps it, with 0 for that of no weight, and back:
    // see linrnn.state_spec.opened.
    static A opened(A norm) { return norm == 0 ? A(-1e30) : norm; }
    static A closed(A norm) { return norm == 0 ? std::numeric_limits<A>::min() : norm; }

    // The new mean and norm of a sequence, and sigmoid(r) times what is read, left in r: the past
    // as it was, and the current value with its bonus.
    void advance(i64 b, const A* __restrict k, const A* __restrict v, A* __restrict r) const {
        const i64 n = args.state;
        const A* __restrict mean = P::read(args.mean) + b * n;
        const A* __restrict norm = P::read(args.log_norm) + b * n;
        const W *decay = P::weight(args.time_decay), *bonus = P::weight(args.time_first);
        A* __restrict new_mean = P::write(args.new_mean) + b * n;
        A* __restrict new_norm = P::write(args.new_log_norm) + b * n;
        for (i64 c = 0; c < n; ++c) {
            Sigmoid<A> now = vsigmoid_both(widen(bonus[c]) + k[c] - opened(norm[c]));
            r[c] = vsigmoid(r[c]) * (now.rest * mean[c] + now.value * v[c]);
        }
        for (i64 c = 0; c < n; ++c) {
            A kept = opened(norm[c]) - vexp(widen(decay[c])), odds = kept - k[c];
            Sigmoid<A> past = vsigmoid_both(odds);
            new_mean[c] = past.value * mean[c] + past.rest * v[c];
            new_norm[c] =
                closed(if_negative(odds, k[c], kept) + log1p_finite(vexp(-magnitude(odds))));
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
        multiply(args.output, r, P::write(args.y), args.model, n);
        if (args.shift) copy(P::write(args.new_shift), P::read(args.x), batch * args.model);
        std::free(work);
        return 0;
    }
};

}  // namespace

int time_mix_step(const void* record) { return run_step<TimeMixStep, TimeMixStepArgs>(record); }

}  // namespace LINRNN_ISA
}  // namespace linrnn
