// y = W x + b for the few vectors of one time step: see gemv.h.
//
// Compiled once for every instruction set: see scan.cpp.
#include "../gemv.h"
#include "../linear_step_args.h"
#include "../step.h"

namespace linrnn {
namespace LINRNN_ISA {
namespace {

template <class A, class W>
struct LinearStep : Pointers<A, W> {
    const LinearStepArgs& args;

    int run() const {
        Gemv<A, W>::multiply(this->weight(args.weight), this->weight(args.bias), this->read(args.x),
                             this->write(args.y), args.rows, args.columns, args.batch,
                             args.threads);
        return 0;
    }
};

}  // namespace

int linear_step(const void* record) { return run_step<LinearStep, LinearStepArgs>(record); }

}  // namespace LINRNN_ISA
}  // namespace linrnn
