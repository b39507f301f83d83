// The weighted mean of RWKV-4 of bfloat16 rows, and its adjoint:
//
//     y_t = sigmoid(r_t) (v_t + p (m - v_t)),  p = sigmoid(L - bonus - k_t)
//     m_t = v_t + q (m - v_t),                 q = sigmoid(L - decay - k_t)
//     L_t = log(exp(L - decay) + exp(k_t))     with the mean m and the logarithm L of before
//
// A cell's program writes every operation's row; here 16 channels of a step stay in registers. The
// states before each window of steps are stored, and the adjoint computes the others again: they are
// float32, so that storing all of them would cost more than the arithmetic. Every thread owns some
// (sequence, channel block); no sum is shared, so any number of threads gives the same bits.
#include <cstring>

#include "../half_rows.h"
#include "../wkv_args.h"

namespace linrnn {
namespace LINRNN_ISA {
namespace {

constexpr int NO_HALF_PRODUCTS = 6;

#ifdef LINRNN_HALF_PRODUCTS

constexpr i64 LANES = 16, WINDOW = 8, BLOCK = 256;  // a window's states stay in first-level cache
constexpr i64 THREAD_NUMBERS = 8 * 1024;            // that occupy a thread for long enough

#define LINRNN_LANES LINRNN_BF16_TARGET __attribute__((always_inline)) inline

// log(1 + e) of 0 <= e <= 1, within 3e-7 of itself.
LINRNN_LANES __m512 lanes_log1p(__m512 e) {
    constexpr float SERIES[] = {5.1261019e-3f,  -2.90740654e-2f, 7.75160864e-2f, -1.36022478e-1f, 1.90768808e-1f,
                                -2.48353988e-1f, 3.33181202e-1f,  -4.99994457e-1f, 0.99999994f};
    __m512 q = _mm512_set1_ps(SERIES[0]);
    for (int i = 1; i < 9; ++i) q = _mm512_fmadd_ps(q, e, _mm512_set1_ps(SERIES[i]));
    return _mm512_mul_ps(q, e);
}

// What a step makes of the state before it; `share` and `rest` are q and 1 - q.
struct Next {
    __m512 mean, norm, share, rest;
};
LINRNN_LANES Next next_state(__m512 mean, __m512 norm, __m512 k, __m512 v, __m512 decay) {
    const __m512 decayed = _mm512_sub_ps(norm, decay), odds = _mm512_sub_ps(decayed, k);
    const __m512 e = lanes_exp_below(_mm512_or_ps(odds, _mm512_set1_ps(-0.0f)));  // exp(-|odds|)
    const __m512 large = lanes_inverse(lanes_plus_one(e)), small = _mm512_mul_ps(e, large);
    const __mmask16 below = lanes_negative(odds);
    const __m512 share = _mm512_mask_blend_ps(below, large, small), rest = _mm512_mask_blend_ps(below, small, large);
    // the larger of both by the sign of their difference, which is NaN where either is
    const __m512 most = _mm512_mask_blend_ps(below, decayed, k);
    // a long memory has a small rest: so the mean is rounded once
    return {_mm512_fmadd_ps(rest, _mm512_sub_ps(v, mean), mean), _mm512_add_ps(most, lanes_log1p(e)), share, rest};
}

struct Wkv {
    const WkvArgs& args;
    const i64 n = args.channels, windows = (args.time + WINDOW - 1) / WINDOW;

    // The states before the steps of a window, and q and 1 - q of its steps.
    struct States {
        alignas(64) float mean[WINDOW][BLOCK], norm[WINDOW][BLOCK], share[WINDOW][BLOCK], rest[WINDOW][BLOCK];
    };
    // What is carried along time; in the adjoint these are gradients.
    struct Carried {
        alignas(64) float mean[BLOCK], norm[BLOCK];
    };
    struct Sums {
        alignas(64) float decay[BLOCK], bonus[BLOCK];
    };

    static const bf16* row(const Array& x, i64 s, i64 t, i64 c) {
        return reinterpret_cast<const bf16*>(x.data) + s * x.seq + t * x.step + c;
    }
    bf16* dense(i64 data, i64 s, i64 t, i64 c) const { return at<bf16>(data, (s * args.time + t) * n + c); }
    template <class P>
    static P* at(i64 data, i64 number) {
        return reinterpret_cast<P*>(data) + number;
    }
    bool cut(i64 s, i64 t) const {
        const Array& r = args.reset;
        return r.data && *at<const std::uint8_t>(r.data, s * r.seq + t * r.step);
    }
    void begin(Carried& x, i64 width) const {
        for (i64 i = 0; i < width; ++i) x.mean[i] = 0, x.norm[i] = float(args.empty);
    }
    float* mark(i64 s, i64 window, i64 part, i64 c) const {
        return at<float>(args.marks, ((s * windows + window) * 2 + part) * n + c);
    }
    static void copy(const float* from, float* to, i64 width) { std::memcpy(to, from, size_t(width) * sizeof(float)); }

    // -------------------------------------------------------------------------------- forward

    LINRNN_BF16_TARGET void advance(Carried& x, i64 s, i64 t, i64 c, i64 width) const {
        const bf16 *k = row(args.k, s, t, c), *v = row(args.v, s, t, c), *r = row(args.r, s, t, c);
        auto y = const_cast<bf16*>(row(args.y, s, t, c));
        const float *decay = at<const float>(args.decay, c), *bonus = at<const float>(args.bonus, c);
        for (i64 i = 0; i < width; i += LANES) {
            const __mmask16 some = lanes_left(width - i);
            const __m512 mean = load_lanes(x.mean + i, some), norm = load_lanes(x.norm + i, some);
            const __m512 key = load_lanes(k + i, some), value = load_lanes(v + i, some);
            const __m512 odds = _mm512_sub_ps(_mm512_sub_ps(norm, load_lanes(bonus + i, some)), key);
            const __m512 read = _mm512_fmadd_ps(lanes_sigmoid(odds).value, _mm512_sub_ps(mean, value), value);
            store_lanes(y + i, some, _mm512_mul_ps(lanes_sigmoid(load_lanes(r + i, some)).value, read));
            const Next next = next_state(mean, norm, key, value, load_lanes(decay + i, some));
            store_lanes(x.mean + i, some, next.mean);
            store_lanes(x.norm + i, some, next.norm);
        }
    }
    void forward(i64 s, i64 c, i64 width) const {
        Carried x;
        copy(at<float>(args.initial_mean, s * n + c), x.mean, width);
        copy(at<float>(args.initial_norm, s * n + c), x.norm, width);
        for (i64 t = 0; t < args.time; ++t) {
            if (args.marks && t % WINDOW == 0) {
                copy(x.mean, mark(s, t / WINDOW, 0, c), width);
                copy(x.norm, mark(s, t / WINDOW, 1, c), width);
            }
            if (cut(s, t)) begin(x, width);
            advance(x, s, t, c, width);
        }
        copy(x.mean, at<float>(args.final_mean, s * n + c), width);
        copy(x.norm, at<float>(args.final_norm, s * n + c), width);
    }

    // ------------------------------------------------------------------------------- backward

    // States before the steps [first, first + steps), computed again.
    LINRNN_BF16_TARGET void again(States& all, Carried& x, i64 s, i64 first, i64 steps, i64 c, i64 width) const {
        copy(mark(s, first / WINDOW, 0, c), x.mean, width);
        copy(mark(s, first / WINDOW, 1, c), x.norm, width);
        const float* decay = at<const float>(args.decay, c);
        for (i64 t = 0; t < steps; ++t) {
            if (cut(s, first + t)) begin(x, width);
            const bf16 *k = row(args.k, s, first + t, c), *v = row(args.v, s, first + t, c);
            for (i64 i = 0; i < width; i += LANES) {
                const __mmask16 some = lanes_left(width - i);
                const __m512 mean = load_lanes(x.mean + i, some), norm = load_lanes(x.norm + i, some);
                const Next next = next_state(mean, norm, load_lanes(k + i, some), load_lanes(v + i, some),
                                             load_lanes(decay + i, some));
                store_lanes(all.mean[t] + i, some, mean);
                store_lanes(all.norm[t] + i, some, norm);
                store_lanes(all.share[t] + i, some, next.share);
                store_lanes(all.rest[t] + i, some, next.rest);
                store_lanes(x.mean + i, some, next.mean);
                store_lanes(x.norm + i, some, next.norm);
            }
        }
    }
    // Against step t, whose number in its window is w.
    LINRNN_BF16_TARGET void retreat(Carried& into, Sums& sums, const States& all, i64 w, i64 s, i64 t, i64 c,
                                    i64 width) const {
        const bf16 *k = row(args.k, s, t, c), *v = row(args.v, s, t, c), *r = row(args.r, s, t, c);
        const bf16* grad_y = row(args.grad_y, s, t, c);
        bf16 *grad_k = dense(args.grad_k, s, t, c), *grad_v = dense(args.grad_v, s, t, c);
        bf16* grad_r = dense(args.grad_r, s, t, c);
        const float* bonus = at<const float>(args.bonus, c);
        for (i64 i = 0; i < width; i += LANES) {
            const __mmask16 some = lanes_left(width - i);
            const __m512 value = load_lanes(v + i, some), grad = load_lanes(grad_y + i, some);
            const __m512 norm = _mm512_sub_ps(load_lanes(all.norm[w] + i, some), load_lanes(bonus + i, some));
            const LanesSigmoid p = lanes_sigmoid(_mm512_sub_ps(norm, load_lanes(k + i, some)));
            const LanesSigmoid gate = lanes_sigmoid(load_lanes(r + i, some));
            const __m512 gap = _mm512_sub_ps(load_lanes(all.mean[w] + i, some), value);
            const __m512 into_read = _mm512_mul_ps(grad, gate.value), read = _mm512_fmadd_ps(p.value, gap, value);
            store_lanes(grad_r + i, some, _mm512_mul_ps(_mm512_mul_ps(into_read, gate.rest), read));
            const __m512 share = load_lanes(all.share[w] + i, some), rest = load_lanes(all.rest[w] + i, some);
            const __m512 into_mean = load_lanes(into.mean + i, some), into_norm = load_lanes(into.norm + i, some);
            const __m512 by_read = _mm512_mul_ps(into_read, p.value), by_mean = _mm512_mul_ps(into_mean, share);
            const __m512 for_p = _mm512_mul_ps(_mm512_mul_ps(by_read, p.rest), gap);
            const __m512 for_q = _mm512_mul_ps(_mm512_mul_ps(by_mean, rest), gap);
            const __m512 decayed = _mm512_fmadd_ps(into_norm, share, for_q);
            store_lanes(grad_v + i, some, _mm512_fmadd_ps(into_read, p.rest, _mm512_mul_ps(into_mean, rest)));
            const __m512 new_weight = _mm512_fmsub_ps(into_norm, rest, for_q);
            store_lanes(grad_k + i, some, _mm512_sub_ps(new_weight, for_p));
            store_lanes(into.mean + i, some, _mm512_add_ps(by_read, by_mean));
            store_lanes(into.norm + i, some, _mm512_add_ps(for_p, decayed));
            store_lanes(sums.decay + i, some, _mm512_sub_ps(load_lanes(sums.decay + i, some), decayed));
            store_lanes(sums.bonus + i, some, _mm512_sub_ps(load_lanes(sums.bonus + i, some), for_p));
        }
    }
    void backward(i64 s, i64 c, i64 width) const {
        States all;
        Carried into, x;
        copy(at<float>(args.final_mean, s * n + c), into.mean, width);
        copy(at<float>(args.final_norm, s * n + c), into.norm, width);
        double *of_decay = at<double>(args.sums, s * 2 * n + c), *of_bonus = of_decay + n;
        for (i64 i = 0; i < width; ++i) of_decay[i] = of_bonus[i] = 0;
        for (i64 window = windows - 1; window >= 0; --window) {
            const i64 first = window * WINDOW, steps = args.time - first < WINDOW ? args.time - first : WINDOW;
            again(all, x, s, first, steps, c, width);
            Sums sums{};
            for (i64 w = steps - 1; w >= 0; --w) {
                retreat(into, sums, all, w, s, first + w, c, width);
                if (cut(s, first + w)) std::memset(&into, 0, sizeof into);
            }
            for (i64 i = 0; i < width; ++i) of_decay[i] += double(sums.decay[i]), of_bonus[i] += double(sums.bonus[i]);
        }
        copy(into.mean, at<float>(args.grad_mean, s * n + c), width);
        copy(into.norm, at<float>(args.grad_norm, s * n + c), width);
    }

    int dispatch() const {
        if (!args.seqs || !n) return 0;
        const i64 worth = args.seqs * args.time * n / THREAD_NUMBERS;
        const i64 threads = worth < 1 ? 1 : worth < args.threads ? worth : args.threads;
        const i64 parts = (threads + args.seqs - 1) / args.seqs;  // of a row, in whole registers
        i64 block = ((n + parts - 1) / parts + LANES - 1) / LANES * LANES;
        if (block > BLOCK) block = BLOCK;
        const i64 blocks = (n + block - 1) / block;
#pragma omp parallel for num_threads(int(threads)) schedule(dynamic) if (threads > 1)
        for (i64 j = 0; j < args.seqs * blocks; ++j) {
            const i64 s = j / blocks, c = j % blocks * block, width = n - c < block ? n - c : block;
            if (args.backward) backward(s, c, width);
            else forward(s, c, width);
        }
        return 0;
    }
};
#endif

}  // namespace

int wkv(const void* record) {
    const auto& args = *static_cast<const WkvArgs*>(record);
    if (args.size != i64(sizeof(WkvArgs))) return 3;
    if (args.dtype != BF16) return 2;
#ifdef LINRNN_HALF_PRODUCTS
    if (has_half_products()) return Wkv{args}.dispatch();
#endif
    return NO_HALF_PRODUCTS;
}

}  // namespace LINRNN_ISA
}  // namespace linrnn
