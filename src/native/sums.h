// Sums of products over an array whose length is a whole number of registers.
#pragma once
#include "storage.h"

namespace linrnn {
namespace LINRNN_ISA {
namespace {

constexpr i64 SUM = 16;  // numbers that are summed apart: without them no sum is vector code

inline i64 padded(i64 n) { return (n + SUM - 1) / SUM * SUM; }

template <class A>
inline double total(const A* parts) {
    double sum = 0;
    for (i64 l = 0; l < SUM; ++l) sum += double(parts[l]);
    return sum;
}

// The sum of n products, n a multiple of SUM.
template <class A>
inline double dot(const A* __restrict x, const A* __restrict y, i64 n) {
    alignas(64) A parts[SUM] = {};
    for (i64 k = 0; k < n; k += SUM)
        for (i64 l = 0; l < SUM; ++l) parts[l] += x[k + l] * y[k + l];
    return total(parts);
}

}  // namespace
}  // namespace LINRNN_ISA
}  // namespace linrnn
