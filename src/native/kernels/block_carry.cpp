// States of diagonal systems carried over blocks of time, written over what the blocks add, and
// the adjoint. Nothing is allocated: a state is read where the block before left it.
//
// Compiled once for every instruction set: see scan.cpp.
#include "../block_carry_args.h"

namespace linrnn {
namespace LINRNN_ISA {
namespace {

template <class S, bool COMPLEX>
struct BlockCarry {
    static constexpr i64 PARTS = COMPLEX ? 2 : 1;
    const BlockCarryArgs& args;
    i64 width, sequence;  // numbers of a state, and of all blocks of a sequence

    explicit BlockCarry(const BlockCarryArgs& given)
        : args(given), width(PARTS * given.modes), sequence(width * given.blocks) {}

    static S* at(i64 address, i64 i) { return reinterpret_cast<S*>(address) + i; }

    // block, h = h, decay h + block
    void step(S* __restrict block, S* __restrict h, const S* __restrict decay) const {
        for (i64 k = 0; k < width; k += PARTS) {
            const S re = h[k], a = decay[k];
            if constexpr (COMPLEX) {
                const S im = h[k + 1], b = decay[k + 1];
                h[k] = a * re - b * im + block[k], h[k + 1] = a * im + b * re + block[k + 1];
                block[k + 1] = im;
            } else {
                h[k] = a * re + block[k];
            }
            block[k] = re;
        }
    }
    // The same with conj(decay), whose gradient gets conj(state) g.
    void step_back(S* __restrict block, S* __restrict g, const S* __restrict decay, const S* __restrict state,
                   S* __restrict of_decay) const {
        for (i64 k = 0; k < width; k += PARTS) {
            const S re = g[k], a = decay[k], s = state[k];
            if constexpr (COMPLEX) {
                const S im = g[k + 1], b = decay[k + 1], t = state[k + 1];
                of_decay[k] += s * re + t * im, of_decay[k + 1] += s * im - t * re;
                g[k] = a * re + b * im + block[k], g[k + 1] = a * im - b * re + block[k + 1];
                block[k + 1] = im;
            } else {
                of_decay[k] += s * re;
                g[k] = a * re + block[k];
            }
            block[k] = re;
        }
    }

    void forward(i64 i, const S* decay) const {
        S *left = at(args.left, i * sequence), *h = at(args.last, i * width);
        const S* first = at(args.first, i * width);
        for (i64 k = 0; k < width; ++k) h[k] = first[k];
        for (i64 n = 0; n < args.blocks; ++n) step(left + n * width, h, decay);
    }
    void backward(i64 i, const S* decay, S* of_decay) const {
        S *left = at(args.left, i * sequence), *g = at(args.first, i * width);
        const S *before = at(args.before, i * sequence), *last = at(args.last, i * width);
        for (i64 k = 0; k < width; ++k) g[k] = last[k];
        for (i64 n = args.blocks - 1; n >= 0; --n)
            step_back(left + n * width, g, decay, before + n * width, of_decay);
    }

    int dispatch() const {
        const i64 threads = args.channels < args.threads ? args.channels : args.threads;
#pragma omp parallel for schedule(static) num_threads(int(threads)) if (threads > 1)
        for (i64 c = 0; c < args.channels; ++c) {
            const S* decay = at(args.decay, c * width);
            S* of_decay = args.backward ? at(args.grad_decay, c * width) : nullptr;
            if (of_decay)
                for (i64 k = 0; k < width; ++k) of_decay[k] = 0;
            for (i64 i = c * args.seqs; i < (c + 1) * args.seqs; ++i) {
                if (of_decay) backward(i, decay, of_decay);
                else forward(i, decay);
            }
        }
        return 0;
    }
};

}  // namespace

int block_carry(const void* record) {
    const auto& args = *static_cast<const BlockCarryArgs*>(record);
    if (args.size != i64(sizeof(BlockCarryArgs))) return 3;
    switch (args.dtype) {
        case F32: return BlockCarry<float, false>{args}.dispatch();
        case F64: return BlockCarry<double, false>{args}.dispatch();
        case C64: return BlockCarry<float, true>{args}.dispatch();
        case C128: return BlockCarry<double, true>{args}.dispatch();
    }
    return 2;
}

}  // namespace LINRNN_ISA
}  // namespace linrnn
