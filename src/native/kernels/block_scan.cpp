// The recurrence h_t = A_t h_{t-1} + b_t of many small blocks, and its adjoint. A block of A_t is a
// matrix; or a permutation that scales, named by an index:
//
//   scatter: h_t[index[j]] += a[j] h_{t-1}[j]        gather: h_t[i] = a[i] h_{t-1}[index[i]] + b[i]
//
// Every thread owns some (sequence, blocks) and goes along time. The state is read where the step
// before wrote it, so each input is read once and each output written once.
//
// Compiled once for every instruction set: see scan.cpp.
#include <cstdlib>
#include <cstring>
#include <type_traits>

#include "../block_scan_args.h"
#include "../large_pages.h"
#include "../storage.h"
#include "../vecmath.h"

namespace linrnn {
namespace LINRNN_ISA {
namespace {

constexpr i64 STATE_BYTES = 8192;         // of the blocks of a unit: a quarter of the smallest L1
constexpr i64 SUMMED = 64;                // steps summed in working precision before going to double
constexpr i64 PARTS = 32;                 // of sequences with a sum of their own, at most
constexpr i64 BUSY_BYTES = 256 * 1024;    // data that occupies a thread for long enough
constexpr i64 COMPLEX_UNITS = 8;          // of all sequences, where these are fewer
constexpr int OUTSIDE = 4;                // an index is outside of its block

// ------------------------------------------------------------------------------ steps of matrices
// N: the side, where it is known. Numbers of complex blocks are (re, im), side by side. Products are
// added one after the other, so that each is one rounding, in a vector as behind its end: how real
// blocks are dealt out to threads changes no bit then.

// A sum of a row: of long ones in parts, which one register holds and which round less than one sum.
template <class A>
inline A product(const A* __restrict a, const A* __restrict h, i64 n) {
    constexpr i64 LANES = 8;
    A sum = A(0);
    i64 j = 0;
    if (n >= LANES) {
        A parts[LANES] = {};
        for (; j + LANES <= n; j += LANES)
            for (i64 k = 0; k < LANES; ++k) parts[k] += a[j + k] * h[j + k];
        for (i64 half = LANES / 2; half; half /= 2)
            for (i64 k = 0; k < half; ++k) parts[k] += parts[k + half];
        sum = parts[0];
    }
    for (; j < n; ++j) sum += a[j] * h[j];
    return sum;
}

template <bool CX, int N, class A>
LINRNN_APART void advance(A* __restrict out, const A* __restrict a, const A* __restrict b,
                    const A* __restrict h, i64 blocks, i64 side) {
    const i64 n = N ? N : side;
    if constexpr (!CX && N == 2) {
        for (i64 c = 0; c < blocks; ++c) {
            const A x = h[2 * c], y = h[2 * c + 1];
            out[2 * c] = a[4 * c + 1] * y + (a[4 * c] * x + b[2 * c]);
            out[2 * c + 1] = a[4 * c + 3] * y + (a[4 * c + 2] * x + b[2 * c + 1]);
        }
    } else if constexpr (!CX) {
        for (i64 c = 0; c < blocks; ++c, a += n * n, b += n, h += n, out += n)
            for (i64 i = 0; i < n; ++i) out[i] = b[i] + product(a + i * n, h, n);
    } else {
        for (i64 c = 0; c < blocks; ++c, a += 2 * n * n, b += 2 * n, h += 2 * n, out += 2 * n)
            for (i64 i = 0; i < n; ++i) {
                A re = b[2 * i], im = b[2 * i + 1];
                for (i64 j = 0; j < n; ++j) {
                    const A* x = a + 2 * (i * n + j);
                    re += x[0] * h[2 * j], im += x[0] * h[2 * j + 1];
                    re -= x[1] * h[2 * j + 1], im += x[1] * h[2 * j];
                }
                out[2 * i] = re, out[2 * i + 1] = im;
            }
    }
}

// carry = A^H delta;  grad_a = delta before^H, or that added to it
template <bool CX, int N, bool ADD, class A>
LINRNN_APART void retreat(A* __restrict carry, A* __restrict grad_a, const A* __restrict a,
                    const A* __restrict delta, const A* __restrict before, i64 blocks, i64 side) {
    const i64 n = N ? N : side;
    if constexpr (!CX && N == 2) {
        for (i64 c = 0; c < blocks; ++c) {
            const A d = delta[2 * c], e = delta[2 * c + 1], x = before[2 * c], y = before[2 * c + 1];
            carry[2 * c] = a[4 * c + 2] * e + (a[4 * c] * d + A(0));
            carry[2 * c + 1] = a[4 * c + 3] * e + (a[4 * c + 1] * d + A(0));
            A* g = grad_a + 4 * c;
            g[0] = d * x + (ADD ? g[0] : A(0)), g[1] = d * y + (ADD ? g[1] : A(0));
            g[2] = e * x + (ADD ? g[2] : A(0)), g[3] = e * y + (ADD ? g[3] : A(0));
        }
    } else if constexpr (!CX) {
        for (i64 c = 0; c < blocks; ++c) {
            const i64 at = c * n;
            for (i64 j = 0; j < n; ++j) carry[at + j] = A(0);
            for (i64 i = 0; i < n; ++i) {
                const A d = delta[at + i];
                const A* row = a + (at + i) * n;
                A* g = grad_a + (at + i) * n;
                for (i64 j = 0; j < n; ++j) {
                    carry[at + j] += row[j] * d;
                    g[j] = d * before[at + j] + (ADD ? g[j] : A(0));
                }
            }
        }
    } else {
        for (i64 c = 0; c < blocks; ++c) {
            const i64 at = 2 * c * n;
            for (i64 j = 0; j < 2 * n; ++j) carry[at + j] = A(0);
            for (i64 i = 0; i < n; ++i) {
                const A re = delta[at + 2 * i], im = delta[at + 2 * i + 1];
                const A* row = a + (at + 2 * i) * n;
                A* g = grad_a + (at + 2 * i) * n;
                for (i64 j = 0; j < 2 * n; j += 2) {
                    const A x = before[at + j], y = before[at + j + 1];
                    carry[at + j] += row[j] * re, carry[at + j + 1] += row[j] * im;
                    carry[at + j] += row[j + 1] * im, carry[at + j + 1] -= row[j + 1] * re;
                    A to = re * x + (ADD ? g[j] : A(0)), to_im = im * x + (ADD ? g[j + 1] : A(0));
                    g[j] = to + im * y, g[j + 1] = to_im - re * y;
                }
            }
        }
    }
}

// The same for the side of a call: chosen at each step, for what goes along time would else be compiled
// once for each side.
template <class F>
inline void with_side(i64 side, F step) {
    switch (side) {
        case 2: return step(std::integral_constant<int, 2>());
        case 3: return step(std::integral_constant<int, 3>());
        case 4: return step(std::integral_constant<int, 4>());
        case 8: return step(std::integral_constant<int, 8>());
        default: return step(std::integral_constant<int, 0>());
    }
}

// ------------------------------------------------------------------ steps of scaled permutations

// y += a x, or conj(a) x
template <bool CX, bool CONJ, class A>
inline void add_product(A* y, const A* a, const A* x) {
    if constexpr (!CX) {
        *y += *a * *x;
    } else {
        const A im = CONJ ? -a[1] : a[1], re = x[0];
        y[0] += a[0] * re, y[1] += a[0] * x[1];
        y[0] -= im * x[1], y[1] += im * re;
    }
}

// to = from + (the permutation) h; a number goes from `j` of h to `i`. False: an index is outside.
template <bool CX, bool CONJ, class A>
LINRNN_APART bool permute(A* to, const A* a, const i64* index, const A* h, i64 blocks, i64 n, bool gather) {
    constexpr i64 W = CX ? 2 : 1;
    bool inside = true;
    for (i64 c = 0; c < blocks; ++c)
        for (i64 k = c * n; k < (c + 1) * n; ++k) {
            const i64 other = index[k];
            if (other < 0 || other >= n) {
                inside = false;
                continue;
            }
            const i64 i = gather ? k : c * n + other, j = gather ? c * n + other : k;
            add_product<CX, CONJ>(to + W * i, a + W * k, h + W * j);
        }
    return inside;
}

// The gradient of the scales: delta at the place a number goes to, times conj(h) where it comes from.
template <bool CX, class A>
LINRNN_APART void of_scales(A* grad_a, const i64* index, const A* delta, const A* before, i64 blocks, i64 n,
                      bool gather) {
    constexpr i64 W = CX ? 2 : 1;
    for (i64 c = 0; c < blocks; ++c)
        for (i64 k = c * n; k < (c + 1) * n; ++k) {
            A* g = grad_a + W * k;
            for (i64 w = 0; w < W; ++w) g[w] = A(0);
            const i64 other = index[k];
            if (other < 0 || other >= n) continue;
            const i64 i = gather ? k : c * n + other, j = gather ? c * n + other : k;
            add_product<CX, true>(g, before + W * j, delta + W * i);
        }
}

// --------------------------------------------------------------------- one sequence, some blocks

template <class S, bool CX>
struct BlockScan {
    using A = typename Accumulator<S>::type;
    static constexpr i64 W = CX ? 2 : 1, BYTES = W * i64(sizeof(S));
    static constexpr bool AS_STORED = std::is_same<S, A>::value;
    const BlockScanArgs& args;

    bool permutes() const { return args.index.data != 0; }
    // Numbers of the transition for one number of a state.
    i64 cells() const { return permutes() ? 1 : args.side; }

    // Blocks [c, c + count) of a sequence; n scalars of a state, m of a transition.
    struct Unit {
        Span x;
        i64 c, count, n, m, skip, skip_a;
    };
    Unit unit(i64 s, i64 c, i64 count) const {
        const i64 n = count * args.side * W, skip = c * args.side * W;
        return {Span(args, s), c, count, n, n * cells(), skip, skip * cells()};
    }
    template <class P>
    static P* row(const Array& rows, i64 j, i64 skip, i64 bytes) {
        return reinterpret_cast<P*>(rows.data + j * rows.step * bytes) + skip;
    }
    static bool cut(const Array& reset, i64 j) {
        return reset.data && *reinterpret_cast<const std::uint8_t*>(reset.data + j * reset.step);
    }
    A* state(i64 address, const Unit& u) const {
        return reinterpret_cast<A*>(address) + u.x.s * args.blocks * args.side * W + u.skip;
    }
    Array decays(const Unit& u) const {
        return args.constant ? Array{args.a.data, 0, 0} : u.x.of(args.a, BYTES);
    }
    // A dense result like h, with `cells` numbers instead of one.
    Array dense(const Unit& u, i64 address, i64 per_number) const {
        const i64 step = args.blocks * args.side * per_number;
        return u.x.of(Array{address, args.time * step, step}, BYTES);
    }

    // Of a thread: what rows are converted in, and states.
    struct Work {
        A *zeros, *first, *second, *a, *b, *h, *grad_a;
        double* total;
        bool inside;
    };
    static i64 work_size(i64 n, i64 m) { return 5 * n + 2 * m; }
    static Work split(A* memory, i64 n, i64 m, double* total) {
        std::memset(memory, 0, size_t(n) * sizeof(A));
        A* a = memory + 5 * n;
        return {memory, memory + n, memory + 2 * n, a, memory + 3 * n, memory + 4 * n, a + m, total, true};
    }

    void forward(const Unit& u, Work& w) const {
        const Array a = decays(u), b = u.x.of(args.b, BYTES), out = u.x.of(args.h, BYTES);
        const Array reset = u.x.of(args.reset, 1), index = u.x.of(args.index, 8);
        const A* h = args.initial ? state(args.initial, u) : w.zeros;
        for (i64 j = 0; j < u.x.count; ++j) {
            const A* before = cut(reset, j) ? w.zeros : h;
            const A* a_t = fetch(row<const S>(a, j, u.skip_a, BYTES), w.a, u.m);
            const A* b_t = fetch(row<const S>(b, j, u.skip, BYTES), w.b, u.n);
            A* to = h == w.first ? w.second : w.first;
            if constexpr (AS_STORED) to = row<S>(out, j, u.skip, BYTES);
            if (permutes()) {
                copy(to, b_t, u.n);
                w.inside &= permute<CX, false>(to, a_t, row<const i64>(index, j, u.skip / W, 8), before,
                                               u.count, args.side, args.gather != 0);
            } else {
                with_side(args.side, [&](auto n) { advance<CX, n()>(to, a_t, b_t, before, u.count, args.side); });
            }
            if constexpr (!AS_STORED) put(row<S>(out, j, u.skip, BYTES), to, u.n);
            h = to;
        }
        copy(state(args.final, u), h, u.n);
    }

    void backward(const Unit& u, Work& w) const {
        const Array a = decays(u), g = u.x.of(args.b, BYTES), h = u.x.of(args.h, BYTES);
        const Array reset = u.x.of(args.reset, 1), index = u.x.of(args.index, 8);
        const Array out_a = dense(u, args.grad_a, cells()), out_b = dense(u, args.grad_b, 1);
        const A* initial = args.initial ? state(args.initial, u) : w.zeros;
        A *carry = w.first, *delta = w.second;
        copy(carry, state(args.final, u), u.n);
        if (args.constant) std::memset(w.grad_a, 0, size_t(u.m) * sizeof(A));
        for (i64 j = u.x.count - 1; j >= 0; --j) {
            const A* g_t = fetch(row<const S>(g, j, u.skip, BYTES), w.b, u.n);
            const A* a_t = fetch(row<const S>(a, j, u.skip_a, BYTES), w.a, u.m);
            const A* before = j ? fetch(row<const S>(h, j - 1, u.skip, BYTES), w.h, u.n) : initial;
            for (i64 i = 0; i < u.n; ++i) delta[i] = g_t[i] + carry[i];
            put(row<S>(out_b, j, u.skip, BYTES), delta, u.n);
            const bool begins = cut(reset, j);
            A* grad_a = w.grad_a;
            if constexpr (AS_STORED)
                if (!args.constant) grad_a = row<S>(out_a, j, u.skip_a, BYTES);
            if (begins) {
                std::memset(carry, 0, size_t(u.n) * sizeof(A));
                if (!args.constant) std::memset(grad_a, 0, size_t(u.m) * sizeof(A));
            } else if (permutes()) {
                const i64* index_t = row<const i64>(index, j, u.skip / W, 8);
                const bool gather = args.gather != 0;
                std::memset(carry, 0, size_t(u.n) * sizeof(A));
                permute<CX, true>(carry, a_t, index_t, delta, u.count, args.side, !gather);
                of_scales<CX>(grad_a, index_t, delta, before, u.count, args.side, gather);
            } else {
                with_side(args.side, [&](auto n) {
                    if (args.constant) retreat<CX, n(), true>(carry, grad_a, a_t, delta, before, u.count, args.side);
                    else retreat<CX, n(), false>(carry, grad_a, a_t, delta, before, u.count, args.side);
                });
            }
            if (!args.constant && !AS_STORED) put(row<S>(out_a, j, u.skip_a, BYTES), grad_a, u.m);
            if (args.constant && (j % SUMMED == 0))
                for (i64 i = 0; i < u.m; ++i) w.total[i] += double(grad_a[i]), grad_a[i] = 0;
        }
        copy(state(args.grad_initial, u), carry, u.n);
    }

    void run(const Unit& u, Work& w) const {
        if (args.backward) backward(u, w);
        else forward(u, w);
    }

    // ------------------------------------------------------------------------------ all of them

    i64 useful_threads() const {
        const i64 worth = steps_of(args) * args.blocks * args.side * (1 + cells()) * BYTES / BUSY_BYTES;
        return worth < 1 ? 1 : worth < args.threads ? worth : args.threads;
    }
    // Blocks of a unit: what its transition takes counts where it is the larger.
    i64 unit_blocks(i64 threads) const {
        const i64 bytes = args.side * W * i64(sizeof(A));
        i64 most = STATE_BYTES / bytes;
        // compilers round complex products in a vector not as behind its end: a number of units for all
        const i64 aim = CX ? COMPLEX_UNITS : threads;
        const i64 parts = (aim + args.seqs - 1) / args.seqs, share = (args.blocks + parts - 1) / parts;
        // no two threads write to one cache line, nor is a unit of a few numbers worth its loop
        const i64 least = 256 / bytes;
        most = most < share ? most : share;
        most = most > least ? most : least;
        return most < 1 ? 1 : most;
    }

    void advise_outputs() const {
        const i64 bytes = steps_of(args) * args.blocks * args.side * BYTES;
        if (!args.backward) advise(args.h.data, bytes);
        else advise(args.grad_b, bytes), advise(args.constant ? 0 : args.grad_a, bytes * cells());
    }

    // Sums in a fixed order: the same bits whatever thread computed them.
    void reduce(const double* totals, i64 parts) const {
        const i64 all = args.blocks * args.side * args.side * W;
        S* out = reinterpret_cast<S*>(args.grad_a);
        for (i64 i = 0; i < all; ++i) {
            double sum = 0;
            for (i64 p = 0; p < parts; ++p) sum += totals[p * all + i];
            const A rounded = A(sum);
            put(out + i, &rounded, 1);
        }
    }

    int dispatch() const {
        const i64 numbers = args.blocks * args.side, all = numbers * args.side * W;
        if (!numbers) return 0;
        const bool sums = args.backward && args.constant;
        if (!args.seqs) {
            if (sums) reduce(nullptr, 0);
            return 0;
        }
        advise_outputs();
        const i64 threads = useful_threads(), size = unit_blocks(threads);
        const i64 pieces = (args.blocks + size - 1) / size;
        const i64 group = sums ? (args.seqs + PARTS - 1) / PARTS : 1;
        const i64 groups = (args.seqs + group - 1) / group;
        double* totals = sums ? static_cast<double*>(std::calloc(size_t(groups * all), 8)) : nullptr;
        if (sums && !totals) return 1;
        const i64 n = size * args.side * W, m = n * cells();
        bool enough = true, inside = true;
#pragma omp parallel num_threads(int(threads)) if (threads > 1)
        {
            A* memory = static_cast<A*>(std::malloc(size_t(work_size(n, m)) * sizeof(A)));
            bool fine = memory != nullptr, kept_in = true;
#pragma omp for schedule(dynamic)
            for (i64 k = 0; k < groups * pieces; ++k) {
                if (!memory) continue;
                const i64 g = k / pieces, c = k % pieces * size;
                const i64 count = args.blocks - c < size ? args.blocks - c : size;
                for (i64 s = g * group; s < args.seqs && s < (g + 1) * group; ++s) {
                    const Unit u = unit(s, c, count);
                    Work w = split(memory, n, m, sums ? totals + g * all + u.skip_a : nullptr);
                    run(u, w);
                    kept_in = kept_in && w.inside;
                }
            }
#pragma omp critical
            enough = enough && fine, inside = inside && kept_in;
            std::free(memory);
        }
        if (sums && enough) reduce(totals, groups);
        std::free(totals);
        return !enough ? 1 : !inside ? OUTSIDE : 0;
    }
};

}  // namespace

int block_scan(const void* record) {
    const auto& args = *static_cast<const BlockScanArgs*>(record);
    if (args.size != i64(sizeof(BlockScanArgs))) return 3;
    switch (args.dtype) {
        case F32: return BlockScan<float, false>{args}.dispatch();
        case F64: return BlockScan<double, false>{args}.dispatch();
        case C64: return BlockScan<float, true>{args}.dispatch();
        case C128: return BlockScan<double, true>{args}.dispatch();
        case BF16: return BlockScan<bf16, false>{args}.dispatch();
        case F16: return BlockScan<f16, false>{args}.dispatch();
    }
    return 2;
}

}  // namespace LINRNN_ISA
}  // namespace linrnn
