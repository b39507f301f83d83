// What the kernels of one time step share: how a record is read, and in which dtypes they compute.
#pragma once
#include "storage.h"

namespace linrnn {
namespace LINRNN_ISA {
namespace {

// Everything of dtype A but the weights, which are stored as W.
template <class A, class W>
struct Pointers {
    static const A* read(i64 p) { return reinterpret_cast<const A*>(p); }
    static A* write(i64 p) { return reinterpret_cast<A*>(p); }
    static const W* weight(i64 p) { return reinterpret_cast<const W*>(p); }
};

template <template <class, class> class Step, class Args>
int run_step(const void* record) {
    const auto& args = *static_cast<const Args*>(record);
    if (args.size != i64(sizeof(Args))) return 3;
    if (args.dtype == F32) return Step<float, float>{{}, args}.run();
    if (args.dtype == F64) return Step<double, double>{{}, args}.run();
    if (args.dtype == BF16) return Step<float, bf16>{{}, args}.run();
    return 2;
}

}  // namespace
}  // namespace LINRNN_ISA
}  // namespace linrnn
