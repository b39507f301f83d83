// A fresh output is mapped page by page as it is first written, which costs more than
// computing it: ask for large pages where the system hands them out on request.
#pragma once
#include <cstdint>
#ifdef __linux__
#include <sys/mman.h>
#endif

#include "array.h"

namespace linrnn {
namespace LINRNN_ISA {
namespace {

inline void advise(i64 pointer, i64 bytes) {
#if defined(__linux__) && defined(MADV_HUGEPAGE)
    constexpr i64 PAGE = 2 * 1024 * 1024;
    i64 first = (pointer + PAGE - 1) / PAGE * PAGE, last = (pointer + bytes) / PAGE * PAGE;
    if (pointer && last > first)
        madvise(reinterpret_cast<void*>(first), size_t(last - first), MADV_HUGEPAGE);
#else
    (void)pointer, (void)bytes;
#endif
}

}  // namespace
}  // namespace LINRNN_ISA
}  // namespace linrnn
