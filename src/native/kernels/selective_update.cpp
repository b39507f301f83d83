// One step of `selective_scan` that writes its state in place:
//   h[c, n] <- exp(dt[c] A[c, n]) h[c, n] + dt[c] B[n] x[c]
//   y[c] = (sum_n C[n] h[c, n] + D[c] x[c]) silu(z[c])
//
// Compiled once for every instruction set: see scan.cpp.
#include "../operands.h"
#include "../update_args.h"

namespace linrnn {
namespace LINRNN_ISA {
namespace {

template <class T>
struct SelectiveUpdate {
    using A = typename Accumulator<T>::type;
    static constexpr i64 BLOCK = 64;  // channels
    const SelectiveUpdateArgs& args;

    // The modes [m, m + n) of a channel; what they add to y goes to parts.
    LINRNN_INLINE static void modes(A* __restrict h, const A* __restrict lam, const A* __restrict B,
                                    const A* __restrict C, A dt, A x, i64 n, A* __restrict parts) {
        for (i64 l = 0; l < n; ++l) {
            h[l] = vexp(dt * lam[l]) * h[l] + x * B[l];
            parts[l] += C[l] * h[l];
        }
    }
    A channel(A* h, const A* lam, const A* B, const A* C, A dt, A x) const {
        alignas(64) A parts[LANES] = {};
        i64 m = 0;
        for (; m + LANES <= args.modes; m += LANES)
            modes(h + m, lam + m, B + m, C + m, dt, dt * x, LANES, parts);
        if (m < args.modes) modes(h + m, lam + m, B + m, C + m, dt, dt * x, args.modes - m, parts);
        return sum_of_lanes(parts);
    }

    // dt of n channels, from `first` on.
    const A* steps(i64 row, i64 first, i64 n, A* to, A* buffer) const {
        Operand dt = LINRNN_OPERAND(args, dt), bias = LINRNN_OPERAND(args, bias);
        dt.head = dt.lane, bias.head = bias.lane;
        const A* raw = read(dt, row, first, n, buffer);
        for (i64 c = 0; c < n; ++c) to[c] = raw[c];
        if (bias.data) {
            const A* offsets = read(bias, 0, first, n, buffer);
            for (i64 c = 0; c < n; ++c) to[c] += offsets[c];
        }
        if (args.softplus)
            for (i64 c = 0; c < n; ++c) to[c] = vsoftplus(to[c]);
        return to;
    }

    void block(i64 row, i64 first, i64 n, A* work) const {
        A *y = work, *dts = work + BLOCK, *xs = work + 2 * BLOCK, *buffer = work + 3 * BLOCK;
        A *lams = work + 4 * BLOCK, *Bs = lams + args.modes, *Cs = Bs + args.modes, *copy = Cs + args.modes;
        Operand x = LINRNN_OPERAND(args, x), D = LINRNN_OPERAND(args, D), z = LINRNN_OPERAND(args, z);
        const Operand lam = LINRNN_OPERAND(args, A);
        x.head = x.lane, D.head = D.lane, z.head = z.lane;
        const A* dt = steps(row, first, n, dts, buffer);
        const A* input = read(x, row, first, n, xs);
        const A* B = read(LINRNN_OPERAND(args, B), row, 0, args.modes, Bs);
        const A* C = read(LINRNN_OPERAND(args, C), row, 0, args.modes, Cs);
        T* state = reinterpret_cast<T*>(args.state) + row * args.state_row;
        for (i64 c = 0; c < n; ++c) {
            T* place = state + (first + c) * args.state_channel;
            A* h = open_row(place, copy, args.modes);
            y[c] = channel(h, read(lam, 0, first + c, args.modes, lams), B, C, dt[c], input[c]);
            close_row(place, h, args.modes);
        }
        if (D.data) {
            const A* skip = read(D, 0, first, n, buffer);
            for (i64 c = 0; c < n; ++c) y[c] += skip[c] * input[c];
        }
        if (z.data) gate(y, read(z, row, first, n, buffer), n);
        write(args.y, args.y_dtype, row * args.channels + first, n, y);
    }

    int dispatch() const {
        const i64 blocks = (args.channels + BLOCK - 1) / BLOCK, units = args.rows * blocks;
        // an exponential for each number is worth more than reading it
        const i64 threads = threads_for(units, 4 * units * BLOCK * args.modes, args.threads);
        return for_each<A>(units, threads, 4 * (BLOCK + args.modes), [&](i64 unit, A* work) {
            const i64 first = unit % blocks * BLOCK, left = args.channels - first;
            block(unit / blocks, first, left < BLOCK ? left : BLOCK, work);
        });
    }
};

}  // namespace

LINRNN_UPDATE(selective_update, SelectiveUpdate, SelectiveUpdateArgs)

}  // namespace LINRNN_ISA
}  // namespace linrnn
