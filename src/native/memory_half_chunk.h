// Chunks of up to 64 steps of a memory whose decays are one a head and whose rows are bfloat16: every
// product of a chunk is one of bfloat16 numbers with sums in float32. With P the products of decays
// since the chunk began, D those from step j to i and U those from step j to the end,
//   o = scale (P q S + A u),   A_ij = q_i k_j D_ij,   S <- P_end S + k' (U u),
// and by the delta rule (1 + beta M) u = beta (v - P k S), M_ij = k_i k_j D_ij. Memories, decays and
// sums are float32; rows of q and k are multiplied as they are stored, and read once for all heads
// that share them. Blocks of 16 steps on the diagonals of A and M stay float32, where a step does not
// touch what is written later: it may not be finite.
#pragma once
#include "memory_half_factors.h"
#include "memory_head.h"

namespace linrnn {
namespace LINRNN_ISA {
namespace {

template <class A>
struct HalfChunk {
    static constexpr bool exist = false;
};

#ifdef LINRNN_HALF_PRODUCTS
template <>
struct HalfChunk<float> : HalfFactors<float> {
    static constexpr i64 NEAR = 1 << 14;  // bytes that stay in a processor's first cache beside others

    static bool usable(const MemoryScanArgs& args) {
        const bool plain = args.channels < 2 && args.rank == 1 && args.reads == 1 && !args.before;
        const bool rows = !args.bonus && !args.a.data && !args.value_decay.data && !args.rates;
        const bool shared = args.q_share == args.k_share && args.q_share * args.key_heads == args.heads;
        return plain && rows && shared && args.window == C && Pack::usable(args);
    }

    // Rows against rows, as far as each sees: blocks of (C, C) on and below the diagonal.
    void lower_product(const HalfPair* left, i64 row, const HalfPair* right, float* to) const {
        for (i64 b = 0; b < rows; b += L)
            product(L, b + L, Factors{left + b * row, row, 1, right, C, row},
                    [&](auto& sum, i64 i, i64 n) { T::put_tile(sum, to + (b + i) * C + n, C); });
    }

    // -------------------------------------------------------------------------------------- rooms

    i64 keys, most;  // padded, of the widest slice
    bool delta, adjoint;
    i64 t = 0, n = 0, rows = 0;  // steps, and these filled up with steps that write nothing
    // of q and k, which heads share
    HalfPair *q, *k, *k_turned, *q_pairs, *k_pairs;
    float *raw_reads, *raw_solves;  // (C, C): rows of q and of k with k
    // of a head
    float *between, *reads, *solves;                       // (C, C): D, scale A, M
    HalfPair *read_rows, *read_pairs, *solve_rows, *solve_pairs;
    float *values, *error, *past;                          // (C, width)
    HalfPair *memory_pairs, *value_pairs, *scaled_pairs;
    float *since, *until, *scaled, *rates, *decays;        // (C): P, U, scale P, beta

    HalfChunk(const MemoryScanArgs& args, i64 keys_, i64 width)
        : keys(keys_), most(width), delta(args.delta), adjoint(args.backward) {}

    // Where everything lies from `work` on; the end of it.
    float* lay_out(float* work) {
        for (HalfPair** x : {&q, &k, &k_turned, &q_pairs, &k_pairs}) *x = take_pairs(work, PAIRS * keys);
        for (HalfPair** x : {&turned_first, &turned_second}) *x = take_pairs(work, PAIRS * (keys > C ? keys : C));
        for (float** x : {&raw_reads, &raw_solves, &between, &reads, &solves}) *x = take(work, C * C);
        for (HalfPair** x : {&read_rows, &read_pairs, &solve_rows, &solve_pairs}) *x = take_pairs(work, PAIRS * C);
        for (float** x : {&values, &error, &past}) *x = take(work, C * most);
        memory_pairs = take_pairs(work, keys / 2 * apart(most));
        for (HalfPair** x : {&value_pairs, &scaled_pairs}) *x = take_pairs(work, PAIRS * most);
        for (float** x : {&since, &until, &scaled, &rates, &decays}) *x = take(work, C);
        return work;
    }

    // ------------------------------------------------------------------------------------- chunks

    // What heads share of steps [first, first + count), of which none resets but the first.
    void open(const Head<float>& head, i64 first, i64 count) {
        t = first, n = count, rows = (count + L - 1) / L * L;
        const MemoryScanArgs& args = head.args;
        for (i64 i = 0; i < rows; ++i) {
            stored_row(args.q, head.q_head, args.keys, i, q);
            stored_row(args.k, head.k_head, args.keys, i, k);
            if (i < n) head.ask(ahead(i));
        }
        pair_stored(k, rows, keys, k_pairs);
        if (adjoint) pair_stored(q, rows, keys, q_pairs);
        turn_rows(k, keys, k_turned, C, rows);
        lower_product(q, keys / 2, k_turned, raw_reads);
        if (delta) lower_product(k, keys / 2, k_turned, raw_solves);
    }
    // The step that is as far from the next chunk's first as step i is from this one's.
    i64 ahead(i64 i) const { return adjoint ? t + i - C : t + i + C; }
    void stored_row(const Array& x, i64 of_head, i64 count, i64 i, HalfPair* to) const {
        auto row = reinterpret_cast<bf16*>(to + i * (keys / 2));
        const i64 present = i < n ? count : 0;
        if (present) copy(row, Head<float>::at<bf16>(x, t + i, of_head * count), count);
        for (i64 c = present; c < keys; ++c) row[c].bits = 0;
    }

    // Decays of a head and the pairs of steps that they stand between.
    LINRNN_BF16_TARGET void meet(const Head<float>& head) {
        const MemoryScanArgs& args = head.args;
        const float scale = float(args.scale);
        for (i64 i = 0; i < rows; ++i) {
            const bool there = i < n && args.channels;
            decays[i] = there ? *Head<float>::at<float>(args.g, t + i, head.g_head) : 0;
            rates[i] = i < n ? head.beta(t + i) : 0;
        }
        for (i64 i = 0; i < rows; ++i) decays[i] = vexp(decays[i]);
        for (i64 i = 0; args.sign.data && i < n; ++i)
            decays[i] *= *Head<float>::at<float>(args.sign, t + i, head.g_head);
        V kept[C / L] = {};
        float running = 1;
        for (i64 i = 0; i < rows; ++i) {
            running *= decays[i], since[i] = running, scaled[i] = scale * running;
            const i64 block = i / L;
            for (i64 b = 0; b < block; ++b) {
                kept[b] = decays[i] * kept[b];
                put_pairs(i, b, kept[b], scale, 0xffff, 0xffff);
            }
            const __mmask16 own = __mmask16(1u << i % L), before = __mmask16(own - 1);
            kept[block] = V(_mm512_mask_blend_ps(own, __m512(decays[i] * kept[block]), _mm512_set1_ps(1.0f)));
            put_pairs(i, block, kept[block], scale, own | before, before);
        }
        for (i64 b = 0; b < rows / L; ++b) T::store(until + b * L, kept[b]);
        if (!adjoint) return;
        for (i64 i = 0; i < rows; i += 2) {
            const i64 seen = (i / L + 1) * L;
            pair_rows(reads + i * C, 1, reads + (i + 1) * C, 1, seen, read_pairs + i / 2 * C);
            if (delta) pair_rows(solves + i * C, 1, solves + (i + 1) * C, 1, seen, solve_pairs + i / 2 * C);
        }
    }
    LINRNN_BF16_TARGET LINRNN_INLINE void put_pairs(i64 i, i64 block, V kept, float scale, __mmask16 seen,
                                                    __mmask16 before) {
        const i64 at = i * C + block * L;
        if (adjoint) T::store(between + at, kept);
        put_pair(seen, scale * kept, raw_reads, reads, read_rows, at);
        if (delta) put_pair(before, kept, raw_solves, solves, solve_rows, at);
    }
    LINRNN_BF16_TARGET static LINRNN_INLINE void put_pair(__mmask16 seen, V kept, const float* raw, float* to,
                                                          HalfPair* half, i64 at) {
        const __m512 pair = _mm512_maskz_mul_ps(seen, __m512(kept), __m512(T::load(raw + at)));
        _mm512_storeu_ps(to + at, pair);
        const __m256bh x = _mm512_cvtneps_pbh(pair);
        std::memcpy(reinterpret_cast<std::uint16_t*>(half) + at, &x, sizeof x);
    }

    // The memory before a window, as products have it, in the room of one that is not rounded.
    static bf16* kept_row(const Head<float>& head, i64 index, i64 key) {
        auto all = reinterpret_cast<bf16*>(head.args.kept);
        return all + ((index * head.args.heads + head.h) * head.args.keys + key) * head.columns() + head.first;
    }
    void keep_memory(const Head<float>& head, const float* S, i64 index) const {
        const i64 width = head.width();
        for (i64 c = 0; c < head.args.keys; ++c) {
            prefetch<true, 2>(reinterpret_cast<i64>(kept_row(head, index + 1, c)), head.count * i64(sizeof(bf16)));
            to_halves(S + c * width, reinterpret_cast<HalfPair*>(kept_row(head, index, c)), head.count);
        }
    }

    void load_values(const Head<float>& head, i64 width) const {
        const MemoryScanArgs& args = head.args;
        const Array& written = adjoint ? args.grad_v : args.o;
        const i64 channel = head.h * (adjoint ? args.values : head.columns()) + head.first;
        const i64 bytes = head.given() * i64(sizeof(bf16));
        for (i64 i = 0; i < n; ++i) {
            head.value_row(t + i, values + i * width), head.ask_values(ahead(i));
            if (C * bytes <= NEAR) ask_to_write(stored_pairs(written, t + i, channel), bytes);
        }
        head.clear(values, n * width, rows * width);
    }
    // What is written, by the delta rule from what keys read of the memory before the chunk.
    void solve(i64 width) const {
        product(rows, width, Factors{k, keys / 2, 1, memory_pairs, apart(width), keys / 2}, [&](auto& sum, i64 i, i64 c) {
            scale_rows(sum, since + i);
            T::put_tile(sum, past + i * width + c, width);
        });
        for (i64 b = 0; b < rows; b += L) {
            const Factors earlier{solve_rows + b * PAIRS, PAIRS, 1, value_pairs, width, b / 2};
            if (b)
                product(L, width, earlier, [&](auto& sum, i64 i, i64 c) {
                    add_tile(sum, past + (b + i) * width + c, width);
                });
            for (i64 c = 0; c < width; c += L) substitute(b, c, width);
            pair_all(values + b * width, width, L, width, value_pairs + b / 2 * width);
        }
    }
    template <int R, int W>
    static LINRNN_INLINE void add_tile(const V (&sum)[R][W], float* to, i64 ld) {
        for (int r = 0; r < R; ++r)
            for (int w = 0; w < W; ++w) T::store(to + r * ld + w * L, T::load(to + r * ld + w * L) + sum[r][w]);
    }
    // A block of 16 steps and as many columns, in registers.
    void substitute(i64 b, i64 c, i64 width) const {
        const i64 at = b * width + c;
        substitute(solves + b * C + b, rates + b, values + at, past + at, error + at, width, Steps());
    }
    template <int... J>
    LINRNN_INLINE void substitute(const float* pairs, const float* rate, float* written, const float* known,
                                  float* short_of, i64 ld, std::integer_sequence<int, J...> all) const {
        V sum[L];
        load_steps(sum, known, ld, all);
        ((sum[J] = T::load(written + J * ld) - sum[J]), ...);
        (write_step<J>(sum, pairs, rate, all), ...);
        if (adjoint) store_steps(sum, short_of, ld, all);
        (T::store(written + J * ld, rate[J] * sum[J]), ...);
    }
    // Takes what a step writes from what later ones are short of.
    template <int J, int... I>
    static LINRNN_INLINE void write_step(V (&sum)[L], const float* pairs, const float* rate,
                                         std::integer_sequence<int, I...> all) {
        add_later<J + 1, int(C)>(sum, pairs + J, -rate[J] * sum[J], all);
    }

    // One head, or a slice of its columns, whose memory is S (keys, width).
    void forward(const Head<float>& head, float* S) {
        const i64 width = head.width();
        meet(head);
        load_values(head, width);
        pair_all(S, width, keys, width, memory_pairs, apart(width));
        if (delta) solve(width);
        else pair_all(values, width, rows, width, value_pairs);
        pair_scaled(values, until, rows, width, scaled_pairs);
        read_out(head, width);
        const float across = since[rows - 1];
        product(keys, width, Factors{k_pairs, 1, keys, scaled_pairs, width, rows / 2}, [&](auto& sum, i64 c, i64 v) {
            keep_tile(sum, across, S + c * width + v, width);
        });
    }
    template <int R, int W>
    static LINRNN_INLINE void keep_tile(const V (&sum)[R][W], float across, float* to, i64 ld) {
        for (int r = 0; r < R; ++r)
            for (int w = 0; w < W; ++w) {
                float* place = to + r * ld + w * L;
                T::store(place, across * T::load(place) + sum[r][w]);
            }
    }
    void read_out(const Head<float>& head, i64 width) const {
        const Factors earlier{read_rows, PAIRS, 1, value_pairs, width, 0, BEFORE};
        product(rows, width, Factors{q, keys / 2, 1, memory_pairs, apart(width), keys / 2},
                [&](auto& sum, i64 i, i64) { scale_rows(sum, scaled + i); }, &earlier,
                [&](auto& sum, i64 i, i64 c) { T::put_tile(sum, past + i * width + c, width); });
        for (i64 b = 0; b < rows; b += L)
            for (i64 c = 0; c < width; c += L)
                read_block(reads + b * C + b, values + b * width + c, past + b * width + c, width, Steps());
        const i64 channel = head.h * head.columns() + head.first;
        for (i64 i = 0; i < n; ++i)
            to_halves(past + i * width, stored_pairs(head.args.o, t + i, channel), head.count);
    }
    // What steps read of those of their block, up to themselves.
    template <int... J>
    static LINRNN_INLINE void read_block(const float* pairs, const float* written, float* to, i64 ld,
                                         std::integer_sequence<int, J...> all) {
        V sum[L];
        load_steps(sum, to, ld, all);
        (add_later<J, int(C)>(sum, pairs + J, T::load(written + J * ld), all), ...);
        store_steps(sum, to, ld, all);
    }
};
#endif

}  // namespace
}  // namespace LINRNN_ISA
}  // namespace linrnn
