// Blocks of 16 steps of a memory with a second write of a low rank, whose decays are one a key and whose
// rows are bfloat16. A step of the first kind reads the memory after it decays, q, and one before, a. With
// P and D as in memory_half_keys.h, and P' and D' the same that end a step earlier,
//   r = (a P') S + M v + N r,   o = (q P) S + A v + B r,   S <- P_end S + (k U)' v + (b U)' r,
//   M_ij = a_i k_j D'_ij,  N_ij = a_i b_j D'_ij,  A_ij = q_i k_j D_ij,  B_ij = q_i b_j D_ij.
// Products with S, and what is added to it, have bfloat16 factors and sums in float32. Memories, decays
// and pairs of steps are float32, and no step touches what is written later: it may not be finite.
#pragma once
#include "half_rows.h"
#include "memory_chunk.h"
#include "memory_half_factors.h"

namespace linrnn {
namespace LINRNN_ISA {
namespace {

template <class A>
struct HalfLowRank {
    static constexpr bool exist = false;
};

#ifdef LINRNN_HALF_PRODUCTS
template <>
struct HalfLowRank<float> : HalfFactors<float> {
    using Near = Chunk<float>;
    static constexpr i64 MOST = 4;       // blocks of a window
    static constexpr i64 BOTH = 2 * L;   // rows of both readers, or of both writes

    static bool usable(const MemoryScanArgs& args) {
        const bool plain = args.channels == 2 && args.rank == 1 && args.reads == 1 && !args.before;
        const bool rows = args.a.data && !args.bonus && !args.value_decay.data && !args.beta.data;
        const bool alone = args.q_share == 1 && args.k_share == 1 && args.a_share == 1 && args.b_share == 1;
        return plain && rows && alone && args.window == MOST * L && Pack::usable(args);
    }

    struct Block {
        i64 t, n;
        float *decay, *q, *a, *k, *b;          // (L, keys); q with its scale
        float* across;                         // (keys): P_end
        float *reads[2], *solves[2];           // (L, L): A and B, M and N
        HalfPair *read_rows;                   // (2 L, keys): q P, a P'
        HalfPair *left;                        // (keys, 2 L): k U, b U
        HalfPair *value_rows, *value_pairs;    // (2 L, width), (L, width): v, r
        HalfPair *read_turned, *left_rows, *pairs_turned;  // of the adjoint: (keys, 2 L), (2 L, keys), (2 L, L)
    };

    const Head<float>& head;
    const MemoryScanArgs& args = head.args;
    const i64 keys = head.keys(), width = head.width();
    float *rows, *turned;           // (2 L, keys), (keys, 2 L)
    float *values, *past, *out;     // (2 L, width): v and r, what both readers read of S;  (L, width)
    HalfPair* memory_pairs;         // (keys / 2, width): S

    // `work` is where everything lies, if it is anywhere.
    HalfLowRank(const Head<float>& of, float*& work) : HalfFactors<float>{}, head(of) {
        for (float** x : {&rows, &turned}) *x = take(work, BOTH * keys);
        for (float** x : {&values, &past}) *x = take(work, BOTH * width);
        out = take(work, L * width);
        memory_pairs = take_pairs(work, keys / 2 * width);
    }
    void lay_out(float*& work, Block& x) const {
        for (float** y : {&x.decay, &x.q, &x.a, &x.k, &x.b}) *y = take(work, L * keys);
        x.across = take(work, keys);
        for (float** y : {&x.reads[0], &x.reads[1], &x.solves[0], &x.solves[1]}) *y = take(work, L * L);
        for (HalfPair** y : {&x.read_rows, &x.left}) *y = take_pairs(work, L * keys);
        for (HalfPair** y : {&x.value_rows, &x.value_pairs}) *y = take_pairs(work, L * width);
        x.read_turned = x.left_rows = x.pairs_turned = nullptr;
        if (!args.backward) return;
        for (HalfPair** y : {&x.read_turned, &x.left_rows}) *y = take_pairs(work, L * keys);
        x.pairs_turned = take_pairs(work, L * L);
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
    LINRNN_BF16_TARGET void load_row(const Array& from, i64 of_head, i64 t, float scale, float* to) const {
        const bf16* row = Head<float>::at<bf16>(from, t, of_head * args.keys);
        for (i64 c = 0; c < keys; c += L) {
            const __mmask16 some = args.keys > c ? lanes_left(args.keys - c) : __mmask16(0);
            _mm512_storeu_ps(to + c, _mm512_mul_ps(_mm512_set1_ps(scale), load_lanes(row + c, some)));
        }
    }
    void load_values(const Block& x) const {
        constexpr std::uint16_t ONE = 0x3f80;
        const i64 given = head.given();
        auto row = reinterpret_cast<bf16*>(x.value_rows);
        for (i64 i = 0; i < L; ++i, row += width) {
            const i64 there = i < x.n ? given : 0;
            if (there) copy(row, Head<float>::at<bf16>(args.v, x.t + i, head.v_head * args.values + head.first), there);
            for (i64 v = there; v < width; ++v) row[v].bits = 0;
            if (i < x.n && given < head.count) row[given].bits = ONE;
        }
        pair_stored(x.value_rows, L, width, x.value_pairs);
        for (i64 i = 0; i < L * width; i += L) T::store(values + i, widened(x.value_rows, i));
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
        to_halves(rows, x.read_rows, BOTH * keys);
        if (!x.read_turned) return;
        T::transpose(rows, keys, turned, BOTH, BOTH, keys);
        to_halves(turned, x.read_turned, BOTH * keys);
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
        for (i64 c = 0; c < keys; ++c) to_halves(turned + c * L, x.left + c * L + write * (L / 2), L);
        if (!x.left_rows) return;
        T::transpose(turned, L, rows, keys, keys, L);
        to_halves(rows, x.left_rows + write * (L / 2) * keys, L * keys);
        T::transpose(reads, L, rows, L, L, L);
        to_halves(rows, x.pairs_turned + write * (L / 2) * L, L * L);
    }
    static V first_lanes(const float* from, i64 count) {
        return V(_mm512_maskz_loadu_ps(count ? lanes_left(count) : __mmask16(0), from));
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
    // The memory after a block; `finish(rows, key, column, columns)` follows each tile of it.
    template <class Finish>
    void advance(const Block& x, float* S, const Finish& finish) const {
        product(keys, width, Factors{x.left, L, 1, x.value_pairs, width, L}, [&](auto& sum, i64 c, i64 v) {
            keep_rows(sum, x.across + c, S + c * width + v);
            finish(rows_of(sum), c, v, columns_of(sum));
        });
    }
    void pair_memory(const float* S, i64 count, i64 c, i64 v, i64 columns) const {
        for (i64 r = c; r < c + count; r += 2)
            pair_rows(S + r * width + v, 1, S + (r + 1) * width + v, 1, columns, memory_pairs + r / 2 * width + v);
    }
    template <int R, int W>
    static constexpr i64 rows_of(const V (&)[R][W]) { return R; }
    template <int R, int W>
    static constexpr i64 columns_of(const V (&)[R][W]) { return W * L; }
    template <int R, int W>
    LINRNN_INLINE void keep_rows(const V (&sum)[R][W], const float* across, float* to) const {
        for (int r = 0; r < R; ++r)
            for (int w = 0; w < W; ++w) {
                float* place = to + r * width + w * L;
                T::store(place, across[r] * T::load(place) + sum[r][w]);
            }
    }

    i64 steps(i64 t, i64 end) const { return end - t < MOST * L ? end - t : MOST * L; }
    // Steps [t, t + n), of which none resets but the first, from the memory S (keys, width).
    void forward(i64 t, i64 n, float* S, float* work) const {
        Block x;
        lay_out(work, x);
        pair_all(S, width, keys, width, memory_pairs);
        for (i64 i = 0; i < n; i += L) {
            load(t + i, n - i < L ? n - i : L, t + i + L, x);
            read(x.read_rows, BOTH, memory_pairs, past);
            write_second(x, past + L * width);
            read_out(x);
            advance(x, S, [&](i64 count, i64 c, i64 v, i64 columns) { pair_memory(S, count, c, v, columns); });
        }
    }
    void read_out(const Block& x) const {
        for (i64 v = 0; v < width; v += L)
            read_steps(x, past + v, values + v, values + L * width + v, out + v, width, Steps());
        const i64 channel = head.h * head.columns() + head.first;
        for (i64 i = 0; i < x.n; ++i) to_halves(out + i * width, stored_pairs(args.o, x.t + i, channel), head.count);
    }
};
#endif

}  // namespace
}  // namespace LINRNN_ISA
}  // namespace linrnn
