// Decays of columns within a chunk, which are of what is written and not of a key: each write is carried
// from step to step and decays on the way, a register of columns at a time. What corrects the memory is
// solved for as the steps pass.
#pragma once
#include "memory_head.h"

namespace linrnn {
namespace LINRNN_ISA {
namespace {

template <class A>
struct Columns {
    using T = Tile<A>;
    using V = typename T::V;
    static constexpr i64 L = T::L, C = T::STEPS;

    i64 n, width;
    bool early;               // q reads before its step decays
    const A *forget, *since;  // (C, width), (C + 1, width): decays, and their products before each step
    const A *pairs, *solve;   // (C, C): as q and as the reader see writes; solve is null where there is none
    const A *past, *read;     // (C, width): what both read of the memory before the chunk, or null
    const A *beta, *rates;    // of a step, or (C, width) of every column; what the reader's error is times
    A *values, *error;        // (C, width): values, then what is written; what was short

    V rate(i64 i, i64 v) const { return rates ? T::load(rates + i * width + v) : beta[i] + V{}; }

    // Writes, and what is read into o, if there is one.
    void forward(A* o) const {
        for (i64 v = 0; v < width; v += L) solve ? forward<true>(o, v) : forward<false>(o, v);
    }
    template <bool SOLVE>
    void forward(A* o, i64 v) const {
        V left[C];
        for (i64 i = 0; i < n; ++i) {
            const i64 at = i * width + v;
            const A *reads = pairs + i * C, *solves = solve + (SOLVE ? i * C : 0);
            const V forget_i = T::load(forget + at);
            V seen = V{}, corrected = V{}, value = T::load(values + at);
            if (o) seen = T::load(since + at + (early ? 0 : width)) * T::load(past + at);
            if (SOLVE) corrected = T::load(since + at + width) * T::load(read + at);
            for (i64 j = 0; j < i; ++j) {
                const V before = left[j];
                left[j] = forget_i * before;
                seen += reads[j] * (early ? before : left[j]);
                if (SOLVE) corrected += solves[j] * left[j];
            }
            if (SOLVE) {
                value -= corrected;
                if (error) T::store(error + at, value);
                value = rate(i, v) * value;
                T::store(values + at, value);
            }
            left[i] = value;
            if (o) T::store(o + at, seen + reads[i] * value);
        }
    }

    // From the gradients o of what is read, (C, width), and in d_values that of the rest of each
    // write at the end, to those of what is written, and of the logarithms of decays. `across` is the
    // gradient of what the whole chunk keeps of the memory before it.
    void backward(const A* o, const A* across, A* d_values, A* d_forget) const {
        for (i64 v = 0; v < width; v += L)
            solve ? backward<true>(o, across, d_values, d_forget, v)
                  : backward<false>(o, across, d_values, d_forget, v);
    }
    template <bool SOLVE>
    void backward(const A* o, const A* across, A* d_values, A* d_forget, i64 v) const {
        V left[C][C], z[C];
        for (i64 i = 0; i < n; ++i) {
            const V forget_i = T::load(forget + i * width + v);
            for (i64 j = 0; j < i; ++j) left[i][j] = forget_i * left[i - 1][j];
            left[i][i] = T::load(values + i * width + v);
            z[i] = T::load(d_values + i * width + v);
        }
        V memory = T::load(across + v);
        for (i64 i = n - 1; i >= 0; --i) {
            const i64 at = i * width + v;
            const A *reads = pairs + i * C, *solves = solve + (SOLVE ? i * C : 0);
            const V o_i = T::load(o + at), seen = o_i * T::load(past + at), forget_i = T::load(forget + at);
            const V written = z[i] + reads[i] * o_i;
            T::store(d_values + at, written);
            V corrected = V{};
            if (!early) memory += seen;
            if (SOLVE) {
                corrected = A(-1) * (rate(i, v) * written);
                memory += corrected * T::load(read + at);
            }
            V slope = memory * T::load(since + at + width);
            memory = memory * forget_i;
            if (early) memory += seen;
            for (i64 j = 0; j < i; ++j) {
                V there = z[j];
                if (!early) there += reads[j] * o_i;
                if (SOLVE) there += solves[j] * corrected;
                slope += there * left[i][j];
                there = there * forget_i;
                z[j] = early ? there + reads[j] * o_i : there;
            }
            T::store(d_forget + at, slope);
        }
    }
};

}  // namespace
}  // namespace LINRNN_ISA
}  // namespace linrnn
