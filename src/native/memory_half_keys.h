// Blocks of 16 steps of a memory whose decays are one a key and whose rows are bfloat16. With P the
// products of decays since the block began, D those from step j to i and U those from step j to the end,
//   o = (q P) S + A v,   A_ij = q_i k_j D_ij,   S <- P_end S + (k U)' v,
// where products with S, and those that are added to it, are of bfloat16 numbers with sums in float32.
// Memories, decays and A stay float32, and no step touches what is written later: it may not be finite.
#pragma once
#include "half_rows.h"
#include "memory_chunk.h"
#include "memory_half_factors.h"

namespace linrnn {
namespace LINRNN_ISA {
namespace {

template <class A>
struct HalfKeys {
    static constexpr bool exist = false;
};

#ifdef LINRNN_HALF_PRODUCTS
template <>
struct HalfKeys<float> : HalfFactors<float> {
    using Near = Chunk<float>;
    static constexpr i64 MOST = 4;  // blocks of a window

    static bool usable(const MemoryScanArgs& args) {
        const bool plain = args.channels == 2 && args.rank == 1 && args.reads == 1 && !args.before;
        const bool rows = !args.delta && !args.a.data && !args.value_decay.data && !args.beta.data;
        const bool alone = args.q_share == 1 && args.k_share == 1;
        return plain && rows && alone && args.window == MOST * L && Pack::usable(args);
    }

    struct Block {
        i64 t, n;
        float *decay, *q, *k;    // (L, keys); q with its scale
        float *pairs, *across;   // (L, L): A;  (keys): P_end
        HalfPair *read_rows;     // (L, keys): q P
        HalfPair *left;          // (keys, L): k U
        HalfPair *value_rows, *value_pairs;              // (L, width), (L / 2, width)
        HalfPair *read_turned, *left_rows, *pairs_turned;  // of the adjoint: (keys, L), (L, keys), (L, L)
    };

    const Head<float>& head;
    const MemoryScanArgs& args = head.args;
    const i64 keys = head.keys(), width = head.width();
    float *kept, *rows, *turned;  // (keys), (L, keys), (keys, L)
    float *values, *out;          // (L, width)
    HalfPair* memory_pairs;       // (keys / 2, width): S

    // `work` is where everything lies, if it is anywhere.
    HalfKeys(const Head<float>& of, float*& work) : HalfFactors<float>{}, head(of) {
        kept = take(work, keys);
        for (float** x : {&rows, &turned}) *x = take(work, L * keys);
        for (float** x : {&values, &out}) *x = take(work, L * width);
        memory_pairs = take_pairs(work, keys / 2 * width);
        if (kept && args.constant) head.key_decay(0, kept);
    }
    void lay_out(float*& work, Block& x) const {
        for (float** y : {&x.decay, &x.q, &x.k}) *y = take(work, L * keys);
        x.pairs = take(work, L * L), x.across = take(work, keys);
        for (HalfPair** y : {&x.read_rows, &x.left}) *y = take_pairs(work, L / 2 * keys);
        for (HalfPair** y : {&x.value_rows, &x.value_pairs}) *y = take_pairs(work, L / 2 * width);
        x.read_turned = x.left_rows = x.pairs_turned = nullptr;
        if (!args.backward) return;
        for (HalfPair** y : {&x.read_turned, &x.left_rows}) *y = take_pairs(work, L / 2 * keys);
        x.pairs_turned = take_pairs(work, L / 2 * L);
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
    LINRNN_BF16_TARGET void load_step(i64 t, i64 i, Block& x) const {
        const bf16* q = Head<float>::at<bf16>(args.q, t, head.q_head * args.keys);
        const bf16* k = Head<float>::at<bf16>(args.k, t, head.k_head * args.keys);
        const __m512 scale = _mm512_set1_ps(float(args.scale));
        for (i64 c = 0; c < keys; c += L) {
            const __mmask16 some = args.keys > c ? lanes_left(args.keys - c) : __mmask16(0);
            const i64 at = i * keys + c;
            _mm512_storeu_ps(x.q + at, _mm512_mul_ps(scale, load_lanes(q + c, some)));
            _mm512_storeu_ps(x.k + at, load_lanes(k + c, some));
        }
        if (args.constant) copy(x.decay + i * keys, kept, keys);
        else head.key_decay(t, x.decay + i * keys);
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
        to_halves(rows, x.read_rows, L * keys);
        if (!x.read_turned) return;
        T::transpose(rows, keys, turned, L, L, keys);
        to_halves(turned, x.read_turned, L * keys);
    }
    // Queries with keys, and keys as they are left at the end.
    void meet(const Block& x) const {
        T::transpose(x.k, keys, turned, L, L, keys);
        const Near::Meeting all{x.decay, x.q, x.q, keys, args.keys, turned, x.pairs, nullptr};
        if (head.early()) Near::meet<true, Near::NONE>(all);
        else Near::meet<false, Near::NONE>(all);
        for (i64 i = 0; i < L; ++i) {
            float* row = x.pairs + i * L;
            T::store(row, some_lanes(row, i + !head.early()));
            if (head.early()) row[i] = own_pair(x, i);
        }
        to_halves(turned, x.left, L * keys);
        if (!x.left_rows) return;
        T::transpose(turned, L, rows, keys, keys, L);
        to_halves(rows, x.left_rows, L * keys);
        T::transpose(x.pairs, L, rows, L, L, L);
        to_halves(rows, x.pairs_turned, L * L);
    }
    static V some_lanes(const float* from, i64 count) { return V(_mm512_maskz_loadu_ps(lanes_left(count), from)); }
    // Of this head, and zeros behind it.
    V bonus(i64 c) const {
        const float* all = reinterpret_cast<const float*>(args.bonus) + head.h * args.keys;
        return args.keys > c ? some_lanes(all + c, args.keys - c) : V{};
    }
    float own_pair(const Block& x, i64 i) const {
        V total{};
        for (i64 c = 0; c < keys; c += L)
            total += T::load(x.q + i * keys + c) * T::load(x.k + i * keys + c) * bonus(c);
        return T::sum(total);
    }
    // The memory after a block; `finish(rows, key, column, columns)` follows each tile of it.
    template <class Finish>
    void advance(const Block& x, float* S, const Finish& finish) const {
        product(keys, width, Factors{x.left, L / 2, 1, x.value_pairs, width, L / 2}, [&](auto& sum, i64 c, i64 v) {
            keep_rows(sum, x.across + c, S + c * width + v);
            finish(rows_of(sum), c, v, columns_of(sum));
        });
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

    // ------------------------------------------------------------------------------------ forward

    i64 steps(i64 t, i64 end) const { return end - t < MOST * L ? end - t : MOST * L; }
    // Steps [t, t + n), of which none resets but the first, from the memory S (keys, width).
    void forward(i64 t, i64 n, float* S, float* work) const {
        Block x;
        lay_out(work, x);
        pair_all(S, width, keys, width, memory_pairs);
        for (i64 i = 0; i < n; i += L) {
            load(t + i, n - i < L ? n - i : L, t + i + L, x);
            read_out(x);
            advance(x, S, [&](i64 count, i64 c, i64 v, i64 columns) {
                for (i64 r = c; r < c + count; r += 2)
                    pair_rows(S + r * width + v, 1, S + (r + 1) * width + v, 1, columns, memory_pairs + r / 2 * width + v);
            });
        }
    }
    void read_out(const Block& x) const {
        product(L, width, Factors{x.read_rows, keys / 2, 1, memory_pairs, width, keys / 2}, [&](auto& sum, i64 i, i64 v) {
            read_block(sum, x.pairs, i, v);
            T::put_tile(sum, out + i * width + v, width);
        });
        const i64 channel = head.h * head.columns() + head.first;
        for (i64 i = 0; i < x.n; ++i) to_halves(out + i * width, stored_pairs(args.o, x.t + i, channel), head.count);
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
