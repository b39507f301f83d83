// One step of a short convolution whose last inputs are a window that rolls in place:
//   state <- state[1:], x     y = act(bias + sum_j weight_j state_j)
//
// Compiled once for every instruction set: see scan.cpp.
#include "../operands.h"
#include "../update_args.h"

namespace linrnn {
namespace LINRNN_ISA {
namespace {

template <class T>
struct ConvUpdate {
    using A = typename Accumulator<T>::type;
    static constexpr i64 BLOCK = 64;  // channels
    const ConvUpdateArgs& args;

    // What a channel's window is after its roll, times the taps. W: the width, 0 where it varies.
    template <i64 W>
    A channel(T* __restrict window, A x, const A* __restrict taps) const {
        const i64 width = W ? W : args.width;
        T newest;
        A sum = A(0);
        put(&newest, &x, 1);
        for (i64 j = 0; j < width - 1; ++j) {
            window[j] = window[j + 1];
            sum += taps[j] * widen(window[j]);
        }
        window[width - 1] = newest;
        return sum + taps[width - 1] * widen(newest);
    }

    template <i64 W>
    void block(i64 row, i64 first, i64 n, A* work) const {
        A *v = work, *buffer = work + BLOCK, *taps = work + 2 * BLOCK;
        Operand x = LINRNN_OPERAND(args, x), weight = LINRNN_OPERAND(args, weight);
        Operand bias = LINRNN_OPERAND(args, bias);
        x.head = x.lane, bias.head = bias.lane;  // blocks begin at a channel
        const A* inputs = read(x, row, first, n, buffer);
        T* state = reinterpret_cast<T*>(args.state) + row * args.state_row;
        const bool dense = weight.lane == 1 && weight.head == args.width;
        const A* all = dense ? read(weight, 0, first, n * args.width, taps) : nullptr;
        for (i64 c = 0; c < n; ++c) {
            const A* own = dense ? all + c * args.width : read(weight, 0, first + c, args.width, taps);
            v[c] = channel<W>(state + (first + c) * args.state_channel, inputs[c], own);
        }
        if (bias.data) {
            const A* offsets = read(bias, 0, first, n, buffer);
            for (i64 c = 0; c < n; ++c) v[c] += offsets[c];
        }
        if (args.silu)
            for (i64 c = 0; c < n; ++c) v[c] *= vsigmoid(v[c]);
        write(args.y, args.y_dtype, row * args.channels + first, n, v);
    }

    int dispatch() const {
        const i64 blocks = (args.channels + BLOCK - 1) / BLOCK, units = args.rows * blocks;
        const i64 threads = threads_for(units, units * BLOCK * args.width, args.threads);
        return for_each<A>(units, threads, (2 + args.width) * BLOCK, [&](i64 unit, A* work) {
            const i64 first = unit % blocks * BLOCK, left = args.channels - first;
            const i64 n = left < BLOCK ? left : BLOCK;
            if (args.width == 4) block<4>(unit / blocks, first, n, work);
            else block<0>(unit / blocks, first, n, work);
        });
    }
};

}  // namespace

LINRNN_UPDATE(conv_update, ConvUpdate, ConvUpdateArgs)

}  // namespace LINRNN_ISA
}  // namespace linrnn
