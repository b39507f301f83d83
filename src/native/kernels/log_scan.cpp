// log h_t = log(exp(log a_t + log h_{t-1}) + exp(log b_t)) on a CPU: the recurrence of positive
// quantities kept as logarithms. Every thread owns some (sequence, channel block) and streams along
// time with the block's state in L1. Time is not shared between threads: a step costs so much
// arithmetic that few channels already keep a thread busy. The adjoint is one of the linear scan.
#include <cstring>

#include "../large_pages.h"
#include "../scan_args.h"
#include "../storage.h"
#include "../vecmath.h"

namespace linrnn {
namespace LINRNN_ISA {
namespace {

constexpr i64 BLOCK = 512;                // channels: rows of a step stay in L1
constexpr i64 THREAD_ELEMENTS = 8 * 1024;  // that occupy a thread for long enough

// What rounding took from u + v.
template <class A>
inline A lost(A u, A v, A sum) {
    A from_v = sum - u;
    return (u - (sum - from_v)) + (v - from_v);
}

// One step. The sum of two exponentials is the larger plus log(1 + exp(-distance)): equal arguments
// have no distance even when infinite, and a NaN in either makes it NaN. A logarithm of size L is
// rounded by eps L at every step, and as a relative error of what it stands for that adds up; so the
// state keeps in `rest` what its last digit lost.
template <class A>
inline void advance(A* __restrict h, A* __restrict rest, const A* __restrict a,
                    const A* __restrict b, i64 n) {
    const A infinity = A(1) / A(0);
    for (i64 i = 0; i < n; ++i) {
        A kept = a[i] + h[i], more = lost(a[i], h[i], kept) + rest[i];
        more = magnitude(kept) < infinity ? more : A(0);  // infinities lose NaN
        A distance = kept == b[i] ? more : (kept - b[i]) + more;
        A larger = distance > A(0) ? kept : b[i];
        A added = log1p_finite(vexp(-magnitude(distance))) + (distance > A(0) ? more : A(0));
        h[i] = larger + added;
        rest[i] = lost(larger, added, h[i]);
    }
}

template <class S>
struct LogScan {
    using A = typename Accumulator<S>::type;

    const ScanArgs& args;

    static void clear(A* h, A* rest, i64 n) {
        for (i64 i = 0; i < n; ++i) h[i] = -A(1) / A(0), rest[i] = A(0);
    }
    template <class P = S>
    static P* at(const Array& array, i64 s, i64 t, i64 c) {
        return reinterpret_cast<P*>(array.data) + s * array.seq + t * array.step + c;
    }
    A* state(i64 pointer, i64 s, i64 c) const {
        return reinterpret_cast<A*>(pointer) + s * args.channels + c;
    }

    void run(i64 s, i64 c, i64 n) const {
        alignas(64) A h[BLOCK], rest[BLOCK], abuf[BLOCK], bbuf[BLOCK];
        const Span span(args, s);
        const i64 row = span.row;
        const A* a = nullptr;
        if (args.constant) a = fetch(reinterpret_cast<const S*>(args.a.data) + c, abuf, n);
        clear(h, rest, n);
        if (args.initial) put(h, state(args.initial, s, c), n);
        for (i64 j = 0; j < span.count; ++j) {
            const i64 t = span.first + j * span.by;
            if (args.reset.data && *at<const std::uint8_t>(args.reset, row, t, 0)) clear(h, rest, n);
            if (!args.constant) a = fetch(at<const S>(args.a, row, t, c), abuf, n);
            advance(h, rest, a, fetch(at<const S>(args.b, row, t, c), bbuf, n), n);
            put(at(args.h, row, t, c), h, n);
        }
        put(state(args.final, s, c), h, n);
    }

    int dispatch() const {
        const i64 n = args.channels, steps = steps_of(args);
        advise(args.h.data, steps * n * i64(sizeof(S)));
        i64 worth = steps * n / THREAD_ELEMENTS;
        i64 threads = worth < args.threads ? worth : args.threads;
        if (threads < 1) threads = 1;
        // share a row between threads, in whole cache lines
        i64 line = 64 / i64(sizeof(S)), seqs = args.seqs > 0 ? args.seqs : 1;
        i64 parts = (threads + seqs - 1) / seqs, block = (n / parts + line - 1) / line * line;
        if (block < line) block = line;
        if (block > BLOCK) block = BLOCK;
        const i64 blocks = (n + block - 1) / block;
#pragma omp parallel for num_threads(int(threads)) schedule(dynamic) if (threads > 1)
        for (i64 j = 0; j < args.seqs * blocks; ++j) {
            i64 c = (j % blocks) * block;
            run(j / blocks, c, n - c < block ? n - c : block);
        }
        return 0;
    }
};

}  // namespace

int log_scan(const void* record) {
    const ScanArgs& args = *static_cast<const ScanArgs*>(record);
    if (args.size != i64(sizeof(ScanArgs))) return 3;
    switch (args.dtype) {
        case F32: return LogScan<float>{args}.dispatch();
        case F64: return LogScan<double>{args}.dispatch();
        case BF16: return LogScan<bf16>{args}.dispatch();
        case F16: return LogScan<f16>{args}.dispatch();
    }
    return 2;
}

}  // namespace LINRNN_ISA
}  // namespace linrnn
