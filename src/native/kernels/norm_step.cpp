// The skip of a residual block and the norm that follows it: y = norm(x + added).
//
// Compiled once for every instruction set: see scan.cpp.
#include <cmath>
#include <cstring>
#include <limits>

#include "../gemv.h"
#include "../norm_step_args.h"
#include "../step.h"

namespace linrnn {
namespace LINRNN_ISA {
namespace {

template <class A, class W>
struct NormStep : Pointers<A, W> {
    using P = Pointers<A, W>;
    const NormStepArgs& args;

    // In lanes: as one sum each addition would wait for the last, and round more.
    static A total(const A* v, i64 n) {
        constexpr i64 L = 16;
        A lanes[L] = {}, sum = A(0);
        i64 i = 0;
        for (; i + L <= n; i += L)
            for (i64 k = 0; k < L; ++k) lanes[k] += v[i + k];
        for (; i < n; ++i) lanes[0] += v[i];
        for (i64 k = 0; k < L; ++k) sum += lanes[k];
        return sum;
    }

    void normalise(A* y) const {
        const i64 n = args.model;
        double eps;
        std::memcpy(&eps, &args.eps, sizeof eps);
        if (eps < 0) eps = double(std::numeric_limits<A>::epsilon());
        if (args.norm == LAYER_NORM) {
            A mean = total(y, n) / A(n);
            for (i64 i = 0; i < n; ++i) y[i] -= mean;
        }
        A scale = A(1) / std::sqrt(Gemv<A>::dot(y, y, n) / A(n) + A(eps));
        for (i64 i = 0; i < n; ++i) y[i] *= scale;
        if (const W* w = P::weight(args.weight))
            for (i64 i = 0; i < n; ++i) y[i] *= widen(w[i]);
        if (const W* b = P::weight(args.bias))
            for (i64 i = 0; i < n; ++i) y[i] += widen(b[i]);
    }

    int run() const {
        const i64 n = args.model;
        for (i64 row = 0; row < args.batch; ++row) {
            const A *x = P::read(args.x) + row * n, *added = P::read(args.added);
            A *y = P::write(args.y) + row * n, *sum = P::write(args.sum);
            for (i64 i = 0; i < n; ++i) y[i] = added ? x[i] + added[row * n + i] : x[i];
            if (sum) copy(sum + row * n, y, n);
            if (args.norm != NO_NORM) normalise(y);
        }
        return 0;
    }
};

}  // namespace

int norm_step(const void* record) { return run_step<NormStep, NormStepArgs>(record); }

}  // namespace LINRNN_ISA
}  // namespace linrnn
