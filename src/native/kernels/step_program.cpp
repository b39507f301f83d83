// All layers of a model for one token in one call. Between two calls from Python lies more work
// than in a small layer, and the layers' weights have driven what it needs from the caches.
//
// Compiled once for every instruction set: see scan.cpp.
#include "../step_program_args.h"

namespace linrnn {
namespace LINRNN_ISA {

#define LINRNN_DECLARE_STEP(name) int name(const void* record);
LINRNN_STEPS(LINRNN_DECLARE_STEP)

int step_program(const void* record) {
#define LINRNN_STEP_ENTRY(name) name,
    constexpr int (*steps[])(const void*) = {LINRNN_STEPS(LINRNN_STEP_ENTRY)};
    const auto& args = *static_cast<const StepProgramArgs*>(record);
    if (args.size != i64(sizeof(StepProgramArgs))) return 3;
    const char* base = static_cast<const char*>(record);
    const auto* calls = reinterpret_cast<const StepCall*>(base + sizeof(StepProgramArgs));
    for (i64 i = 0; i < args.count; ++i) {
        const i64 kernel = calls[i].kernel, at = calls[i].record;
        if (kernel < 0 || kernel >= i64(sizeof steps / sizeof *steps)) return 3;
        if (at < 0 || at >= args.bytes) return 3;
        if (int code = steps[kernel](base + at)) return code;
    }
    return 0;
}

}  // namespace LINRNN_ISA
}  // namespace linrnn
