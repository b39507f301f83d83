// The norm of each group of channels by its root mean square, with a gate before or behind it:
//   y = w h / sqrt(mean(h^2) + eps), h = x act(z)      or      y = w x / sqrt(mean(x^2) + eps) act(z)
// and its adjoint, which computes the gate and the norm again.
//
// Compiled once for every instruction set: see scan.cpp.
#include <cmath>

#include "../gated_norm_args.h"
#include "../operands.h"

namespace linrnn {
namespace LINRNN_ISA {
namespace {

template <class A>
struct GatedNorm {
    static constexpr i64 BLOCK = 8;  // rows of a unit of work
    const GatedNormArgs& args;

    // One row of one group, and what it is multiplied by on its way.
    struct Row {
        const A *x, *z, *weight;  // null for none
        A *gate, *h;
        A inverse;  // of the root mean square
    };

    LINRNN_INLINE static A product(const A* __restrict x, const A* __restrict y, i64 n) {
        alignas(64) A parts[LANES] = {};
        i64 i = 0;
        for (; i + LANES <= n; i += LANES)
            for (i64 l = 0; l < LANES; ++l) parts[l] += x[i + l] * y[i + l];
        for (i64 l = 0; i < n; ++i, ++l) parts[l] += x[i] * y[i];
        return sum_of_lanes(parts);
    }
    void gates(const A* __restrict z, A* __restrict gate, i64 n) const {
        if (args.silu)
            for (i64 i = 0; i < n; ++i) gate[i] = z[i] * vsigmoid(z[i]);
        else
            for (i64 i = 0; i < n; ++i) gate[i] = vsigmoid(z[i]);
    }
    // work has room for 8 * width numbers: five are taken here
    Row open(i64 row, i64 group, A* work) const {
        const i64 n = args.width;
        A* z = work + n;
        Row r{};
        r.gate = work + 3 * n, r.h = work + 4 * n;
        r.x = read(LINRNN_OPERAND(args, x), row, group, n, work);
        if (args.weight) r.weight = read(LINRNN_OPERAND(args, weight), 0, group, n, work + 2 * n);
        if (args.z) {
            r.z = read(LINRNN_OPERAND(args, z), row, group, n, z);
            gates(r.z, r.gate, n);
        }
        const A* normed = r.x;
        if (r.z && !args.norm_first) {
            for (i64 i = 0; i < n; ++i) r.h[i] = r.x[i] * r.gate[i];
            normed = r.h;
        }
        r.inverse = A(1) / std::sqrt(product(normed, normed, n) / A(n) + A(args.eps));
        return r;
    }

    void forward(i64 row, i64 group, A* work) const {
        const i64 n = args.width;
        const Row r = open(row, group, work);
        A* __restrict y = work + 5 * n;
        const bool gated = r.z && !args.norm_first;
        const A* from = gated ? r.h : r.x;
        for (i64 i = 0; i < n; ++i) y[i] = r.inverse * from[i];
        if (r.weight)
            for (i64 i = 0; i < n; ++i) y[i] *= r.weight[i];
        if (r.z && args.norm_first)
            for (i64 i = 0; i < n; ++i) y[i] *= r.gate[i];
        write(args.y, args.y_dtype, (row * args.groups + group) * n, n, y);
    }

    // The slope of the gate at z, times `into`.
    void through_gate(const Row& r, A* __restrict into, i64 n) const {
        if (args.silu)
            for (i64 i = 0; i < n; ++i) {
                A s = vsigmoid(r.z[i]);
                into[i] *= s * (A(1) + r.z[i] * (A(1) - s));
            }
        else
            for (i64 i = 0; i < n; ++i) into[i] *= r.gate[i] * (A(1) - r.gate[i]);
    }
    void backward(i64 row, i64 group, A* work, double* __restrict sums) const {
        const i64 n = args.width, at = (row * args.groups + group) * n;
        const Row r = open(row, group, work);
        const A* grad = read(LINRNN_OPERAND(args, grad), row, group, n, work + 5 * n);
        A *__restrict u = work + 6 * n, *__restrict into_z = work + 7 * n;
        const bool gate_last = r.z && args.norm_first, gate_first = r.z && !gate_last;
        const A* normed = gate_first ? r.h : r.x;
        for (i64 i = 0; i < n; ++i) u[i] = gate_last ? grad[i] * r.gate[i] : grad[i];
        if (args.sums)
            for (i64 i = 0; i < n; ++i) sums[i] += double(u[i] * (normed[i] * r.inverse));
        if (gate_last)
            for (i64 i = 0; i < n; ++i) into_z[i] = grad[i] * (normed[i] * r.inverse);
        if (r.weight) {
            for (i64 i = 0; i < n; ++i) u[i] *= r.weight[i];
            if (gate_last)
                for (i64 i = 0; i < n; ++i) into_z[i] *= r.weight[i];
        }
        const A along = product(u, normed, n) / A(n) * r.inverse * r.inverse;
        for (i64 i = 0; i < n; ++i) u[i] = r.inverse * (u[i] - normed[i] * along);
        if (gate_first)
            for (i64 i = 0; i < n; ++i) {
                into_z[i] = u[i] * r.x[i];
                u[i] *= r.gate[i];
            }
        write(args.grad_x, args.x_dtype, at, n, u);
        if (!r.z) return;
        through_gate(r, into_z, n);
        write(args.grad_z, args.z_dtype, at, n, into_z);
    }

    int dispatch() const {
        const i64 n = args.width, rows = args.rows;
        const i64 units = args.backward ? args.parts : (rows + BLOCK - 1) / BLOCK;
        const i64 share = units ? (rows + units - 1) / units : 0;
        // a gate is worth several products
        const i64 threads = threads_for(units, 4 * rows * args.groups * n, args.threads);
        return for_each<A>(units, threads, 8 * n, [&](i64 unit, A* work) {
            const i64 end = (unit + 1) * share < rows ? (unit + 1) * share : rows;
            double* sums = reinterpret_cast<double*>(args.sums) + unit * args.groups * n;
            for (i64 row = unit * share; row < end; ++row)
                for (i64 group = 0; group < args.groups; ++group)
                    if (args.backward) backward(row, group, work, args.sums ? sums + group * n : nullptr);
                    else forward(row, group, work);
        });
    }
};

}  // namespace

int gated_norm(const void* record) {
    const auto& args = *static_cast<const GatedNormArgs*>(record);
    if (args.size != i64(sizeof(GatedNormArgs))) return 3;
    switch (args.dtype) {
        case F32: return GatedNorm<float>{args}.dispatch();
        case F64: return GatedNorm<double>{args}.dispatch();
    }
    return 2;
}

}  // namespace LINRNN_ISA
}  // namespace linrnn
