// A matrix times the few vectors that one time step has.
#pragma once
#include <cstring>

#include "lanes.h"

namespace linrnn {
namespace LINRNN_ISA {
namespace {

template <class A>
struct Gemv {
    static constexpr i64 L = 64 / sizeof(A), AHEAD = 4096 / sizeof(A);
    static constexpr i64 WORTH = i64(1) << 17;  // numbers that repay waking another thread

#ifdef __GNUC__
    // By halves: one lane after the other takes longer than the products of a short row.
    template <i64 N>
    static A sum(const typename VectorOf<A, N>::type& v) {
        if constexpr (N == 2) {
            return v[0] + v[1];
        } else {
            typename VectorOf<A, N / 2>::type low, high;
            std::memcpy(&low, &v, sizeof low);
            std::memcpy(&high, reinterpret_cast<const char*>(&v) + sizeof low, sizeof high);
            return sum<N / 2>(low + high);
        }
    }
#endif

    // The products of R rows with x, summed in L lanes; several rows at once, so that no sum waits
    // for itself. A step reads every weight once, mostly from beyond the second-level cache: they
    // are asked for ahead.
    template <int R>
    static void dots(const A* __restrict rows, const A* __restrict x, i64 n, A* __restrict to) {
        i64 i = 0;
        for (int k = 0; k < R; ++k) to[k] = A(0);
#ifdef __GNUC__
        using V = typename VectorOf<A, L>::type;
        V sums[R] = {};
        for (; i + L <= n; i += L) {
            V row, in;
            std::memcpy(&in, x + i, sizeof in);
            for (int k = 0; k < R; ++k) {
                if (R > 1) __builtin_prefetch(rows + k * n + i + AHEAD);
                std::memcpy(&row, rows + k * n + i, sizeof row);
                sums[k] += row * in;
            }
        }
        for (int k = 0; k < R; ++k) to[k] = sum<L>(sums[k]);
#endif
        for (; i < n; ++i)
            for (int k = 0; k < R; ++k) to[k] += rows[k * n + i] * x[i];
    }

    // y[b, i] = sum_j matrix[i, j] x[b, j] + bias[i]; no bias is null.
    static void multiply(const A* matrix, const A* bias, const A* x, A* y, i64 rows, i64 n,
                         i64 batch, i64 threads) {
        i64 team = rows * n / WORTH + 1;
        team = team < threads ? team : threads;
#pragma omp parallel for num_threads(int(team)) if (team > 1) schedule(static)
        for (i64 group = 0; group < (rows + 3) / 4; ++group) {
            i64 i = 4 * group, left = rows - i;
            for (i64 b = 0; b < batch; ++b) {
                A* to = y + b * rows + i;
                if (left >= 4) {
                    dots<4>(matrix + i * n, x + b * n, n, to);
                } else {
                    for (i64 k = 0; k < left; ++k) dots<1>(matrix + (i + k) * n, x + b * n, n, to + k);
                }
                for (i64 k = 0; bias && k < 4 && k < left; ++k) to[k] += bias[i + k];
            }
        }
    }
};

}  // namespace
}  // namespace LINRNN_ISA
}  // namespace linrnn
