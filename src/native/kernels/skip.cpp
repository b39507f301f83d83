// The sum y = z + weight x of two sequences, the second by channel, and its adjoint.
//
// Compiled once for every instruction set: see scan.cpp.
#include <cstring>

#include "../large_pages.h"
#include "../operands.h"
#include "../skip_args.h"

namespace linrnn {
namespace LINRNN_ISA {
namespace {

template <class A>
struct Skip {
    static constexpr i64 BLOCK = 32;  // rows of a unit of work, and of those whose sums are in A
    const SkipArgs& args;
    const i64 n = args.channels;

    const A* row(i64 data, i64 dtype, i64 i, A* buffer) const {
        return read(Operand{data, dtype, n, 0, 1}, i, 0, n, buffer);
    }
    void forward(i64 i, A* work) const {
        const A *z = row(args.z, args.z_dtype, i, work), *x = row(args.x, args.x_dtype, i, work + n);
        const A* weight = reinterpret_cast<const A*>(args.weight);
        A* y = reinterpret_cast<A*>(args.y) + i * n;
        LINRNN_INDEPENDENT
        for (i64 c = 0; c < n; ++c) y[c] = z[c] + weight[c] * x[c];
    }
    void backward(i64 i, A* work, A* parts) const {
        const A *x = row(args.x, args.x_dtype, i, work), *weight = reinterpret_cast<const A*>(args.weight);
        const A* into = reinterpret_cast<const A*>(args.y) + i * n;
        A* to = work + n;
        LINRNN_INDEPENDENT
        for (i64 c = 0; c < n; ++c) {
            to[c] = weight[c] * into[c];
            parts[c] += into[c] * x[c];
        }
        write(args.grad_x, args.x_dtype, i * n, n, to);
        write(args.grad_z, args.z_dtype, i * n, n, into);
    }
    // Rows [begin, end), whose shares of the sums are added up some rows at a time.
    void backward(i64 begin, i64 end, A* work, double* sums) const {
        A* parts = work + 2 * n;
        for (i64 from = begin; from < end; from += BLOCK) {
            const i64 to = from + BLOCK < end ? from + BLOCK : end;
            std::memset(parts, 0, size_t(n) * sizeof(A));
            for (i64 i = from; i < to; ++i) backward(i, work, parts);
            for (i64 c = 0; c < n; ++c) sums[c] += double(parts[c]);
        }
    }

    int dispatch() const {
        const i64 rows = args.rows, numbers = rows * n;
        if (!numbers) return 0;
        const i64 units = args.backward ? args.parts : (rows + BLOCK - 1) / BLOCK;
        const i64 share = (rows + units - 1) / units;
        if (!args.backward) advise(args.y, numbers * i64(sizeof(A)));
        return for_each<A>(units, threads_for(units, numbers, args.threads), 3 * n, [&](i64 unit, A* work) {
            const i64 begin = unit * share, end = begin + share < rows ? begin + share : rows;
            if (args.backward) return backward(begin, end, work, reinterpret_cast<double*>(args.sums) + unit * n);
            for (i64 i = begin; i < end; ++i) forward(i, work);
        });
    }
};

}  // namespace

int skip(const void* record) {
    const auto& args = *static_cast<const SkipArgs*>(record);
    if (args.size != i64(sizeof(SkipArgs))) return 3;
    switch (args.dtype) {
        case F32: return Skip<float>{args}.dispatch();
        case F64: return Skip<double>{args}.dispatch();
    }
    return 2;
}

}  // namespace LINRNN_ISA
}  // namespace linrnn
