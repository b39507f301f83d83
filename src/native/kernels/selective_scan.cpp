// The selective scan of Mamba and its adjoint on a CPU:
//   h_t[n,c] = exp(dt_t[c] A[n,c]) h_{t-1}[n,c] + w B_t[n] x_t[c],   y_t[c] = sum_n C_t[n] h_t[n,c]
// with softplus of dt, the skip D x and the gate silu(z) in the same pass.
//
// A block of channels fills vector registers; time runs in chunks, all blocks of a chunk before the
// next chunk, so that its rows are read while they are near. The expanded states of a block live
// in first-level cache. The adjoint starts from the state kept before each chunk, runs the chunk
// forward again into a buffer that fits in second-level cache, then backward. Sums over channels
// (for B and C) stay spread over the lanes until a chunk is done; sums over time (for A) go to
// double after every chunk. Every order is fixed: the same bits in every call.
//
// Compiled once for every instruction set: see scan.cpp.
#include <cstdlib>
#include <cstring>

#include "../flush_subnormals.h"
#include "../large_pages.h"
#include "../selective_half.h"
#include "../selective_rows.h"
#include "../vecmath.h"
#ifdef _OPENMP
#include <omp.h>
#endif

namespace linrnn {
namespace LINRNN_ISA {
namespace {

inline void unpack(const float* from, float* to, i64 n) { put(to, from, n); }
inline void unpack(const double* from, double* to, i64 n) { put(to, from, n); }
template <class S>
inline void unpack(const S* from, float* to, i64 n) {
    for (i64 i = 0; i < n; ++i) to[i] = widen(from[i]);
}

// exp(x) = 2^n (1 + r q(r)), 0 where it would be subnormal and infinite from 2^127.5 on: half the
// instructions of vexp, in the loop that costs most. Less one: 2^n r q + (2^n - 1) cancels nothing.
struct Power {
    float scale, rq;
};
struct WidePower {
    double scale, rq;
};
inline Power power(float x) {
    const float MAGIC = 12582912.0f;  // 1.5 * 2^23
    x = x < -88.1f ? -88.1f : x;      // 2^-127 has no bits left; a NaN passes both
    x = x > 88.8f ? 88.8f : x;
    float t = x * 1.44269504f + MAGIC, n = t - MAGIC;
    float r = (x - n * 0.693359375f) - n * -2.12194440e-4f;
    float q = 1.39336863e-3f;
    q = q * r + 8.36918438e-3f;
    q = q * r + 4.16664646e-2f;
    q = q * r + 1.66665049e-1f;
    q = q * r + 0.5f;
    return {from_bits((to_bits(t) + 127u) << 23), r + r * r * q};
}
inline WidePower power(double x) {
    const double MAGIC = 6755399441055744.0;  // 1.5 * 2^52
    x = x < -709.3 ? -709.3 : x;
    x = x > 710.0 ? 710.0 : x;
    double t = x * 1.4426950408889634 + MAGIC, n = t - MAGIC;
    double r = (x - n * 6.93147180369123816490e-01) - n * 1.90821492927058770002e-10;
    double q = 2.0918170876658782641e-9;
    q = q * r + 2.5110095611886237174e-8;
    q = q * r + 2.7557263189476207401e-7;
    q = q * r + 2.7557240761739259262e-6;
    q = q * r + 2.4801587336526003723e-5;
    q = q * r + 1.984126989019370597e-4;
    q = q * r + 1.3888888888879042534e-3;
    q = q * r + 8.3333333333195455608e-3;
    q = q * r + 4.1666666666666676814e-2;
    q = q * r + 1.6666666666666680877e-1;
    q = q * r + 0.5;
    return {from_bits64((to_bits(t) + 1023u) << 52), r + r * r * q};
}
template <class A>
inline A decay_of(A x) {
    auto p = power(x);
    return p.scale + p.scale * p.rq;
}
template <class A>
inline A decay_less_one(A x) {
    auto p = power(x);
    return p.scale * p.rq + (p.scale - A(1));
}

// The decays exp(dt A) of a row of channels, most of the work. Written out for the widest
// registers: compilers turn the limits into several masked moves each.
template <class A, int L>
inline void decays(const A* __restrict dt, const A* __restrict lam, A* __restrict to) {
    for (int l = 0; l < L; ++l) to[l] = decay_of(dt[l] * lam[l]);
}
#ifdef __AVX512F__
template <>
inline void decays<float, 32>(const float* __restrict dt, const float* __restrict lam,
                              float* __restrict to) {
    for (int l = 0; l < 32; l += 16) {
        __m512 x = _mm512_mul_ps(_mm512_loadu_ps(dt + l), _mm512_loadu_ps(lam + l));
        x = _mm512_min_ps(_mm512_set1_ps(200.0f), _mm512_max_ps(_mm512_set1_ps(-200.0f), x));
        __m512 n = _mm512_roundscale_ps(_mm512_mul_ps(x, _mm512_set1_ps(1.44269504f)), 8);
        __m512 r = _mm512_fnmadd_ps(n, _mm512_set1_ps(0.693359375f), x);
        r = _mm512_fnmadd_ps(n, _mm512_set1_ps(-2.12194440e-4f), r);
        __m512 q = _mm512_set1_ps(1.39336863e-3f);
        q = _mm512_fmadd_ps(q, r, _mm512_set1_ps(8.36918438e-3f));
        q = _mm512_fmadd_ps(q, r, _mm512_set1_ps(4.16664646e-2f));
        q = _mm512_fmadd_ps(q, r, _mm512_set1_ps(1.66665049e-1f));
        q = _mm512_fmadd_ps(q, r, _mm512_set1_ps(0.5f));
        q = _mm512_fmadd_ps(q, r, _mm512_set1_ps(1.0f));
        q = _mm512_fmadd_ps(q, r, _mm512_set1_ps(1.0f));
        _mm512_storeu_ps(to + l, _mm512_scalef_ps(q, n));
    }
}

// The same within 2e-7, for sequences of half precision: 2^n 2^r in powers of two, without limits, for
// products of dt and A below BOUNDED in modulus. Of small ones the error is as small a part.
constexpr float BOUNDED = 1e6f;
inline __m512 bounded_decay(__m512 x) {
    const __m512 whole = _mm512_set1_ps(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer
    const __m512 log2e = _mm512_set1_ps(1.44269504f);
    const __m512 n = _mm512_sub_ps(_mm512_fmadd_ps(x, log2e, whole), whole), r = _mm512_fmsub_ps(x, log2e, n);
    __m512 q = _mm512_set1_ps(1.32645907e-3f);
    q = _mm512_fmadd_ps(q, r, _mm512_set1_ps(9.67161901e-3f));
    q = _mm512_fmadd_ps(q, r, _mm512_set1_ps(5.55073503e-2f));
    q = _mm512_fmadd_ps(q, r, _mm512_set1_ps(2.40222405e-1f));
    q = _mm512_fmadd_ps(q, r, _mm512_set1_ps(6.93146976e-1f));
    q = _mm512_fmadd_ps(q, r, _mm512_set1_ps(1.0f));
    return _mm512_scalef_ps(q, n);
}

// Two registers: a block's part of a row.
struct Pair {
    __m512 v[2];
    static Pair load(const float* x) { return {{_mm512_loadu_ps(x), _mm512_loadu_ps(x + 16)}}; }
    void store(float* x) const { _mm512_storeu_ps(x, v[0]), _mm512_storeu_ps(x + 16, v[1]); }
};
#endif

// The sum of moduli: at least the largest one, and no number where there is a NaN.
template <class A>
inline A sum_of_moduli(const A* x, i64 n) {
    A sum[16] = {};
    for (i64 i = 0; i < n; i += 16)
        for (int l = 0; l < 16; ++l) sum[l] += magnitude(x[i + l]);
    return sum_by_halves<16>(sum);
}

// w = (exp(dt A) - 1) / A, and dw / dA = dt^2 psi(dt A) with psi(v) = (v e^v - e^v + 1) / v^2
template <class A>
inline A weight(A dt, A lam) {
    A v = dt * lam;
    return lam == A(0) ? dt : decay_less_one(v) / lam;
}
template <class A>
inline A weight_slope(A dt, A lam, A decay, A w) {
    A v = dt * lam, direct = (dt * decay - w) / lam;
    // psi = sum over k >= 2 of (k - 1) / k! v^(k-2), as far as the precision goes for |v| < 0.3
    constexpr double TERMS[] = {1. / 2,       1. / 3,        1. / 8,         1. / 30,
                                1. / 144,     1. / 840,      1. / 5760,      1. / 45360,
                                1. / 403200,  1. / 3991680,  1. / 43545600,  1. / 518918400};
    A series = 0;
    for (int k = sizeof(A) == 4 ? 7 : 12; k-- > 0;) series = series * v + A(TERMS[k]);
    series *= dt * dt;
    return v < A(0.3) && v > A(-0.3) ? series : direct;
}

template <class S>
struct SelectiveScan : SelectiveRows<S> {
    using Rows = SelectiveRows<S>;
    using typename Rows::A;
    using Rows::L, Rows::args, Rows::at, Rows::blocks, Rows::chunks, Rows::kept, Rows::load_channels;
    using Rows::load_states, Rows::padded, Rows::resets, Rows::sequence, Rows::store_states;
    using Rows::tile, Rows::width;
    static constexpr bool HALF = sizeof(S) == 2;

    // A block's part of a row, zeros in the lanes beyond the last channel.
    static void load(const S* from, i64 n, A* __restrict to) {
        if (n == L) return unpack(from, to, L);
        std::memset(to, 0, L * sizeof(A));
        unpack(from, to, n);
    }
    void load_modes(const Array& x, i64 t, A* to) const { unpack(at(x, t), to, args.modes); }

    // Asks for a block's part of a row before it is needed: neighbouring steps lie a row apart, where
    // no hardware looks for them. Stores wait for their row like loads do.
    static void prefetch(const S* row) {
#ifdef __GNUC__
        for (int i = 0; i < L; i += 64 / int(sizeof(S))) __builtin_prefetch(row + i, 1);
#else
        (void)row;
#endif
    }
    void prefetch(const Array& x, i64 t, i64 c) const {
        if (x.data && t + AHEAD < args.time) prefetch(at(x, t + AHEAD) + c);
    }
    static constexpr i64 AHEAD = 6;

    // A step's inputs for one block; `bounded`: see bounded_decay.
    struct Row {
        alignas(64) A x[L], dt[L], raw[L], input[L], gate[L], z[L];
        bool bounded;
    };
    // Whether all products of a row's dt and the block's A, whose moduli sum to `sum`, are bounded.
    static bool bounds(const A* dt, A sum) {
#ifdef __AVX512F__
        if constexpr (HALF) return sum_of_moduli(dt, L) * sum < BOUNDED;
#endif
        (void)dt, (void)sum;
        return false;
    }
    void load_row(i64 t, i64 c, i64 n, const A* bias, Row& r) const {
        prefetch(args.x, t, c);
        prefetch(args.dt, t, c);
        prefetch(args.z, t, c);
        prefetch(args.y, t, c);
        load(at(args.x, t) + c, n, r.x);
        load(at(args.dt, t) + c, n, r.raw);
        for (int l = 0; l < L; ++l) r.raw[l] += bias[l];
        if (args.softplus)
            for (int l = 0; l < L; ++l) r.dt[l] = vsoftplus(r.raw[l]);
        else
            std::memcpy(r.dt, r.raw, sizeof r.dt);
        for (int l = 0; l < L; ++l) r.input[l] = args.zoh ? r.x[l] : r.dt[l] * r.x[l];
        if (!args.z.data) return;
        load(at(args.z, t) + c, n, r.z);
        for (int l = 0; l < L; ++l) r.gate[l] = vsigmoid(r.z[l]);
    }

    // ---------------------------------------------------------------------------------- forward

    template <bool ZOH>
    void advance(A* __restrict h, const A* __restrict lam, const Row& r, const A* B, const A* C,
                 A* __restrict y) const {
        alignas(64) A decay[L];
        for (i64 m = 0; m < args.modes; ++m, h += L, lam += L) {
            const A b = B[m], c = C[m];
            decays<A, L>(r.dt, lam, decay);
            for (int l = 0; l < L; ++l) {
                A in = b * r.input[l];
                if (ZOH) in *= weight(r.dt[l], lam[l]);
                h[l] = decay[l] * h[l] + in;
                y[l] += c * h[l];
            }
        }
    }

#ifdef __AVX512F__
    // `advance` of bounded decays, all but the states in registers.
    void advance_lanes(float* h, const float* lam, const Row& r, const float* B, const float* C, float* y) const {
        const Pair dt = Pair::load(r.dt), input = Pair::load(r.input);
        Pair sum = Pair::load(y);
        for (i64 m = 0; m < args.modes; ++m, h += L, lam += L) {
            const __m512 b = _mm512_set1_ps(B[m]), c = _mm512_set1_ps(C[m]);
            const Pair a = Pair::load(lam);
            Pair now = Pair::load(h);
            for (int i = 0; i < 2; ++i) {
                const __m512 decay = bounded_decay(_mm512_mul_ps(dt.v[i], a.v[i]));
                now.v[i] = _mm512_fmadd_ps(decay, now.v[i], _mm512_mul_ps(b, input.v[i]));
                sum.v[i] = _mm512_fmadd_ps(c, now.v[i], sum.v[i]);
            }
            now.store(h);
        }
        sum.store(y);
    }
#endif

    template <bool ZOH>
    void forward_chunk(i64 k, i64 c, i64 n, A* h, const A* lam, A* B, A* C) const {
        alignas(64) A skip[L], bias[L], y[L];
        const A sum_A = HALF ? sum_of_moduli(lam, tile()) : A(0);
        Row r;
        load_channels(args.D, c, n, skip);
        load_channels(args.bias, c, n, bias);
        if (args.kept)
            for (i64 m = 0; m < args.modes; ++m) put(kept(k, c) + m * args.channels, h + m * L, n);
        for (i64 t = k * args.chunk; t < args.time && t < (k + 1) * args.chunk; ++t) {
            load_row(t, c, n, bias, r);
            r.bounded = bounds(r.dt, sum_A);
            load_modes(args.B, t, B);
            load_modes(args.C, t, C);
            if (resets(t)) std::memset(h, 0, size_t(tile()) * sizeof(A));
            for (int l = 0; l < L; ++l) y[l] = skip[l] * r.x[l];
#ifdef __AVX512F__
            if constexpr (HALF && !ZOH) {
                if (r.bounded) advance_lanes(h, lam, r, B, C, y);
                else advance<ZOH>(h, lam, r, B, C, y);
            } else
#endif
                advance<ZOH>(h, lam, r, B, C, y);
            if (args.z.data)
                for (int l = 0; l < L; ++l) y[l] *= r.z[l] * r.gate[l];
            put(at(args.y, t) + c, y, n);
        }
    }

    // Blocks [first, last) of one sequence.
    template <bool ZOH>
    void forward(i64 s, i64 first, i64 last, A* work) const {
        A *B = work, *C = B + padded(), *lam = C + padded(), *h = lam + (last - first) * tile();
        for (i64 b = first; b < last; ++b) {
            load_states(args.A, b * L, width(b), lam + (b - first) * tile());
            load_states(sequence(args.initial, s), b * L, width(b), h + (b - first) * tile());
        }
        for (i64 k = 0; k < chunks(); ++k)
            for (i64 b = first; b < last; ++b)
                forward_chunk<ZOH>(k, b * L, width(b), h + (b - first) * tile(),
                                   lam + (b - first) * tile(), B, C);
        for (i64 b = first; b < last; ++b)
            store_states(h + (b - first) * tile(), sequence(args.final, s), b * L, width(b));
    }

    // --------------------------------------------------------------------------------- backward

    // What a chunk's forward pass leaves for its backward pass; [step][mode][lane] and [step][lane].
    struct Tape {
        A *before, *decay, *weights;  // weights only for zero-order hold
        A *for_B, *for_C;             // sums over channels, still spread over the lanes
        A *B, *C;                     // [step][mode]
        A *grad;                      // of y before the gate
        Row* rows;
        A* sum_A;  // [mode][lane], over the chunk
    };

    template <bool ZOH>
    void replay(A* __restrict h, const A* __restrict lam, const Row& r, const A* B, const A* C,
                const A* __restrict g, i64 j, const Tape& tape, A* __restrict y) const {
        A* __restrict before = tape.before + j * tile();
        A* __restrict decay = tape.decay + j * tile();
        A* __restrict weights = ZOH ? tape.weights + j * tile() : nullptr;
        A* __restrict for_C = tape.for_C + j * tile();
        for (i64 m = 0; m < args.modes; ++m) {
            const A b = B[m], c = C[m];
            decays<A, L>(r.dt, lam + m * L, decay + m * L);
            for (int l = 0; l < L; ++l) {
                i64 i = m * L + l;
                A in = b * r.input[l];
                if (ZOH) {
                    A w = weight(r.dt[l], lam[i]);
                    weights[i] = w;
                    in *= w;
                }
                before[i] = h[i];
                A now = decay[i] * h[i] + in;
                h[i] = now;
                y[l] += c * now;
                for_C[i] += g[l] * now;
            }
        }
    }

#ifdef __AVX512F__
    // `replay` of bounded decays, and `retreat`, with sums over modes in registers.
    void replay_lanes(float* h, const float* lam, const Row& r, const float* B, const float* C, const float* g,
                        i64 j, const Tape& tape, float* y) const {
        float *before = tape.before + j * tile(), *decay = tape.decay + j * tile(), *for_C = tape.for_C + j * tile();
        const Pair dt = Pair::load(r.dt), input = Pair::load(r.input), into = Pair::load(g);
        Pair sum = Pair::load(y);
        for (i64 m = 0; m < args.modes; ++m, h += L, lam += L, before += L, decay += L, for_C += L) {
            const __m512 b = _mm512_set1_ps(B[m]), c = _mm512_set1_ps(C[m]);
            const Pair a = Pair::load(lam);
            Pair now = Pair::load(h), of_C = Pair::load(for_C), d;
            now.store(before);
            for (int i = 0; i < 2; ++i) {
                d.v[i] = bounded_decay(_mm512_mul_ps(dt.v[i], a.v[i]));
                now.v[i] = _mm512_fmadd_ps(d.v[i], now.v[i], _mm512_mul_ps(b, input.v[i]));
                sum.v[i] = _mm512_fmadd_ps(c, now.v[i], sum.v[i]);
                of_C.v[i] = _mm512_fmadd_ps(into.v[i], now.v[i], of_C.v[i]);
            }
            d.store(decay), now.store(h), of_C.store(for_C);
        }
        sum.store(y);
    }
    void retreat_lanes(float* carry, const float* lam, const Row& r, const float* B, const float* C, const float* g,
                         i64 j, const Tape& tape, float* for_x, float* for_dt) const {
        const float *before = tape.before + j * tile(), *decay = tape.decay + j * tile();
        float *for_B = tape.for_B + j * tile(), *sum_A = tape.sum_A;
        const Pair dt = Pair::load(r.dt), input = Pair::load(r.input), into = Pair::load(g);
        Pair of_x = Pair::load(for_x), of_dt = Pair::load(for_dt);
        for (i64 m = 0; m < args.modes; ++m, carry += L, lam += L, before += L, decay += L, for_B += L, sum_A += L) {
            const __m512 b = _mm512_set1_ps(B[m]), c = _mm512_set1_ps(C[m]);
            const Pair a = Pair::load(lam), was = Pair::load(before), d = Pair::load(decay);
            Pair back = Pair::load(carry), of_B = Pair::load(for_B), of_A = Pair::load(sum_A);
            for (int i = 0; i < 2; ++i) {
                const __m512 delta = _mm512_fmadd_ps(c, into.v[i], back.v[i]);
                back.v[i] = _mm512_mul_ps(d.v[i], delta);
                const __m512 through = _mm512_mul_ps(back.v[i], was.v[i]);
                of_dt.v[i] = _mm512_fmadd_ps(through, a.v[i], of_dt.v[i]);
                of_B.v[i] = _mm512_fmadd_ps(delta, input.v[i], of_B.v[i]);
                of_x.v[i] = _mm512_fmadd_ps(delta, b, of_x.v[i]);
                of_A.v[i] = _mm512_fmadd_ps(through, dt.v[i], of_A.v[i]);
            }
            back.store(carry), of_B.store(for_B), of_A.store(sum_A);
        }
        of_x.store(for_x), of_dt.store(for_dt);
    }
#endif

    // One step back: carry is the gradient of the state that the step left.
    template <bool ZOH>
    void retreat(A* __restrict carry, const A* __restrict lam, const Row& r, const A* B, const A* C,
                 const A* __restrict g, i64 j, const Tape& tape, A* __restrict for_x,
                 A* __restrict for_dt) const {
        const A* __restrict before = tape.before + j * tile();
        const A* __restrict decay = tape.decay + j * tile();
        const A* __restrict weights = ZOH ? tape.weights + j * tile() : nullptr;
        A* __restrict for_B = tape.for_B + j * tile();
        A* __restrict sum_A = tape.sum_A;
        for (i64 m = 0; m < args.modes; ++m) {
            const A b = B[m], c = C[m];
            for (int l = 0; l < L; ++l) {
                i64 i = m * L + l;
                A delta = carry[i] + c * g[l], back = decay[i] * delta;
                A through = back * before[i];  // d loss / d (dt A)
                carry[i] = back;
                for_dt[l] += through * lam[i];
                A for_lam = through * r.dt[l];
                if (ZOH) {
                    A w = weights[i], db = delta * b;
                    for_B[i] += delta * w * r.x[l];
                    for_x[l] += db * w;
                    for_dt[l] += db * decay[i] * r.x[l];
                    for_lam += db * r.x[l] * weight_slope(r.dt[l], lam[i], decay[i], w);
                } else {
                    for_B[i] += delta * r.input[l];
                    for_x[l] += delta * b;
                }
                sum_A[i] += for_lam;
            }
        }
    }

    // Forward again from the kept state; writes the gradient of z.
    template <bool ZOH>
    void replay_chunk(i64 k, i64 c, i64 n, const A* lam, A* h, const Tape& tape,
                      double* sum_D) const {
        alignas(64) A skip[L], bias[L], y[L], out[L], partial[L] = {};
        const A sum_A = HALF ? sum_of_moduli(lam, tile()) : A(0);
        load_channels(args.D, c, n, skip);
        load_channels(args.bias, c, n, bias);
        std::memset(h, 0, size_t(tile()) * sizeof(A));
        for (i64 m = 0; m < args.modes; ++m) put(h + m * L, kept(k, c) + m * args.channels, n);
        for (i64 t = k * args.chunk, j = 0; t < args.time && j < args.chunk; ++t, ++j) {
            Row& r = tape.rows[j];
            A* __restrict g = tape.grad + j * L;
            prefetch(at(args.grad_x, t) + c);
            prefetch(at(args.grad_dt, t) + c);
            prefetch(args.grad_z, t, c);
            load_row(t, c, n, bias, r);
            r.bounded = bounds(r.dt, sum_A);
            load(at(args.y, t) + c, n, out);
            if (args.z.data)
                for (int l = 0; l < L; ++l) g[l] = out[l] * (r.z[l] * r.gate[l]);
            else
                std::memcpy(g, out, sizeof out);
            if (resets(t)) std::memset(h, 0, size_t(tile()) * sizeof(A));
            for (int l = 0; l < L; ++l) y[l] = skip[l] * r.x[l], partial[l] += g[l] * r.x[l];
            const A *B = tape.B + j * padded(), *C = tape.C + j * padded();
#ifdef __AVX512F__
            if constexpr (HALF && !ZOH) {
                if (r.bounded) replay_lanes(h, lam, r, B, C, g, j, tape, y);
                else replay<ZOH>(h, lam, r, B, C, g, j, tape, y);
            } else
#endif
                replay<ZOH>(h, lam, r, B, C, g, j, tape, y);
            if (!args.z.data) continue;
            for (int l = 0; l < L; ++l)
                y[l] *= out[l] * r.gate[l] * (A(1) + r.z[l] * (A(1) - r.gate[l]));
            put(at(args.grad_z, t) + c, y, n);
        }
        for (i64 l = 0; l < n; ++l) sum_D[l] += double(partial[l]);
    }

    template <bool ZOH>
    void retreat_chunk(i64 k, i64 c, i64 n, const A* lam, A* carry, const Tape& tape,
                       double* sum_bias) const {
        alignas(64) A skip[L], for_x[L], for_dt[L], partial[L] = {};
        load_channels(args.D, c, n, skip);
        i64 steps = args.time - k * args.chunk;
        if (steps > args.chunk) steps = args.chunk;
        for (i64 j = steps - 1; j >= 0; --j) {
            i64 t = k * args.chunk + j;
            const Row& r = tape.rows[j];
            const A* g = tape.grad + j * L;
            std::memset(for_x, 0, sizeof for_x);
            std::memset(for_dt, 0, sizeof for_dt);
            const A *B = tape.B + j * padded(), *C = tape.C + j * padded();
#ifdef __AVX512F__
            if constexpr (HALF && !ZOH) retreat_lanes(carry, lam, r, B, C, g, j, tape, for_x, for_dt);
            else
#endif
                retreat<ZOH>(carry, lam, r, B, C, g, j, tape, for_x, for_dt);
            if (resets(t)) std::memset(carry, 0, size_t(tile()) * sizeof(A));
            for (int l = 0; l < L; ++l) {
                if (!ZOH) for_dt[l] += r.x[l] * for_x[l], for_x[l] *= r.dt[l];
                for_x[l] += skip[l] * g[l];
            }
            if (args.softplus)
                for (int l = 0; l < L; ++l) for_dt[l] *= vsigmoid(r.raw[l]);
            for (int l = 0; l < L; ++l) partial[l] += for_dt[l];
            put(at(args.grad_x, t) + c, for_x, n);
            put(at(args.grad_dt, t) + c, for_dt, n);
        }
        for (i64 l = 0; l < n; ++l) sum_bias[l] += double(partial[l]);
    }

    // Blocks [first, last) of one sequence; sums go to row `row`.
    template <bool ZOH>
    void backward(i64 s, i64 first, i64 last, i64 row, A* work) const {
        Tape tape;
        A* end = lay_out(work, tape);
        A *h = end, *lam = h + tile(), *carry = lam + (last - first) * tile();
        auto sums = reinterpret_cast<double*>(args.sums) + row * (args.modes + 2) * args.channels;
        for (i64 b = first; b < last; ++b) {
            load_states(args.A, b * L, width(b), lam + (b - first) * tile());
            load_states(sequence(args.final, s), b * L, width(b), carry + (b - first) * tile());
        }
        for (i64 k = chunks() - 1; k >= 0; --k) {
            i64 start = k * args.chunk, room = args.chunk * tile();
            i64 steps = args.time - start < args.chunk ? args.time - start : args.chunk;
            std::memset(tape.for_B, 0, size_t(room) * sizeof(A));
            std::memset(tape.for_C, 0, size_t(room) * sizeof(A));
            for (i64 j = 0; j < steps; ++j) {
                load_modes(args.B, start + j, tape.B + j * padded());
                load_modes(args.C, start + j, tape.C + j * padded());
            }
            for (i64 b = first; b < last; ++b) {
                i64 c = b * L, n = width(b), i = (b - first) * tile();
                std::memset(tape.sum_A, 0, size_t(tile()) * sizeof(A));
                replay_chunk<ZOH>(k, c, n, lam + i, h, tape,
                                  sums + args.modes * args.channels + c);
                retreat_chunk<ZOH>(k, c, n, lam + i, carry + i, tape,
                                   sums + (args.modes + 1) * args.channels + c);
                for (i64 m = 0; m < args.modes; ++m)
                    for (i64 l = 0; l < n; ++l)
                        sums[m * args.channels + c + l] += double(tape.sum_A[m * L + l]);
            }
            write_modes(tape.for_B, args.grad_B, start, steps);
            write_modes(tape.for_C, args.grad_C, start, steps);
        }
        for (i64 b = first; b < last; ++b)
            store_states(carry + (b - first) * tile(), sequence(args.grad_initial, s), b * L,
                         width(b));
    }

    // Adds up the lanes of a chunk's sums over channels.
    void write_modes(const A* from, const Array& to, i64 start, i64 steps) const {
        for (i64 t = start; t < start + steps; ++t)
            for (i64 m = 0; m < args.modes; ++m, from += L) {
                alignas(64) A x[L];
                std::memcpy(x, from, sizeof x);
                for (int half = L / 2; half > 0; half /= 2)
                    for (int l = 0; l < half; ++l) x[l] += x[l + half];
                Rows::template at<A>(to, t)[m] = x[0];
            }
    }

    i64 row_room() const { return i64(sizeof(Row) / sizeof(A)) * args.chunk; }
    // Distances that are multiples of 4 KiB would make loads wait for unrelated stores.
    static constexpr i64 APART = 1088 / sizeof(A);
    i64 expanded() const { return args.chunk * tile() + APART; }
    i64 tape_room() const {
        return (4 + args.zoh) * expanded() + 2 * args.chunk * padded() + args.chunk * L +
               row_room() + tile() + 2 * APART;
    }
    A* lay_out(A* p, Tape& tape) const {
        auto take = [&p](i64 n) {
            A* here = p;
            p += n;
            return here;
        };
        tape.before = take(expanded());
        tape.decay = take(expanded());
        tape.weights = take(args.zoh * expanded());
        tape.for_B = take(expanded());
        tape.for_C = take(expanded());
        tape.B = take(args.chunk * padded());
        tape.C = take(args.chunk * padded());
        tape.grad = take(args.chunk * L);
        tape.rows = reinterpret_cast<Row*>(take(row_room()));
        tape.sum_A = take(tile() + APART);
        return p + APART;
    }

    // ------------------------------------------------------------------------------ the division

    // Sequence s and channel group g, whose kernel sees no other.
    void unit(i64 s, i64 g, i64 row, A* work) const {
        const Span span(args, s);
        SelectiveScanArgs own = args;
        own.time = span.count;
        Array* const rows[] = {&own.x, &own.dt,     &own.B,       &own.C,     &own.z,
                               &own.y, &own.grad_x, &own.grad_dt, &own.grad_z};
        Array* const sums[] = {&own.grad_B, &own.grad_C};
        for (Array* x : rows) *x = span.of(*x, sizeof(S));
        for (Array* x : sums) {
            *x = span.of(*x, sizeof(A));
            x->data += g * steps_of(args) * args.modes * i64(sizeof(A));
        }
        own.reset = span.of(own.reset, 1);
        // packed sequences begin a chunk anew each: some of the room is left empty
        auto cuts = reinterpret_cast<const i64*>(args.offsets);
        i64 before = cuts ? cuts[s] / args.chunk + s : s * chunks();
        if (own.kept) own.kept += before * args.modes * args.channels * i64(sizeof(A));
        SelectiveScan{{own}}.run(s, g, row, work);
    }
    void run(i64 s, i64 g, i64 row, A* work) const {
        i64 share = (blocks() + args.groups - 1) / args.groups, first = g * share;
        i64 last = first + share < blocks() ? first + share : blocks();
        if (first >= last) return;
#ifdef LINRNN_HALF_PRODUCTS
        if constexpr (std::is_same<S, bf16>::value)
            if (SelectiveHalf::usable(args)) {
                SelectiveHalf half(args);
                return args.backward ? half.backward(s, first, last, row, work) : half.forward(s, first, last, work);
            }
#endif
        if (args.backward) {
            if (args.zoh) backward<true>(s, first, last, row, work);
            else backward<false>(s, first, last, row, work);
        } else {
            if (args.zoh) forward<true>(s, first, last, work);
            else forward<false>(s, first, last, work);
        }
    }

    // No channel adds anything to the gradients that all of them share.
    int nothing() const {
        A *for_B = Rows::template at<A>(args.grad_B, 0), *for_C = Rows::template at<A>(args.grad_C, 0);
        for (i64 i = 0; args.backward && i < args.groups * steps_of(args) * args.modes; ++i)
            for_B[i] = for_C[i] = A(0);
        return 0;
    }

    // Numbers that a thread works with, for `share` blocks at once.
    i64 room_of(i64 share) const {
#ifdef LINRNN_HALF_PRODUCTS
        if constexpr (std::is_same<S, bf16>::value)
            if (SelectiveHalf::usable(args)) return SelectiveHalf(args).room(share);
#endif
        return 2 * share * tile() + (args.backward ? tape_room() + tile() : 2 * padded());
    }

    int dispatch() const {
        if (!args.seqs || !args.channels) return nothing();
        const i64 size = steps_of(args) * args.channels, bytes = size * i64(sizeof(S));
        if (!args.backward) advise(args.y.data, bytes);
        else
            advise(args.grad_x.data, bytes), advise(args.grad_dt.data, bytes), advise(args.grad_z.data, bytes);
        i64 share = (blocks() + args.groups - 1) / args.groups;
        const i64 room = room_of(share);
        i64 stride = (room + 63) / 64 * 64, per_row = (args.seqs + args.rows - 1) / args.rows;
        // steps times channels times modes that repay waking another thread
        i64 worth = size * args.modes / 65536 + 1;
        i64 threads = worth < args.threads ? worth : args.threads;
        void* memory = std::malloc(size_t(threads * stride) * sizeof(A) + 64);
        if (!memory) return 1;
        A* work = reinterpret_cast<A*>((reinterpret_cast<std::uintptr_t>(memory) + 63) & ~std::uintptr_t(63));
#pragma omp parallel num_threads(int(threads)) if (threads > 1)
        {
#ifdef _OPENMP
            A* mine = work + omp_get_thread_num() * stride;
#else
            A* mine = work;
#endif
            FlushSubnormals flush;
#pragma omp for schedule(dynamic)
            for (i64 u = 0; u < args.rows * args.groups; ++u) {
                i64 row = u / args.groups, g = u % args.groups;
                for (i64 s = row * per_row; s < args.seqs && s < (row + 1) * per_row; ++s)
                    unit(s, g, row, mine);
            }
        }
        std::free(memory);
        return 0;
    }
};

}  // namespace

int selective_scan(const void* record) {
    const auto& args = *static_cast<const SelectiveScanArgs*>(record);
    if (args.size != i64(sizeof(SelectiveScanArgs))) return 3;
    switch (args.dtype) {
        case F32: return SelectiveScan<float>{{args}}.dispatch();
        case F64: return SelectiveScan<double>{{args}}.dispatch();
        case BF16: return SelectiveScan<bf16>{{args}}.dispatch();
        case F16: return SelectiveScan<f16>{{args}}.dispatch();
    }
    return 2;
}

}  // namespace LINRNN_ISA
}  // namespace linrnn
