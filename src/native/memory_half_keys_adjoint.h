// The adjoint of blocks of 16 steps of bfloat16 rows whose decays are one a key. The blocks of a window
// are computed once more, then gone through backward.
#pragma once
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
struct HalfKeysAdjoint<float> : HalfKeys<float> {
    using Base = HalfKeys<float>;

    Block blocks[MOST];
    HalfPair* memories[MOST];                                 // (keys, width): S before each
    HalfPair *slope_rows, *slope_pairs;                       // R, of the memory after a block
    HalfPair *o_rows, *o_pairs, *o_turned, *value_turned;     // (L, width), (L / 2, width), (width / 2, L)
    float *dots, *d_turned, *d_q_in, *d_left, *d_across;      // (keys, L) or (L, keys);  (keys)
    float *d_q, *d_k, *d_decay, *d_bonus, *d_pairs;           // (L, keys), of the bonus (keys);  (L, L)

    HalfKeysAdjoint(const Head<float>& of, float*& work) : Base(of, work) {
        for (int b = 0; b < MOST; ++b) lay_out(work, blocks[b]), memories[b] = take_pairs(work, keys / 2 * width);
        for (HalfPair** x : {&slope_rows, &slope_pairs}) *x = take_pairs(work, keys / 2 * width);
        for (HalfPair** x : {&o_rows, &o_pairs, &o_turned, &value_turned}) *x = take_pairs(work, L / 2 * width);
        for (float** x : {&dots, &d_turned, &d_q_in, &d_left, &d_q, &d_k, &d_decay}) *x = take(work, L * keys);
        for (float** x : {&d_across, &d_bonus}) *x = take(work, keys);
        d_pairs = take(work, L * L);
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
        slope_values(x);
        const i64 depth = width / 2;
        turned_product(Factors{S, depth, 1, o_turned, L, depth}, d_q_in);
        turned_product(Factors{slope_rows, depth, 1, value_turned, L, depth}, d_left);
        product(L, L, Factors{o_rows, depth, 1, value_turned, L, depth},
                [&](auto& sum, i64 i, i64 j) { T::put_tile(sum, d_pairs + i * L + j, L); });
        leave_memory(x, S, R);
        if (head.early()) leave<true>(x);
        else leave<false>(x);
        put_slopes(x);
    }
    void load_out(const Block& x) const {
        auto row = reinterpret_cast<bf16*>(o_rows);
        for (i64 i = 0; i < L; ++i, row += width) {
            const i64 there = i < x.n ? head.count : 0;
            if (there) copy(row, Head<float>::at<bf16>(args.o, x.t + i, head.h * head.columns() + head.first), there);
            for (i64 v = there; v < width; ++v) row[v].bits = 0;
            if (there) head.ask_out(x.t + i - L), head.ask_slopes(x.t + i - L);
        }
        pair_stored(o_rows, L, width, o_pairs);
        turn_rows(o_rows, width, o_turned, L, L);
        turn_rows(x.value_rows, width, value_turned, L, L);
    }
    // Of what is written, as the memory after the block and q have it.
    void slope_values(const Block& x) const {
        pair_stored(slope_rows, keys, width, slope_pairs);
        const Factors by_q{x.pairs_turned, L / 2, 1, o_pairs, width, L / 2};
        product(L, width, Factors{x.left_rows, keys / 2, 1, slope_pairs, width, keys / 2}, [](auto&, i64, i64) {}, &by_q,
                [&](auto& sum, i64 i, i64 v) { T::put_tile(sum, out + i * width + v, width); });
        const i64 channel = head.h * args.values + head.first;
        for (i64 i = 0; i < x.n; ++i)
            to_halves(out + i * width, stored_pairs(args.grad_v, x.t + i, channel), head.given());
    }
    // (keys, L), turned to (L, keys).
    void turned_product(const Factors& f, float* to) const {
        product(keys, L, f, [&](auto& sum, i64 c, i64 i) { T::put_tile(sum, d_turned + c * L + i, L); });
        T::transpose(d_turned, L, to, keys, keys, L);
    }
    // R before the block, rounded too, and the gradient of what the block keeps.
    void leave_memory(const Block& x, const HalfPair* S, float* R) const {
        head.clear(dots, 0, keys * L);
        product(keys, width, Factors{x.read_turned, L / 2, 1, o_pairs, width, L / 2}, [&](auto& sum, i64 c, i64 v) {
            add_dots(sum, S, R, c, v);
            keep_rows(sum, x.across + c, R + c * width + v);
            for (i64 r = c; r < c + rows_of(sum); ++r)
                to_halves(R + r * width + v, slope_rows + (r * width + v) / 2, columns_of(sum));
        });
        T::transpose(dots, L, d_turned, keys, keys, L);
        for (i64 c = 0; c < keys; c += L) {
            V total{};
            for (i64 i = 0; i < L; ++i) total += T::load(d_turned + i * keys + c);
            T::store(d_across + c, total);
        }
    }
    template <int R_, int W>
    LINRNN_INLINE void add_dots(const V (&)[R_][W], const HalfPair* S, const float* R, i64 c, i64 v) const {
        for (int r = 0; r < R_; ++r) {
            V dot = T::load(dots + (c + r) * L);
            for (int w = 0; w < W; ++w) {
                const i64 at = (c + r) * width + v + w * L;
                dot += widened(S, at) * T::load(R + at);
            }
            T::store(dots + (c + r) * L, dot);
        }
    }
    template <bool EARLY>
    void leave(const Block& x) const {
        for (i64 c = 0; c < keys; c += L) {
            HalfWalk<EARLY> walk;
            for (i64 i = 0, at = c; i < L; ++i, at += keys)
                walk.decay[i] = T::load(x.decay + at), walk.q[i] = T::load(x.q + at), walk.k[i] = T::load(x.k + at);
            walk.meet_memory(d_q_in + c, d_left + c, keys, T::load(x.across + c) * T::load(d_across + c));
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
    void put_keys(const Array& to, i64 share, i64 t, float* row) const {
        if (args.single) to_halves(row, stored_pairs(to, t, head.h * args.keys), args.keys);
        else head.add_keys(to, share, t, row, 1.0f);
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
