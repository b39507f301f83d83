// Blocks of 16 steps of a memory whose decays are one a key and whose rows are bfloat16. With P the
// products of decays since the block began, D those from step j to i and U those from step j to the end,
//   o = (q P) S + A v,   A_ij = q_i k_j D_ij,   S <- P_end S + (k U)' v,
// where products with S, and those that are added to it, are of bfloat16 numbers with sums in float32.
// Memories, decays and A stay float32, and no step touches what is written later: it may not be finite.
#pragma once
#include "memory_half_blocks.h"

namespace linrnn {
namespace LINRNN_ISA {
namespace {

template <class A>
struct HalfKeys {
    static constexpr bool exist = false;
};

#ifdef LINRNN_HALF_PRODUCTS
template <>
struct HalfKeys<float> : HalfBlocks<1> {
    static bool usable(const MemoryScanArgs& args) {
        return !args.delta && !args.a.data && HalfBlocks<1>::usable(args);
    }

    struct Block : Rows {
        float *q, *k;  // (L, keys); q with its scale
        float* pairs;  // (L, L): A
    };

    float* kept;  // (keys)

    // `work` is where everything lies, if it is anywhere.
    HalfKeys(const Head<float>& of, float*& work) : HalfBlocks<1>(of, work) {
        kept = take(work, keys);
        if (rows && args.constant) head.key_decay(0, kept);
    }
    void lay_out(float*& work, Block& x) const {
        lay_out_rows(work, x);
        for (float** y : {&x.q, &x.k}) *y = take(work, L * keys);
        x.pairs = take(work, L * L);
    }
    void lay_out(float*& work) const {
        Block x;
        lay_out(work, x);
    }

    // ------------------------------------------------------------------------------------- blocks

    // Steps that there are not write nothing and forget nothing. Those from `next` on are named.
    void load(i64 t, i64 n, i64 next, Block& x) const {
        x.t = t, x.n = n;
        for (i64 i = 0; i < n; ++i) load_step(t + i, i, x), head.ask(next + i);
        for (float* y : {x.q, x.k}) head.clear(y, n * keys, L * keys);
        for (i64 i = n * keys; i < L * keys; ++i) x.decay[i] = 1;
        load_values(x);
        read_memory(x);
        meet(x);
    }
    void load_step(i64 t, i64 i, Block& x) const {
        load_row(args.q, head.q_head, t, float(args.scale), x.q + i * keys);
        load_row(args.k, head.k_head, t, 1, x.k + i * keys);
        if (args.constant) copy(x.decay + i * keys, kept, keys);
        else head.key_decay(t, x.decay + i * keys);
    }
    // Queries as they meet the memory before the block.
    void read_memory(const Block& x) const {
        const bool early = head.early();
        for (i64 c = 0; c < keys; c += L) {
            V running = 1.0f + V{};
            for (i64 i = 0; i < L; ++i) {
                const i64 at = i * keys + c;
                const V before = running;
                running = running * T::load(x.decay + at);
                T::store(rows + at, (early ? before : running) * T::load(x.q + at));
            }
            T::store(x.across + c, running);
        }
        keep_reads(x);
    }
    // Queries with keys, and keys as they are left at the end.
    void meet(const Block& x) const {
        T::transpose(x.k, keys, turned, L, L, keys);
        const Near::Meeting all{x.decay, x.q, x.q, keys, args.keys, turned, x.pairs, nullptr};
        if (head.early()) Near::meet<true, Near::NONE>(all);
        else Near::meet<false, Near::NONE>(all);
        for (i64 i = 0; i < L; ++i) {
            float* row = x.pairs + i * L;
            T::store(row, first_lanes(row, i + !head.early()));
            if (head.early()) row[i] = own_pair(x, i);
        }
        keep_writes(x, 0, x.pairs);
    }
    // Of this head, and zeros behind it.
    V bonus(i64 c) const {
        const float* all = reinterpret_cast<const float*>(args.bonus) + head.h * args.keys;
        return args.keys > c ? first_lanes(all + c, args.keys - c) : V{};
    }
    float own_pair(const Block& x, i64 i) const {
        V total{};
        for (i64 c = 0; c < keys; c += L)
            total += T::load(x.q + i * keys + c) * T::load(x.k + i * keys + c) * bonus(c);
        return T::sum(total);
    }

    // ------------------------------------------------------------------------------------ forward

    // Steps [t, t + n), of which none resets but the first, from the memory S (keys, width).
    void forward(i64 t, i64 n, float* S, float* work) const {
        Block x;
        lay_out(work, x);
        pair_all(S, width, keys, width, memory_pairs);
        for (i64 i = 0; i < n; i += L) {
            load(t + i, n - i < L ? n - i : L, t + i + L, x);
            read_out(x);
            advance_pairs(x, S);
        }
    }
    void read_out(const Block& x) const {
        product(L, width, Factors{x.read_rows, keys / 2, 1, memory_pairs, width, keys / 2}, [&](auto& sum, i64 i, i64 v) {
            read_block(sum, x.pairs, i, v);
            T::put_tile(sum, out + i * width + v, width);
        });
        put_out(x);
    }
    // What steps read of those of their block, up to themselves.
    template <int R, int W>
    LINRNN_INLINE void read_block(V (&sum)[R][W], const float* pairs, i64 i, i64 v) const {
        T::multiply(sum, T::Factors{pairs, L, 1, values, width, 0}, i, v, i);
        for (int s = 0; s < R; ++s)
            for (int w = 0; w < W; ++w) {
                const V u = T::load(values + (i + s) * width + v + w * L);
                for (int r = s; r < R; ++r) sum[r][w] += pairs[(i + r) * L + i + s] * u;
            }
    }
};
#endif

}  // namespace
}  // namespace LINRNN_ISA
}  // namespace linrnn
