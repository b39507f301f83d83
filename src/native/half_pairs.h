// Steps of a linear recurrence with constant complex decays, whose inputs and outputs are pairs of
// bfloat16 numbers, for a register of 8 numbers at a time. The state stays in float32.
#pragma once
#include "half_rows.h"

#ifdef LINRNN_HALF_PRODUCTS

namespace linrnn {
namespace LINRNN_ISA {
namespace {

// Every number of the decays twice, (re, re) and (-im, im), as products of pairs read them.
template <i64 BLOCK>
struct HalfTurn {
    alignas(64) float re[BLOCK], im[BLOCK];

    HalfTurn(const float* a, i64 n) {
        for (i64 i = 0; i < n; i += 2) {
            re[i] = re[i + 1] = a[i];
            im[i] = -a[i + 1], im[i + 1] = a[i + 1];
        }
    }
};

// h = a h + b, which is written too.
LINRNN_BF16_TARGET inline void advance_halves(float* h, const float* re, const float* im, const bf16* b,
                                              bf16* out, i64 n) {
    for (i64 i = 0; i < n; i += 16) {
        const __mmask16 some = lanes_left(n - i);
        const __m512 was = load_lanes(h + i, some);
        __m512 now = _mm512_fmadd_ps(load_lanes(re + i, some), was, load_lanes(b + i, some));
        now = _mm512_fmadd_ps(load_lanes(im + i, some), _mm512_permute_ps(was, 0xb1), now);
        store_lanes(h + i, some, now);
        store_lanes(out + i, some, now);
    }
}

// delta = g + carry, which is written;  carry = conj(a) delta;  and what goes to the gradient of a,
// delta conj(before), in two sums: `same` of products with the real part, `crossed` of the parts of
// delta exchanged with the imaginary one.
template <class P>
LINRNN_BF16_TARGET inline void retreat_halves(float* carry, const float* re, const float* im, const bf16* g,
                                              const P* before, float* same, float* crossed, bf16* out, i64 n) {
    for (i64 i = 0; i < n; i += 16) {
        const __mmask16 some = lanes_left(n - i);
        const __m512 delta = _mm512_add_ps(load_lanes(carry + i, some), load_lanes(g + i, some));
        const __m512 turned = _mm512_permute_ps(delta, 0xb1), state = load_lanes(before + i, some);
        const __m512 direct = _mm512_mul_ps(load_lanes(re + i, some), delta);
        const __m512 kept = _mm512_fnmadd_ps(load_lanes(im + i, some), turned, direct);
        store_lanes(carry + i, some, kept);
        const __m512 first = _mm512_fmadd_ps(_mm512_moveldup_ps(state), delta, load_lanes(same + i, some));
        const __m512 second = _mm512_fmadd_ps(_mm512_movehdup_ps(state), turned, load_lanes(crossed + i, some));
        store_lanes(same + i, some, first);
        store_lanes(crossed + i, some, second);
        store_lanes(out + i, some, delta);
    }
}

// Adds both sums to `to` in double and empties them.
inline void add_halves(float* same, float* crossed, double* to, i64 n) {
    for (i64 i = 0; i < n; ++i) {
        to[i] += double(same[i]) + (i & 1 ? -double(crossed[i]) : double(crossed[i]));
        same[i] = crossed[i] = 0;
    }
}

}  // namespace
}  // namespace LINRNN_ISA
}  // namespace linrnn
#endif
