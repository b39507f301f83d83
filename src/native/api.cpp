// The C ABI: picks the kernels built for this processor's instruction set and calls them.
#include <cstdlib>
#include <cstring>

#include "isa.h"
#include "kernels.h"
#ifdef _OPENMP
#include <omp.h>
#endif
#ifdef _WIN32
#define LINRNN_EXPORT extern "C" __declspec(dllexport)
#else
#define LINRNN_EXPORT extern "C" __attribute__((visibility("default")))
#endif

namespace linrnn {

#define LINRNN_DECLARE(name) int name(const void* record);
#ifdef LINRNN_HAS_baseline
namespace baseline {
LINRNN_KERNELS(LINRNN_DECLARE)
}
#endif
#ifdef LINRNN_HAS_avx2
namespace avx2 {
LINRNN_KERNELS(LINRNN_DECLARE)
}
#endif
#ifdef LINRNN_HAS_avx512
namespace avx512 {
LINRNN_KERNELS(LINRNN_DECLARE)
}
#endif

namespace {

// One pointer for each kernel, in the order of the list in kernels.h.
struct Kernels {
    const char* isa;
#define LINRNN_FIELD(name) int (*name)(const void*);
    LINRNN_KERNELS(LINRNN_FIELD)
};

// LINRNN_ISA in the environment forbids anything better than it names: for tests and bug reports.
bool allowed(const char* isa) {
    const char* wish = std::getenv("LINRNN_ISA");
    if (!wish || !*wish) return true;
    if (!std::strcmp(isa, wish)) return true;
    // avx512bf16: all of AVX-512, but no tiles (half_tiles.h)
    return !std::strncmp(wish, "avx512", 6) || !std::strcmp(isa, "baseline");
}

#define LINRNN_AVX512(name) , avx512::name
#define LINRNN_AVX2(name) , avx2::name
#define LINRNN_BASELINE(name) , baseline::name
Kernels pick() {
#ifdef LINRNN_HAS_avx512
    if (allowed("avx512") && LINRNN_RUNS_avx512)
        return {"avx512" LINRNN_KERNELS(LINRNN_AVX512)};
#endif
#ifdef LINRNN_HAS_avx2
    if (allowed("avx2") && LINRNN_RUNS_avx2)
        return {"avx2" LINRNN_KERNELS(LINRNN_AVX2)};
#endif
#ifdef LINRNN_HAS_baseline
    return {"baseline" LINRNN_KERNELS(LINRNN_BASELINE)};
#else
    return {};  // built for one machine, and this is another
#endif
}

const Kernels& kernels() {
    static const Kernels chosen = pick();
    return chosen;
}

}  // namespace
}  // namespace linrnn

// Every kernel returns 0 done, 1 out of memory, 2 unknown dtype, 3 a record of another version; 4 to
// 6 are of single kernels (compute/native.py has the words).
#define LINRNN_ENTRY(name) \
    LINRNN_EXPORT int linrnn_##name(const void* record) { return linrnn::kernels().name(record); }
LINRNN_KERNELS(LINRNN_ENTRY)

// The fields of a kernel's record in order, behind its size: a name, and what it is where that is
// no integer; the operations of the machine by their numbers. Null: no such kernel.
#define LINRNN_WORD_NAME(name) #name " "
#define LINRNN_ARRAY_NAME(name) #name ":array "
#define LINRNN_REAL_NAME(name) #name ":real "
#define LINRNN_OPERATION_NAME(name, value) #name " "
#define LINRNN_SPREAD_NAME(name) #name " "
#define LINRNN_RECORDED_NAME(name) #name " "
#define LINRNN_LAYOUT(kernel, FIELDS) \
    if (!std::strcmp(name, #kernel))  \
        return FIELDS(LINRNN_WORD_NAME, LINRNN_ARRAY_NAME, LINRNN_REAL_NAME);
LINRNN_EXPORT const char* linrnn_record_layout(const char* name) {
    LINRNN_RECORDS(LINRNN_LAYOUT)
    if (!std::strcmp(name, "machine operations"))
        return LINRNN_MACHINE_OPS(LINRNN_OPERATION_NAME) "product "
            LINRNN_MACHINE_SPREADS(LINRNN_SPREAD_NAME);
    if (!std::strcmp(name, "recorded operations"))
        return LINRNN_MACHINE_OPS(LINRNN_OPERATION_NAME) LINRNN_RECORDED_OPS(LINRNN_RECORDED_NAME);
    return nullptr;
}

// Null: it was built for processors that can do more, and no kernel may be called.
LINRNN_EXPORT const char* linrnn_isa() { return linrnn::kernels().isa; }

LINRNN_EXPORT int linrnn_has_openmp() {
#ifdef _OPENMP
    return 1;
#else
    return 0;
#endif
}
