// One step of Mamba-2's memories that writes them in place, in every head:
//   S[p, n] <- exp(dt A) S[p, n] + dt x[p] B[n]     y[p] = (sum_n S[p, n] C[n] + D x[p]) silu(z[p])
//
// Compiled once for every instruction set: see scan.cpp.
#include "../operands.h"
#include "../update_args.h"

namespace linrnn {
namespace LINRNN_ISA {
namespace {

template <class T>
struct OuterUpdate {
    using A = typename Accumulator<T>::type;
    const OuterUpdateArgs& args;

    // A row of the state that belongs to one channel of x: its modes are summed.
    LINRNN_INLINE static A summed(A* __restrict S, const A* __restrict B, const A* __restrict C, A decay,
                                  A x, i64 n) {
        alignas(64) A parts[LANES] = {};
        i64 m = 0;
        for (; m + LANES <= n; m += LANES)
            for (i64 l = 0; l < LANES; ++l) {
                S[m + l] = decay * S[m + l] + x * B[m + l];
                parts[l] += S[m + l] * C[m + l];
            }
        for (i64 l = 0; m < n; ++m, ++l) {
            S[m] = decay * S[m] + x * B[m];
            parts[l] += S[m] * C[m];
        }
        return sum_of_lanes(parts);
    }
    // A row that belongs to one mode: it is added to all channels.
    static void spread(A* __restrict S, const A* __restrict x, A* __restrict y, A decay, A B, A C, i64 n) {
        for (i64 i = 0; i < n; ++i) {
            S[i] = decay * S[i] + B * x[i];
            y[i] += C * S[i];
        }
    }

    void head(i64 row, i64 h, A* work) const {
        const i64 p = args.width, n = args.modes, group = h / (args.heads / args.groups);
        A *y = work, *scaled = y + p, *buffer = scaled + p, *Bs = buffer + p, *Cs = Bs + n, *copy = Cs + n;
        const A dt = step(row, h), decay = vexp(dt * number(LINRNN_OPERAND(args, A), 0, h, A(0)));
        const A* x = read(LINRNN_OPERAND(args, x), row, h, p, buffer);
        const A* B = read(LINRNN_OPERAND(args, B), row, group, n, Bs);
        const A* C = read(LINRNN_OPERAND(args, C), row, group, n, Cs);
        const A skip = number(LINRNN_OPERAND(args, D), 0, h, A(0));
        T* S = reinterpret_cast<T*>(args.state) + row * args.state_row + h * args.state_head;
        for (i64 i = 0; i < p; ++i) scaled[i] = dt * x[i], y[i] = skip * x[i];
        if (args.state_mode == 1)
            for (i64 i = 0; i < p; ++i) {
                A* own = open_row(S + i * args.state_width, copy, n);
                y[i] += summed(own, B, C, decay, scaled[i], n);
                close_row(S + i * args.state_width, own, n);
            }
        else
            for (i64 m = 0; m < n; ++m) {
                A* own = open_row(S + m * args.state_mode, copy, p);
                spread(own, scaled, y, decay, B[m], C[m], p);
                close_row(S + m * args.state_mode, own, p);
            }
        const Operand z = LINRNN_OPERAND(args, z);
        if (z.data) gate(y, read(z, row, h, p, buffer), p);
        write(args.y, args.y_dtype, (row * args.heads + h) * p, p, y);
    }
    A step(i64 row, i64 h) const {
        A dt = number(LINRNN_OPERAND(args, dt), row, h, A(0)) + number(LINRNN_OPERAND(args, bias), 0, h, A(0));
        if (args.softplus) dt = vsoftplus(dt);
        dt = dt < A(args.least) ? A(args.least) : dt;
        return dt > A(args.most) ? A(args.most) : dt;
    }

    int dispatch() const {
        const i64 units = args.rows * args.heads, p = args.width, n = args.modes;
        const i64 threads = threads_for(units, units * p * n, args.threads);
        return for_each<A>(units, threads, 3 * p + 2 * n + (p > n ? p : n), [&](i64 unit, A* work) {
            head(unit / args.heads, unit % args.heads, work);
        });
    }
};

}  // namespace

LINRNN_UPDATE(outer_update, OuterUpdate, OuterUpdateArgs)

}  // namespace LINRNN_ISA
}  // namespace linrnn
