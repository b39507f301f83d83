// One time step of Mamba in one call. For a few sequences it is a few microseconds of arithmetic,
// beside reading the weights; as twenty operators it is a hundred of calls.
//
// Compiled once for every instruction set: see scan.cpp.
#include <cstdlib>
#include <cstring>

#include "../lanes.h"
#include "../mamba_step_args.h"
#include "../vecmath.h"

namespace linrnn {
namespace LINRNN_ISA {
namespace {

template <class A>
struct MambaStep {
    static constexpr i64 L = 64 / sizeof(A);
    const MambaStepArgs& args;

    static const A* read(i64 p) { return reinterpret_cast<const A*>(p); }

    // The products of R rows with x, summed in L lanes; several rows at once, so that no sum waits
    // for itself. A step reads every weight once, mostly from beyond the second-level cache: they
    // are asked for ahead.
    template <int R>
    static void dots(const A* __restrict rows, const A* __restrict x, i64 n, A* __restrict to) {
        i64 i = 0;
        for (int k = 0; k < R; ++k) to[k] = A(0);
#ifdef __GNUC__
        using V = typename VectorOf<A, L>::type;
        V sum[R] = {};
        for (; i + L <= n; i += L) {
            V row, in;
            std::memcpy(&in, x + i, sizeof in);
            for (int k = 0; k < R; ++k) {
                if (R > 1) __builtin_prefetch(rows + k * n + i + AHEAD);
                std::memcpy(&row, rows + k * n + i, sizeof row);
                sum[k] += row * in;
            }
        }
        for (int k = 0; k < R; ++k)
            for (int l = 0; l < L; ++l) to[k] += sum[k][l];
#endif
        for (; i < n; ++i)
            for (int k = 0; k < R; ++k) to[k] += rows[k * n + i] * x[i];
    }
    static constexpr i64 AHEAD = 4096 / sizeof(A);

    static void multiply(i64 matrix, i64 bias, const A* x, A* y, i64 rows, i64 n) {
        i64 i = 0;
        for (; i + 4 <= rows; i += 4) dots<4>(read(matrix) + i * n, x, n, y + i);
        for (; i < rows; ++i) dots<1>(read(matrix) + i * n, x, n, y + i);
        if (!bias) return;
        for (i = 0; i < rows; ++i) y[i] += read(bias)[i];
    }

    void convolve(i64 b, const A* __restrict u, A* __restrict s) const {
        const i64 inner = args.inner, width = args.width;
        const A* past = read(args.past) + b * (width - 1) * inner;
        const A* w = read(args.conv_weight);
        for (i64 c = 0; c < inner; ++c) s[c] = w[c * width + width - 1] * u[c];
        for (i64 k = 0; k < width - 1; ++k)
            for (i64 c = 0; c < inner; ++c) s[c] += w[c * width + k] * past[k * inner + c];
        if (args.conv_bias)
            for (i64 c = 0; c < inner; ++c) s[c] += read(args.conv_bias)[c];
        for (i64 c = 0; c < inner; ++c) s[c] *= vsigmoid(s[c]);
        if (width == 1) return;
        A* out = reinterpret_cast<A*>(args.new_past) + b * (width - 1) * inner;
        std::memcpy(out, past + inner, size_t((width - 2) * inner) * sizeof(A));
        std::memcpy(out + (width - 2) * inner, u, size_t(inner) * sizeof(A));
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
        const A* __restrict h = read(args.h) + at;
        const A* __restrict A_log = read(args.A_log) + c * modes;
        A* __restrict out = reinterpret_cast<A*>(args.new_h) + at;
        for (i64 n = 0; n < modes; ++n) {
            A lam = -vexp(A_log[n]), decay = vexp(dt * lam);
            if (ZOH) {
                A weight = expm1(dt * lam, decay) / lam;
                out[n] = decay * h[n] + (lam == A(0) ? dt : weight) * (B[n] * x);
            } else {
                out[n] = decay * h[n] + B[n] * (dt * x);
            }
        }
        A y;
        dots<1>(out, C, modes, &y);
        return y;
    }

    i64 room() const {
        return (5 * args.inner + args.rank + 2 * args.modes + 15) / 16 * 16;
    }
    void step(i64 b, A* work) const {
        const i64 inner = args.inner, rank = args.rank, modes = args.modes, model = args.model;
        A *u = work, *z = u + inner, *s = z + inner, *dt = s + inner, *y = dt + inner, *r = y + inner;
        multiply(args.in_proj, args.in_bias, read(args.x) + b * model, u, 2 * inner, model);
        convolve(b, u, s);
        multiply(args.x_proj, 0, s, r, rank + 2 * modes, inner);
        multiply(args.dt_weight, args.dt_bias, r, dt, inner, rank);
        for (i64 c = 0; c < inner; ++c) dt[c] = vsoftplus(dt[c]);
        const A *B = r + rank, *C = B + modes;
        for (i64 c = 0; c < inner; ++c) {
            A out = args.zoh ? advance<true>(b, c, dt[c], s[c], B, C)
                             : advance<false>(b, c, dt[c], s[c], B, C);
            y[c] = out + read(args.D)[c] * s[c];
        }
        for (i64 c = 0; c < inner; ++c) y[c] *= z[c] * vsigmoid(z[c]);
        A* out = reinterpret_cast<A*>(args.y) + b * model;
        multiply(args.out_proj, args.out_bias, y, out, model, inner);
    }

    int run() const {
        A* work = static_cast<A*>(std::malloc(size_t(room()) * sizeof(A)));
        if (!work) return 1;
        for (i64 b = 0; b < args.batch; ++b) step(b, work);
        std::free(work);
        return 0;
    }
};

}  // namespace

int mamba_step(const void* record) {
    const auto& args = *static_cast<const MambaStepArgs*>(record);
    if (args.size != i64(sizeof(MambaStepArgs))) return 3;
    if (args.dtype == F32) return MambaStep<float>{args}.run();
    if (args.dtype == F64) return MambaStep<double>{args}.run();
    return 2;
}

}  // namespace LINRNN_ISA
}  // namespace linrnn
