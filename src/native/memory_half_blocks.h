// What memories of bfloat16 rows share that go through blocks of 16 steps, with one decay a key. Each step
// has SIDES rows that read and SIDES that write. With P the products of decays since the block began and U
// those from a step to the end, rows read as they meet the memory before the block, (row P) S, and writes
// are added as they are left at the end, S <- P_end S + (key U)' value. Such products have bfloat16 factors
// and sums in float32; memories, decays and pairs of steps are float32.
#pragma once
#include "half_rows.h"
#include "memory_chunk.h"
#include "memory_half_factors.h"

#ifdef LINRNN_HALF_PRODUCTS

namespace linrnn {
namespace LINRNN_ISA {
namespace {

template <int SIDES>
struct HalfBlocks : HalfFactors<float> {
    using Near = Chunk<float>;
    static constexpr i64 MOST = 4;         // blocks of a window
    static constexpr i64 ALL_ROWS = SIDES * L;  // that read, or that write

    // Steps are from t to t + n; the first of both sides comes before the second.
    struct Rows {
        i64 t, n;
        float *decay, *across;                             // (L, keys);  (keys): P_end
        HalfPair *read_rows, *left;                        // (ALL_ROWS, keys), (keys, ALL_ROWS)
        HalfPair *value_rows, *value_pairs;                // (ALL_ROWS, width), (ALL_ROWS / 2, width)
        HalfPair *read_turned, *left_rows, *pairs_turned;  // of the adjoint: (keys, ALL_ROWS), (ALL_ROWS, keys or L)
    };

    const Head<float>& head;
    const MemoryScanArgs& args = head.args;
    const i64 keys = head.keys(), width = head.width();
    float *rows, *turned;    // (ALL_ROWS, keys), (keys, ALL_ROWS)
    float *values, *out;     // (ALL_ROWS, width), (L, width)
    HalfPair* memory_pairs;  // (keys / 2, width): S

    // `work` is where everything lies, if it is anywhere.
    HalfBlocks(const Head<float>& of, float*& work) : HalfFactors<float>{}, head(of) {
        for (float** x : {&rows, &turned}) *x = take(work, ALL_ROWS * keys);
        values = take(work, ALL_ROWS * width), out = take(work, L * width);
        memory_pairs = take_pairs(work, keys / 2 * width);
    }
    void lay_out_rows(float*& work, Rows& x) const {
        x.decay = take(work, L * keys), x.across = take(work, keys);
        for (HalfPair** y : {&x.read_rows, &x.left}) *y = take_pairs(work, ALL_ROWS / 2 * keys);
        for (HalfPair** y : {&x.value_rows, &x.value_pairs}) *y = take_pairs(work, ALL_ROWS / 2 * width);
        x.read_turned = x.left_rows = x.pairs_turned = nullptr;
        if (!args.backward) return;
        for (HalfPair** y : {&x.read_turned, &x.left_rows}) *y = take_pairs(work, ALL_ROWS / 2 * keys);
        x.pairs_turned = take_pairs(work, ALL_ROWS / 2 * L);
    }
    static bool usable(const MemoryScanArgs& args) {
        const bool plain = args.channels == 2 && args.rank == 1 && args.reads == 1 && !args.before;
        const bool rows = !args.value_decay.data && !args.beta.data;
        const bool alone = args.q_share == 1 && args.k_share == 1;
        return plain && rows && alone && args.window == MOST * L && Pack::usable(args);
    }

    // --------------------------------------------------------------------------------------- rows

    LINRNN_BF16_TARGET void load_row(const Array& from, i64 of_head, i64 t, float scale, float* to) const {
        const bf16* row = Head<float>::at<bf16>(from, t, of_head * args.keys);
        for (i64 c = 0; c < keys; c += L) {
            const __mmask16 some = args.keys > c ? lanes_left(args.keys - c) : __mmask16(0);
            _mm512_storeu_ps(to + c, _mm512_mul_ps(_mm512_set1_ps(scale), load_lanes(row + c, some)));
        }
    }
    void load_values(const Rows& x) const {
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
    // `rows`, as they meet the memory before the block.
    void keep_reads(const Rows& x) const {
        to_halves(rows, x.read_rows, ALL_ROWS * keys);
        if (!x.read_turned) return;
        T::transpose(rows, keys, turned, ALL_ROWS, ALL_ROWS, keys);
        to_halves(turned, x.read_turned, ALL_ROWS * keys);
    }
    // `turned`, (keys, L): keys of a side as they are left at the end, and its pairs with q, (L, L).
    void keep_writes(const Rows& x, i64 side, const float* pairs) const {
        constexpr i64 ROW = ALL_ROWS / 2;
        for (i64 c = 0; c < keys; ++c) to_halves(turned + c * L, x.left + c * ROW + side * (L / 2), L);
        if (!x.left_rows) return;
        T::transpose(turned, L, rows, keys, keys, L);
        to_halves(rows, x.left_rows + side * (L / 2) * keys, L * keys);
        T::transpose(pairs, L, rows, L, L, L);
        to_halves(rows, x.pairs_turned + side * (L / 2) * L, L * L);
    }
    static V first_lanes(const float* from, i64 count) {
        return V(_mm512_maskz_loadu_ps(count ? lanes_left(count) : __mmask16(0), from));
    }

    // ------------------------------------------------------------------------------------- memory

    // The memory after a block; `finish(rows, key, column, columns)` follows each tile of it.
    template <class Finish>
    void advance(const Rows& x, float* S, const Finish& finish) const {
        constexpr i64 DEPTH = ALL_ROWS / 2;
        product(keys, width, Factors{x.left, DEPTH, 1, x.value_pairs, width, DEPTH}, [&](auto& sum, i64 c, i64 v) {
            keep_rows(sum, x.across + c, S + c * width + v);
            finish(rows_of(sum), c, v, columns_of(sum));
        });
    }
    // The same, with its pairs of rows for the next block.
    void advance_pairs(const Rows& x, float* S) const {
        advance(x, S, [&](i64 count, i64 c, i64 v, i64 columns) {
            for (i64 r = c; r < c + count; r += 2)
                pair_rows(S + r * width + v, 1, S + (r + 1) * width + v, 1, columns, memory_pairs + r / 2 * width + v);
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
    i64 steps(i64 t, i64 end) const { return end - t < MOST * L ? end - t : MOST * L; }
    void put_out(const Rows& x) const {
        const i64 channel = head.h * head.columns() + head.first;
        for (i64 i = 0; i < x.n; ++i) to_halves(out + i * width, stored_pairs(args.o, x.t + i, channel), head.count);
    }
};

}  // namespace
}  // namespace LINRNN_ISA
}  // namespace linrnn
#endif
