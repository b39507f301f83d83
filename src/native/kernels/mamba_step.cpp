// One time step of Mamba in one call. For a few sequences it is a few microseconds of arithmetic,
// beside reading the weights; as twenty operators it is a hundred of calls.
//
// Compiled once for every instruction set: see scan.cpp.
#include <cstdlib>

#include "../gemv.h"
#include "../mamba_step_args.h"
#include "../step.h"
#include "../vecmath.h"

namespace linrnn {
namespace LINRNN_ISA {
namespace {

template <class A, class W>
struct MambaStep : Pointers<A, W> {
    using P = Pointers<A, W>;
    const MambaStepArgs& args;

    void multiply(i64 matrix, i64 bias, const A* x, A* y, i64 rows, i64 n) const {
        Gemv<A, W>::multiply(P::weight(matrix), P::weight(bias), x, y, rows, n, args.batch,
                             args.threads);
    }

    void convolve(i64 b, const A* __restrict u, A* __restrict s) const {
        const i64 inner = args.inner, width = args.width;
        const A* past = P::read(args.past) + b * (width - 1) * inner;
        const W* w = P::weight(args.conv_weight);
        for (i64 c = 0; c < inner; ++c) s[c] = widen(w[c * width + width - 1]) * u[c];
        for (i64 k = 0; k < width - 1; ++k)
            for (i64 c = 0; c < inner; ++c) s[c] += widen(w[c * width + k]) * past[k * inner + c];
        if (args.conv_bias)
            for (i64 c = 0; c < inner; ++c) s[c] += widen(P::weight(args.conv_bias)[c]);
        for (i64 c = 0; c < inner; ++c) s[c] *= vsigmoid(s[c]);
        if (width == 1) return;
        A* out = P::write(args.new_past) + b * (width - 1) * inner;
        copy(out, past + inner, (width - 2) * inner);
        copy(out + (width - 2) * inner, u, inner);
    }

    // expm1 from exp, near 0 from its series, as far as the precision goes
    static A expm1(A v, A e) {
        A series = 0;
        for (int k = sizeof(A) == 4 ? 8 : 14; k > 1; --k) series = (A(1) + series) * v / A(k);
        return v > A(-0.3) && v < A(0.3) ? v * (A(1) + series) : e - A(1);
    }

    // The new states of a channel, and what is read from them.
    template <bool ZOH>
    A advance(i64 b, i64 c, A dt, A x, const A* __restrict B, const A* __restrict C) const {
        const i64 modes = args.modes, at = (b * args.inner + c) * modes;
        const A* __restrict h = P::read(args.h) + at;
        const W* __restrict A_log = P::weight(args.A_log) + c * modes;
        A* __restrict out = P::write(args.new_h) + at;
        for (i64 n = 0; n < modes; ++n) {
            A lam = -vexp(widen(A_log[n])), decay = vexp(dt * lam);
            if (ZOH) {
                A weight = expm1(dt * lam, decay) / lam;
                out[n] = decay * h[n] + (lam == A(0) ? dt : weight) * (B[n] * x);
            } else {
                out[n] = decay * h[n] + B[n] * (dt * x);
            }
        }
        return Gemv<A>::dot(out, C, modes);
    }

    // From what x_proj selects, r: the states, and what is read from them, gated by z, in y.
    void recur(i64 b, const A* z, const A* s, A* dt, const A* r, A* y) const {
        const i64 inner = args.inner;
        const A *B = r + args.rank, *C = B + args.modes;
        for (i64 c = 0; c < inner; ++c) dt[c] = vsoftplus(dt[c]);
        for (i64 c = 0; c < inner; ++c) {
            A out = args.zoh ? advance<true>(b, c, dt[c], s[c], B, C)
                             : advance<false>(b, c, dt[c], s[c], B, C);
            y[c] = out + widen(P::weight(args.D)[c]) * s[c];
        }
        for (i64 c = 0; c < inner; ++c) y[c] *= z[c] * vsigmoid(z[c]);
    }

    int run() const {
        const i64 inner = args.inner, batch = args.batch, selected = args.rank + 2 * args.modes;
        A* work = static_cast<A*>(
            std::malloc(size_t(batch * (5 * inner + selected + args.rank)) * sizeof(A)));
        if (!work) return 1;
        A *uz = work, *s = uz + 2 * batch * inner, *dt = s + batch * inner, *y = dt + batch * inner;
        A *all = y + batch * inner, *r = all + batch * selected;
        multiply(args.in_proj, args.in_bias, P::read(args.x), uz, 2 * inner, args.model);
        for (i64 b = 0; b < batch; ++b) convolve(b, uz + 2 * b * inner, s + b * inner);
        multiply(args.x_proj, 0, s, all, selected, inner);
        for (i64 b = 0; b < batch; ++b) copy(r + b * args.rank, all + b * selected, args.rank);
        multiply(args.dt_weight, args.dt_bias, r, dt, inner, args.rank);
        for (i64 b = 0; b < batch; ++b)
            recur(b, uz + (2 * b + 1) * inner, s + b * inner, dt + b * inner, all + b * selected,
                  y + b * inner);
        multiply(args.out_proj, args.out_bias, y, P::write(args.y), args.model, inner);
        std::free(work);
        return 0;
    }
};

}  // namespace

int mamba_step(const void* record) { return run_step<MambaStep, MambaStepArgs>(record); }

}  // namespace LINRNN_ISA
}  // namespace linrnn
