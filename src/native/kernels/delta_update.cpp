// One step of the delta rule that writes its memories in place, in every head:
//   S' = exp(g) S     S <- S' + k (beta (v - S'^T k))^T     y = scale S^T q
//
// Compiled once for every instruction set: see scan.cpp.
#include <cmath>

#include "../operands.h"
#include "../update_args.h"

namespace linrnn {
namespace LINRNN_ISA {
namespace {

template <class T>
struct DeltaUpdate {
    using A = typename Accumulator<T>::type;
    const DeltaUpdateArgs& args;

    static void add(A* __restrict to, const A* __restrict x, A by, i64 n) {
        for (i64 i = 0; i < n; ++i) to[i] += by * x[i];
    }
    static void rewrite(A* __restrict S, const A* __restrict u, A* __restrict y, A decay, A k, A q, i64 n) {
        for (i64 i = 0; i < n; ++i) {
            S[i] = decay * S[i] + k * u[i];
            y[i] += q * S[i];
        }
    }
    // A query or key, of length 1 where that is wanted.
    const A* unit(const Operand& x, i64 row, i64 head, A* buffer) const {
        const A* raw = read(x, row, head, args.keys, buffer);
        if (!args.norm) return raw;
        alignas(64) A parts[LANES] = {};
        i64 i = 0;
        for (; i + LANES <= args.keys; i += LANES)
            for (i64 l = 0; l < LANES; ++l) parts[l] += raw[i + l] * raw[i + l];
        for (i64 l = 0; i < args.keys; ++i, ++l) parts[l] += raw[i] * raw[i];
        const A by = A(1) / std::sqrt(sum_of_lanes(parts) + A(args.eps));
        for (i = 0; i < args.keys; ++i) buffer[i] = by * raw[i];
        return buffer;
    }

    void head(i64 row, i64 h, A* work) const {
        const i64 d = args.keys, p = args.values, own = h / (args.heads / args.key_heads);
        A *y = work, *u = y + p, *copy = u + p, *vs = copy + p, *qs = vs + p, *ks = qs + d, *decays = ks + d;
        const A* q = unit(LINRNN_OPERAND(args, q), row, own, qs);
        const A* k = unit(LINRNN_OPERAND(args, k), row, own, ks);
        const A* v = read(LINRNN_OPERAND(args, v), row, h, p, vs);
        const Operand g = LINRNN_OPERAND(args, g);
        const A shared = vexp(args.key_decays ? A(0) : number(g, row, h, A(0)));
        if (args.key_decays) {
            const A* logs = read(g, row, h, d, decays);
            for (i64 i = 0; i < d; ++i) decays[i] = vexp(logs[i]);
        } else {
            for (i64 i = 0; i < d; ++i) decays[i] = shared;
        }
        const A beta = number(LINRNN_OPERAND(args, beta), row, h, A(1)), scale = A(args.scale);
        T* S = reinterpret_cast<T*>(args.state) + row * args.state_row + h * args.state_head;
        for (i64 i = 0; i < p; ++i) u[i] = y[i] = A(0);
        for (i64 i = 0; i < d; ++i) add(u, open_row(S + i * args.state_key, copy, p), decays[i] * k[i], p);
        for (i64 i = 0; i < p; ++i) u[i] = beta * (v[i] - u[i]);
        for (i64 i = 0; i < d; ++i) {
            T* place = S + i * args.state_key;
            A* line = open_row(place, copy, p);
            rewrite(line, u, y, decays[i], k[i], q[i], p);
            close_row(place, line, p);
        }
        for (i64 i = 0; i < p; ++i) y[i] *= scale;
        write(args.y, args.y_dtype, (row * args.heads + h) * p, p, y);
    }

    int dispatch() const {
        const i64 units = args.rows * args.heads, d = args.keys, p = args.values;
        const i64 threads = threads_for(units, 2 * units * d * p, args.threads);
        return for_each<A>(units, threads, 4 * p + 3 * d, [&](i64 unit, A* work) {
            head(unit / args.heads, unit % args.heads, work);
        });
    }
};

}  // namespace

LINRNN_UPDATE(delta_update, DeltaUpdate, DeltaUpdateArgs)

}  // namespace LINRNN_ISA
}  // namespace linrnn
