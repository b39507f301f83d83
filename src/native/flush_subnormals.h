// A state that nothing feeds decays into subnormal numbers, where processors compute a hundred
// times slower: have them flushed to zero while a kernel runs.
#pragma once
#ifdef __SSE2__
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"  // inside GCC's own header
#endif
#include <immintrin.h>
#endif

namespace linrnn {
namespace LINRNN_ISA {
namespace {

struct FlushSubnormals {
#ifdef __SSE2__
    unsigned before = _mm_getcsr();
    FlushSubnormals() { _mm_setcsr(before | 0x8040u); }
    ~FlushSubnormals() { _mm_setcsr(before); }
#endif
};

}  // namespace
}  // namespace LINRNN_ISA
}  // namespace linrnn
