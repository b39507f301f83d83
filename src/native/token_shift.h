// RWKV's mix of an input with the one before it.
#pragma once
#include "storage.h"

namespace linrnn {
namespace LINRNN_ISA {
namespace {

// to = mu x + (1 - mu) before, for each row of a batch
template <class W, class A>
void token_shift(const W* mu, const A* x, const A* before, A* __restrict to, i64 n, i64 batch) {
    for (i64 b = 0; b < batch; ++b)
        for (i64 i = 0; i < n; ++i) {
            A now = widen(mu[i]);
            to[b * n + i] = now * x[b * n + i] + (A(1) - now) * before[b * n + i];
        }
}

}  // namespace
}  // namespace LINRNN_ISA
}  // namespace linrnn
