// The adjoint of blocks of 16 steps of bfloat16 rows whose decays are one a key.
#pragma once
#include "memory_half_blocks_adjoint.h"
#include "memory_half_keys.h"

namespace linrnn {
namespace LINRNN_ISA {
namespace {

template <class A>
struct HalfKeysAdjoint {};

#ifdef LINRNN_HALF_PRODUCTS
// 16 steps of a register of keys, and the gradients of them. Each pair of a reading step i and a writing
// step j has a step p between: D_ij is a product of what is kept from p to i and from j to p. Blocks of
// `HALF` rows and columns share a p, so decays are multiplied once a row and once a column of them.
// Terms of the gradient of a decay are added up in the order of time, and never subtracted.
template <bool EARLY>
struct HalfWalk {
    using T = Tile<float>;
    using V = T::V;
    static constexpr int L = T::L;

    V decay[L], q[L], k[L], dq[L], dk[L], ddecay[L];

    // dq_in, dk_left: as they meet the memory, (L, ld);  across: that of what the block keeps, times it.
    LINRNN_INLINE void meet_memory(const float* dq_in, const float* dk_left, i64 ld, V across) {
        V running = 1.0f + V{}, until = running, read[L];
        for (int i = 0; i < L; ++i) {
            const V before = running;
            running = running * decay[i];
            dq[i] = (EARLY ? before : running) * T::load(dq_in + i * ld);
            read[i] = q[i] * dq[i];
        }
        V after = across;
        for (int i = L - 1; i >= 0; --i) {
            if (!EARLY) after += read[i];
            ddecay[i] = after;
            if (EARLY) after += read[i];
            dk[i] = until * T::load(dk_left + i * ld);
            read[i] = k[i] * dk[i];
            until = until * decay[i];
        }
        V written{};
        for (int i = 0; i < L; ++i) ddecay[i] += written, written += read[i];
    }
    // slopes: of pairs, (L, L).
    LINRNN_INLINE void meet_steps(const float* slopes) {
        halves<8>(slopes), halves<4>(slopes), halves<2>(slopes), halves<1>(slopes);
    }
    template <int HALF>
    LINRNN_INLINE void halves(const float* slopes) {
        for (int p = HALF; p < L; p += 2 * HALF) between<HALF>(p, slopes + p * L + p - HALF);
    }
    template <int HALF>
    LINRNN_INLINE void between(int p, const float* slopes) {
        V to_row[HALF], of_column[HALF], reader[HALF], key[HALF];
        V running = 1.0f + V{};
        for (int r = 0; r < HALF; ++r) {
            const V before = running;
            running = running * decay[p + r];
            to_row[r] = EARLY ? before : running;
            reader[r] = to_row[r] * q[p + r];
        }
        running = 1.0f + V{};
        for (int s = HALF - 1, j = p - 1; s >= 0; --s, --j)
            of_column[s] = running, key[s] = running * k[j], running = running * decay[j];
        V after{};
        for (int r = HALF - 1; r >= 0; --r) {
            V sum{};
            for (int s = 0; s < HALF; ++s) sum += slopes[r * L + s] * key[s];
            dq[p + r] += to_row[r] * sum;
            if (!EARLY) after += reader[r] * sum;
            ddecay[p + r] += after;
            if (EARLY) after += reader[r] * sum;
        }
        V written{};
        for (int s = 0, j = p - HALF; s < HALF; ++s, ++j) {
            V sum{};
            for (int r = 0; r < HALF; ++r) sum += slopes[r * L + s] * reader[r];
            dk[j] += of_column[s] * sum;
            ddecay[j] += written;
            written += key[s] * sum;
        }
    }
    // Each step with itself, by a weight; the gradient of that weight.
    LINRNN_INLINE V meet_itself(const float* slopes, V weight) {
        V total{};
        for (int i = 0; i < L; ++i) {
            const V slope = slopes[i * L + i] + V{};
            dq[i] += slope * weight * k[i];
            dk[i] += slope * weight * q[i];
            total += slope * q[i] * k[i];
        }
        return total;
    }
};

template <>
struct HalfKeysAdjoint<float> : HalfBlocksAdjoint<HalfKeys<float>> {
    using Base = HalfBlocksAdjoint<HalfKeys<float>>;

    float *d_q, *d_k, *d_bonus;  // (L, keys), (keys)

    HalfKeysAdjoint(const Head<float>& of, float*& work) : Base(of, work) {
        for (float** x : {&d_q, &d_k}) *x = take(work, L * keys);
        d_bonus = take(work, keys);
    }

    // Steps [begin, end) of a window, of which none resets but the first, from the memory S before them,
    // which is lost, and the gradient R of that after them to the one of that before, both (keys, width).
    void backward(i64 begin, i64 end, float* S, float* R) {
        int count = 0;
        for (i64 t = begin; t < end; t += L, ++count) {
            const i64 n = end - t < L ? end - t : L;
            load(t, n, t + L < end ? t + L : begin - args.window, blocks[count]);
            to_halves(S, memories[count], keys * width);
            if (t + L < end) advance(blocks[count], S, [](i64, i64, i64, i64) {});
        }
        to_halves(R, slope_rows, keys * width);
        while (count--) retreat(blocks[count], memories[count], R);
    }
    // From the gradient R of the memory after a block to that of the one before.
    void retreat(const Block& x, const HalfPair* S, float* R) const {
        load_out(x);
        slope_writes(x, out);
        put_values(x, out);
        slope_rows_of(x, S, R);
        if (head.early()) leave<true>(x);
        else leave<false>(x);
        put_slopes(x);
    }
    template <bool EARLY>
    void leave(const Block& x) const {
        for (i64 c = 0; c < keys; c += L) {
            HalfWalk<EARLY> walk;
            for (i64 i = 0, at = c; i < L; ++i, at += keys)
                walk.decay[i] = T::load(x.decay + at), walk.q[i] = T::load(x.q + at), walk.k[i] = T::load(x.k + at);
            walk.meet_memory(d_in + c, d_left + c, keys, T::load(x.across + c) * T::load(d_across + c));
            walk.meet_steps(d_pairs);
            T::store(d_bonus + c, walk.meet_itself(d_pairs, EARLY ? bonus(c) : 1.0f + V{}));
            const float scale = float(args.scale);
            for (i64 i = 0, at = c; i < L; ++i, at += keys) {
                T::store(d_q + at, scale * walk.dq[i]);
                T::store(d_k + at, walk.dk[i]), T::store(d_decay + at, walk.ddecay[i]);
            }
        }
    }
    void put_slopes(const Block& x) const {
        for (i64 i = 0; i < x.n; ++i) {
            put_keys(args.grad_q, args.q_share, x.t + i, d_q + i * keys);
            put_keys(args.grad_k, args.k_share, x.t + i, d_k + i * keys);
            if (!args.constant) head.put_decay(x.t + i, d_decay + i * keys);
        }
        if (args.constant) add_decays(x.n);
        double* sums = head.sums(1);
        for (i64 c = 0; head.early() && c < args.keys; ++c) sums[c] += double(d_bonus[c]);
    }
    // Of decays that all steps share.
    void add_decays(i64 n) const {
        for (i64 i = 1; i < n; ++i)
            for (i64 c = 0; c < keys; c += L) T::store(d_decay + c, T::load(d_decay + c) + T::load(d_decay + i * keys + c));
        double* sums = head.sums(0);
        for (i64 c = 0; c < args.keys; ++c) sums[c] += double(d_decay[c]);
    }
};
#endif

}  // namespace
}  // namespace LINRNN_ISA
}  // namespace linrnn
