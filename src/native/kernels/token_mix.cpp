// Mixes of each input with the one before, which is zero where a sequence begins anew:
//   y_i,t = x_t + m_i,t (x_{t-1} - x_t),   m_i,t = mu_i + moved_i,t
// and their adjoint, which has one pass over the gradients of all mixes.
//
// Compiled once for every instruction set: see scan.cpp.
#include <cstring>

#include "../large_pages.h"
#include "../operands.h"
#include "../prefetch.h"
#include "../token_mix_args.h"

namespace linrnn {
namespace LINRNN_ISA {
namespace {

template <class A>
struct TokenMix {
    static constexpr i64 CHUNK = 64;  // steps of a unit of work
    static constexpr i64 AHEAD = 2;   // steps between naming a row and reading it
    const TokenMixArgs& args;
    const i64 n = args.channels;

    i64 chunks() const { return (args.time + CHUNK - 1) / CHUNK; }
    i64 units() const { return args.seqs * chunks(); }
    bool resets(i64 s, i64 t) const {
        auto mask = reinterpret_cast<const unsigned char*>(args.reset.data);
        return mask && mask[s * args.reset.seq + t * args.reset.step];
    }
    static i64 bytes_of(i64 dtype) { return dtype == F64 ? 8 : dtype == F32 ? 4 : 2; }
    // A row of n numbers that lie side by side, from number `at` on.
    const A* row(i64 data, i64 dtype, i64 at, A* buffer) const {
        return read(Operand{data + at * bytes_of(dtype), dtype, 0, 0, 1}, 0, 0, n, buffer);
    }
    const A* input(i64 s, i64 t, A* buffer) const {
        return row(args.x.data, args.x_dtype, s * args.x.seq + t * args.x.step, buffer);
    }
    // The input before step t, or null where nothing is.
    const A* before(i64 s, i64 t, A* buffer) const {
        if (resets(s, t)) return nullptr;
        return t ? input(s, t - 1, buffer) : reinterpret_cast<const A*>(args.past) + s * n;
    }
    i64 moved_at(i64 s, i64 t, i64 i) const {
        return s * args.moved.seq + t * args.moved.step + i * args.moved_mix;
    }
    // The factor of mix i at step t.
    const A* factor(i64 s, i64 t, i64 i, A* __restrict buffer) const {
        const A* mu = reinterpret_cast<const A*>(args.mu) + i * n;
        if (!args.moved.data) return mu;
        const A* moved = row(args.moved.data, args.moved_dtype, moved_at(s, t, i), buffer);
        for (i64 c = 0; c < n; ++c) buffer[c] = mu[c] + moved[c];
        return buffer;
    }
    i64 output(i64 i) const { return reinterpret_cast<const i64*>(args.outputs)[i]; }
    i64 place(i64 s, i64 t) const { return (s * args.time + t) * n; }
    static void way(const A* x, const A* before, A* __restrict to, i64 n) {
        if (before)
            for (i64 c = 0; c < n; ++c) to[c] = before[c] - x[c];
        else
            for (i64 c = 0; c < n; ++c) to[c] = -x[c];
    }

    // Names what step t reads, and writes where that is an output.
    void ask(i64 s, i64 t) const {
        if (t < 0 || t >= args.time) return;
        const i64 wide = bytes_of(args.output_dtype), x = bytes_of(args.x_dtype), moved = bytes_of(args.moved_dtype);
        prefetch(args.x.data + (s * args.x.seq + t * args.x.step) * x, n * x);
        for (i64 i = 0; i < args.mixes; ++i) {
            prefetch(output(i) + place(s, t) * wide, n * wide);
            if (args.moved.data) prefetch(args.moved.data + moved_at(s, t, i) * moved, n * moved);
        }
    }

    // work has room for ROOM rows
    static constexpr i64 ROOM = 9;
    void forward(i64 s, i64 t0, i64 t1, A* work) const {
        A *back = work + 2 * n, *buffer = work + 3 * n, *__restrict y = work + 4 * n;
        for (i64 t = t0; t < t1; ++t) {
            ask(s, t + AHEAD);
            const A* x = input(s, t, work);
            way(x, before(s, t, work + n), back, n);
            for (i64 i = 0; i < args.mixes; ++i) {
                const A* m = factor(s, t, i, buffer);
                for (i64 c = 0; c < n; ++c) y[c] = x[c] + m[c] * back[c];
                write(output(i), args.output_dtype, place(s, t), n, y);
            }
        }
    }

    // The gradient of the input before step t, and of that at t without what the step behind adds.
    void slopes(i64 s, i64 t, A* __restrict of_before, A* __restrict of_x, A* work) const {
        std::memset(of_before, 0, size_t(n) * sizeof(A));
        std::memset(of_x, 0, size_t(n) * sizeof(A));
        for (i64 i = 0; i < args.mixes; ++i) {
            const A* g = row(output(i), args.output_dtype, place(s, t), work);
            const A* m = factor(s, t, i, work + n);
            for (i64 c = 0; c < n; ++c) {
                const A share = g[c] * m[c];
                of_before[c] += share;
                of_x[c] += g[c] - share;
            }
        }
    }
    void backward(i64 s, i64 t0, i64 t1, double* sums, A* work) const {
        A *back = work + 2 * n, *of_x = work + 3 * n, *of_before = work + 4 * n, *later = work + 5 * n;
        A *rows = work + 6 * n, *__restrict product = work + 8 * n, *parts = work + ROOM * n;
        std::memset(parts, 0, size_t(args.mixes * n) * sizeof(A));
        std::memset(later, 0, size_t(n) * sizeof(A));
        if (t1 < args.time && !resets(s, t1)) slopes(s, t1, later, of_x, rows);
        for (i64 t = t1 - 1; t >= t0; --t) {
            ask(s, t - AHEAD);
            slopes(s, t, of_before, of_x, rows);
            for (i64 c = 0; c < n; ++c) of_x[c] += later[c];
            write(args.grad_x, args.x_dtype, place(s, t), n, of_x);
            const bool cut = resets(s, t);
            for (i64 c = 0; c < n; ++c) later[c] = cut ? A(0) : of_before[c];
            const A* x = input(s, t, work);
            way(x, before(s, t, work + n), back, n);
            for (i64 i = 0; i < args.mixes; ++i) {
                const A* g = row(output(i), args.output_dtype, place(s, t), rows);
                A* __restrict part = parts + i * n;
                for (i64 c = 0; c < n; ++c) {
                    product[c] = g[c] * back[c];
                    part[c] += product[c];
                }
                if (args.grad_moved) write(args.grad_moved, args.moved_dtype, moved_at(s, t, i), n, product);
            }
        }
        if (t0 == 0) copy(reinterpret_cast<A*>(args.grad_past) + s * n, later, n);
        for (i64 i = 0; i < args.mixes * n; ++i) sums[i] += double(parts[i]);
    }

    int dispatch() const {
        if (!units() || !n) return 0;
        const i64 numbers = args.seqs * args.time * n;
        for (i64 i = 0; i < args.mixes && !args.backward; ++i)
            advise(output(i), numbers * bytes_of(args.output_dtype));
        if (args.backward) {
            advise(args.grad_x, numbers * bytes_of(args.x_dtype));
            if (args.grad_moved) advise(args.grad_moved, args.mixes * numbers * bytes_of(args.moved_dtype));
        }
        const i64 groups = args.backward ? args.parts : units(), share = (units() + groups - 1) / groups;
        const i64 threads = threads_for(groups, 2 * numbers * args.mixes, args.threads);
        const i64 room = (ROOM + (args.backward ? args.mixes : 0)) * n;
        return for_each<A>(groups, threads, room, [&](i64 group, A* work) {
            double* sums = reinterpret_cast<double*>(args.sums) + group * args.mixes * n;
            for (i64 u = group * share; u < units() && u < (group + 1) * share; ++u) {
                const i64 s = u / chunks(), t0 = u % chunks() * CHUNK;
                const i64 t1 = t0 + CHUNK < args.time ? t0 + CHUNK : args.time;
                if (args.backward) backward(s, t0, t1, sums, work);
                else forward(s, t0, t1, work);
            }
        });
    }
};

}  // namespace

int token_mix(const void* record) {
    const auto& args = *static_cast<const TokenMixArgs*>(record);
    if (args.size != i64(sizeof(TokenMixArgs))) return 3;
    switch (args.dtype) {
        case F32: return TokenMix<float>{args}.dispatch();
        case F64: return TokenMix<double>{args}.dispatch();
    }
    return 2;
}

}  // namespace LINRNN_ISA
}  // namespace linrnn
