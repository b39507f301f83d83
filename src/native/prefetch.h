// Short rows of several arrays in turn are no stream to a processor: it waits for the first line of
// each. Here a kernel names the rows that it reads next.
#pragma once
#include "array.h"

namespace linrnn {
namespace LINRNN_ISA {
namespace {

// The locality is the compiler's: 3 for numbers that stay near, less for those that are read once.
template <bool WRITES = false, int LOCALITY = 3>
inline void prefetch(i64 address, i64 bytes) {
#ifdef __GNUC__
    constexpr i64 LINE = 64;
    const i64 end = address + bytes;
    for (i64 at = address / LINE * LINE; at < end; at += LINE)
        __builtin_prefetch(reinterpret_cast<const void*>(at), WRITES, LOCALITY);
    __asm__ volatile("");  // or GCC takes a function of nothing else for one without effect
#else
    (void)address, (void)bytes;
#endif
}

// What is about to be written: else those who load what was stored after it wait for its line.
inline void ask_to_write(const void* at, i64 bytes) { prefetch<true>(reinterpret_cast<i64>(at), bytes); }

}  // namespace
}  // namespace LINRNN_ISA
}  // namespace linrnn
