// Rows of large outputs, written past the caches: a store to a line that is not there reads it first,
// and what is larger than the caches is gone from them before anyone reads it.
#pragma once
#include "half_rows.h"

namespace linrnn {
namespace LINRNN_ISA {
namespace {

// Before other threads read what this one has streamed.
inline void end_streams() {
#ifdef LINRNN_HALF_PRODUCTS
    _mm_sfence();
#endif
}

#ifdef LINRNN_HALF_PRODUCTS

// Bytes from which on outputs are streamed: twice the second-level cache of a core. Sums of 2 million
// numbers take 0.65 of the time (Xeon with AMX, 2 MB a core).
constexpr i64 STREAMED_BYTES = i64(4) << 20;

// Whether an output of that size is streamed, in whole lines from its beginning.
inline bool streams(i64 bytes, const void* to) {
    return bytes >= STREAMED_BYTES && reinterpret_cast<std::uintptr_t>(to) % 64 == 0 && has_half_products();
}

// n numbers, rounded or widened; a multiple of 32 of them, to whole lines.
LINRNN_BF16_TARGET inline void stream_row(const float* from, bf16* to, i64 n) {
    for (i64 i = 0; i < n; i += 32) {
        const __m512bh x = _mm512_cvtne2ps_pbh(_mm512_loadu_ps(from + i + 16), _mm512_loadu_ps(from + i));
        _mm512_stream_si512(reinterpret_cast<__m512i*>(to + i), (__m512i)x);
    }
}
LINRNN_BF16_TARGET inline void stream_row(const bf16* from, float* to, i64 n) {
    for (i64 i = 0; i < n; i += 16) _mm512_stream_ps(to + i, load_lanes(from + i, 0xffff));
}
#endif

}  // namespace
}  // namespace LINRNN_ISA
}  // namespace linrnn
