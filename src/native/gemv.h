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

    // The products of a row with four vectors that lie ``apart``, each with the bits of `dot`:
    // numbers of the row that have been loaded serve all of them. Four arrays of sums, since
    // compilers leave one of two axes in memory.
    static void four(const W* __restrict row, const A* __restrict x, i64 apart, i64 n, A* total) {
        const A *x1 = x + apart, *x2 = x1 + apart, *x3 = x2 + apart;
        i64 i = 0;
        for (int r = 0; r < 4; ++r) total[r] = A(0);
#ifdef __GNUC__
        constexpr int U = 4;
        V a[U] = {}, b[U] = {}, c[U] = {}, d[U] = {};
        auto add = [&](i64 at, int k) {
            const V w = load(row + at);
            a[k] += w * load(x + at);
            b[k] += w * load(x1 + at);
            c[k] += w * load(x2 + at);
            d[k] += w * load(x3 + at);
        };
        for (; i + U * L <= n; i += U * L)
            for (int k = 0; k < U; ++k) add(i + k * L, k);
        for (; i + L <= n; i += L) add(i, 0);
        total[0] = sum<L>((a[0] + a[1]) + (a[2] + a[3]));
        total[1] = sum<L>((b[0] + b[1]) + (b[2] + b[3]));
        total[2] = sum<L>((c[0] + c[1]) + (c[2] + c[3]));
        total[3] = sum<L>((d[0] + d[1]) + (d[2] + d[3]));
#endif
        for (; i < n; ++i) {
            const A w = widen(row[i]);
            total[0] += w * x[i];
            total[1] += w * x1[i];
            total[2] += w * x2[i];
            total[3] += w * x3[i];
        }
    }
};

}  // namespace
}  // namespace LINRNN_ISA
}  // namespace linrnn
