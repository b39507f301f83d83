// The C ABI: picks the kernels built for this processor's instruction set and calls them.
#include <cstdlib>
#include <cstring>

#include "scan_args.h"
#ifdef _OPENMP
#include <omp.h>
#endif
#ifdef _WIN32
#define LINRNN_EXPORT extern "C" __declspec(dllexport)
#else
#define LINRNN_EXPORT extern "C" __attribute__((visibility("default")))
#endif

namespace linrnn {

namespace baseline {
int scan(const ScanArgs&);
}
#ifdef LINRNN_HAS_avx2
namespace avx2 {
int scan(const ScanArgs&);
}
#endif
#ifdef LINRNN_HAS_avx512
namespace avx512 {
int scan(const ScanArgs&);
}
#endif

namespace {

struct Kernels {
    const char* isa;
    int (*scan)(const ScanArgs&);
};

// LINRNN_ISA in the environment forbids anything better than it names: for tests and bug reports.
bool allowed(const char* isa) {
    const char* wish = std::getenv("LINRNN_ISA");
    if (!wish || !*wish) return true;
    if (!std::strcmp(isa, wish)) return true;
    return !std::strcmp(wish, "avx512") || !std::strcmp(isa, "baseline");
}

Kernels pick() {
#ifdef LINRNN_HAS_avx512
    if (allowed("avx512") && __builtin_cpu_supports("avx512f") &&
        __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vl"))
        return {"avx512", avx512::scan};
#endif
#ifdef LINRNN_HAS_avx2
    if (allowed("avx2") && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        return {"avx2", avx2::scan};
#endif
    return {"baseline", baseline::scan};
}

const Kernels& kernels() {
    static const Kernels chosen = pick();
    return chosen;
}

}  // namespace
}  // namespace linrnn

// 0 done, 1 out of memory, 2 unknown dtype, 3 the record is not of this version.
LINRNN_EXPORT int linrnn_scan(const void* record) {
    auto args = static_cast<const linrnn::ScanArgs*>(record);
    if (args->size != linrnn::i64(sizeof(linrnn::ScanArgs))) return 3;
    return linrnn::kernels().scan(*args);
}

LINRNN_EXPORT const char* linrnn_isa() { return linrnn::kernels().isa; }

LINRNN_EXPORT int linrnn_has_openmp() {
#ifdef _OPENMP
    return 1;
#else
    return 0;
#endif
}
