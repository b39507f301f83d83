// The adjoint of a chunk of bfloat16 rows. The memory before every chunk is kept, so none is computed
// once more; by the delta rule what is written is.
#pragma once
#include "memory_half_chunk.h"

namespace linrnn {
namespace LINRNN_ISA {
namespace {

template <class A>
struct HalfAdjoint {};

#ifdef LINRNN_HALF_PRODUCTS
template <>
struct HalfAdjoint<float> : HalfChunk<float> {
    using Base = HalfChunk<float>;
    using Base::Base;

    // of q and k, over all heads: gradients, and those of raw pairs
    float *d_q, *d_k, *d_raw_reads, *d_raw_solves;
    HalfPair *raw_rows, *raw_pairs;
    // of a head
    HalfPair *o_rows, *o_pairs, *o_scaled;                  // the gradient of o
    HalfPair *written_rows, *written_turned;                // u
    HalfPair *memory_rows, *memory_turned;                  // S
    HalfPair *slope_rows, *slope_pairs, *slope_turned;      // the gradient R of the memory
    HalfPair *short_rows, *short_pairs, *short_scaled;      // that of what keys read
    float *o, *d_values, *d_reads, *d_solves;
    float *read_dots, *write_dots;                          // (C, L): shares of gradients of decays

    float* lay_out(float* work) {
        work = Base::lay_out(work);
        for (float** x : {&d_q, &d_k}) *x = take(work, C * keys);
        for (float** x : {&d_raw_reads, &d_raw_solves, &d_reads, &d_solves}) *x = take(work, C * C);
        for (HalfPair** x : {&raw_rows, &raw_pairs}) *x = take_pairs(work, PAIRS * C);
        for (HalfPair** x : {&o_rows, &o_pairs, &o_scaled, &written_rows, &written_turned, &short_rows, &short_pairs,
                             &short_scaled})
            *x = take_pairs(work, PAIRS * most);
        for (HalfPair** x : {&memory_rows, &slope_rows}) *x = take_pairs(work, keys / 2 * most);
        for (HalfPair** x : {&memory_turned, &slope_turned}) *x = take_pairs(work, apart(keys) * (most / 2));
        slope_pairs = take_pairs(work, keys / 2 * apart(most));
        for (float** x : {&o, &d_values}) *x = take(work, C * most);
        for (float** x : {&read_dots, &write_dots}) *x = take(work, C * L);
        return work;
    }

    void open(const Head<float>& head, i64 first, i64 count) {
        Base::open(head, first, count);
        for (float* x : {d_q, d_k}) head.clear(x, 0, rows * keys);
        for (float* x : {d_raw_reads, d_raw_solves}) head.clear(x, 0, rows * C);
    }

    // One head, or a slice of its columns: from the gradient R of the memory after the chunk to that
    // before it, both (keys, width). The memory before it lies in window `index`, or is of zeros.
    void backward(const Head<float>& head, i64 index, bool zeros, float* R) {
        const i64 width = head.width();
        load_memory(head, index, zeros);
        meet(head);
        load_values(head, width);
        turn_rows(memory_rows, width, memory_turned, apart(keys), keys);
        if (delta) {
            pair_stored(memory_rows, keys, width, memory_pairs, apart(width));
            solve(width);
        }
        to_halves(values, written_rows, rows * width);
        turn_rows(written_rows, width, written_turned, C, rows);
        load_slopes(head, index, width);
        const float kept = pack_slope(R, width);
        slope_values(width);
        if (delta) resolve(head, width);
        else
            for (i64 i = 0; i < n; ++i) put_values(head, i, d_values + i * width);
        slope_pairs_of(head, width);
        slope_rows_of(width);
        leave_memory(R, width);
        if (head.args.channels) put_decays(head, since[rows - 1] * kept);
    }
    void load_memory(const Head<float>& head, i64 index, bool zeros) {
        const i64 width = head.width(), count = head.count;
        auto to = reinterpret_cast<bf16*>(memory_rows);
        if (zeros || count < width || head.args.keys < keys) std::memset(to, 0, size_t(keys * width) * sizeof(bf16));
        for (i64 c = 0; !zeros && c < head.args.keys; ++c) copy(to + c * width, kept_row(head, index, c), count);
    }
    // Names the rows of a memory, some at each of a chunk's steps.
    void ask_memory(const Head<float>& head, i64 index, i64 i) const {
        const i64 all = head.args.keys;
        for (i64 c = i * all / C; c < (i + 1) * all / C; ++c)
            prefetch<false, 2>(reinterpret_cast<i64>(kept_row(head, index, c)), head.count * i64(sizeof(bf16)));
    }
    void load_slopes(const Head<float>& head, i64 index, i64 width) {
        const i64 channel = head.h * head.columns() + head.first;
        auto row = reinterpret_cast<bf16*>(o_rows);
        for (i64 i = 0; i < rows; ++i, row += width) {
            const i64 there = i < n ? head.count : 0;
            if (there) copy(row, Head<float>::at<bf16>(head.args.o, t + i, channel), there);
            for (i64 v = there; v < width; ++v) row[v].bits = 0;
            if (there) head.ask_out(t + i - C);
            if (there && index) ask_memory(head, index - 1, i);
        }
        pair_stored(o_rows, rows, width, o_pairs);
        scale_pairs(o_pairs, scaled, rows, width, o_scaled);
    }
    // Pairs of rows, each row times a number.
    LINRNN_BF16_TARGET static void scale_pairs(const HalfPair* from, const float* by, i64 n, i64 columns, HalfPair* to) {
        const __m512i odd = _mm512_set1_epi32(int(0xffff0000u));
        for (i64 i = 0; i < n; i += 2) {
            const __m512 first = _mm512_set1_ps(by[i]), second = _mm512_set1_ps(by[i + 1]);
            for (i64 at = i / 2 * columns, end = at + columns; at < end; at += L) {
                const __m512i both = _mm512_loadu_si512(from + at);
                const __m512 a = _mm512_castsi512_ps(_mm512_slli_epi32(both, 16));
                const __m512 b = _mm512_castsi512_ps(_mm512_and_si512(both, odd));
                const __m512bh x = _mm512_cvtne2ps_pbh(_mm512_mul_ps(second, b), _mm512_mul_ps(first, a));
                _mm512_storeu_si512(to + at, _mm512_permutexvar_epi16(even_odd(), (__m512i)x));
            }
        }
    }
    // R as factors of products, and the sum of its products with the memory.
    float pack_slope(const float* R, i64 width) {
        to_halves(R, slope_rows, keys * width);
        pair_stored(slope_rows, keys, width, slope_pairs, apart(width));
        turn_rows(slope_rows, width, slope_turned, apart(keys), keys);
        V total[4] = {};
        for (i64 i = 0; i < keys * width; i += 4 * L)  // keys and width are multiples of 16
            for (i64 j = 0; j < 4; ++j) total[j] += widened(memory_rows, i + j * L) * T::load(R + i + j * L);
        return T::sum((total[0] + total[1]) + (total[2] + total[3]));
    }
    // Of what is written, as the memory after the chunk and q have it.
    void slope_values(i64 width) {
        const Factors by_q{read_pairs, 1, C, o_pairs, width, rows / 2, FROM};
        product(rows, width, Factors{k, keys / 2, 1, slope_pairs, apart(width), keys / 2},
                [&](auto& sum, i64 i, i64) { scale_rows(sum, until + i); }, &by_q,
                [&](auto& sum, i64 i, i64 c) { T::put_tile(sum, d_values + i * width + c, width); });
    }
    void put_values(const Head<float>& head, i64 i, const float* row) const {
        const MemoryScanArgs& args = head.args;
        to_halves(row, stored_pairs(args.grad_v, t + i, head.h * args.values + head.first), head.given());
    }
    LINRNN_BF16_TARGET void put_negated(const Head<float>& head, i64 i, const HalfPair* row) const {
        auto to = reinterpret_cast<std::uint16_t*>(
            stored_pairs(head.args.grad_v, t + i, head.h * head.args.values + head.first));
        auto from = reinterpret_cast<const std::uint16_t*>(row);
        const __m256i sign = _mm256_set1_epi16(std::int16_t(0x8000));
        for (i64 c = 0, left = head.given(); left > 0; c += L, left -= L) {
            const __mmask16 some = __mmask16(left < L ? (1u << left) - 1 : 0xffff);
            const __m256i x = _mm256_xor_si256(_mm256_maskz_loadu_epi16(some, from + c), sign);
            _mm256_mask_storeu_epi16(to + c, some, x);
        }
    }
    // The substitution backward: d_values becomes the gradient of what keys read, negated.
    void resolve(const Head<float>& head, i64 width) {
        for (i64 b = rows - L; b >= 0; b -= L) {
            Factors later{solve_pairs + b, 1, C, short_pairs, width, rows / 2};
            later.left += (b / 2 + L / 2) * C, later.right += (b / 2 + L / 2) * width, later.pairs -= b / 2 + L / 2;
            if (later.pairs)
                product(L, width, later, [&](auto& sum, i64 i, i64 c) {
                    add_tile(sum, d_values + (b + i) * width + c, width);
                });
            for (i64 c = 0; c < width; c += L) substitute_back(b, c, width);
            for (i64 i = b; i < b + L && i < n; ++i) head.put_beta(t + i, o + i * width, error + i * width);
            to_halves(d_values + b * width, short_rows + b / 2 * width, L * width);
            for (i64 i = b; i < b + L && i < n; ++i) put_negated(head, i, short_rows + i * (width / 2));
            pair_stored(short_rows + b / 2 * width, L, width, short_pairs + b / 2 * width);
        }
        pair_scaled(d_values, since, rows, width, short_scaled);
    }
    // The gradient of what is written is left in `o`, which nothing reads any more.
    void substitute_back(i64 b, i64 c, i64 width) {
        const i64 at = b * width + c;
        substitute_back(solves + b * C + b, rates + b, d_values + at, o + at, width, Steps());
    }
    template <int... J>
    static LINRNN_INLINE void substitute_back(const float* pairs, const float* rate, float* back, float* written,
                                              i64 ld, std::integer_sequence<int, J...> all) {
        constexpr int LAST = int(L) - 1;
        V sum[L];
        load_steps(sum, back, ld, all);
        (add_earlier<LAST - J>(sum, pairs + (LAST - J) * C, -rate[LAST - J] * sum[LAST - J], all), ...);
        store_steps(sum, written, ld, all);
        (T::store(back + J * ld, -rate[J] * sum[J]), ...);
    }
    // Of pairs of steps, which pass on to raw pairs as these decay.
    void slope_pairs_of(const Head<float>& head, i64 width) {
        const float scale = float(head.args.scale);
        lower_product(o_rows, width / 2, written_turned, d_reads);
        if (delta) lower_product(short_rows, width / 2, written_turned, d_solves);
        for (i64 i = 0; i < rows; ++i)
            for (i64 b = 0; b <= i / L; ++b) {
                const i64 at = i * C + b * L;
                const V kept = T::load(between + at);
                add_seen(i + 1 - b * L, scale * kept * T::load(d_reads + at), d_raw_reads + at);
                if (delta) add_seen(i - b * L, kept * T::load(d_solves + at), d_raw_solves + at);
            }
    }
    // The first lanes, of all.
    static LINRNN_INLINE V first_lanes(i64 count, V x) {
        const __mmask16 lanes = count >= L ? __mmask16(0xffff) : __mmask16((1u << count) - 1);
        return V(_mm512_maskz_mov_ps(lanes, __m512(x)));
    }
    static LINRNN_INLINE void add_seen(i64 count, V x, float* to) {
        T::store(to, T::load(to) + first_lanes(count, x));
    }
    // Of queries and keys, as they meet memories.
    void slope_rows_of(i64 width) {
        for (i64 i = 0; i < rows * L; i += L) T::store(read_dots + i, V{}), T::store(write_dots + i, V{});
        const i64 depth = width / 2;
        product(rows, keys, Factors{o_rows, depth, 1, memory_turned, apart(keys), depth},
                [&](auto& sum, i64 i, i64 c) { meet_rows(sum, scaled, q, d_q, read_dots, i, c); });
        product(rows, keys, Factors{written_rows, depth, 1, slope_turned, apart(keys), depth},
                [&](auto& sum, i64 i, i64 c) { meet_rows(sum, until, k, d_k, write_dots, i, c); });
        if (delta)
            product(rows, keys, Factors{short_rows, depth, 1, memory_turned, apart(keys), depth},
                    [&](auto& sum, i64 i, i64 c) { meet_rows(sum, since, k, d_k, read_dots, i, c); });
    }
    template <int R, int W>
    LINRNN_INLINE void meet_rows(V (&sum)[R][W], const float* by, const HalfPair* with, float* to, float* dots,
                                 i64 i, i64 c) const {
        scale_rows(sum, by + i);
        add_tile(sum, to + i * keys + c, keys);
        for (int r = 0; r < R; ++r) {
            V dot = T::load(dots + (i + r) * L);
            for (int w = 0; w < W; ++w) dot += sum[r][w] * widened(with + (i + r) * (keys / 2), c + w * L);
            T::store(dots + (i + r) * L, dot);
        }
    }
    void leave_memory(float* R, i64 width) const {
        const Factors by_keys{k_pairs, 1, keys, short_scaled, width, rows / 2};
        const float across = since[rows - 1];
        product(keys, width, Factors{q_pairs, 1, keys, o_scaled, width, rows / 2}, [](auto&, i64, i64) {},
                delta ? &by_keys : nullptr,
                [&](auto& sum, i64 c, i64 v) { keep_tile(sum, across, R + c * width + v, width); });
    }

    // Every term of the gradient of a decay is a separate sum: of the pairs, reads and writes that
    // it stands between, and of what the whole chunk keeps.
    void put_decays(const Head<float>& head, float all) {
        float writes[C];
        for (i64 i = 0; i < rows; ++i) writes[i] = all, all += T::sum(T::load(write_dots + i * L));
        V later[C / L] = {};
        float reads_after = 0;
        for (i64 i = rows - 1; i >= 0; --i) {
            reads_after += T::sum(T::load(read_dots + i * L));
            V pairs{};
            for (i64 b = 0; b <= i / L; ++b) {
                later[b] += pair_terms(i * C + b * L);
                pairs += first_lanes(i - b * L, later[b]);
            }
            if (i < n) head.put_head_decay(t + i, writes[i] + reads_after + T::sum(pairs));
        }
    }
    V pair_terms(i64 at) const {
        V both = T::load(d_reads + at) * T::load(reads + at);
        if (delta) both += T::load(d_solves + at) * T::load(solves + at);
        return both;
    }

    // What queries and keys owe to raw pairs; their gradients, of all heads, are written.
    void close(const Head<float>& head) {
        pack_raw(d_raw_reads);
        add_raw(d_q, Factors{raw_rows, PAIRS, 1, k_pairs, keys, 0, UP_TO});
        add_raw(d_k, Factors{raw_pairs, 1, C, q_pairs, keys, rows / 2, FROM});
        if (delta) {
            pack_raw(d_raw_solves);
            add_raw(d_k, Factors{raw_rows, PAIRS, 1, k_pairs, keys, 0, UP_TO});
            add_raw(d_k, Factors{raw_pairs, 1, C, k_pairs, keys, rows / 2, FROM});
        }
        const MemoryScanArgs& args = head.args;
        for (i64 i = 0; i < n; ++i) {
            head.add_keys(args.grad_q, args.q_share, t + i, d_q + i * keys, 1.0f);
            head.add_keys(args.grad_k, args.k_share, t + i, d_k + i * keys, 1.0f);
        }
    }
    void pack_raw(const float* raw) {
        for (i64 i = 0; i < rows; i += 2) {
            const i64 seen = (i / L + 1) * L;
            for (i64 j : {i, i + 1}) to_halves(raw + j * C, raw_rows + j * PAIRS, seen);
            pair_rows(raw + i * C, 1, raw + (i + 1) * C, 1, seen, raw_pairs + i / 2 * C);
        }
    }
    void add_raw(float* to, const Factors& f) {
        product(rows, keys, f, [&](auto& sum, i64 i, i64 c) { add_tile(sum, to + i * keys + c, keys); });
    }
};
#endif

}  // namespace
}  // namespace LINRNN_ISA
}  // namespace linrnn
