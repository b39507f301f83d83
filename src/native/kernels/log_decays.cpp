// Logarithms of decays and the adjoint, which computes them again: g = -exp(x + base) with the sum held
// within limits, beyond which a gradient is 0; or scale times the logarithm of sigmoid(x).
//
// Compiled once for every instruction set: see scan.cpp.
#include "../functions.h"
#include "../log_decays_args.h"
#include "../rows_by_channel.h"

namespace linrnn {
namespace LINRNN_ISA {
namespace {

template <class A>
struct LogDecays {
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

    int dispatch() const {
        // an exponential is worth several products
        return for_each_row<A>(
            args, args.g, 4, [&](i64 i, A* work) { forward(i, work); },
            [&](i64 i, A* work, A* parts) { backward(i, work, parts); });
    }
};

template <class A>
struct LogSigmoids {
    const LogDecaysArgs& args;
    const i64 n = args.channels;
    const A scale = A(args.scale);

    const A* row(i64 i, A* buffer) const {
        return read(Operand{args.x, args.x_dtype, n, 0, 1}, i, 0, n, buffer);
    }
    void forward(i64 i, A* work) const {
        const A* x = row(i, work);
        A* g = reinterpret_cast<A*>(args.g) + i * n;
        const A s = -scale;
        LINRNN_INDEPENDENT
        for (i64 c = 0; c < n; ++c) g[c] = s * vsoftplus_to(-x[c]);
    }
    void backward(i64 i, A* work) const {
        const A* x = row(i, work);
        const A* into = reinterpret_cast<const A*>(args.g) + i * n;
        A* to = work + n;
        const A s = scale;
        LINRNN_INDEPENDENT
        for (i64 c = 0; c < n; ++c) to[c] = s * into[c] * vsigmoid(-x[c]);
        write(args.grad_x, args.x_dtype, i * n, n, to);
    }

    int dispatch() const {
        return for_each_row<A>(
            args, args.g, 8, [&](i64 i, A* work) { forward(i, work); },
            [&](i64 i, A* work, A*) { backward(i, work); });
    }
};

template <class A>
int log_decays_of(const LogDecaysArgs& args) {
    return args.sigmoid ? LogSigmoids<A>{args}.dispatch() : LogDecays<A>{args}.dispatch();
}

}  // namespace

int log_decays(const void* record) {
    const auto& args = *static_cast<const LogDecaysArgs*>(record);
    if (args.size != i64(sizeof(LogDecaysArgs))) return 3;
    switch (args.dtype) {
        case F32: return log_decays_of<float>(args);
        case F64: return log_decays_of<double>(args);
    }
    return 2;
}

}  // namespace LINRNN_ISA
}  // namespace linrnn
