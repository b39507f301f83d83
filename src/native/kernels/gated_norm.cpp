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
#include "../gated_norm_halves.h"
#include "../operands.h"
#include "../prefetch.h"

namespace linrnn {
namespace LINRNN_ISA {
namespace {

template <class A>
struct GatedNorm {
    static constexpr i64 BLOCK = 8;    // rows of a unit of work
    static constexpr i64 SUMMED = 32;  // rows whose shares of the gradients of channels are added up in A
    static constexpr i64 OF_A = std::is_same<A, float>::value ? F32 : F64;
    enum Act { SIGMOID = 0, SILU = 1, ITSELF = 2, NONE = 3 };
    // Rows of a group that one takes on its way: copies of operands, what is computed, copies of results.
    enum Room {
        X, Z, Q, K, V, SKIP, GRAD, WEIGHT, BIAS, SHARE, SKIP_WEIGHT,
        INPUT, NORMED, SIGMOIDS, SLOPES, TO_ADDED,
        TO_X, TO_Z, TO_Q, TO_K, TO_V, TO_SKIP, ONES, ZEROS, ROOM
    };
    const GatedNormArgs& args;
    const i64 n = args.width;

    // What a function is at z, and its slope there. Of bfloat16 numbers the sigmoids are a row.
    struct Gate {
        A value, slope;
    };
    template <int ACT, class S>
    static LINRNN_INLINE Gate gate(const S* z, const A* sigmoids, i64 i) {
        const A z_i = A(widen(z[i]));
        if constexpr (ACT == ITSELF) return {z_i, A(1)};
        A s;
        if constexpr (std::is_same<S, A>::value) s = vsigmoid(z_i);
        else s = sigmoids[i];
        if constexpr (ACT == SILU) return {z_i * s, s * (A(1) + z_i * (A(1) - s))};
        return {s, s * (A(1) - s)};
    }

    // Rows are read as they are stored, if all are bfloat16 and the processor computes with those; else
    // they are of A, where they lie as such or by way of a copy.
    template <class S>
    const S* stored(const Operand& x, i64 row, i64 group, A* copy) const {
        if constexpr (std::is_same<S, A>::value) return read(x, row, group, n, copy);
        else return reinterpret_cast<const S*>(x.data) + row * x.row + group * x.head;
    }
    // Where a row of a result is computed, and how it gets where it belongs.
    A* place(i64 data, i64 dtype, i64 at, A* copy) const {
        return dtype == OF_A ? reinterpret_cast<A*>(data) + at : copy;
    }
    void put_row(i64 data, i64 dtype, i64 at, const A* from) const {
        if (dtype != OF_A) write(data, dtype, at, n, from);
    }
    bool all_halves() const {
#ifdef LINRNN_HALF_PRODUCTS
        if (!has_half_products()) return false;
#else
        return false;
#endif
        auto halves = [](const Operand& x) { return !x.data || (x.dtype == BF16 && x.lane == 1); };
        const bool more = halves(LINRNN_OPERAND(args, q)) && halves(LINRNN_OPERAND(args, k)) &&
                          halves(LINRNN_OPERAND(args, v)) && halves(LINRNN_OPERAND(args, skip));
        const bool out = args.backward ? halves(LINRNN_OPERAND(args, grad)) : args.y_dtype == BF16;
        return more && out && halves(LINRNN_OPERAND(args, x)) && halves(LINRNN_OPERAND(args, z));
    }

    // One row of one group, and what it is multiplied by on its way.
    template <class S>
    struct Row {
        const S *z, *q, *k, *v, *skip;  // null for none
        const A* sigmoids;              // of z
        const A *weight, *bias, *share, *skip_weight;
        const A *input, *normed;  // x with the skip; what is divided by its size
        A inverse;                // of the root mean square
        A both;                   // the sum of the products of q, k and share
    };

    template <class S>
    LINRNN_APART static A product(const A* __restrict x, const S* __restrict y, i64 n) {
        alignas(64) A parts[LANES] = {};
        i64 i = 0;
        for (; i + LANES <= n; i += LANES)
            for (i64 l = 0; l < LANES; ++l) parts[l] += x[i + l] * A(widen(y[i + l]));
        for (i64 l = 0; i < n; ++i, ++l) parts[l] += x[i] * A(widen(y[i]));
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
    // What is added to a row of a group.
    template <class S>
    LINRNN_APART void open_added(i64 row, i64 group, A* work, Row<S>& r) const {
        r.q = stored<S>(LINRNN_OPERAND(args, q), row, group, work + Q * n);
        r.k = stored<S>(LINRNN_OPERAND(args, k), row, group, work + K * n);
        r.v = stored<S>(LINRNN_OPERAND(args, v), row, group, work + V * n);
        r.share = read(LINRNN_OPERAND(args, share), 0, group, n, work + SHARE * n);
        const S *q = r.q, *k = r.k;
        const A* share = r.share;
        alignas(64) A parts[LANES] = {};
        i64 i = 0;
        for (; i + LANES <= n; i += LANES)
            for (i64 l = 0; l < LANES; ++l) parts[l] += A(widen(q[i + l])) * A(widen(k[i + l])) * share[i + l];
        for (i64 l = 0; i < n; ++i, ++l) parts[l] += A(widen(q[i])) * A(widen(k[i])) * share[i];
        r.both = sum_of_lanes(parts);
    }
    // From the gradient of what is added, `into`.
    template <class S>
    LINRNN_APART void close_added(i64 at, const Row<S>& r, const A* into, A* work, A* of_share) const {
        const S *q = r.q, *k = r.k;
        const A slope = product(into, r.v, n), both = r.both, *share = r.share;
        A *of_q = place(args.grad_q, args.q_dtype, at, work + TO_Q * n);
        A *of_k = place(args.grad_k, args.k_dtype, at, work + TO_K * n);
        A *of_v = place(args.grad_v, args.v_dtype, at, work + TO_V * n);
        LINRNN_INDEPENDENT
        for (i64 i = 0; i < n; ++i) {
            const A q_i = A(widen(q[i])), k_i = A(widen(k[i]));
            of_q[i] = slope * (k_i * share[i]);
            of_k[i] = slope * (q_i * share[i]);
            of_v[i] = into[i] * both;
            of_share[i] += slope * (q_i * k_i);
        }
        put_row(args.grad_q, args.q_dtype, at, of_q);
        put_row(args.grad_k, args.k_dtype, at, of_k);
        put_row(args.grad_v, args.v_dtype, at, of_v);
    }
    // x as numbers of A, with the skip.
    template <class S>
    void open_input(i64 row, i64 group, A* work, Row<S>& r) const {
        const S* x = stored<S>(LINRNN_OPERAND(args, x), row, group, work + X * n);
        A* input = work + INPUT * n;
        if (args.skip) return open_skip(row, group, x, input, work, r);
        r.input = input;
        if constexpr (std::is_same<S, A>::value) {
            r.input = x;
        } else {
            LINRNN_INDEPENDENT
            for (i64 i = 0; i < n; ++i) input[i] = A(widen(x[i]));
        }
    }
    template <class S>
    LINRNN_APART void open_skip(i64 row, i64 group, const S* x, A* input, A* work, Row<S>& r) const {
        const S* skip = r.skip = stored<S>(LINRNN_OPERAND(args, skip), row, group, work + SKIP * n);
        const A* weight = r.skip_weight = read(LINRNN_OPERAND(args, skip_weight), 0, group, n, work + SKIP_WEIGHT * n);
        LINRNN_INDEPENDENT
        for (i64 i = 0; i < n; ++i) input[i] = A(widen(x[i])) + weight[i] * A(widen(skip[i]));
        r.input = input;
    }
    // From the gradient of x, `into`.
    template <class S>
    LINRNN_APART void close_skip(i64 at, const Row<S>& r, const A* into, A* work, A* of_weight) const {
        const S* skip = r.skip;
        const A* weight = r.skip_weight;
        A* of_skip = place(args.grad_skip, args.skip_dtype, at, work + TO_SKIP * n);
        LINRNN_INDEPENDENT
        for (i64 i = 0; i < n; ++i) {
            of_skip[i] = into[i] * weight[i];
            of_weight[i] += into[i] * A(widen(skip[i]));
        }
        put_row(args.grad_skip, args.skip_dtype, at, of_skip);
    }
    // Rows of ones and zeros instead of a weight and a bias that there are not.
    void prepare(A* work) const {
        for (i64 i = 0; i < n; ++i) work[ONES * n + i] = A(1), work[ZEROS * n + i] = A(0);
    }
    template <class S, int ACT, bool FIRST, bool ADDED>
    Row<S> open(i64 row, i64 group, A* work) const {
        A* normed = work + NORMED * n;
        Row<S> r{};
        open_input(row, group, work, r);
        r.normed = r.input;
        r.weight = work + ONES * n, r.bias = work + ZEROS * n;
        if (args.weight) r.weight = read(LINRNN_OPERAND(args, weight), 0, group, n, work + WEIGHT * n);
        if (args.bias) r.bias = read(LINRNN_OPERAND(args, bias), 0, group, n, work + BIAS * n);
        if constexpr (ACT != NONE) {
            r.z = stored<S>(LINRNN_OPERAND(args, z), row, group, work + Z * n);
            r.sigmoids = work + SIGMOIDS * n;
#ifdef LINRNN_HALF_PRODUCTS
            if constexpr (ACT != ITSELF && !std::is_same<S, A>::value) sigmoid_row(r.z, work + SIGMOIDS * n, n);
#endif
        }
        if constexpr (ACT != NONE && FIRST) {
            const S* z = r.z;
            const A *x = r.input, *s = r.sigmoids;
            LINRNN_INDEPENDENT
            for (i64 i = 0; i < n; ++i) normed[i] = x[i] * gate<ACT>(z, s, i).value;
            r.normed = normed;
        }
        if (args.centre) {
            const A middle = mean(r.normed, n), *from = r.normed;
            LINRNN_INDEPENDENT
            for (i64 i = 0; i < n; ++i) normed[i] = from[i] - middle;
            r.normed = normed;
        }
        r.inverse = A(1) / std::sqrt(product(r.normed, r.normed, n) / A(n) + A(args.eps));
        if constexpr (ADDED) open_added(row, group, work, r);
        return r;
    }

    template <class S, int ACT, bool FIRST, bool ADDED>
    void forward(i64 row, i64 group, A* work) const {
        const Row<S> r = open<S, ACT, FIRST, ADDED>(row, group, work);
        const A *x = r.normed, *w = r.weight, *b = r.bias, inverse = r.inverse, both = r.both;
        const A* s = r.sigmoids;
        const S *z = r.z, *v = r.v;
        const i64 at = (row * args.groups + group) * n;
        A* y = place(args.y, args.y_dtype, at, work + TO_X * n);
        LINRNN_INDEPENDENT
        for (i64 i = 0; i < n; ++i) {
            A one = inverse * x[i] * w[i] + b[i];
            if constexpr (ADDED) one += both * A(widen(v[i]));
            if constexpr (ACT != NONE && !FIRST) one *= gate<ACT>(z, s, i).value;
            y[i] = one;
        }
        put_row(args.y, args.y_dtype, at, y);
    }

    // `sums` are of weight, bias, share and the weight of the skip, each of all groups.
    template <class S, int ACT, bool FIRST, bool ADDED>
    void backward(i64 row, i64 group, A* work, A* sums) const {
        constexpr bool LAST = ACT != NONE && !FIRST;
        const i64 at = (row * args.groups + group) * n;
        const Row<S> r = open<S, ACT, FIRST, ADDED>(row, group, work);
        const S *grad = stored<S>(LINRNN_OPERAND(args, grad), row, group, work + GRAD * n), *z = r.z, *v = r.v;
        const A *normed = r.normed, *w = r.weight, *b = r.bias, *s = r.sigmoids;
        const A inverse = r.inverse, both = r.both;
        A *u = work + SLOPES * n, *into_added = work + TO_ADDED * n;
        A* into_z = place(args.grad_z, args.z_dtype, at, work + TO_Z * n);
        A *of_weight = sums + group * n, *of_bias = of_weight + args.groups * n;
        LINRNN_INDEPENDENT
        for (i64 i = 0; i < n; ++i) {
            const A scaled = inverse * normed[i];
            A into = A(widen(grad[i]));
            if constexpr (LAST) {
                const Gate open = gate<ACT>(z, s, i);
                A inner = scaled * w[i] + b[i];
                if constexpr (ADDED) inner += both * A(widen(v[i]));
                into_z[i] = into * inner * open.slope;
                into *= open.value;
            }
            of_weight[i] += into * scaled;
            of_bias[i] += into;
            if constexpr (ADDED) into_added[i] = into;
            u[i] = into * w[i];
        }
        if constexpr (ADDED) close_added(at, r, into_added, work, of_bias + args.groups * n);
        close<S, ACT, FIRST>(at, r, u, into_z);
        if (r.skip) close_skip(at, r, u, work, of_bias + 2 * args.groups * n);
        if constexpr (ACT != NONE) put_row(args.grad_z, args.z_dtype, at, into_z);
    }
    // From the gradient of what is divided by its size, times that, to that of x, both in `u`.
    template <class S, int ACT, bool FIRST>
    void close(i64 at, const Row<S>& r, A* u, A* into_z) const {
        const A *normed = r.normed, *x = r.input, *s = r.sigmoids, inverse = r.inverse;
        const S* z = r.z;
        const A along = product(u, normed, n) / A(n) * inverse * inverse;
        const A middle = args.centre ? mean(u, n) : A(0);
        A* into_x = place(args.grad_x, args.x_dtype, at, u);
        LINRNN_INDEPENDENT
        for (i64 i = 0; i < n; ++i) {
            A into = inverse * (u[i] - middle - normed[i] * along);
            if constexpr (ACT != NONE && FIRST) {
                const Gate open = gate<ACT>(z, s, i);
                into_z[i] = into * x[i] * open.slope;
                into *= open.value;
            }
            u[i] = into;
            into_x[i] = into;
        }
        put_row(args.grad_x, args.x_dtype, at, into_x);
    }

    // Names an operand's row of a group, before it is read. Rows that follow one another are a stream,
    // which a processor foresees.
    void ask(const Operand& x, i64 row, i64 group) const {
        const i64 bytes = bytes_of(x.dtype);
        if (x.data && x.lane == 1 && x.row != args.groups * n)
            prefetch(x.data + (row * x.row + group * x.head) * bytes, n * bytes);
    }
    void ask(i64 row, i64 group) const {
        ask(LINRNN_OPERAND(args, x), row, group);
        ask(LINRNN_OPERAND(args, z), row, group);
        ask(LINRNN_OPERAND(args, skip), row, group);
        ask(LINRNN_OPERAND(args, q), row, group);
        ask(LINRNN_OPERAND(args, k), row, group);
        ask(LINRNN_OPERAND(args, v), row, group);
        if (args.backward) ask(LINRNN_OPERAND(args, grad), row, group);
    }

    // Whether a row of a group is one pass over bfloat16 numbers.
    template <class S, int ACT, bool FIRST>
    bool in_registers() const {
#ifdef LINRNN_HALF_PRODUCTS
        if constexpr (std::is_same<S, bf16>::value && (ACT == NONE || !FIRST)) return !args.skip && half_norm_takes(n);
#endif
        return false;
    }
    // The weights of all groups: of the norm, of what is added to it, and of the pairs.
    void read_weights(A* to) const {
        const i64 channels = args.groups * n;
        auto put = [&](const Operand& x, A absent, A* row) {
            for (i64 i = 0; i < channels; ++i) row[i] = absent;
            for (i64 g = 0; x.data && g < args.groups; ++g) {
                const A* from = read(x, 0, g, n, row + g * n);
                if (from != row + g * n) std::memcpy(row + g * n, from, size_t(n) * sizeof(A));
            }
        };
        put(LINRNN_OPERAND(args, weight), A(1), to);
        put(LINRNN_OPERAND(args, bias), A(0), to + channels);
        put(LINRNN_OPERAND(args, share), A(0), to + 2 * channels);
    }
    template <int ACT, bool ADDED>
    void half_row([[maybe_unused]] i64 row, [[maybe_unused]] i64 group, [[maybe_unused]] const A* weights,
                  [[maybe_unused]] A* sums) const {
#ifdef LINRNN_HALF_PRODUCTS
        if constexpr (std::is_same<A, float>::value) {
            const i64 at = (row * args.groups + group) * n, channels = args.groups * n, first = group * n;
            auto in = [&](const Operand& x) { return stored<bf16>(x, row, group, nullptr); };
            auto out = [&](i64 data) { return reinterpret_cast<bf16*>(data) + at; };
            const HalfNormRow r{
                args.centre != 0, float(args.eps), in(LINRNN_OPERAND(args, x)), in(LINRNN_OPERAND(args, z)),
                in(LINRNN_OPERAND(args, q)), in(LINRNN_OPERAND(args, k)), in(LINRNN_OPERAND(args, v)),
                in(LINRNN_OPERAND(args, grad)), weights + first, weights + channels + first,
                weights + 2 * channels + first, out(args.y), out(args.grad_x), out(args.grad_z), out(args.grad_q),
                out(args.grad_k), out(args.grad_v), sums + first, sums + channels + first, sums + 2 * channels + first};
            if (args.weight || args.bias) half_norm<ACT, ADDED, true>(r, n, args.backward);
            else half_norm<ACT, ADDED, false>(r, n, args.backward);
        }
#endif
    }

    // Rows [begin, end) of all groups; `sums` of doubles may be null.
    template <class S, int ACT, bool FIRST, bool ADDED>
    void rows(i64 begin, i64 end, A* work, double* sums) const {
        const i64 summed = 4 * args.groups * n;
        A *parts = work + ROOM * n, *weights = parts + summed;
        const bool in_registers = this->in_registers<S, ACT, FIRST>();
        prepare(work);
        if (in_registers) read_weights(weights);
        for (i64 from = begin, to; from < end; from = to) {
            to = from + SUMMED < end ? from + SUMMED : end;
            if (args.backward) std::memset(parts, 0, size_t(summed) * sizeof(A));
            for (i64 row = from; row < to; ++row)
                for (i64 group = 0; group < args.groups; ++group) {
                    if (row + 1 < end) ask(row + 1, group);
                    if (in_registers) half_row<ACT, ADDED>(row, group, weights, parts);
                    else if (args.backward) backward<S, ACT, FIRST, ADDED>(row, group, work, parts);
                    else forward<S, ACT, FIRST, ADDED>(row, group, work);
                }
            for (i64 i = 0; sums && i < summed; ++i) sums[i] += double(parts[i]);
        }
    }
    template <class S, int ACT>
    void rows(i64 begin, i64 end, A* work, double* sums) const {
        if (!args.norm_first && args.q) rows<S, ACT, true, true>(begin, end, work, sums);
        else if (!args.norm_first) rows<S, ACT, true, false>(begin, end, work, sums);
        else if (args.q) rows<S, ACT, false, true>(begin, end, work, sums);
        else rows<S, ACT, false, false>(begin, end, work, sums);
    }
    template <class S>
    void rows(i64 begin, i64 end, A* work, double* sums) const {
        if (!args.z) rows<S, NONE>(begin, end, work, sums);
        else if (args.act == SILU) rows<S, SILU>(begin, end, work, sums);
        else if (args.act == SIGMOID) rows<S, SIGMOID>(begin, end, work, sums);
        else rows<S, ITSELF>(begin, end, work, sums);
    }

    int dispatch() const {
        const i64 rows = args.rows, summed = 4 * args.groups * n;
        const i64 units = args.backward ? args.parts : (rows + BLOCK - 1) / BLOCK;
        const i64 share = units ? (rows + units - 1) / units : 0;
        // a gate is worth several products
        const i64 threads = threads_for(units, 4 * rows * args.groups * n, args.threads);
        [[maybe_unused]] const bool halves = all_halves();
        const i64 room = ROOM * n + summed + 3 * args.groups * n;
        return for_each<A>(units, threads, room, [&](i64 unit, A* work) {
            const i64 begin = unit * share, end = begin + share < rows ? begin + share : rows;
            double* sums = args.backward && args.sums ? reinterpret_cast<double*>(args.sums) + unit * summed : nullptr;
            if constexpr (std::is_same<A, float>::value)
                if (halves) return this->template rows<bf16>(begin, end, work, sums);
            this->template rows<A>(begin, end, work, sums);
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
