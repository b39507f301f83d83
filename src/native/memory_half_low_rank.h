// Blocks of 16 steps of a memory with a second write of a low rank, whose decays are one a key and whose
// rows are bfloat16. A step of the first kind reads the memory after it decays, q, and one before, a. With
// P and D as in memory_half_keys.h, and P' and D' the same that end a step earlier,
//   r = (a P') S + M v + N r,   o = (q P) S + A v + B r,   S <- P_end S + (k U)' v + (b U)' r,
//   M_ij = a_i k_j D'_ij,  N_ij = a_i b_j D'_ij,  A_ij = q_i k_j D_ij,  B_ij = q_i b_j D_ij.
// Products with S, and what is added to it, have bfloat16 factors and sums in float32. Memories, decays
// and pairs of steps are float32, and no step touches what is written later: it may not be finite.
#pragma once
#include "memory_half_blocks.h"

namespace linrnn {
namespace LINRNN_ISA {
namespace {

template <class A>
struct HalfLowRank {
    static constexpr bool exist = false;
};

#ifdef LINRNN_HALF_PRODUCTS
template <>
struct HalfLowRank<float> : HalfBlocks<2> {
    static bool usable(const MemoryScanArgs& args) {
        const bool rows = args.a.data && !args.bonus && args.a_share == 1 && args.b_share == 1;
        return rows && HalfBlocks<2>::usable(args);
    }

    struct Block : Rows {
        float *q, *a, *k, *b;           // (L, keys); q with its scale
        float *reads[2], *solves[2];    // (L, L): A and B, M and N
    };

    float* past;  // (2 L, width): what both readers read of S

    // `work` is where everything lies, if it is anywhere.
    HalfLowRank(const Head<float>& of, float*& work) : HalfBlocks<2>(of, work) { past = take(work, ALL_ROWS * width); }
    void lay_out(float*& work, Block& x) const {
        lay_out_rows(work, x);
        for (float** y : {&x.q, &x.a, &x.k, &x.b}) *y = take(work, L * keys);
        for (float** y : {&x.reads[0], &x.reads[1], &x.solves[0], &x.solves[1]}) *y = take(work, L * L);
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
        for (float* y : {x.q, x.a, x.k, x.b}) head.clear(y, n * keys, L * keys);
        for (i64 i = n * keys; i < L * keys; ++i) x.decay[i] = 1;
        load_values(x);
        read_memory(x);
        meet(x, x.k, 0);
        meet(x, x.b, 1);
    }
    void load_step(i64 t, i64 i, const Block& x) const {
        load_row(args.q, head.q_head, t, float(args.scale), x.q + i * keys);
        load_row(args.a, head.a_head, t, 1, x.a + i * keys);
        load_row(args.k, head.k_head, t, 1, x.k + i * keys);
        load_row(args.b, head.b_head, t, 1, x.b + i * keys);
        head.key_decay(t, x.decay + i * keys);
    }
    // Both readers as they meet the memory before the block.
    void read_memory(const Block& x) const {
        for (i64 c = 0; c < keys; c += L) {
            V running = 1.0f + V{};
            for (i64 i = 0; i < L; ++i) {
                const i64 at = i * keys + c;
                T::store(rows + L * keys + at, running * T::load(x.a + at));
                running = running * T::load(x.decay + at);
                T::store(rows + at, running * T::load(x.q + at));
            }
            T::store(x.across + c, running);
        }
        keep_reads(x);
    }
    // Readers with the keys of a write, and these as they are left at the end.
    void meet(const Block& x, const float* key, i64 write) const {
        float *reads = x.reads[write], *solves = x.solves[write];
        T::transpose(key, keys, turned, L, L, keys);
        Near::meet<false, Near::BEFORE>({x.decay, x.q, x.a, keys, args.keys, turned, reads, solves});
        for (i64 i = 0; i < L; ++i) {
            T::store(reads + i * L, first_lanes(reads + i * L, i + 1));
            T::store(solves + i * L, first_lanes(solves + i * L, i));
        }
        keep_writes(x, write, reads);
    }

    // ----------------------------------------------------------------- sixteen steps of 16 columns

    // r, from what a reads of the memory, which begins at `read`.
    template <int... J>
    static LINRNN_INLINE void substitute(const Block& x, const float* read, const float* v, float* r, i64 ld,
                                         std::integer_sequence<int, J...> all) {
        V sum[L];
        load_steps(sum, read, ld, all);
        (add_later<J + 1, int(L)>(sum, x.solves[0] + J, T::load(v + J * ld), all), ...);
        (add_later<J + 1, int(L)>(sum, x.solves[1] + J, sum[J], all), ...);
        store_steps(sum, r, ld, all);
    }
    template <int... J>
    static LINRNN_INLINE void read_steps(const Block& x, const float* read, const float* v, const float* r, float* o,
                                         i64 ld, std::integer_sequence<int, J...> all) {
        V sum[L];
        load_steps(sum, read, ld, all);
        (add_later<J, int(L)>(sum, x.reads[0] + J, T::load(v + J * ld), all), ...);
        (add_later<J, int(L)>(sum, x.reads[1] + J, T::load(r + J * ld), all), ...);
        store_steps(sum, o, ld, all);
    }

    // ------------------------------------------------------------------------------------ forward

    // What `count` of the readers' rows read of the memory.
    void read(const HalfPair* from, i64 count, const HalfPair* memory, float* to) const {
        product(count, width, Factors{from, keys / 2, 1, memory, width, keys / 2},
                [&](auto& sum, i64 i, i64 v) { T::put_tile(sum, to + i * width + v, width); });
    }
    // What is written second, from what a reads of the memory.
    void write_second(const Block& x, const float* read) const {
        float* second = values + L * width;
        for (i64 v = 0; v < width; v += L) substitute(x, read + v, values + v, second + v, width, Steps());
        pair_all(second, width, L, width, x.value_pairs + L / 2 * width);
        if (x.left_rows) to_halves(second, x.value_rows + L / 2 * width, L * width);
    }
    // Steps [t, t + n), of which none resets but the first, from the memory S (keys, width).
    void forward(i64 t, i64 n, float* S, float* work) const {
        Block x;
        lay_out(work, x);
        pair_all(S, width, keys, width, memory_pairs);
        for (i64 i = 0; i < n; i += L) {
            load(t + i, n - i < L ? n - i : L, t + i + L, x);
            read(x.read_rows, ALL_ROWS, memory_pairs, past);
            write_second(x, past + L * width);
            read_out(x);
            advance_pairs(x, S);
        }
    }
    void read_out(const Block& x) const {
        for (i64 v = 0; v < width; v += L)
            read_steps(x, past + v, values + v, values + L * width + v, out + v, width, Steps());
        put_out(x);
    }
};
#endif

}  // namespace
}  // namespace LINRNN_ISA
}  // namespace linrnn
