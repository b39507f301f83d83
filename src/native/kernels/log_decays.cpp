// Logarithms of decays, g = -exp(x + base) with the sum held within limits, and the adjoint, which
// computes them again. Beyond the limits a gradient is 0.
//
// Compiled once for every instruction set: see scan.cpp.
#include <cstring>

#include "../large_pages.h"
#include "../log_decays_args.h"
#include "../operands.h"

namespace linrnn {
namespace LINRNN_ISA {
namespace {

template <class A>
struct LogDecays {
    static constexpr i64 BLOCK = 32;  // rows of a unit of work, and of those whose sums are in A
    const LogDecaysArgs& args;
    const i64 n = args.channels;
    const A limit = A(args.limit);

    const A* row(i64 i, A* buffer) const {
        return read(Operand{args.x, args.x_dtype, n, 0, 1}, i, 0, n, buffer);
    }
    void forward(i64 i, A* work) const {
        const A *x = row(i, work), *base = reinterpret_cast<const A*>(args.base), most = limit;
        A* g = reinterpret_cast<A*>(args.g) + i * n;
        LINRNN_INDEPENDENT
        for (i64 c = 0; c < n; ++c) {
            A log = x[c] + base[c];
            log = log > most ? most : log;  // a NaN passes both
            log = log < -most ? -most : log;
            g[c] = -vexp(log);
        }
    }
    void backward(i64 i, A* work, A* parts) const {
        const A *x = row(i, work), *base = reinterpret_cast<const A*>(args.base), most = limit;
        const A* into = reinterpret_cast<const A*>(args.g) + i * n;
        A* to = work + n;
        LINRNN_INDEPENDENT
        for (i64 c = 0; c < n; ++c) {
            const A log = x[c] + base[c];
            A bounded = log > most ? most : log;
            bounded = bounded < -most ? -most : bounded;
            const A slope = into[c] * -vexp(bounded);
            const A y = magnitude(log) > most ? A(0) : slope;
            to[c] = y;
            parts[c] += y;
        }
        write(args.grad_x, args.x_dtype, i * n, n, to);
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
        if (!args.backward) advise(args.g, numbers * i64(sizeof(A)));
        // an exponential is worth several products
        const i64 threads = threads_for(units, 4 * numbers, args.threads);
        return for_each<A>(units, threads, 3 * n, [&](i64 unit, A* work) {
            const i64 begin = unit * share, end = begin + share < rows ? begin + share : rows;
            if (args.backward) return backward(begin, end, work, reinterpret_cast<double*>(args.sums) + unit * n);
            for (i64 i = begin; i < end; ++i) forward(i, work);
        });
    }
};

}  // namespace

int log_decays(const void* record) {
    const auto& args = *static_cast<const LogDecaysArgs*>(record);
    if (args.size != i64(sizeof(LogDecaysArgs))) return 3;
    switch (args.dtype) {
        case F32: return LogDecays<float>{args}.dispatch();
        case F64: return LogDecays<double>{args}.dispatch();
    }
    return 2;
}

}  // namespace LINRNN_ISA
}  // namespace linrnn
