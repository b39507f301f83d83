// The diagonal linear recurrence h_t = a_t h_{t-1} + b_t and its adjoint on a CPU.
//
// Two regimes. Wide: every thread owns some (sequence, channel block) and streams along time with
// the block's state in L1; each input is read once and each output written once. Narrow (too few
// channels for that): the threads take consecutive chunks of time that fit in cache, first compute
// what each chunk does to an incoming state, then, knowing the state that comes in, run it again
// from cache and write. Products over a chunk are kept in double: equal factors round equally,
// and the error of a product would otherwise grow with its length instead of with its root.
//
// Compiled once for every instruction set, each in its own namespace; no standard-library
// templates are used, so the linker cannot pick one set's code for another.
#include <cstdlib>
#include <cstring>

#include "../half_pairs.h"
#include "../lanes.h"
#include "../large_pages.h"
#include "../scan_args.h"
#include "../storage.h"
#ifdef _OPENMP
#include <omp.h>
#endif
#ifdef __unix__
#include <sched.h>
#endif

namespace linrnn {
namespace LINRNN_ISA {
namespace {

// ------------------------------------------------------------------------------- one time step
// n counts scalars: a complex channel is two, interleaved.

template <bool CX, class A>
inline void advance(A* __restrict h, const A* __restrict a, const A* __restrict b, i64 n) {
    if (!CX) {
        for (i64 i = 0; i < n; ++i) h[i] = a[i] * h[i] + b[i];
    } else {
        for (i64 i = 0; i < n; i += 2) {
            A re = h[i], im = h[i + 1];
            h[i] = a[i] * re - a[i + 1] * im + b[i];
            h[i + 1] = a[i] * im + a[i + 1] * re + b[i + 1];
        }
    }
}

// delta = g + carry;  grad_a = delta conj(before);  carry = conj(a) delta
template <bool CX, class A>
inline void retreat(A* __restrict carry, const A* __restrict a, const A* __restrict g,
                    const A* __restrict before, A* __restrict delta, A* __restrict grad_a, i64 n) {
    if (!CX) {
        for (i64 i = 0; i < n; ++i) {
            A d = g[i] + carry[i];
            delta[i] = d;
            grad_a[i] = d * before[i];
            carry[i] = a[i] * d;
        }
    } else {
        for (i64 i = 0; i < n; i += 2) {
            A re = g[i] + carry[i], im = g[i + 1] + carry[i + 1];
            delta[i] = re;
            delta[i + 1] = im;
            grad_a[i] = re * before[i] + im * before[i + 1];
            grad_a[i + 1] = im * before[i] - re * before[i + 1];
            carry[i] = a[i] * re + a[i + 1] * im;
            carry[i + 1] = a[i] * im - a[i + 1] * re;
        }
    }
}

// carry = conj(a) (g + carry), without the outputs
template <bool CX, class A>
inline void retreat_only(A* __restrict carry, const A* __restrict a, const A* __restrict g, i64 n) {
    if (!CX) {
        for (i64 i = 0; i < n; ++i) carry[i] = a[i] * (g[i] + carry[i]);
    } else {
        for (i64 i = 0; i < n; i += 2) {
            A re = g[i] + carry[i], im = g[i + 1] + carry[i + 1];
            carry[i] = a[i] * re + a[i + 1] * im;
            carry[i + 1] = a[i] * im - a[i + 1] * re;
        }
    }
}

// A product that underflows would otherwise stay at the smallest number there is (it rounds back
// up), where processors compute a hundred times slower.
constexpr double SMALLEST = 2.2250738585072014e-308;
inline double flush(double x) { return x > SMALLEST || x < -SMALLEST || x != x ? x : 0.0; }

template <bool CX, class A>
inline void multiply(double* __restrict p, const A* __restrict a, bool conj, i64 n) {
    if (!CX) {
        for (i64 i = 0; i < n; ++i) p[i] = flush(p[i] * double(a[i]));
    } else {
        for (i64 i = 0; i < n; i += 2) {
            double re = p[i], im = p[i + 1], x = a[i], y = conj ? -a[i + 1] : a[i + 1];
            p[i] = flush(re * x - im * y);
            p[i + 1] = flush(re * y + im * x);
        }
    }
}

// state = p * start + state, in double
template <bool CX, class A>
inline void compose(A* state, const double* p, const A* start, i64 n) {
    for (i64 i = 0; i < n; i += CX ? 2 : 1) {
        if (!CX) {
            state[i] = A(p[i] * double(start[i]) + double(state[i]));
        } else {
            double re = start[i], im = start[i + 1];
            A x = A(p[i] * re - p[i + 1] * im + double(state[i]));
            A y = A(p[i] * im + p[i + 1] * re + double(state[i + 1]));
            state[i] = x;
            state[i + 1] = y;
        }
    }
}

// ------------------------------------------------------------------------------------- waiting

// Where a team meets twice a chunk. OpenMP's own barrier spins for milliseconds, which on a busy
// machine keeps the very thread it waits for from running; this one soon gives its core away.
struct Meeting {
    int arrived = 0, round = 0;

    void wait(int team) {
#if defined(__GNUC__) && defined(__unix__)
        int mine = __atomic_load_n(&round, __ATOMIC_ACQUIRE);
        if (__atomic_add_fetch(&arrived, 1, __ATOMIC_ACQ_REL) == team) {
            __atomic_store_n(&arrived, 0, __ATOMIC_RELAXED);
            __atomic_store_n(&round, mine + 1, __ATOMIC_RELEASE);
            return;
        }
        for (int spins = 0; __atomic_load_n(&round, __ATOMIC_ACQUIRE) == mine; ++spins)
            if (spins > 2000) sched_yield();
#else
        (void)team;
#pragma omp barrier
#endif
    }
};

// ------------------------------------------------------------------- one sequence, some channels

constexpr i64 BLOCK_BYTES = 8192;   // state of a channel block: a quarter of the smallest L1
constexpr i64 FLUSH = 64;           // steps summed in working precision before going to double
constexpr i64 GROUPS = 256;        // of sequences, at most
constexpr i64 THREAD_BYTES = 256 * 1024;  // data that occupies a thread for long enough
constexpr i64 CACHE_BYTES = 512 * 1024;  // a chunk of time stays in a core's L2

template <class S, bool CX>
struct Scan {
    using A = typename Accumulator<S>::type;
    // Of decays: those of pairs of halves are complex numbers of the precision of states.
    using D = std::conditional_t<CX, A, S>;
    static constexpr bool PAIRS = CX && !std::is_same<S, A>::value;
    static constexpr i64 WIDTH = CX ? 2 : 1;
    static constexpr i64 BLOCK = BLOCK_BYTES / i64(sizeof(A));

    const ScanArgs& args;

    // One sequence: its steps in order of processing and its channels [c, c + n) as scalars.
    struct Span {
        i64 s, start, length, c, n;
    };

    i64 length(i64 s) const {
        auto cu = reinterpret_cast<const i64*>(args.offsets);
        return cu ? cu[s + 1] - cu[s] : args.time;
    }
    Span span(i64 s, i64 c, i64 n) const {
        auto cu = reinterpret_cast<const i64*>(args.offsets);
        return {s, cu ? cu[s] : 0, length(s), c, n};
    }
    // Step j in order of processing; the adjoint runs against the scan.
    i64 time_of(const Span& x, i64 j) const {
        bool flip = (args.reverse != 0) != (args.backward != 0);
        return x.start + (flip ? x.length - 1 - j : j);
    }
    A* state(i64 pointer, const Span& x) const {
        return reinterpret_cast<A*>(pointer) + x.s * args.channels * WIDTH + x.c;
    }
    void enter(const Span& x, A* h) const {
        i64 from = args.backward ? args.final : args.initial;
        if (from) put(h, state(from, x), x.n);
        else std::memset(h, 0, size_t(x.n) * sizeof(A));
    }
    void leave(const Span& x, const A* h) const {
        put(state(args.backward ? args.grad_initial : args.final, x), h, x.n);
    }

    // Walks one array along time in order of processing.
    template <class P>
    struct Cursor {
        P* p;
        i64 by;
        P* next() {
            P* now = p;
            p += by;
            return now;
        }
    };
    template <class P = S>
    Cursor<P> walk(const Array& array, const Span& x, i64 j) const {
        i64 seq = args.offsets ? 0 : x.s * array.seq, width = sizeof(P) == 1 ? 1 : WIDTH;
        i64 by = time_of(x, 1) - time_of(x, 0);
        P* p = reinterpret_cast<P*>(array.data) + (seq + time_of(x, j) * array.step) * width;
        return {p + (sizeof(P) == 1 ? 0 : x.c), by * array.step * width};
    }
    Cursor<const D> walk_decay(const Span& x, i64 j) const {
        if (args.constant) return {reinterpret_cast<const D*>(args.a.data) + x.c, 0};
        return walk<const D>(args.a, x, j);
    }
    Cursor<const std::uint8_t> walk_resets(const Span& x, i64 j) const {
        static const std::uint8_t never = 0;
        if (!args.reset.data) return {&never, 0};
        return walk<const std::uint8_t>(args.reset, x, j);
    }

#ifdef LINRNN_HALF_PRODUCTS
    bool turns_halves() const { return PAIRS && args.constant && has_half_products(); }
    void forward_halves(const Span& x, i64 j0, i64 j1, A* h) const {
        const HalfTurn<BLOCK> turn(walk_decay(x, j0).p, x.n);
        auto b = walk<const S>(args.b, x, j0);
        auto out = walk(args.h, x, j0);
        auto reset = walk_resets(x, j0);
        for (i64 j = j0; j < j1; ++j) {
            if (*reset.next()) std::memset(h, 0, size_t(x.n) * sizeof(A));
            advance_halves(h, turn.re, turn.im, b.next(), out.next(), x.n);
        }
    }
    void backward_halves(const Span& x, i64 j0, i64 j1, A* carry, double* grad_a_sum) const {
        const size_t bytes = size_t(x.n) * sizeof(A);
        const HalfTurn<BLOCK> turn(walk_decay(x, j0).p, x.n);
        alignas(64) A zero[BLOCK], same[BLOCK], crossed[BLOCK];
        std::memset(zero, 0, bytes), std::memset(same, 0, bytes), std::memset(crossed, 0, bytes);
        const A* first = args.initial ? this->state(args.initial, x) : zero;
        auto g = walk<const S>(args.b, x, j0);
        auto h = walk<const S>(args.h, x, j0 + 1);
        auto reset = walk_resets(x, j0);
        auto out = walk(Array{args.grad_b, args.time * args.channels, args.channels}, x, j0);
        auto step = [&](const auto* before) {
            retreat_halves(carry, turn.re, turn.im, g.next(), before, same, crossed, out.next(), x.n);
        };
        for (i64 j = j0; j < j1; ++j) {
            const S* earlier = h.next();
            const bool clear = *reset.next();
            if (clear) step(zero), std::memset(carry, 0, bytes);
            else if (j + 1 < x.length) step(earlier);
            else step(first);
            if ((j - j0) % FLUSH == FLUSH - 1 || j + 1 == j1) add_halves(same, crossed, grad_a_sum, x.n);
        }
    }
#endif

    // Steps [j0, j1) from the state in `h`, writing every output. N: scalars, when few and known.
    template <int N>
    void forward(const Span& x, i64 j0, i64 j1, A* state) const {
        const i64 n = N ? N : x.n;
        alignas(64) A abuf[N ? N : BLOCK], bbuf[N ? N : BLOCK], h[N ? N : BLOCK];
        put(h, state, n);
        auto a = walk_decay(x, j0);
        auto b = walk<const S>(args.b, x, j0);
        auto out = walk(args.h, x, j0);
        auto reset = walk_resets(x, j0);
#ifdef __GNUC__
        if constexpr (fits_register<A, CX, N>()) {
            using L = Lanes<A, CX, N>;
            L lanes = L::load(h);
            for (i64 j = j0; j < j1; ++j) {
                if (*reset.next()) lanes = L{};
                L decay = L::load(fetch(a.next(), abuf, n));
                lanes = decay.times(lanes) + L::load(fetch(b.next(), bbuf, n));
                lanes.store(h);
                put(out.next(), h, n);
            }
            put(state, h, n);
            return;
        }
#endif
        for (i64 j = j0; j < j1; ++j) {
            if (*reset.next()) std::memset(h, 0, size_t(n) * sizeof(A));
            advance<CX>(h, fetch(a.next(), abuf, n), fetch(b.next(), bbuf, n), n);
            put(out.next(), h, n);
        }
        put(state, h, n);
    }

    template <int N>
    void backward(const Span& x, i64 j0, i64 j1, A* state, double* grad_a_sum) const {
        constexpr i64 SIZE = N ? N : BLOCK;
        const i64 n = N ? N : x.n;
        const size_t bytes = size_t(n) * sizeof(A);
        alignas(64) A abuf[SIZE], gbuf[SIZE], hbuf[SIZE], delta[SIZE], grad_a[SIZE];
        alignas(64) A carry[SIZE], partial[SIZE], first[SIZE];
        put(carry, state, n);
        std::memset(partial, 0, bytes);
        if (args.initial) put(first, this->state(args.initial, x), n);
        else std::memset(first, 0, bytes);
        const Array dense_b{args.grad_b, args.time * args.channels, args.channels};
        const Array dense_a{args.grad_a, dense_b.seq, dense_b.step};
        auto a = walk_decay(x, j0);
        auto g = walk<const S>(args.b, x, j0);
        auto h = walk<const S>(args.h, x, j0 + 1);
        auto reset = walk_resets(x, j0);
        auto out_b = walk(dense_b, x, j0);
        auto out_a = walk<D>(dense_a, x, j0);
        for (i64 j = j0; j < j1; ++j) {
            const S* earlier = h.next();
            const A* before = j + 1 < x.length ? fetch(earlier, hbuf, n) : first;
            retreat<CX>(carry, fetch(a.next(), abuf, n), fetch(g.next(), gbuf, n), before, delta,
                        grad_a, n);
            if (*reset.next()) {
                std::memset(carry, 0, bytes);
                std::memset(grad_a, 0, bytes);
            }
            put(out_b.next(), delta, n);
            if (!args.constant) {
                put(out_a.next(), grad_a, n);
                continue;
            }
            for (i64 i = 0; i < n; ++i) partial[i] += grad_a[i];
            if ((j - j0) % FLUSH == FLUSH - 1 || j + 1 == j1) {
                for (i64 i = 0; i < n; ++i) grad_a_sum[i] += double(partial[i]), partial[i] = 0;
            }
        }
        put(state, carry, n);
    }

    // What steps [j0, j1) do to an incoming state: state_out = product * state_in + state.
    // Returns whether a reset cuts the state off; zero times infinity would not.
    template <int N>
    bool summarise(const Span& x, i64 j0, i64 j1, A* state, double* product) const {
        const i64 n = N ? N : x.n;
        alignas(64) A abuf[N ? N : BLOCK], bbuf[N ? N : BLOCK], h[N ? N : BLOCK];
        alignas(64) double p[N ? N : BLOCK];
        std::memset(h, 0, size_t(n) * sizeof(A));
        for (i64 i = 0; i < n; ++i) p[i] = CX && (i & 1) ? 0.0 : 1.0;
        auto a = walk_decay(x, j0);
        auto b = walk<const S>(args.b, x, j0);
        auto reset = walk_resets(x, j0);
        bool cut = false;
#ifdef __GNUC__
        if constexpr (fits_register<A, CX, N>() && N / WIDTH == 8) {
            using L = Lanes<A, CX, N>;
            L lanes{};
            WideProduct<A, CX, N> wide;
            for (i64 j = j0; j < j1; ++j) {
                bool clear = *reset.next();
                cut = cut || clear;
                L decay = L::load(fetch(a.next(), abuf, n)), input = L::load(fetch(b.next(), bbuf, n));
                wide.multiply(decay, args.backward, SMALLEST);
                if (args.backward) lanes = decay.template times<true>(input + lanes);
                if (clear) lanes = L{};
                if (!args.backward) lanes = decay.times(lanes) + input;
            }
            lanes.store(h);
            wide.store(product);
            put(state, h, n);
            return cut;
        }
#endif
        for (i64 j = j0; j < j1; ++j) {
            bool clear = *reset.next();
            cut = cut || clear;
            const A* a_t = fetch(a.next(), abuf, n);
            const A* b_t = fetch(b.next(), bbuf, n);
            multiply<CX>(p, a_t, args.backward, n);
            if (args.backward) retreat_only<CX>(h, a_t, b_t, n);
            if (clear) std::memset(h, 0, size_t(n) * sizeof(A));
            if (!args.backward) advance<CX>(h, a_t, b_t, n);
        }
        put(state, h, n);
        for (i64 i = 0; i < n; ++i) product[i] = p[i];
        return cut;
    }

    template <int N>
    void run_n(const Span& x, i64 j0, i64 j1, A* state, double* grad_a_sum) const {
        if (args.backward) backward<N>(x, j0, j1, state, grad_a_sum);
        else forward<N>(x, j0, j1, state);
    }
    void run(const Span& x, i64 j0, i64 j1, A* state, double* grad_a_sum) const {
        if (j0 >= j1) return;
#ifdef LINRNN_HALF_PRODUCTS
        if constexpr (PAIRS)
            if (turns_halves())
                return args.backward ? backward_halves(x, j0, j1, state, grad_a_sum) : forward_halves(x, j0, j1, state);
#endif
        switch (x.n) {
            case 1: return run_n<WIDTH>(x, j0, j1, state, grad_a_sum);  // complex: n is even
            case 2: return run_n<2>(x, j0, j1, state, grad_a_sum);
            case 4: return run_n<4>(x, j0, j1, state, grad_a_sum);
            case 8: return run_n<8>(x, j0, j1, state, grad_a_sum);
            case 16: return run_n<16>(x, j0, j1, state, grad_a_sum);
            case 32: return run_n<32>(x, j0, j1, state, grad_a_sum);
            default: return run_n<0>(x, j0, j1, state, grad_a_sum);
        }
    }
    bool summary(const Span& x, i64 j0, i64 j1, A* state, double* product) const {
        switch (x.n) {
            case 1: return summarise<WIDTH>(x, j0, j1, state, product);
            case 2: return summarise<2>(x, j0, j1, state, product);
            case 4: return summarise<4>(x, j0, j1, state, product);
            case 8: return summarise<8>(x, j0, j1, state, product);
            case 16: return summarise<16>(x, j0, j1, state, product);
            case 32: return summarise<32>(x, j0, j1, state, product);
            default: return summarise<0>(x, j0, j1, state, product);
        }
    }

    // ---------------------------------------------------------------------------- the two regimes

    double* grad_a_rows(i64 rows) const {
        if (!(args.backward && args.constant)) return nullptr;
        return static_cast<double*>(std::calloc(size_t(rows * args.channels * WIDTH), 8));
    }
    // Sum partial gradients in a fixed order: the same bits whatever thread computed them.
    void reduce(double* rows, i64 count) const {
        if (!rows) return;
        i64 n = args.channels * WIDTH;
        D* out = reinterpret_cast<D*>(args.grad_a);
        for (i64 r = 1; r < count; ++r)
            for (i64 i = 0; i < n; ++i) rows[i] += rows[r * n + i];
        for (i64 i = 0; i < n; ++i) {
            A sum = A(rows[i]);
            put(out + i, &sum, 1);
        }
        std::free(rows);
    }

    // Threads worth waking: waiting for one costs what a core streams in about 10 microseconds.
    i64 useful_threads() const {
        auto cu = reinterpret_cast<const i64*>(args.offsets);
        i64 steps = cu ? cu[args.seqs] : args.seqs * args.time;
        i64 worth = steps * args.channels * WIDTH * i64(sizeof(S)) / THREAD_BYTES;
        return worth < 1 ? 1 : worth < args.threads ? worth : args.threads;
    }

    int run_wide(i64 block, int threads) const {
        i64 n = args.channels * WIDTH, blocks = (n + block - 1) / block;
        // Thousands of packed sequences share a row of partial gradients: a fixed number of
        // groups bounds the memory and keeps the order of the sum independent of the threads.
        i64 group = (args.seqs + GROUPS - 1) / GROUPS, groups = (args.seqs + group - 1) / group;
        double* rows = grad_a_rows(groups);
        if (args.backward && args.constant && !rows) return 1;
#pragma omp parallel for num_threads(threads) schedule(dynamic) if (threads > 1)
        for (i64 u = 0; u < groups * blocks; ++u) {
            i64 g = u / blocks, c = (u % blocks) * block, width = n - c < block ? n - c : block;
            alignas(64) A h[BLOCK];
            for (i64 s = g * group; s < args.seqs && s < (g + 1) * group; ++s) {
                Span x = span(s, c, width);
                enter(x, h);
                run(x, 0, x.length, h, rows ? rows + g * n + c : nullptr);
                leave(x, h);
            }
        }
        reduce(rows, groups);
        return 0;
    }

    // What the threads of a narrow scan share: what each chunk of a round does to a state.
    struct Team {
        A* states;         // (threads, n): leaving state of each chunk, from zero but for chunk 0
        double* products;  // (threads, n)
        bool* cuts;        // (threads)
        A* entering;       // (n): state before the round
        Meeting meeting;
    };

    int run_narrow(int threads) const {
        i64 n = args.channels * WIDTH;
        i64 chunk = CACHE_BYTES / (n * i64(sizeof(S)) * (args.backward ? 3 : 2));
        if (chunk < 64) chunk = 64;
        double* rows = grad_a_rows(args.seqs * threads);
        A* states = static_cast<A*>(std::malloc(size_t((threads + 1) * n) * sizeof(A)));
        double* products = static_cast<double*>(std::malloc(size_t(threads * n) * 8));
        bool* cuts = static_cast<bool*>(std::calloc(size_t(threads), sizeof(bool)));
        bool enough = states && products && cuts && (rows || !args.backward || !args.constant);
        for (i64 s = 0; enough && s < args.seqs; ++s) {
            Span x = span(s, 0, n);
            Team team{states, products, cuts, states + threads * n, {}};
            enter(x, team.entering);
#pragma omp parallel num_threads(threads)
            {
#ifdef _OPENMP
                int k = omp_get_thread_num(), members = omp_get_num_threads();
#else
                int k = 0, members = 1;
#endif
                for (i64 round = 0; round < x.length; round += chunk * members)
                    narrow_round(x, round, chunk, k, members, team,
                                 rows ? rows + (s * threads + k) * n : nullptr);
            }
            leave(x, team.entering);
        }
        std::free(states), std::free(products), std::free(cuts);
        if (enough) reduce(rows, args.seqs * threads);
        else std::free(rows);
        return enough ? 0 : 1;
    }

    void narrow_round(const Span& x, i64 round, i64 chunk, int k, int members, Team& team,
                      double* grad_a_sum) const {
        i64 n = x.n, j0 = round + k * chunk, j1 = j0 + chunk;
        if (j0 > x.length) j0 = x.length;
        if (j1 > x.length) j1 = x.length;
        alignas(64) A h[BLOCK];
        if (k == 0) {  // knows its incoming state: no summary needed
            put(h, team.entering, n);
            run(x, j0, j1, h, grad_a_sum);
            put(team.states, h, n);
        } else {
            team.cuts[k] = summary(x, j0, j1, team.states + k * n, team.products + k * n);
        }
        team.meeting.wait(members);
        if (k > 0) {
            put(h, team.states, n);
            for (int i = 1; i < k; ++i)
                step_over(h, team.states + i * n, team.products + i * n, team.cuts[i], n);
            run(x, j0, j1, h, grad_a_sum);
        }
        if (k == members - 1) put(team.entering, h, n);
        team.meeting.wait(members);
    }

    static void step_over(A* h, const A* state, const double* product, bool cut, i64 n) {
        alignas(64) A out[BLOCK];
        put(out, state, n);
        if (!cut) compose<CX>(out, product, h, n);
        put(h, out, n);
    }

    // All there is to say: a constant decay had no effect.
    int no_sequence() const {
        const A none = A(0);
        for (i64 i = 0; args.backward && args.constant && i < args.channels * WIDTH; ++i)
            put(reinterpret_cast<D*>(args.grad_a) + i, &none, 1);
        return 0;
    }

    void advise_outputs() const {
        auto cu = reinterpret_cast<const i64*>(args.offsets);
        i64 steps = cu ? cu[args.seqs] : args.seqs * args.time;
        i64 bytes = steps * args.channels * WIDTH * i64(sizeof(S));
        if (!args.backward) advise(args.h.data, bytes);
        else advise(args.grad_b, bytes), advise(args.constant ? 0 : args.grad_a, bytes);
    }

    int dispatch() const {
        i64 n = args.channels * WIDTH, threads = useful_threads(), block = BLOCK;
        if (!n) return 0;
        if (!args.seqs) return no_sequence();
        advise_outputs();
        if (args.seqs < threads) {
            // Share a row between threads, in whole cache lines and no fewer than four of them.
            i64 line = 64 / i64(sizeof(S)), parts = (threads + args.seqs - 1) / args.seqs;
            block = (n / parts + line - 1) / line * line;
            if (block < 4 * line) block = 4 * line;
            if (block > BLOCK) block = BLOCK;
        }
        bool enough = args.seqs * ((n + block - 1) / block) >= threads;
        if (enough || n > BLOCK) return run_wide(block, int(threads));
        // all but the first run their chunk twice: two threads are no faster than one alone
        return run_narrow(threads > 2 ? int(threads) : 1);
    }
};

}  // namespace

int scan(const void* record) {
    const ScanArgs& args = *static_cast<const ScanArgs*>(record);
    if (args.size != i64(sizeof(ScanArgs))) return 3;
    switch (args.dtype) {
        case F32: return Scan<float, false>{args}.dispatch();
        case F64: return Scan<double, false>{args}.dispatch();
        case C64: return Scan<float, true>{args}.dispatch();
        case C128: return Scan<double, true>{args}.dispatch();
        case BF16: return Scan<bf16, false>{args}.dispatch();
        case F16: return Scan<f16, false>{args}.dispatch();
        case CBF16: return Scan<bf16, true>{args}.dispatch();
    }
    return 2;
}

}  // namespace LINRNN_ISA
}  // namespace linrnn
