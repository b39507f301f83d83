// y = W x + b for the few vectors of one time step: see gemv.h.
//
// Compiled once for every instruction set: see scan.cpp.
#include "../gemv.h"
#include "../linear_step_args.h"

namespace linrnn {
namespace LINRNN_ISA {
namespace {

template <class A>
int run(const LinearStepArgs& args) {
    Gemv<A>::multiply(reinterpret_cast<const A*>(args.weight),
                      reinterpret_cast<const A*>(args.bias), reinterpret_cast<const A*>(args.x),
                      reinterpret_cast<A*>(args.y), args.rows, args.columns, args.batch,
                      args.threads);
    return 0;
}

}  // namespace

int linear_step(const void* record) {
    const auto& args = *static_cast<const LinearStepArgs*>(record);
    if (args.size != i64(sizeof(LinearStepArgs))) return 3;
    if (args.dtype == F32) return run<float>(args);
    if (args.dtype == F64) return run<double>(args);
    return 2;
}

}  // namespace LINRNN_ISA
}  // namespace linrnn
