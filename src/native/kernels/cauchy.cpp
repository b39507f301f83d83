// Sums of pairs of fractions on the unit circle and their adjoint on a CPU: at a node whose half
// angle has sine s and cosine c,
//   re + i im = sum_m (i s beta_m - c alpha_m) / (r + i n),  r = c^2 |w|^2 - s^2,  n = -2 s c Re w
// A few nodes at a time, so that nothing of modes times nodes is ever written; what is close to a
// pole is subtracted in double precision.
//
// Compiled once for every instruction set: see scan.cpp.
#include <cstdlib>

#include "../cauchy_args.h"
#include "../sums.h"

namespace linrnn {
namespace LINRNN_ISA {
namespace {

template <class A>
struct Cauchy {
    static constexpr i64 L = 64;  // nodes of a block
    const CauchyArgs& args;

    // The nodes of a block, those that are not there at the far end of the circle.
    struct Nodes {
        i64 first, count;
        alignas(64) double s[L], c[L];

        Nodes(const CauchyArgs& args, i64 n) : first(n), count(args.nodes - n < L ? args.nodes - n : L) {
            auto sine = reinterpret_cast<const double*>(args.sine) + n;
            auto cosine = reinterpret_cast<const double*>(args.cosine) + n;
            for (i64 l = 0; l < L; ++l) s[l] = l < count ? sine[l] : 1.0;
            for (i64 l = 0; l < L; ++l) c[l] = l < count ? cosine[l] : 0.0;
        }
    };

    i64 mode(i64 row, i64 h, i64 m) const { return (row * args.channels + h) * args.modes + m; }
    i64 place(i64 row, i64 h, const Nodes& nodes) const {
        return (row * args.channels + h) * args.nodes + nodes.first;
    }
    static const A* numbers(i64 address) { return reinterpret_cast<const A*>(address); }

    // r / (r^2 + n^2) and n / (r^2 + n^2) of a mode at all nodes.
    void inverse(const Nodes& nodes, i64 h, i64 m, A* __restrict real, A* __restrict imag) const {
        const double radius = reinterpret_cast<const double*>(args.radius)[h * args.modes + m];
        const double twice = -2.0 * reinterpret_cast<const double*>(args.real)[h * args.modes + m];
        for (i64 l = 0; l < L; ++l) {
            const double scaled = radius * nodes.c[l];
            const A r = A((scaled - nodes.s[l]) * (scaled + nodes.s[l]));
            const A n = A(twice) * A(nodes.s[l] * nodes.c[l]);
            const A inverse = A(1) / (r * r + n * n);
            real[l] = r * inverse, imag[l] = n * inverse;
        }
    }

    void forward(i64 h, const Nodes& nodes, A* work) const {
        alignas(64) A real[L], imag[L], s[L], c[L];
        for (i64 l = 0; l < L; ++l) s[l] = A(nodes.s[l]), c[l] = A(nodes.c[l]);
        for (i64 k = 0; k < 2 * args.rows * L; ++k) work[k] = 0;
        for (i64 m = 0; m < args.modes; ++m) {
            inverse(nodes, h, m, real, imag);
            for (i64 row = 0; row < args.rows; ++row) {
                const A beta = numbers(args.beta)[mode(row, h, m)];
                const A alpha = numbers(args.alpha)[mode(row, h, m)];
                A *__restrict re = work + 2 * row * L, *__restrict im = re + L;
                for (i64 l = 0; l < L; ++l) {
                    re[l] += beta * (s[l] * imag[l]) - alpha * (c[l] * real[l]);
                    im[l] += beta * (s[l] * real[l]) + alpha * (c[l] * imag[l]);
                }
            }
        }
        for (i64 row = 0; row < args.rows; ++row) {
            A* re = reinterpret_cast<A*>(args.re) + place(row, h, nodes);
            A* im = reinterpret_cast<A*>(args.im) + place(row, h, nodes);
            for (i64 l = 0; l < nodes.count; ++l) re[l] = work[2 * row * L + l];
            for (i64 l = 0; l < nodes.count; ++l) im[l] = work[(2 * row + 1) * L + l];
        }
    }

    // The gradients of the outputs, each times the sine and the cosine.
    void load(i64 h, const Nodes& nodes, A* work) const {
        for (i64 row = 0; row < args.rows; ++row) {
            const A* re = numbers(args.re) + place(row, h, nodes);
            const A* im = numbers(args.im) + place(row, h, nodes);
            A* g = work + 4 * row * L;
            for (i64 l = 0; l < L; ++l) {
                const A x = l < nodes.count ? re[l] : A(0), y = l < nodes.count ? im[l] : A(0);
                const A s = A(nodes.s[l]), c = A(nodes.c[l]);
                g[l] = x * s, g[L + l] = y * s, g[2 * L + l] = x * c, g[3 * L + l] = y * c;
            }
        }
    }

    // What a block adds to the gradients; those of beta and alpha are summed in `sums`.
    void backward(i64 h, const Nodes& nodes, A* work, double* sums) const {
        alignas(64) A real[L], imag[L], of_real[L], of_imag[L];
        load(h, nodes, work);
        for (i64 m = 0; m < args.modes; ++m) {
            inverse(nodes, h, m, real, imag);
            for (i64 l = 0; l < L; ++l) of_real[l] = of_imag[l] = 0;
            for (i64 row = 0; row < args.rows; ++row) {
                const A beta = numbers(args.beta)[mode(row, h, m)];
                const A alpha = numbers(args.alpha)[mode(row, h, m)];
                const A *__restrict rs = work + 4 * row * L, *__restrict is = rs + L;
                const A *__restrict rc = is + L, *__restrict ic = rc + L;
                for (i64 l = 0; l < L; ++l) {
                    of_real[l] += beta * is[l] - alpha * rc[l];
                    of_imag[l] += beta * rs[l] + alpha * ic[l];
                }
                double* sum = sums + 2 * (row * args.modes + m);
                sum[0] += dot(imag, rs, L) + dot(real, is, L);
                sum[1] += dot(imag, ic, L) - dot(real, rc, L);
            }
            of_poles(nodes, h, m, real, imag, of_real, of_imag);
        }
    }
    void of_poles(const Nodes& nodes, i64 h, i64 m, const A* __restrict real, const A* __restrict imag,
                  const A* __restrict of_real, const A* __restrict of_imag) const {
        alignas(64) double of_radius[SUM] = {}, of_center[SUM] = {};
        for (i64 k = 0; k < L; k += SUM)
            for (i64 l = 0; l < SUM; ++l) {
                const A x = real[k + l], y = imag[k + l], square = x * x - y * y, twice = 2 * x * y;
                const A r = -of_real[k + l] * square - of_imag[k + l] * twice;
                const A n = of_imag[k + l] * square - of_real[k + l] * twice;
                const double s = nodes.s[k + l], c = nodes.c[k + l];
                of_radius[l] += c * c * double(r);
                of_center[l] += s * c * double(n);
            }
        const i64 at = h * args.modes + m;
        const double radius = reinterpret_cast<const double*>(args.radius)[at];
        reinterpret_cast<double*>(args.grad_radius)[at] += 2.0 * radius * total(of_radius);
        reinterpret_cast<double*>(args.grad_real)[at] -= 2.0 * total(of_center);
    }

    void channel(i64 h, A* work, double* sums) const {
        if (args.backward)
            for (i64 m = 0; m < args.modes; ++m)
                reinterpret_cast<double*>(args.grad_radius)[h * args.modes + m] = 0,
                reinterpret_cast<double*>(args.grad_real)[h * args.modes + m] = 0;
        for (i64 k = 0; k < 2 * args.rows * args.modes; ++k) sums[k] = 0;
        for (i64 n = 0; n < args.nodes; n += L) {
            const Nodes nodes(args, n);
            if (args.backward) backward(h, nodes, work, sums);
            else forward(h, nodes, work);
        }
        if (!args.backward) return;
        for (i64 row = 0; row < args.rows; ++row)
            for (i64 m = 0; m < args.modes; ++m) {
                const double* sum = sums + 2 * (row * args.modes + m);
                reinterpret_cast<A*>(args.grad_beta)[mode(row, h, m)] = A(sum[0]);
                reinterpret_cast<A*>(args.grad_alpha)[mode(row, h, m)] = A(sum[1]);
            }
    }

    int dispatch() const {
        const i64 work_bytes = 4 * args.rows * L * i64(sizeof(A));
        const i64 bytes = work_bytes + 2 * args.rows * args.modes * i64(sizeof(double));
        const i64 worth = args.channels * args.modes * args.nodes / 16384 + 1;
        const i64 threads = worth < args.threads ? worth : args.threads;
        int failed = 0;
#pragma omp parallel num_threads(int(threads)) if (threads > 1)
        {
            void* work = std::malloc(size_t(bytes) + 1);
            auto sums = reinterpret_cast<double*>(static_cast<char*>(work) + work_bytes);
            if (!work) {
#pragma omp atomic
                failed |= 1;
            }
#pragma omp for schedule(static) nowait
            for (i64 h = 0; h < args.channels; ++h)
                if (work) channel(h, static_cast<A*>(work), sums);
            std::free(work);
        }
        return failed;
    }
};

}  // namespace

int cauchy(const void* record) {
    const auto& args = *static_cast<const CauchyArgs*>(record);
    if (args.size != i64(sizeof(CauchyArgs))) return 3;
    switch (args.dtype) {
        case F32: return Cauchy<float>{args}.dispatch();
        case F64: return Cauchy<double>{args}.dispatch();
    }
    return 2;
}

}  // namespace LINRNN_ISA
}  // namespace linrnn
