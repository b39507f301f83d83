// The adjoint of blocks of 16 steps of bfloat16 rows with a second write of a low rank.
#pragma once
#include "memory_half_blocks_adjoint.h"
#include "memory_half_low_rank.h"

namespace linrnn {
namespace LINRNN_ISA {
namespace {

template <class A>
struct HalfLowRankAdjoint {};

#ifdef LINRNN_HALF_PRODUCTS
// 16 steps of a register of keys, and the gradients of them, as `HalfWalk` of memory_half_keys_adjoint.h:
// each pair of steps has a step p between, up to which decays are multiplied. Here q reads after its
// step's decay and a before it, and each step writes with k and with b.
struct LowRankWalk {
    using T = Tile<float>;
    using V = T::V;
    static constexpr int L = T::L, BOTH = 2 * L;

    V decay[L], q[L], a[L], k[L], b[L], dq[L], da[L], dk[L], db[L], ddecay[L];

    // read: as q, then a, meet the memory;  left: k, then b;  both (2 L, ld). across: the gradient of what
    // the block keeps, times it.
    LINRNN_INLINE void meet_memory(const float* read, const float* left, i64 ld, V across) {
        V running = 1.0f + V{}, until = running;
        for (int i = 0; i < L; ++i) {
            da[i] = running * T::load(read + (L + i) * ld);
            running = running * decay[i];
            dq[i] = running * T::load(read + i * ld);
        }
        V after = across;
        for (int i = L - 1; i >= 0; --i) {
            after += q[i] * dq[i];
            ddecay[i] = after;
            after += a[i] * da[i];
            dk[i] = until * T::load(left + i * ld);
            db[i] = until * T::load(left + (L + i) * ld);
            until = until * decay[i];
        }
        V written{};
        for (int i = 0; i < L; ++i) ddecay[i] += written, written += k[i] * dk[i] + b[i] * db[i];
    }
    // slopes: of pairs, (2 L, 2 L), rows of q, then a, columns of k, then b.
    LINRNN_INLINE void meet_steps(const float* slopes) {
        halves<8>(slopes), halves<4>(slopes), halves<2>(slopes), halves<1>(slopes);
    }
    template <int HALF>
    LINRNN_INLINE void halves(const float* slopes) {
        for (int p = HALF; p < L; p += 2 * HALF) between<HALF>(p, slopes + p * BOTH + p - HALF);
    }
    template <int HALF>
    LINRNN_INLINE void between(int p, const float* slopes) {
        V by_q[HALF], by_a[HALF], by_key[HALF], reader_q[HALF], reader_a[HALF], key_k[HALF], key_b[HALF];
        V running = 1.0f + V{};
        for (int r = 0; r < HALF; ++r) {
            by_a[r] = running, reader_a[r] = running * a[p + r];
            running = running * decay[p + r];
            by_q[r] = running, reader_q[r] = running * q[p + r];
        }
        running = 1.0f + V{};
        for (int s = HALF - 1, j = p - 1; s >= 0; --s, --j) {
            by_key[s] = running, key_k[s] = running * k[j], key_b[s] = running * b[j];
            running = running * decay[j];
        }
        V after{};
        for (int r = HALF - 1; r >= 0; --r) {
            const float *of_q = slopes + r * BOTH, *of_a = of_q + L * BOTH;
            V q_k{}, q_b{}, a_k{}, a_b{};
            for (int s = 0; s < HALF; ++s) {
                q_k += of_q[s] * key_k[s], q_b += of_q[L + s] * key_b[s];
                a_k += of_a[s] * key_k[s], a_b += of_a[L + s] * key_b[s];
            }
            q_k += q_b, a_k += a_b;
            dq[p + r] += by_q[r] * q_k, da[p + r] += by_a[r] * a_k;
            after += reader_q[r] * q_k;
            ddecay[p + r] += after;
            after += reader_a[r] * a_k;
        }
        V written{};
        for (int s = 0, j = p - HALF; s < HALF; ++s, ++j) {
            const float *of_q = slopes + s, *of_a = of_q + L * BOTH;
            V k_q{}, k_a{}, b_q{}, b_a{};
            for (int r = 0; r < HALF; ++r) {
                k_q += of_q[r * BOTH] * reader_q[r], b_q += of_q[r * BOTH + L] * reader_q[r];
                k_a += of_a[r * BOTH] * reader_a[r], b_a += of_a[r * BOTH + L] * reader_a[r];
            }
            k_q += k_a, b_q += b_a;
            dk[j] += by_key[s] * k_q, db[j] += by_key[s] * b_q;
            ddecay[j] += written;
            written += key_k[s] * k_q + key_b[s] * b_q;
        }
    }
    // q reads what its own step writes.
    LINRNN_INLINE void meet_itself(const float* slopes) {
        for (int i = 0; i < L; ++i) {
            const float of_k = slopes[i * BOTH + i], of_b = slopes[i * BOTH + L + i];
            dq[i] += of_k * k[i] + of_b * b[i];
            dk[i] += of_k * q[i], db[i] += of_b * q[i];
        }
    }
};

template <>
struct HalfLowRankAdjoint<float> : HalfBlocksAdjoint<HalfLowRank<float>> {
    using Base = HalfBlocksAdjoint<HalfLowRank<float>>;

    float *d_values, *d_second;      // (2 L, width), (L, width)
    float *d_q, *d_a, *d_k, *d_b;    // (L, keys)

    HalfLowRankAdjoint(const Head<float>& of, float*& work) : Base(of, work) {
        d_values = take(work, ALL_ROWS * width), d_second = take(work, L * width);
        for (float** x : {&d_q, &d_a, &d_k, &d_b}) *x = take(work, L * keys);
    }

    // Steps [begin, end) of a window, of which none resets but the first, from the memory S before them,
    // which is lost, and the gradient R of that after them to the one of that before, both (keys, width).
    void backward(i64 begin, i64 end, float* S, float* R) {
        int count = 0;
        pair_all(S, width, keys, width, memory_pairs);
        for (i64 t = begin; t < end; t += L, ++count) {
            const i64 n = end - t < L ? end - t : L;
            Block& x = blocks[count];
            load(t, n, t + L < end ? t + L : begin - args.window, x);
            to_halves(S, memories[count], keys * width);
            read(x.read_rows + L / 2 * keys, L, memory_pairs, past);
            write_second(x, past);
            if (t + L < end) advance_pairs(x, S);
        }
        to_halves(R, slope_rows, keys * width);
        while (count--) retreat(blocks[count], memories[count], R);
    }
    // From the gradient R of the memory after a block to that of the one before.
    void retreat(const Block& x, const HalfPair* S, float* R) const {
        load_out(x);
        slope_values(x);
        slope_rows_of(x, S, R);
        leave(x);
        put_slopes(x);
    }
    // Of what is written, as the memory after the block and q have it; then as a has it, which passes on
    // what is written second.
    void slope_values(const Block& x) const {
        slope_writes(x, d_values);
        for (i64 v = 0; v < width; v += L) resolve(x, d_values + v, d_second + v, width, Steps());
        put_values(x, d_values);
        to_halves(d_second, o_rows + L / 2 * width, L * width);
        pair_stored(o_rows + L / 2 * width, L, width, o_pairs + L / 2 * width);
    }
    template <int... J>
    static LINRNN_INLINE void resolve(const Block& x, float* values, float* second, i64 ld,
                                      std::integer_sequence<int, J...> all) {
        constexpr int LAST = int(L) - 1;
        V sum[L];
        load_steps(sum, values + L * ld, ld, all);
        (add_earlier<LAST - J>(sum, x.solves[1] + (LAST - J) * L, sum[LAST - J], all), ...);
        store_steps(sum, second, ld, all);
        load_steps(sum, values, ld, all);
        (add_earlier<J>(sum, x.solves[0] + J * L, T::load(second + J * ld), all), ...);
        store_steps(sum, values, ld, all);
    }
    void leave(const Block& x) const {
        const float scale = float(args.scale);
        for (i64 c = 0; c < keys; c += L) {
            LowRankWalk walk;
            for (i64 i = 0, at = c; i < L; ++i, at += keys) {
                walk.decay[i] = T::load(x.decay + at), walk.q[i] = T::load(x.q + at), walk.a[i] = T::load(x.a + at);
                walk.k[i] = T::load(x.k + at), walk.b[i] = T::load(x.b + at);
            }
            walk.meet_memory(d_in + c, d_left + c, keys, T::load(x.across + c) * T::load(d_across + c));
            walk.meet_steps(d_pairs);
            walk.meet_itself(d_pairs);
            for (i64 i = 0, at = c; i < L; ++i, at += keys) {
                T::store(d_q + at, scale * walk.dq[i]), T::store(d_a + at, walk.da[i]);
                T::store(d_k + at, walk.dk[i]), T::store(d_b + at, walk.db[i]);
                T::store(d_decay + at, walk.ddecay[i]);
            }
        }
    }
    void put_slopes(const Block& x) const {
        for (i64 i = 0; i < x.n; ++i) {
            const i64 t = x.t + i;
            put_keys(args.grad_q, args.q_share, t, d_q + i * keys);
            put_keys(args.grad_a, args.a_share, t, d_a + i * keys);
            put_keys(args.grad_k, args.k_share, t, d_k + i * keys);
            put_keys(args.grad_b, args.b_share, t, d_b + i * keys);
            head.put_decay(t, d_decay + i * keys);
        }
    }
};
#endif

}  // namespace
}  // namespace LINRNN_ISA
}  // namespace linrnn
