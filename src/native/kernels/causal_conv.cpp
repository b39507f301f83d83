// The short depthwise convolution along time and its adjoint on a CPU:
//   v_t = bias + sum_{j < width} w_{width-1-j} x_{t-j},   y = v or silu(v)
// where no term reaches over a reset. Every output depends on a few rows only, so chunks of steps
// are independent: the adjoint computes the gradient of v for a chunk and the few steps after it.
//
// Compiled once for every instruction set: see scan.cpp.
#include <cstdlib>
#include <cstring>

#include "../causal_conv_args.h"
#include "../half_rows.h"
#include "../large_pages.h"
#include "../prefetch.h"
#include "../storage.h"
#include "../vecmath.h"
#ifdef _OPENMP
#include <omp.h>
#endif

namespace linrnn {
namespace LINRNN_ISA {
namespace {

template <class S>
struct CausalConv {
    using A = typename Accumulator<S>::type;
    static constexpr int L = 256 / sizeof(A);  // channels of a block
    static constexpr i64 CHUNK = 32;           // steps of a unit of work
    static constexpr i64 TILE = 512;           // steps of one channel at a time
    static constexpr int STEPS = 4;            // whose shares of the taps' gradients are added at once
    const CausalConvArgs& args;

    // Step t of the one sequence that the arrays hold: see unit().
    static S* at(const Array& x, i64 t) { return reinterpret_cast<S*>(x.data) + t * x.step; }
    static i64 chunks(i64 steps) { return (steps + CHUNK - 1) / CHUNK; }
    const A* tap(i64 j, i64 c) const {  // the weight of the input j steps ago
        return reinterpret_cast<const A*>(args.weight) + (args.width - 1 - j) * args.channels + c;
    }
    // Steps back from t that belong to the same sequence, as far as the taps go.
    i64 reach(i64 t) const {
        if (!args.reset.data) return args.width - 1;
        auto mask = reinterpret_cast<const unsigned char*>(args.reset.data);
        for (i64 j = 0; j < args.width - 1 && j <= t; ++j)
            if (mask[(t - j) * args.reset.step]) return j;
        return args.width - 1;
    }
    i64 past_row(i64 s, i64 t) const {
        return (s * (args.width - 1) + args.width - 1 + t) * args.channels;
    }

    template <class T>
    static void accumulate(A* __restrict to, const A* __restrict w, const T* __restrict x, i64 n) {
        if (n == L)
            for (int l = 0; l < L; ++l) to[l] += w[l] * widen(x[l]);
        else
            for (i64 l = 0; l < n; ++l) to[l] += w[l] * widen(x[l]);
    }
    // The convolution at step t, channels [c, c + n).
    void convolve(i64 s, i64 t, i64 c, i64 n, A* __restrict v) const {
        std::memset(v, 0, L * sizeof(A));
        if (args.bias) put(v, reinterpret_cast<const A*>(args.bias) + c, n);
        for (i64 j = 0, last = reach(t); j <= last; ++j) {
            if (j <= t) accumulate(v, tap(j, c), at(args.x, t - j) + c, n);
            else accumulate(v, tap(j, c), reinterpret_cast<const A*>(args.past) + past_row(s, t - j) + c, n);
        }
    }

    // Whether every term of step t is an input of the sequence itself, as most are.
    bool whole(i64 t) const { return t >= args.width - 1 && reach(t) == args.width - 1; }
    // Calls f with the width and whether there is a silu, known to the compiler; false: it varies.
    template <class F>
    bool known_width(F f) const {
        switch (args.width) {
            case 2: return args.silu ? f(Known<2, true>()) : f(Known<2, false>()), true;
            case 3: return args.silu ? f(Known<3, true>()) : f(Known<3, false>()), true;
            case 4: return args.silu ? f(Known<4, true>()) : f(Known<4, false>()), true;
        }
        return false;
    }
    template <int W, bool SILU>
    struct Known {
        static constexpr int width = W;
        static constexpr bool silu = SILU;
    };
    // Rows t, t - 1, .. of the input and the weights of each, for a step that is `whole`.
    template <int W>
    struct Window {
        const S* x[W];
        const A *w[W], *bias;

        Window(const CausalConv& of, i64 t, const A* none) : bias(none) {
            for (int j = 0; j < W; ++j) x[j] = at(of.args.x, t - j), w[j] = of.tap(j, 0);
            if (of.args.bias) bias = reinterpret_cast<const A*>(of.args.bias);
        }
        LINRNN_INLINE A at_channel(i64 c) const {
            A v = bias[c];
            for (int j = 0; j < W; ++j) v += w[j][c] * widen(x[j][c]);
            return v;
        }
    };
    template <int W, bool SILU>
    void forward_row(i64 t, const A* none) const {
        const Window<W> window(*this, t, none);
        S* __restrict y = at(args.y, t);
        for (i64 c = 0; c < args.channels; ++c) {
            A v = window.at_channel(c);
            if constexpr (SILU) v *= vsigmoid(v);
            store_one(v, y[c]);
        }
    }
    static LINRNN_INLINE void store_one(A v, float& to) { to = float(v); }
    static LINRNN_INLINE void store_one(A v, double& to) { to = double(v); }
    template <class T>
    static LINRNN_INLINE void store_one(A v, T& to) { narrow(v, to); }

#ifdef LINRNN_HALF_PRODUCTS
    // Rows of bfloat16 numbers go a line of the cache at a time, from step to step: what a step shares with
    // those around it stays in registers. Rows that the next chunk reads and writes are named meanwhile.
    static constexpr i64 V = 16;  // channels of a register
    template <int R>
    using Registers = std::integral_constant<int, R>;
    template <int W>
    struct Taps {
        __mmask16 some;
        __m512 w[W], bias;

        Taps() = default;
        LINRNN_BF16_TARGET Taps(const CausalConv& of, i64 c) : some(lanes_left(of.args.channels - c)) {
            for (int j = 0; j < W; ++j) w[j] = load_lanes(of.tap(j, c), some);
            bias = _mm512_setzero_ps();
            if (of.args.bias) bias = load_lanes(reinterpret_cast<const A*>(of.args.bias) + c, some);
        }
        // Of inputs of this step and those before it.
        LINRNN_BF16_TARGET LINRNN_INLINE __m512 convolve(const __m512 (&x)[W]) const {
            __m512 v = bias;
            for (int j = 0; j < W; ++j) v = _mm512_fmadd_ps(w[j], x[j], v);
            return v;
        }
    };
    template <int W>
    LINRNN_BF16_TARGET static LINRNN_INLINE void push(__m512 (&row)[W], __m512 x) {
        for (int j = W - 1; j > 0; --j) row[j] = row[j - 1];
        row[0] = x;
    }
    // R registers of channels side by side.
    template <int W, int R>
    struct Group {
        Taps<W> taps[R];

        LINRNN_BF16_TARGET Group(const CausalConv& of, i64 c) {
            for (int r = 0; r < R; ++r) taps[r] = Taps<W>(of, c + r * V);
        }
        LINRNN_BF16_TARGET LINRNN_INLINE void push_row(__m512 (&x)[R][W], const S* row) const {
            for (int r = 0; r < R; ++r) push(x[r], load_lanes(row + r * V, taps[r].some));
        }
    };
    template <bool WRITES = false>
    static LINRNN_INLINE void ask(const Array& x, i64 t, i64 c) {
        prefetch<WRITES>(reinterpret_cast<i64>(at(x, t + CHUNK) + c), 1);
    }
    template <int W, bool SILU, int R>
    LINRNN_BF16_TARGET void forward_lanes(i64 t0, i64 t1, i64 c) const {
        const Group<W, R> group(*this, c);
        __m512 x[R][W] = {};
        for (i64 t = t0 - W + 1; t < t0; ++t) group.push_row(x, at(args.x, t) + c);
        for (i64 t = t0; t < t1; ++t) {
            ask(args.x, t, c), ask<true>(args.y, t, c);
            group.push_row(x, at(args.x, t) + c);
            for (int r = 0; r < R; ++r) {
                __m512 v = group.taps[r].convolve(x[r]);
                if constexpr (SILU) v = _mm512_mul_ps(v, lanes_sigmoid(v).value);
                store_lanes(at(args.y, t) + c + r * V, group.taps[r].some, v);
            }
        }
    }
    // The gradient of v at a step.
    template <bool SILU>
    LINRNN_BF16_TARGET static LINRNN_INLINE __m512 slope_lanes(__m512 grad, __m512 v) {
        if constexpr (!SILU) return grad;
        const LanesSigmoid gate = lanes_sigmoid(v);
        return _mm512_mul_ps(grad, _mm512_mul_ps(gate.value, lanes_plus_one(_mm512_mul_ps(v, gate.rest))));
    }
    // Slopes before step `end` reach inputs [t0, t1).
    template <int W, bool SILU, int R>
    LINRNN_BF16_TARGET void backward_lanes(i64 t0, i64 t1, i64 end, i64 c, double* sums) const {
        const Group<W, R> group(*this, c);
        __m512 x[R][W] = {}, slopes[R][W] = {}, into[R][W + 1] = {};
        for (i64 t = t0 - W + 1; t < t0; ++t) group.push_row(x, at(args.x, t) + c);
        for (i64 t = t0; t < t1 + W - 1; ++t) {
            if (t < end) group.push_row(x, at(args.x, t) + c);
            if (t < t1) ask(args.x, t, c), ask(args.y, t, c), ask<true>(args.grad_x, t, c);
            for (int r = 0; r < R; ++r) {
                const Taps<W>& taps = group.taps[r];
                __m512 slope = _mm512_setzero_ps();
                if (t < end)
                    slope = slope_lanes<SILU>(load_lanes(at(args.y, t) + c + r * V, taps.some), taps.convolve(x[r]));
                push(slopes[r], slope);
                if (t < t1) {
                    for (int j = 0; j < W; ++j) into[r][j] = _mm512_fmadd_ps(slope, x[r][j], into[r][j]);
                    into[r][W] = _mm512_add_ps(into[r][W], slope);
                }
                const i64 input = t - W + 1;
                if (input < t0) continue;
                __m512 total = _mm512_mul_ps(taps.w[0], slopes[r][W - 1]);
                for (int j = 1; j < W; ++j) total = _mm512_fmadd_ps(taps.w[j], slopes[r][W - 1 - j], total);
                store_lanes(at(args.grad_x, input) + c + r * V, taps.some, total);
            }
        }
        for (int r = 0; r < R; ++r)
            for (int j = 0; j <= W; ++j) add_lanes(into[r][j], sums + (j < W ? W - 1 - j : W) * args.channels, c + r * V);
    }
    LINRNN_BF16_TARGET void add_lanes(__m512 x, double* to, i64 c) const {
        alignas(64) float part[V];
        _mm512_store_ps(part, x);
        for (i64 l = 0; l < V && c + l < args.channels; ++l) to[c + l] += double(part[l]);
    }
    // Calls f of a line of channels at a time, with how many registers it fills, where steps [t0, t1) can
    // be computed by those.
    template <class F>
    bool each_lanes(i64 t0, i64 t1, F f) const {
        if (!has_half_products() || !whole(t0, t1)) return false;
        for (i64 c = 0; c < args.channels; c += 2 * V) {
            const bool two = c + V < args.channels;
            const auto line = [&](auto k) { two ? f(k, Registers<2>(), c) : f(k, Registers<1>(), c); };
            if (!known_width(line)) return false;
        }
        return true;
    }
#endif
    bool forward_halves(i64 t0, i64 t1) const {
#ifdef LINRNN_HALF_PRODUCTS
        if constexpr (std::is_same<S, bf16>::value)
            return each_lanes(t0, t1, [&](auto k, auto r, i64 c) { forward_lanes<k.width, k.silu, r.value>(t0, t1, c); });
#endif
        return (void)t0, (void)t1, false;
    }
    bool backward_halves(i64 t0, i64 t1, i64 end, double* sums) const {
#ifdef LINRNN_HALF_PRODUCTS
        if constexpr (std::is_same<S, bf16>::value)
            return each_lanes(t0, end, [&](auto k, auto r, i64 c) {
                backward_lanes<k.width, k.silu, r.value>(t0, t1, end, c, sums);
            });
#endif
        return (void)t0, (void)t1, (void)end, (void)sums, false;
    }

    // `none` is a row of zeros, where there is no bias.
    void forward(i64 s, i64 t0, i64 t1, const A* none) const {
        if (forward_halves(t0, t1)) return;
        alignas(64) A v[L];
        for (i64 t = t0; t < t1; ++t) {
            if (whole(t) && known_width([&](auto k) { forward_row<k.width, k.silu>(t, none); })) continue;
            for (i64 c = 0; c < args.channels; c += L) {
                i64 n = width(c);
                convolve(s, t, c, n, v);
                if (args.silu)
                    for (int l = 0; l < L; ++l) v[l] *= vsigmoid(v[l]);
                put(at(args.y, t) + c, v, n);
            }
        }
    }

    // Gradients of x (and past) for steps [t0, t1); of weight and bias from outputs [t0, t1).
    void backward(i64 s, i64 t0, i64 t1, double* sums, A* work, const A* none) const {
        i64 end = t1 + args.width - 1 < args.time ? t1 + args.width - 1 : args.time;
        if (backward_halves(t0, t1, end, sums)) return;
        A* parts = work + (CHUNK + args.width) * stride();
        std::memset(parts, 0, size_t((args.width + 1) * stride()) * sizeof(A));
        for (i64 t = t0; t < end; ++t) {
            A* g = work + (t - t0) * stride();
            if (whole(t) && known_width([&](auto k) { slope_row<k.width, k.silu>(t, g, none); })) continue;
            for (i64 c = 0; c < args.channels; c += L) grad_before_silu(s, t, c, width(c), g + c);
        }
        for (i64 t = t0, n; t < t1; t += n) {
            const A* g = work + (t - t0) * stride();
            n = 1;
            if (t + STEPS <= t1 && whole(t, t + STEPS) &&
                known_width([&](auto k) { add_steps<k.width>(t, g, parts); }))
                n = STEPS;
            else
                add_parts(s, t, g, parts);
        }
        for (i64 t = t0 == 0 ? 1 - args.width : t0; t < t1; ++t) {
            const i64 last = t + args.width;
            if (t >= 0 && last <= end && whole(t + 1 > args.width - 1 ? t + 1 : args.width - 1, last) &&
                known_width([&](auto k) { grad_row<k.width>(t, work + (t - t0) * stride()); }))
                continue;
            for (i64 c = 0; c < args.channels; c += L) grad_input(s, t, t0, end, c, width(c), work);
        }
        for (i64 j = 0; j <= args.width; ++j)
            for (i64 c = 0; c < args.channels; ++c)
                sums[j * args.channels + c] += double(parts[j * stride() + c]);
    }
    // Whether steps [t0, t1) all are.
    bool whole(i64 t0, i64 t1) const {
        for (i64 t = t0; t < t1; ++t)
            if (!whole(t)) return false;
        return true;
    }
    // The gradient of v at step t.
    template <int W, bool SILU>
    void slope_row(i64 t, A* __restrict to, const A* none) const {
        const Window<W> window(*this, t, none);
        const S* g = at(args.y, t);
        for (i64 c = 0; c < args.channels; ++c) {
            A slope = widen(g[c]);
            if constexpr (SILU) {
                const A v = window.at_channel(c), gate = vsigmoid(v);
                slope *= gate * (A(1) + v * (A(1) - gate));
            }
            to[c] = slope;
        }
    }
    // What STEPS steps from t on add to the gradients of the taps and of the bias, in their order.
    template <int W>
    void add_steps(i64 t, const A* __restrict g, A* parts) const {
        const S* x[STEPS + W - 1];
        for (int i = 0; i < STEPS + W - 1; ++i) x[i] = at(args.x, t + i - (W - 1));
        A* __restrict to[W + 1];
        for (int j = 0; j <= W; ++j) to[j] = parts + j * stride();
        const i64 step = stride();
        for (i64 c = 0; c < args.channels; ++c) {
            A slopes[STEPS];
            for (int i = 0; i < STEPS; ++i) slopes[i] = g[i * step + c];
            for (int j = 0; j < W; ++j) {
                A total = to[j][c];
                for (int i = 0; i < STEPS; ++i) total += slopes[i] * widen(x[i + j][c]);
                to[j][c] = total;
            }
            A total = to[W][c];
            for (int i = 0; i < STEPS; ++i) total += slopes[i];
            to[W][c] = total;
        }
    }
    // The gradient of x at step t, from those of v there and at the steps behind it.
    template <int W>
    void grad_row(i64 t, const A* g) const {
        const A* w[W];
        for (int j = 0; j < W; ++j) w[j] = tap(j, 0);
        const i64 step = stride();
        S* __restrict to = at(args.grad_x, t);
        for (i64 c = 0; c < args.channels; ++c) {
            A total = A(0);
            for (int j = 0; j < W; ++j) total += w[j][c] * g[j * step + c];
            store_one(total, to[c]);
        }
    }
    void grad_input(i64 s, i64 t, i64 t0, i64 end, i64 c, i64 n, const A* work) const {
        alignas(64) A g[L] = {};
        for (i64 j = t < 0 ? -t : 0; j < args.width && t + j < end; ++j)
            if (reach(t + j) >= j) accumulate(g, tap(j, c), work + (t + j - t0) * stride() + c, n);
        if (t < 0) put(reinterpret_cast<A*>(args.grad_past) + past_row(s, t) + c, g, n);
        else put(at(args.grad_x, t) + c, g, n);
    }
    void grad_before_silu(i64 s, i64 t, i64 c, i64 n, A* __restrict to) const {
        const S* g = at(args.y, t) + c;
        std::memset(to, 0, L * sizeof(A));
        for (i64 l = 0; l < n; ++l) to[l] = widen(g[l]);
        if (!args.silu) return;
        alignas(64) A v[L];
        convolve(s, t, c, n, v);
        for (int l = 0; l < L; ++l) {
            A gate = vsigmoid(v[l]);
            to[l] *= gate * (A(1) + v[l] * (A(1) - gate));
        }
    }
    // What step t adds to the gradients of the taps, oldest first, and of the bias.
    void add_parts(i64 s, i64 t, const A* __restrict g, A* parts) const {
        for (i64 j = 0, last = reach(t); j <= last; ++j) {
            A* to = parts + (args.width - 1 - j) * stride();
            if (j <= t) accumulate(to, g, at(args.x, t - j), args.channels);
            else accumulate(to, g, reinterpret_cast<const A*>(args.past) + past_row(s, t - j), args.channels);
        }
        A* __restrict to = parts + args.width * stride();
        for (i64 c = 0; c < args.channels; ++c) to[c] += g[c];
    }
    i64 stride() const { return (args.channels + L - 1) / L * L; }
    i64 width(i64 c) const { return args.channels - c < L ? args.channels - c : L; }

    // The outputs of channel c of sequence s, whose steps lie side by side. W: the width, 0 where
    // it varies. `work` has room for a tile of inputs with those before it, and of outputs.
    template <i64 W>
    void along_time(i64 s, i64 c, A* work) const {
        const i64 width = W ? W : args.width, before = width - 1;
        const S* x = reinterpret_cast<const S*>(args.x.data) + s * args.x.seq + c * args.x_channel;
        S* y = reinterpret_cast<S*>(args.y.data) + s * args.y.seq + c * args.y_channel;
        A *__restrict inputs = work, *__restrict v = work + before + TILE;
        for (i64 j = 0; j < before; ++j)
            inputs[j] = reinterpret_cast<const A*>(args.past)[(s * before + j) * args.channels + c];
        const A offset = args.bias ? reinterpret_cast<const A*>(args.bias)[c] : A(0);
        for (i64 t = 0; t < args.time; t += TILE) {
            const i64 n = args.time - t < TILE ? args.time - t : TILE;
            for (i64 i = 0; i < n; ++i) inputs[before + i] = widen(x[t + i]);
            for (i64 i = 0; i < n; ++i) v[i] = offset;
            for (i64 j = 0; j < width; ++j) {
                const A w = *tap(j, c);
                for (i64 i = 0; i < n; ++i) v[i] += w * inputs[before + i - j];
            }
            if (args.silu)
                for (i64 i = 0; i < n; ++i) v[i] *= vsigmoid(v[i]);
            put(y + t, v, n);
            for (i64 j = 0; j < before; ++j) inputs[j] = inputs[n + j];
        }
    }
    int by_channels() const {
        const i64 units = args.seqs * args.channels, worth = units * args.time / 16384 + 1;
        const i64 threads = worth < args.threads ? worth : args.threads;
        const i64 room = 2 * TILE + args.width;
        A* work = static_cast<A*>(std::malloc(size_t(threads * room) * sizeof(A)));
        if (!work) return 1;
#pragma omp parallel for num_threads(int(threads)) schedule(static) if (threads > 1)
        for (i64 u = 0; u < units; ++u) {
#ifdef _OPENMP
            A* mine = work + omp_get_thread_num() * room;
#else
            A* mine = work;
#endif
            if (args.width == 4) along_time<4>(u / args.channels, u % args.channels, mine);
            else along_time<0>(u / args.channels, u % args.channels, mine);
        }
        std::free(work);
        return 0;
    }

    // Chunk k of sequence s, whose kernel sees no other.
    void unit(i64 s, i64 k, double* sums, A* work, const A* none) const {
        const Span span(args, s);
        CausalConvArgs own = args;
        own.time = span.count;
        Array* const arrays[] = {&own.x, &own.y, &own.grad_x};
        for (Array* x : arrays) *x = span.of(*x, sizeof(S));
        own.reset = span.of(own.reset, 1);
        const i64 t0 = k * CHUNK, t1 = t0 + CHUNK < own.time ? t0 + CHUNK : own.time;
        if (args.backward) CausalConv{own}.backward(s, t0, t1, sums, work, none);
        else CausalConv{own}.forward(s, t0, t1, none);
    }
    // The chunks before sequence s. Packed sequences begin one anew each: some of these are empty.
    i64 units_before(i64 s) const {
        auto cuts = reinterpret_cast<const i64*>(args.offsets);
        return cuts ? cuts[s] / CHUNK + s : s * chunks(args.time);
    }
    // The sequence of unit u.
    i64 sequence_of(i64 u) const {
        if (!args.offsets) return u / chunks(args.time);
        i64 low = 0, high = args.seqs;
        while (high - low > 1) {
            i64 middle = (low + high) / 2;
            (units_before(middle) <= u ? low : high) = middle;
        }
        return low;
    }

    int dispatch() const {
        const i64 steps = steps_of(args);
        if (!args.seqs || !steps || !args.channels) return 0;  // gradients are given as zeros
        if (args.x_channel != 1) return by_channels();
        advise(args.backward ? args.grad_x.data : args.y.data, steps * args.channels * i64(sizeof(S)));
        i64 units = units_before(args.seqs), room = (CHUNK + 2 * args.width + 1) * stride();
        i64 worth = steps * args.channels / 16384 + 1;
        i64 threads = worth < args.threads ? worth : args.threads;
        i64 per_row = args.backward ? (units + args.rows - 1) / args.rows : 1;
        room *= args.backward;
        A* none = static_cast<A*>(std::calloc(size_t(stride() + threads * room), sizeof(A)));
        if (!none) return 1;
        A* work = none + stride();
#pragma omp parallel for num_threads(int(threads)) schedule(static) if (threads > 1)
        for (i64 group = 0; group < (units + per_row - 1) / per_row; ++group) {
#ifdef _OPENMP
            A* mine = work + omp_get_thread_num() * room;
#else
            A* mine = work;
#endif
            auto sums = reinterpret_cast<double*>(args.sums) + group * (args.width + 1) * args.channels;
            for (i64 u = group * per_row; u < units && u < (group + 1) * per_row; ++u) {
                i64 s = sequence_of(u);
                unit(s, u - units_before(s), sums, mine, none);
            }
        }
        std::free(none);
        return 0;
    }
};

}  // namespace

int causal_conv(const void* record) {
    const auto& args = *static_cast<const CausalConvArgs*>(record);
    if (args.size != i64(sizeof(CausalConvArgs))) return 3;
    switch (args.dtype) {
        case F32: return CausalConv<float>{args}.dispatch();
        case F64: return CausalConv<double>{args}.dispatch();
        case BF16: return CausalConv<bf16>{args}.dispatch();
        case F16: return CausalConv<f16>{args}.dispatch();
    }
    return 2;
}

}  // namespace LINRNN_ISA
}  // namespace linrnn
