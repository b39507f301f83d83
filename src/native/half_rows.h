// Rows of bfloat16 numbers in registers of 16, and functions for them: within a millionth of the true
// value, where a result is rounded to one part in 256. Called only where `has_half_products`.
#pragma once
#include "half_products.h"

#ifdef LINRNN_HALF_PRODUCTS

namespace linrnn {
namespace LINRNN_ISA {
namespace {

// The lanes of the next 16 numbers when n are left.
inline __mmask16 lanes_left(i64 n) { return __mmask16(n < 16 ? (1u << n) - 1 : 0xffffu); }

LINRNN_BF16_TARGET inline __m512 load_lanes(const bf16* from, __mmask16 some) {
    const __m512i wide = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(some, from));
    return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
}
LINRNN_BF16_TARGET inline __m512 load_lanes(const float* from, __mmask16 some) {
    return _mm512_maskz_loadu_ps(some, from);
}
LINRNN_BF16_TARGET inline void store_lanes(bf16* to, __mmask16 some, __m512 x) {
    _mm256_mask_storeu_epi16(to, some, (__m256i)_mm512_cvtneps_pbh(x));
}
LINRNN_BF16_TARGET inline void store_lanes(float* to, __mmask16 some, __m512 x) {
    _mm512_mask_storeu_ps(to, some, x);
}

// exp(x) of x up to 90, from exp(-104) = 0 on; a NaN stays one.
LINRNN_BF16_TARGET inline __m512 lanes_exp_below(__m512 x) {
    x = _mm512_max_ps(_mm512_set1_ps(-104.0f), x);
    const __m512 n = _mm512_roundscale_ps(_mm512_mul_ps(x, _mm512_set1_ps(1.44269504f)), 8);
    const __m512 r = _mm512_fnmadd_ps(n, _mm512_set1_ps(0.693147181f), x);
    __m512 q = _mm512_set1_ps(8.31247779e-3f);
    q = _mm512_fmadd_ps(q, r, _mm512_set1_ps(4.18905502e-2f));
    q = _mm512_fmadd_ps(q, r, _mm512_set1_ps(1.66671163e-1f));
    q = _mm512_fmadd_ps(q, r, _mm512_set1_ps(4.99992288e-1f));
    q = _mm512_fmadd_ps(q, r, _mm512_set1_ps(1.0f));
    q = _mm512_fmadd_ps(q, r, _mm512_set1_ps(1.0f));
    return _mm512_scalef_ps(q, n);
}
// The same of any x, with infinity beyond what is finite.
LINRNN_BF16_TARGET inline __m512 lanes_exp_to_infinity(__m512 x) {
    return lanes_exp_below(_mm512_min_ps(_mm512_set1_ps(90.0f), x));
}
// The same up to exp(88), so that it is finite.
LINRNN_BF16_TARGET inline __m512 lanes_exp(__m512 x) {
    return lanes_exp_below(_mm512_min_ps(_mm512_set1_ps(88.0f), x));
}

// 1 / x of a positive normal number, by one step of Newton's method.
LINRNN_BF16_TARGET inline __m512 lanes_inverse(__m512 x) {
    const __m512 guess = _mm512_rcp14_ps(x);
    return _mm512_fmadd_ps(_mm512_fnmadd_ps(x, guess, _mm512_set1_ps(1.0f)), guess, guess);
}

LINRNN_BF16_TARGET inline __m512 lanes_plus_one(__m512 x) { return _mm512_add_ps(x, _mm512_set1_ps(1.0f)); }
LINRNN_BF16_TARGET inline __m512 lanes_minus(__m512 x) {
    return _mm512_castsi512_ps(_mm512_xor_si512(_mm512_castps_si512(x), _mm512_set1_epi32(int(0x80000000u))));
}
// Lanes whose sign is set, -0 included.
LINRNN_BF16_TARGET inline __mmask16 lanes_negative(__m512 x) { return _mm512_movepi32_mask(_mm512_castps_si512(x)); }

// sigmoid(x) and 1 - sigmoid(x), each to its own relative precision.
struct LanesSigmoid {
    __m512 value, rest;
};
LINRNN_BF16_TARGET inline LanesSigmoid lanes_sigmoid(__m512 x) {
    const __m512 e = lanes_exp_below(_mm512_or_ps(x, _mm512_set1_ps(-0.0f)));  // exp(-|x|)
    const __m512 large = lanes_inverse(lanes_plus_one(e)), small = _mm512_mul_ps(e, large);
    const __mmask16 below = lanes_negative(x);
    return {_mm512_mask_blend_ps(below, large, small), _mm512_mask_blend_ps(below, small, large)};
}

// softplus(x) = max(x, 0) + log(1 + exp(-|x|)), and its derivative, sigmoid(x).
struct LanesSoftplus {
    __m512 value, slope;
};
LINRNN_BF16_TARGET inline LanesSoftplus lanes_softplus(__m512 x) {
    const __m512 e = lanes_exp_below(_mm512_or_ps(x, _mm512_set1_ps(-0.0f)));
    __m512 p = _mm512_set1_ps(-8.53920283e-3f);
    p = _mm512_fmadd_ps(p, e, _mm512_set1_ps(4.40896192e-2f));
    p = _mm512_fmadd_ps(p, e, _mm512_set1_ps(-1.07681708e-1f));
    p = _mm512_fmadd_ps(p, e, _mm512_set1_ps(1.77452421e-1f));
    p = _mm512_fmadd_ps(p, e, _mm512_set1_ps(-2.44954636e-1f));
    p = _mm512_fmadd_ps(p, e, _mm512_set1_ps(3.32754800e-1f));
    p = _mm512_fmadd_ps(p, e, _mm512_set1_ps(-4.99974054e-1f));
    p = _mm512_fmadd_ps(p, e, _mm512_set1_ps(9.99999806e-1f));
    const __m512 large = lanes_inverse(lanes_plus_one(e));
    return {_mm512_fmadd_ps(p, e, _mm512_max_ps(_mm512_setzero_ps(), x)),  // a NaN stays one
            _mm512_mask_mul_ps(large, lanes_negative(x), large, e)};
}

// Sigmoids of a row.
LINRNN_BF16_TARGET inline void sigmoid_row(const bf16* x, float* to, i64 n) {
    for (i64 i = 0; i < n; i += 16) {
        const __mmask16 some = lanes_left(n - i);
        store_lanes(to + i, some, lanes_sigmoid(load_lanes(x + i, some)).value);
    }
}

// tanh(x) = (1 - e) / (1 + e) with e = exp(-2|x|), and near 0 a polynomial in x^2 times x.
LINRNN_BF16_TARGET inline __m512 lanes_tanh(__m512 x) {
    const __m512 sign = _mm512_and_ps(x, _mm512_set1_ps(-0.0f)), size = _mm512_xor_ps(x, sign);
    const __m512 e = lanes_exp(_mm512_mul_ps(size, _mm512_set1_ps(-2.0f)));
    const __m512 rest = _mm512_sub_ps(_mm512_set1_ps(1.0f), e);
    const __m512 far = _mm512_or_ps(_mm512_mul_ps(rest, lanes_inverse(lanes_plus_one(e))), sign);
    const __m512 z = _mm512_mul_ps(x, x);
    __m512 p = _mm512_set1_ps(2.18694885e-2f);
    p = _mm512_fmadd_ps(p, z, _mm512_set1_ps(-5.39682540e-2f));
    p = _mm512_fmadd_ps(p, z, _mm512_set1_ps(1.33333333e-1f));
    p = _mm512_fmadd_ps(p, z, _mm512_set1_ps(-3.33333333e-1f));
    const __m512 near = _mm512_fmadd_ps(_mm512_mul_ps(p, z), x, x);
    return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(size, _mm512_set1_ps(0.3f), _CMP_LT_OQ), far, near);
}

}  // namespace
}  // namespace LINRNN_ISA
}  // namespace linrnn
#endif
