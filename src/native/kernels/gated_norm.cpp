// The norm of each group of channels by its root mean square, with a gate before or behind it:
//   y = w h / sqrt(mean(h^2) + eps) + b, h = x act(z)
//   y = (w x / sqrt(mean(x^2) + eps) + b) act(z)
// of which the mean may be subtracted before, and its adjoint, which computes the gate and the norm again.
// Behind the norm, and before a gate, (sum s q k) v may be added in each group; x may be the sum of
// two tensors, of which one has a weight.
//
// Compiled once for every instruction set: see scan.cpp.
#include <cmath>
#include <cstring>

#include "../gated_norm_args.h"
#include "../operands.h"

namespace linrnn {
namespace LINRNN_ISA {
namespace {

template <class A>
struct GatedNorm {
    static constexpr i64 BLOCK = 8;    // rows of a unit of work
    static constexpr i64 SUMMED = 32;  // rows whose shares of the gradients of channels are added up in A
    static constexpr i64 ROOM = 20;    // rows of a group that one takes on its way
    enum Act { SIGMOID = 0, SILU = 1, ITSELF = 2, NONE = 3 };
    const GatedNormArgs& args;
    const i64 n = args.width;

    // What a function is at z, and its slope there.
    struct Gate {
        A value, slope;
    };
    template <int ACT>
    static LINRNN_INLINE Gate gate(A z) {
        if constexpr (ACT == ITSELF) return {z, A(1)};
        const A s = vsigmoid(z);
        if constexpr (ACT == SILU) return {z * s, s * (A(1) + z * (A(1) - s))};
        return {s, s * (A(1) - s)};
    }

    // One row of one group, and what it is multiplied by on its way.
    struct Row {
        const A *x, *z, *weight, *bias;  // z is null for none
        const A* normed;                 // what is divided by its size
        A inverse;                       // of the root mean square
        const A *q, *k, *v, *share;      // null for none
        A both;                          // the sum of their products
        const A *skip, *skip_weight;     // null for none
    };

    LINRNN_APART static A product(const A* __restrict x, const A* __restrict y, i64 n) {
        alignas(64) A parts[LANES] = {};
        i64 i = 0;
        for (; i + LANES <= n; i += LANES)
            for (i64 l = 0; l < LANES; ++l) parts[l] += x[i + l] * y[i + l];
        for (i64 l = 0; i < n; ++i, ++l) parts[l] += x[i] * y[i];
        return sum_of_lanes(parts);
    }
    LINRNN_APART static A mean(const A* __restrict x, i64 n) {
        alignas(64) A parts[LANES] = {};
        i64 i = 0;
        for (; i + LANES <= n; i += LANES)
            for (i64 l = 0; l < LANES; ++l) parts[l] += x[i + l];
        for (i64 l = 0; i < n; ++i, ++l) parts[l] += x[i];
        return sum_of_lanes(parts) / A(n);
    }
    // What is added to a row of a group, whose numbers take four more rows of work.
    LINRNN_APART void open_added(i64 row, i64 group, A* work, Row& r) const {
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
    LINRNN_APART void close_added(i64 at, const Row& r, const A* into, A* work, A* of_share) const {
        const A slope = product(into, r.v, n), both = r.both;
        const A *q = r.q, *k = r.k, *share = r.share;
        A *of_q = work + 5 * n, *of_k = work + 6 * n, *of_v = work + 13 * n;
        LINRNN_INDEPENDENT
        for (i64 i = 0; i < n; ++i) {
            of_q[i] = slope * (k[i] * share[i]);
            of_k[i] = slope * (q[i] * share[i]);
            of_v[i] = into[i] * both;
            of_share[i] += slope * (q[i] * k[i]);
        }
        write(args.grad_q, args.q_dtype, at, n, of_q);
        write(args.grad_k, args.k_dtype, at, n, of_k);
        write(args.grad_v, args.v_dtype, at, n, of_v);
    }
    // x with the skip, which take four more rows of work.
    LINRNN_APART void open_skip(i64 row, i64 group, A* work, Row& r) const {
        r.skip = read(LINRNN_OPERAND(args, skip), row, group, n, work + 16 * n);
        r.skip_weight = read(LINRNN_OPERAND(args, skip_weight), 0, group, n, work + 17 * n);
        const A *x = r.x, *skip = r.skip, *weight = r.skip_weight;
        A* both = work + 18 * n;
        LINRNN_INDEPENDENT
        for (i64 i = 0; i < n; ++i) both[i] = x[i] + weight[i] * skip[i];
        r.x = r.normed = both;
    }
    // From the gradient of x, `into`.
    LINRNN_APART void close_skip(i64 at, const Row& r, const A* into, A* work, A* of_weight) const {
        const A *skip = r.skip, *weight = r.skip_weight;
        A* of_skip = work + 19 * n;
        LINRNN_INDEPENDENT
        for (i64 i = 0; i < n; ++i) {
            of_skip[i] = into[i] * weight[i];
            of_weight[i] += into[i] * skip[i];
        }
        write(args.grad_skip, args.skip_dtype, at, n, of_skip);
    }
    // Rows of ones and zeros instead of a weight and a bias that there are not.
    void prepare(A* work) const {
        for (i64 i = 0; i < n; ++i) work[14 * n + i] = A(1), work[15 * n + i] = A(0);
    }
    // work has room for ROOM * width numbers: five are taken here, and those above
    template <int ACT, bool FIRST, bool ADDED>
    Row open(i64 row, i64 group, A* work) const {
        A* h = work + 4 * n;
        Row r{};
        r.x = r.normed = read(LINRNN_OPERAND(args, x), row, group, n, work);
        if (args.skip) open_skip(row, group, work, r);
        r.weight = work + 14 * n, r.bias = work + 15 * n;
        if (args.weight) r.weight = read(LINRNN_OPERAND(args, weight), 0, group, n, work + 2 * n);
        if (args.bias) r.bias = read(LINRNN_OPERAND(args, bias), 0, group, n, work + 3 * n);
        if constexpr (ACT != NONE) r.z = read(LINRNN_OPERAND(args, z), row, group, n, work + n);
        if constexpr (ACT != NONE && FIRST) {
            const A *x = r.x, *z = r.z;
            LINRNN_INDEPENDENT
            for (i64 i = 0; i < n; ++i) h[i] = x[i] * gate<ACT>(z[i]).value;
            r.normed = h;
        }
        if (args.centre) {
            const A middle = mean(r.normed, n), *from = r.normed;
            LINRNN_INDEPENDENT
            for (i64 i = 0; i < n; ++i) h[i] = from[i] - middle;
            r.normed = h;
        }
        r.inverse = A(1) / std::sqrt(product(r.normed, r.normed, n) / A(n) + A(args.eps));
        if constexpr (ADDED) open_added(row, group, work, r);
        return r;
    }

    template <int ACT, bool FIRST, bool ADDED>
    void forward(i64 row, i64 group, A* work) const {
        const Row r = open<ACT, FIRST, ADDED>(row, group, work);
        const A *x = r.normed, *w = r.weight, *b = r.bias, *z = r.z, *v = r.v, inverse = r.inverse, both = r.both;
        A* y = work + 6 * n;
        LINRNN_INDEPENDENT
        for (i64 i = 0; i < n; ++i) {
            A one = inverse * x[i] * w[i] + b[i];
            if constexpr (ADDED) one += both * v[i];
            if constexpr (ACT != NONE && !FIRST) one *= gate<ACT>(z[i]).value;
            y[i] = one;
        }
        write(args.y, args.y_dtype, (row * args.groups + group) * n, n, y);
    }

    // `sums` are of weight, bias, share and the weight of the skip, each of all groups.
    template <int ACT, bool FIRST, bool ADDED>
    void backward(i64 row, i64 group, A* work, A* sums) const {
        constexpr bool LAST = ACT != NONE && !FIRST;
        const i64 at = (row * args.groups + group) * n;
        const Row r = open<ACT, FIRST, ADDED>(row, group, work);
        const A* grad = read(LINRNN_OPERAND(args, grad), row, group, n, work + 6 * n);
        const A *normed = r.normed, *w = r.weight, *b = r.bias, *z = r.z, *v = r.v, *x = r.x;
        const A inverse = r.inverse, both = r.both;
        A *u = work + 7 * n, *into_z = work + 8 * n, *into_added = work + 13 * n;
        A *of_weight = sums + group * n, *of_bias = of_weight + args.groups * n;
        LINRNN_INDEPENDENT
        for (i64 i = 0; i < n; ++i) {
            const A scaled = inverse * normed[i];
            A into = grad[i];
            if constexpr (LAST) {
                const Gate open = gate<ACT>(z[i]);
                A inner = scaled * w[i] + b[i];
                if constexpr (ADDED) inner += both * v[i];
                into_z[i] = into * inner * open.slope;
                into *= open.value;
            }
            of_weight[i] += into * scaled;
            of_bias[i] += into;
            if constexpr (ADDED) into_added[i] = into;
            u[i] = into * w[i];
        }
        if constexpr (ADDED) close_added(at, r, into_added, work, of_bias + args.groups * n);
        const A along = product(u, normed, n) / A(n) * inverse * inverse;
        const A middle = args.centre ? mean(u, n) : A(0);
        LINRNN_INDEPENDENT
        for (i64 i = 0; i < n; ++i) {
            A into = inverse * (u[i] - middle - normed[i] * along);
            if constexpr (ACT != NONE && FIRST) {
                const Gate open = gate<ACT>(z[i]);
                into_z[i] = into * x[i] * open.slope;
                into *= open.value;
            }
            u[i] = into;
        }
        write(args.grad_x, args.x_dtype, at, n, u);
        if (r.skip) close_skip(at, r, u, work, of_bias + 2 * args.groups * n);
        if constexpr (ACT != NONE) write(args.grad_z, args.z_dtype, at, n, into_z);
    }

    // Rows [begin, end) of all groups; `sums` of doubles may be null.
    template <int ACT, bool FIRST, bool ADDED>
    void rows(i64 begin, i64 end, A* work, double* sums) const {
        const i64 summed = 4 * args.groups * n;
        A* parts = work + ROOM * n;
        prepare(work);
        for (i64 from = begin, to; from < end; from = to) {
            to = from + SUMMED < end ? from + SUMMED : end;
            if (args.backward) std::memset(parts, 0, size_t(summed) * sizeof(A));
            for (i64 row = from; row < to; ++row)
                for (i64 group = 0; group < args.groups; ++group)
                    if (args.backward) backward<ACT, FIRST, ADDED>(row, group, work, parts);
                    else forward<ACT, FIRST, ADDED>(row, group, work);
            for (i64 i = 0; sums && i < summed; ++i) sums[i] += double(parts[i]);
        }
    }
    template <int ACT>
    void rows(i64 begin, i64 end, A* work, double* sums) const {
        if (!args.norm_first && args.q) rows<ACT, true, true>(begin, end, work, sums);
        else if (!args.norm_first) rows<ACT, true, false>(begin, end, work, sums);
        else if (args.q) rows<ACT, false, true>(begin, end, work, sums);
        else rows<ACT, false, false>(begin, end, work, sums);
    }

    int dispatch() const {
        const i64 rows = args.rows, summed = 4 * args.groups * n;
        const i64 units = args.backward ? args.parts : (rows + BLOCK - 1) / BLOCK;
        const i64 share = units ? (rows + units - 1) / units : 0;
        // a gate is worth several products
        const i64 threads = threads_for(units, 4 * rows * args.groups * n, args.threads);
        const i64 room = ROOM * n + (args.backward ? summed : 0);
        return for_each<A>(units, threads, room, [&](i64 unit, A* work) {
            const i64 begin = unit * share, end = begin + share < rows ? begin + share : rows;
            double* sums = args.backward && args.sums ? reinterpret_cast<double*>(args.sums) + unit * summed : nullptr;
            if (!args.z) this->rows<NONE>(begin, end, work, sums);
            else if (args.act == SILU) this->rows<SILU>(begin, end, work, sums);
            else if (args.act == SIGMOID) this->rows<SIGMOID>(begin, end, work, sums);
            else this->rows<ITSELF>(begin, end, work, sums);
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
