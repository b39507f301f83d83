// A matrix times the few vectors that one time step has. Weights are stored as W, which may be
// narrower than what is computed in, A: reading them is most of the time.
#pragma once
#include <cstring>

#include "lanes.h"
#include "storage.h"

namespace linrnn {
namespace LINRNN_ISA {
namespace {

template <class A, class W = A>
struct Gemv {
    static constexpr i64 L = 64 / sizeof(A);  // lanes
    static constexpr i64 WORTH = i64(1) << 17;  // numbers that repay waking another thread

#ifdef __GNUC__
    using V = typename VectorOf<A, L>::type;

    static V load(const A* p) {
        V v;
        std::memcpy(&v, p, sizeof v);
        return v;
    }
    static V load(const bf16* p) {
        typename VectorOf<std::uint16_t, L>::type half;
        std::memcpy(&half, p, sizeof half);
        auto bits = __builtin_convertvector(half, typename VectorOf<std::uint32_t, L>::type) << 16;
        V v;
        std::memcpy(&v, &bits, sizeof v);
        return v;
    }

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

    // The product of a row with x, in L lanes of which U are summed apart, so that no sum waits for
    // itself. Row after row, in the order of memory: a step reads every weight once, mostly from
    // beyond the caches, and the processor foresees one such stream two to three times better than
    // several rows at once.
    static A dot(const W* __restrict row, const A* __restrict x, i64 n) {
        i64 i = 0;
        A total = A(0);
#ifdef __GNUC__
        constexpr int U = 4;
        V sums[U] = {};
        for (; i + U * L <= n; i += U * L)
            for (int k = 0; k < U; ++k) sums[k] += load(row + i + k * L) * load(x + i + k * L);
        for (; i + L <= n; i += L) sums[0] += load(row + i) * load(x + i);
        total = sum<L>((sums[0] + sums[1]) + (sums[2] + sums[3]));
#endif
        for (; i < n; ++i) total += widen(row[i]) * x[i];
        return total;
    }
};

}  // namespace
}  // namespace LINRNN_ISA
}  // namespace linrnn
