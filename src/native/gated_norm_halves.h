// A row of one group of a norm with a gate behind it, of bfloat16 numbers: read once and written once,
// what lies between stays in registers. Called only where `has_half_products`.
#pragma once
#include <cmath>

#include "half_rows.h"
#include "vecmath.h"

#ifdef LINRNN_HALF_PRODUCTS

namespace linrnn {
namespace LINRNN_ISA {
namespace {

enum NormGate { SIGMOID_GATE = 0, SILU_GATE = 1, ITSELF_GATE = 2, NO_GATE = 3 };

struct HalfNormRow {
    bool centre;
    float eps;
    const bf16 *x, *z, *q, *k, *v, *grad;
    const float *weight, *bias, *share;
    bf16 *y, *to_x, *to_z, *to_q, *to_k, *to_v;
    float *of_weight, *of_bias, *of_share;
};

// N numbers, a multiple of 16; if N is 0 as many as it is told, up to MOST: longer rows are vector code anyway.
template <int N, int GATE, bool ADDED, bool WEIGHTED>
struct HalfNorm {
    static constexpr i64 MOST = 128, L = 16, ROOM = (N ? N : MOST) / L;
    static constexpr __mmask16 ALL = 0xffff;

    const HalfNormRow& r;
    const i64 count;  // registers of a row
    __m512 normed[ROOM];
    __m512 inverse, both;

    LINRNN_BF16_TARGET HalfNorm(const HalfNormRow& row, i64 n) : r(row), count(N ? N / L : n / L) {
        __m512 total = _mm512_setzero_ps(), squares = total;
#pragma GCC unroll 4
        for (i64 i = 0; i < count; ++i) normed[i] = of(r.x, i), total = _mm512_add_ps(total, normed[i]);
        const __m512 middle = r.centre ? mean(total) : _mm512_setzero_ps();
#pragma GCC unroll 4
        for (i64 i = 0; i < count; ++i) {
            normed[i] = _mm512_sub_ps(normed[i], middle);
            squares = _mm512_fmadd_ps(normed[i], normed[i], squares);
        }
        const float size = _mm512_reduce_add_ps(squares) / float(count * L) + r.eps;
        inverse = _mm512_set1_ps(1.0f / std::sqrt(size));
        if (ADDED) add_pairs();
    }
    LINRNN_BF16_TARGET static LINRNN_INLINE __m512 of(const bf16* row, i64 i) { return load_lanes(row + i * L, ALL); }
    LINRNN_BF16_TARGET static LINRNN_INLINE __m512 of(const float* row, i64 i) { return _mm512_loadu_ps(row + i * L); }
    LINRNN_BF16_TARGET static LINRNN_INLINE void put(bf16* row, i64 i, __m512 x) { store_lanes(row + i * L, ALL, x); }
    LINRNN_BF16_TARGET static LINRNN_INLINE void add(float* row, i64 i, __m512 x) {
        _mm512_storeu_ps(row + i * L, _mm512_add_ps(_mm512_loadu_ps(row + i * L), x));
    }
    LINRNN_BF16_TARGET LINRNN_INLINE __m512 mean(__m512 total) const {
        return _mm512_set1_ps(_mm512_reduce_add_ps(total) / float(count * L));
    }
    LINRNN_BF16_TARGET LINRNN_INLINE void add_pairs() {
        __m512 total = _mm512_setzero_ps();
#pragma GCC unroll 4
        for (i64 i = 0; i < count; ++i)
            total = _mm512_fmadd_ps(_mm512_mul_ps(of(r.q, i), of(r.k, i)), of(r.share, i), total);
        both = _mm512_set1_ps(_mm512_reduce_add_ps(total));
    }
    // What is behind the norm, before the gate.
    LINRNN_BF16_TARGET LINRNN_INLINE __m512 inner(__m512 scaled, i64 i) const {
        if constexpr (WEIGHTED) scaled = _mm512_fmadd_ps(scaled, of(r.weight, i), of(r.bias, i));
        if constexpr (ADDED) scaled = _mm512_fmadd_ps(both, of(r.v, i), scaled);
        return scaled;
    }
    // The gate at z, and its slope there.
    LINRNN_BF16_TARGET LINRNN_INLINE void gate(i64 i, __m512& value, __m512& slope) const {
        const __m512 z = of(r.z, i);
        if constexpr (GATE == ITSELF_GATE) {
            value = z, slope = _mm512_set1_ps(1.0f);
            return;
        }
        const LanesSigmoid s = lanes_sigmoid(z);
        value = GATE == SILU_GATE ? _mm512_mul_ps(z, s.value) : s.value;
        slope = GATE == SILU_GATE ? _mm512_fmadd_ps(_mm512_mul_ps(value, s.rest), _mm512_set1_ps(1.0f), s.value)
                                  : _mm512_mul_ps(s.value, s.rest);
    }

    LINRNN_BF16_TARGET LINRNN_INLINE void forward() const {
#pragma GCC unroll 4
        for (i64 i = 0; i < count; ++i) {
            __m512 one = inner(_mm512_mul_ps(inverse, normed[i]), i), value, slope;
            if constexpr (GATE != NO_GATE) gate(i, value, slope), one = _mm512_mul_ps(one, value);
            put(r.y, i, one);
        }
    }

    LINRNN_BF16_TARGET LINRNN_INLINE void backward() const {
        __m512 u[ROOM], into_added[ADDED ? ROOM : 1];
        __m512 along = _mm512_setzero_ps(), total = along, across = along;
#pragma GCC unroll 4
        for (i64 i = 0; i < count; ++i) {
            const __m512 scaled = _mm512_mul_ps(inverse, normed[i]);
            __m512 into = of(r.grad, i), value, slope;
            if constexpr (GATE != NO_GATE) {
                gate(i, value, slope);
                put(r.to_z, i, _mm512_mul_ps(_mm512_mul_ps(into, inner(scaled, i)), slope));
                into = _mm512_mul_ps(into, value);
            }
            if constexpr (ADDED) into_added[i] = into, across = _mm512_fmadd_ps(into, of(r.v, i), across);
            u[i] = into;
            if constexpr (WEIGHTED) {
                add(r.of_weight, i, _mm512_mul_ps(into, scaled)), add(r.of_bias, i, into);
                u[i] = _mm512_mul_ps(into, of(r.weight, i));
            }
            along = _mm512_fmadd_ps(u[i], normed[i], along), total = _mm512_add_ps(total, u[i]);
        }
        const __m512 by = _mm512_mul_ps(_mm512_mul_ps(mean(along), inverse), inverse);
        const __m512 middle = r.centre ? mean(total) : _mm512_setzero_ps();
#pragma GCC unroll 4
        for (i64 i = 0; i < count; ++i) {
            const __m512 rest = _mm512_sub_ps(_mm512_sub_ps(u[i], middle), _mm512_mul_ps(normed[i], by));
            put(r.to_x, i, _mm512_mul_ps(inverse, rest));
        }
        if constexpr (ADDED) close_added(into_added, _mm512_set1_ps(_mm512_reduce_add_ps(across)));
    }
    LINRNN_BF16_TARGET LINRNN_INLINE void close_added(const __m512* into, __m512 slope) const {
#pragma GCC unroll 4
        for (i64 i = 0; i < count; ++i) {
            const __m512 q = of(r.q, i), k = of(r.k, i), share = _mm512_mul_ps(slope, of(r.share, i));
            put(r.to_q, i, _mm512_mul_ps(share, k)), put(r.to_k, i, _mm512_mul_ps(share, q));
            put(r.to_v, i, _mm512_mul_ps(into[i], both));
            add(r.of_share, i, _mm512_mul_ps(slope, _mm512_mul_ps(q, k)));
        }
    }
};

// A row of n numbers, forward or backward.
template <int GATE, bool ADDED, bool WEIGHTED>
LINRNN_BF16_TARGET LINRNN_APART void half_norm(const HalfNormRow& r, i64 n, bool backward) {
    if (n == 64) {
        const HalfNorm<64, GATE, ADDED, WEIGHTED> norm(r, n);
        return backward ? norm.backward() : norm.forward();
    }
    const HalfNorm<0, GATE, ADDED, WEIGHTED> norm(r, n);
    backward ? norm.backward() : norm.forward();
}
// Whether `half_norm` takes rows of n numbers.
inline bool half_norm_takes(i64 n) { return n % 16 == 0 && n <= HalfNorm<0, NO_GATE, false, false>::MOST; }

}  // namespace
}  // namespace LINRNN_ISA
}  // namespace linrnn
#endif
