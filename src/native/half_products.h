// Products of pairs of bfloat16 numbers, summed in float32: an instruction of AVX-512-BF16 does 32
// of them, twice as many as of float32. Where the processor lacks it nothing here is called. Inputs
// round to nearest even, subnormals count as zero, and each sum has the order of its pairs.
#pragma once
#include <cstdlib>
#include <cstring>
#include <type_traits>

#include "storage.h"

// GCC 11 and clang 13 are the first with both the intrinsics and the question for the processor.
#if defined(__x86_64__) && defined(__AVX512F__) && \
    ((defined(__clang__) && __clang_major__ >= 13) || (!defined(__clang__) && __GNUC__ >= 11))
#define LINRNN_HALF_PRODUCTS 1
#if !defined(__clang__)
#pragma GCC diagnostic ignored "-Wuninitialized"  // inside GCC's own header
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <immintrin.h>
#define LINRNN_BF16_TARGET __attribute__((target("avx512bf16,avx512f,avx512bw,avx512dq,avx512vl")))
#endif

namespace linrnn {
namespace LINRNN_ISA {
namespace {

#ifdef LINRNN_HALF_PRODUCTS

// Two neighbours of a row, the first in the low half.
struct HalfPair {
    std::uint32_t bits;
};

// LINRNN_ISA=avx512 forbids it: for tests, and for reports of errors.
inline bool has_half_products() {
    static const bool found = [] {
        const char* wish = std::getenv("LINRNN_ISA");
        return __builtin_cpu_supports("avx512bf16") && (!wish || std::strcmp(wish, "avx512"));
    }();
    return found;
}

// n numbers, rounded.
LINRNN_BF16_TARGET inline void to_halves(const float* from, HalfPair* to, i64 n) {
    auto halves = reinterpret_cast<std::uint16_t*>(to);
    i64 i = 0;
    for (; i + 32 <= n; i += 32) {
        const __m512bh h = _mm512_cvtne2ps_pbh(_mm512_loadu_ps(from + i + 16), _mm512_loadu_ps(from + i));
        std::memcpy(halves + i, &h, sizeof h);
    }
    for (; i + 16 <= n; i += 16) {
        const __m256bh h = _mm512_cvtneps_pbh(_mm512_loadu_ps(from + i));
        std::memcpy(halves + i, &h, sizeof h);
    }
    if (i < n) {
        const __mmask16 rest = __mmask16((1u << (n - i)) - 1);
        const __m256bh h = _mm512_cvtneps_pbh(_mm512_maskz_loadu_ps(rest, from + i));
        std::memcpy(halves + i, &h, size_t(n - i) * 2);
    }
}

// V panels of 16 rows each, of which P lie side by side, times Q vectors that lie `apart`.
template <int Q, int V, int P>
LINRNN_BF16_TARGET void half_panel(const float* w, const HalfPair* x, i64 apart, i64 pairs, float* to) {
    __m512 sum[Q][V];
    for (int q = 0; q < Q; ++q)
        for (int v = 0; v < V; ++v) sum[q][v] = _mm512_setzero_ps();
    for (i64 j = 0; j < pairs; ++j, w += P * 16) {
        __m512bh column[V];
        for (int v = 0; v < V; ++v) std::memcpy(&column[v], w + v / P * pairs * P * 16 + v % P * 16, 64);
        for (int q = 0; q < Q; ++q) {
            const __m512bh pair = (__m512bh)_mm512_set1_epi32(int(x[q * apart + j].bits));
            for (int v = 0; v < V; ++v) sum[q][v] = _mm512_dpbf16_ps(sum[q][v], column[v], pair);
        }
    }
    std::memcpy(to, sum, sizeof sum);
}
#endif

}  // namespace
}  // namespace LINRNN_ISA
}  // namespace linrnn
