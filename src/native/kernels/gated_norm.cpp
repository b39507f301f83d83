// The norm of each group of channels by its root mean square, with a gate before or behind it:
//   y = w h / sqrt(mean(h^2) + eps) + b, h = x act(z)
//   y = (w x / sqrt(mean(x^2) + eps) + b) act(z)
// of which the mean may be subtracted before, and its adjoint, which computes the gate and the norm again.
// Behind the norm, and before a gate, (sum s q k) v may be added in each group.
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
    static constexpr i64 ROOM = 14;  // rows of a group that one takes on its way
    enum { SIGMOID = 0, SILU = 1 };  // another: z itself
    const GatedNormArgs& args;

    // One row of one group, and what it is multiplied by on its way.
    struct Row {
        const A *x, *z, *weight, *bias;  // null for none
        const A* normed;                 // what is divided by its size
        A* gate;
        A inverse;  // of the root mean square
        const A *q, *k, *v, *share;
        A both;  // the sum of their products
    };

    LINRNN_INLINE static A product(const A* __restrict x, const A* __restrict y, i64 n) {
        alignas(64) A parts[LANES] = {};
        i64 i = 0;
        for (; i + LANES <= n; i += LANES)
            for (i64 l = 0; l < LANES; ++l) parts[l] += x[i + l] * y[i + l];
        for (i64 l = 0; i < n; ++i, ++l) parts[l] += x[i] * y[i];
        return sum_of_lanes(parts);
    }
    LINRNN_INLINE static A mean(const A* __restrict x, i64 n) {
        alignas(64) A parts[LANES] = {};
        i64 i = 0;
        for (; i + LANES <= n; i += LANES)
            for (i64 l = 0; l < LANES; ++l) parts[l] += x[i + l];
        for (i64 l = 0; i < n; ++i, ++l) parts[l] += x[i];
        return sum_of_lanes(parts) / A(n);
    }
    void gates(const A* __restrict z, A* __restrict gate, i64 n) const {
        if (args.act == SILU)
            for (i64 i = 0; i < n; ++i) gate[i] = z[i] * vsigmoid(z[i]);
        else if (args.act == SIGMOID)
            for (i64 i = 0; i < n; ++i) gate[i] = vsigmoid(z[i]);
        else
            copy(gate, z, n);
    }
    // What is added to a row of a group, whose numbers take four more rows of work.
    void open_added(i64 row, i64 group, A* work, Row& r) const {
        const i64 n = args.width;
        r.q = read(LINRNN_OPERAND(args, q), row, group, n, work + 9 * n);
        r.k = read(LINRNN_OPERAND(args, k), row, group, n, work + 10 * n);
        r.v = read(LINRNN_OPERAND(args, v), row, group, n, work + 11 * n);
        r.share = read(LINRNN_OPERAND(args, share), 0, group, n, work + 12 * n);
        alignas(64) A parts[LANES] = {};
        i64 i = 0;
        for (; i + LANES <= n; i += LANES)
            for (i64 l = 0; l < LANES; ++l) parts[l] += r.q[i + l] * r.k[i + l] * r.share[i + l];
        for (i64 l = 0; i < n; ++i, ++l) parts[l] += r.q[i] * r.k[i] * r.share[i];
        r.both = sum_of_lanes(parts);
    }
    // From the gradient of what is added, `into`.
    void close_added(i64 at, const Row& r, const A* into, A* work, double* of_share) const {
        const i64 n = args.width;
        const A slope = product(into, r.v, n);
        A *of_q = work + 5 * n, *of_k = work + 6 * n, *of_v = work + 13 * n;
        LINRNN_INDEPENDENT
        for (i64 i = 0; i < n; ++i) {
            of_q[i] = slope * (r.k[i] * r.share[i]);
            of_k[i] = slope * (r.q[i] * r.share[i]);
            of_v[i] = into[i] * r.both;
            of_share[i] += double(slope * (r.q[i] * r.k[i]));
        }
        write(args.grad_q, args.q_dtype, at, n, of_q);
        write(args.grad_k, args.k_dtype, at, n, of_k);
        write(args.grad_v, args.v_dtype, at, n, of_v);
    }
    // work has room for ROOM * width numbers: six are taken here
    Row open(i64 row, i64 group, A* work) const {
        const i64 n = args.width;
        A *z = work + n, *h = work + 4 * n;
        Row r{};
        r.gate = work + 3 * n;
        r.x = read(LINRNN_OPERAND(args, x), row, group, n, work);
        if (args.weight) r.weight = read(LINRNN_OPERAND(args, weight), 0, group, n, work + 2 * n);
        if (args.bias) r.bias = read(LINRNN_OPERAND(args, bias), 0, group, n, work + 5 * n);
        if (args.z) {
            r.z = read(LINRNN_OPERAND(args, z), row, group, n, z);
            gates(r.z, r.gate, n);
        }
        r.normed = r.x;
        if (r.z && !args.norm_first) {
            for (i64 i = 0; i < n; ++i) h[i] = r.x[i] * r.gate[i];
            r.normed = h;
        }
        if (args.centre) {
            const A middle = mean(r.normed, n);
            for (i64 i = 0; i < n; ++i) h[i] = r.normed[i] - middle;
            r.normed = h;
        }
        r.inverse = A(1) / std::sqrt(product(r.normed, r.normed, n) / A(n) + A(args.eps));
        if (args.q) open_added(row, group, work, r);
        return r;
    }

    void forward(i64 row, i64 group, A* work) const {
        const i64 n = args.width;
        const Row r = open(row, group, work);
        A* __restrict y = work + 6 * n;
        for (i64 i = 0; i < n; ++i) y[i] = r.inverse * r.normed[i];
        if (r.weight)
            for (i64 i = 0; i < n; ++i) y[i] *= r.weight[i];
        if (r.bias)
            for (i64 i = 0; i < n; ++i) y[i] += r.bias[i];
        if (r.q)
            for (i64 i = 0; i < n; ++i) y[i] += r.both * r.v[i];
        if (r.z && args.norm_first)
            for (i64 i = 0; i < n; ++i) y[i] *= r.gate[i];
        write(args.y, args.y_dtype, (row * args.groups + group) * n, n, y);
    }

    // The slope of the gate at z, times `into`.
    void through_gate(const Row& r, A* __restrict into, i64 n) const {
        if (args.act == SILU)
            for (i64 i = 0; i < n; ++i) {
                A s = vsigmoid(r.z[i]);
                into[i] *= s * (A(1) + r.z[i] * (A(1) - s));
            }
        else if (args.act == SIGMOID)
            for (i64 i = 0; i < n; ++i) into[i] *= r.gate[i] * (A(1) - r.gate[i]);
    }
    void backward(i64 row, i64 group, A* work, double* __restrict sums) const {
        const i64 n = args.width, at = (row * args.groups + group) * n;
        const Row r = open(row, group, work);
        const A* grad = read(LINRNN_OPERAND(args, grad), row, group, n, work + 6 * n);
        A *__restrict u = work + 7 * n, *__restrict into_z = work + 8 * n;
        const bool gate_last = r.z && args.norm_first, gate_first = r.z && !gate_last;
        for (i64 i = 0; i < n; ++i) u[i] = gate_last ? grad[i] * r.gate[i] : grad[i];
        if (sums) {
            double* __restrict of_bias = sums + args.groups * n;
            for (i64 i = 0; i < n; ++i) sums[i] += double(u[i] * (r.normed[i] * r.inverse));
            for (i64 i = 0; i < n; ++i) of_bias[i] += double(u[i]);
        }
        if (gate_last) {
            for (i64 i = 0; i < n; ++i) into_z[i] = r.normed[i] * r.inverse;
            if (r.weight)
                for (i64 i = 0; i < n; ++i) into_z[i] *= r.weight[i];
            if (r.bias)
                for (i64 i = 0; i < n; ++i) into_z[i] += r.bias[i];
            if (r.q)
                for (i64 i = 0; i < n; ++i) into_z[i] += r.both * r.v[i];
            for (i64 i = 0; i < n; ++i) into_z[i] *= grad[i];
        }
        if (r.q) close_added(at, r, u, work, sums + 2 * args.groups * n);
        if (r.weight)
            for (i64 i = 0; i < n; ++i) u[i] *= r.weight[i];
        const A along = product(u, r.normed, n) / A(n) * r.inverse * r.inverse;
        const A middle = args.centre ? mean(u, n) : A(0);
        for (i64 i = 0; i < n; ++i) u[i] = r.inverse * (u[i] - middle - r.normed[i] * along);
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
        return for_each<A>(units, threads, ROOM * n, [&](i64 unit, A* work) {
            const i64 end = (unit + 1) * share < rows ? (unit + 1) * share : rows;
            double* sums = reinterpret_cast<double*>(args.sums) + 3 * unit * args.groups * n;
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
