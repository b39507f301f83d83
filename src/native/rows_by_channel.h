// Kernels of dense rows (rows, channels) with a number for each channel, whose gradient is a sum over
// all rows.
#pragma once
#include <cstring>

#include "large_pages.h"
#include "operands.h"
#include "streamed.h"

namespace linrnn {
namespace LINRNN_ISA {
namespace {

constexpr i64 ROWS_AT_ONCE = 32;  // of a unit of work, and of those whose sums are in A

// forward(i, work) and backward(i, work, parts) of every row i; `work` has room for two rows. Shares
// of the sums are added up some rows at a time: `parts` in A, and `args.sums` in double.
// A number counts as `worth` products, by which the threads are chosen.
template <class A, class Args, class Forward, class Backward>
int for_each_row(const Args& args, i64 written, i64 worth, const Forward& forward, const Backward& backward) {
    const i64 rows = args.rows, n = args.channels, numbers = rows * n;
    if (!numbers) return 0;
    const i64 units = args.backward ? args.parts : (rows + ROWS_AT_ONCE - 1) / ROWS_AT_ONCE;
    const i64 share = (rows + units - 1) / units;
    if (!args.backward) advise(written, numbers * i64(sizeof(A)));
    const i64 threads = threads_for(units, worth * numbers, args.threads);
    return for_each<A>(units, threads, 3 * n, [&](i64 unit, A* work) {
        const i64 end = (unit + 1) * share < rows ? (unit + 1) * share : rows;
        if (!args.backward) {
            for (i64 i = unit * share; i < end; ++i) forward(i, work);
            return end_streams();
        }
        A* parts = work + 2 * n;
        double* sums = reinterpret_cast<double*>(args.sums) + unit * n;
        for (i64 from = unit * share; from < end; from += ROWS_AT_ONCE) {
            const i64 to = from + ROWS_AT_ONCE < end ? from + ROWS_AT_ONCE : end;
            std::memset(parts, 0, size_t(n) * sizeof(A));
            for (i64 i = from; i < to; ++i) backward(i, work, parts);
            for (i64 c = 0; c < n; ++c) sums[c] += double(parts[c]);
        }
    });
}

}  // namespace
}  // namespace LINRNN_ISA
}  // namespace linrnn
