// What the adjoints of memory_half_blocks.h share. The blocks of a window are computed once more, then gone
// through backward.
#pragma once
#include "memory_half_blocks.h"

#ifdef LINRNN_HALF_PRODUCTS

namespace linrnn {
namespace LINRNN_ISA {
namespace {

template <class Blocks>
struct HalfBlocksAdjoint : Blocks {
    using typename Blocks::Block;
    using typename Blocks::Factors;
    using typename Blocks::Rows;
    using typename Blocks::T;
    using typename Blocks::V;
    using Blocks::ALL_ROWS, Blocks::L, Blocks::MOST;
    using Blocks::args, Blocks::head, Blocks::keys, Blocks::width;
    using Blocks::columns_of, Blocks::keep_rows, Blocks::pair_stored, Blocks::product, Blocks::rows_of;
    using Blocks::stored_pairs, Blocks::take, Blocks::take_pairs, Blocks::turn_rows, Blocks::widened;

    Block blocks[MOST];
    HalfPair* memories[MOST];                           // (keys, width): S before each
    HalfPair *slope_rows, *slope_pairs;                 // R, of the memory after a block
    HalfPair *o_rows, *o_pairs;                         // of what rows read, (ALL_ROWS, width)
    HalfPair *o_turned, *value_turned;                  // (width / 2, ALL_ROWS)
    float *dots, *d_turned, *d_in, *d_left, *d_across;  // (keys, L), (keys, ALL_ROWS), (ALL_ROWS, keys) each, (keys)
    float *d_decay, *d_pairs;                           // (L, keys), (ALL_ROWS, ALL_ROWS)

    HalfBlocksAdjoint(const Head<float>& of, float*& work) : Blocks(of, work) {
        for (int b = 0; b < MOST; ++b)
            this->lay_out(work, blocks[b]), memories[b] = take_pairs(work, keys / 2 * width);
        for (HalfPair** x : {&slope_rows, &slope_pairs}) *x = take_pairs(work, keys / 2 * width);
        for (HalfPair** x : {&o_rows, &o_pairs, &o_turned, &value_turned}) *x = take_pairs(work, ALL_ROWS / 2 * width);
        for (float** x : {&d_turned, &d_in, &d_left}) *x = take(work, ALL_ROWS * keys);
        for (float** x : {&dots, &d_decay}) *x = take(work, L * keys);
        d_across = take(work, keys), d_pairs = take(work, ALL_ROWS * ALL_ROWS);
    }

    void load_out(const Rows& x) const {
        auto row = reinterpret_cast<bf16*>(o_rows);
        for (i64 i = 0; i < L; ++i, row += width) {
            const i64 there = i < x.n ? head.count : 0;
            const i64 channel = head.h * head.columns() + head.first;
            if (there) copy(row, Head<float>::template at<bf16>(args.o, x.t + i, channel), there);
            for (i64 v = there; v < width; ++v) row[v].bits = 0;
            if (there) head.ask_out(x.t + i - L), head.ask_slopes(x.t + i - L);
        }
        pair_stored(o_rows, L, width, o_pairs);
    }
    // Of what is written, as the memory after the block and q have it, (ALL_ROWS, width).
    void slope_writes(const Rows& x, float* to) const {
        pair_stored(slope_rows, keys, width, slope_pairs);
        const Factors by_q{x.pairs_turned, L / 2, 1, o_pairs, width, L / 2};
        product(ALL_ROWS, width, Factors{x.left_rows, keys / 2, 1, slope_pairs, width, keys / 2},
                [](auto&, i64, i64) {}, &by_q,
                [&](auto& sum, i64 i, i64 v) { T::put_tile(sum, to + i * width + v, width); });
    }
    void put_values(const Rows& x, const float* from) const {
        const i64 channel = head.h * args.values + head.first;
        for (i64 i = 0; i < x.n; ++i)
            to_halves(from + i * width, stored_pairs(args.grad_v, x.t + i, channel), head.given());
    }
    // Gradients as rows meet the memory and are left by the block, and of their pairs; and R before it.
    void slope_rows_of(const Rows& x, const HalfPair* S, float* R) const {
        const i64 depth = width / 2;
        turn_rows(o_rows, width, o_turned, ALL_ROWS, ALL_ROWS);
        turn_rows(x.value_rows, width, value_turned, ALL_ROWS, ALL_ROWS);
        turned_product(Factors{S, depth, 1, o_turned, ALL_ROWS, depth}, d_in);
        turned_product(Factors{slope_rows, depth, 1, value_turned, ALL_ROWS, depth}, d_left);
        product(ALL_ROWS, ALL_ROWS, Factors{o_rows, depth, 1, value_turned, ALL_ROWS, depth},
                [&](auto& sum, i64 i, i64 j) { T::put_tile(sum, d_pairs + i * ALL_ROWS + j, ALL_ROWS); });
        leave_memory(x, S, R);
    }
    // (keys, ALL_ROWS), turned to (ALL_ROWS, keys).
    void turned_product(const Factors& f, float* to) const {
        product(keys, ALL_ROWS, f,
                [&](auto& sum, i64 c, i64 i) { T::put_tile(sum, d_turned + c * ALL_ROWS + i, ALL_ROWS); });
        T::transpose(d_turned, ALL_ROWS, to, keys, keys, ALL_ROWS);
    }
    // R before the block, rounded too, and the gradient of what the block keeps.
    void leave_memory(const Rows& x, const HalfPair* S, float* R) const {
        constexpr i64 DEPTH = ALL_ROWS / 2;
        head.clear(dots, 0, keys * L);
        product(keys, width, Factors{x.read_turned, DEPTH, 1, o_pairs, width, DEPTH}, [&](auto& sum, i64 c, i64 v) {
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
    void put_keys(const Array& to, i64 share, i64 t, float* row) const {
        if (args.single) to_halves(row, stored_pairs(to, t, head.h * args.keys), args.keys);
        else head.add_keys(to, share, t, row, 1.0f);
    }
};

}  // namespace
}  // namespace LINRNN_ISA
}  // namespace linrnn
#endif
