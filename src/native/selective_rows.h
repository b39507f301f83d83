// Where the rows and states of a selective scan lie: what every way of computing one shares.
#pragma once
#include <cstring>

#include "selective_scan_args.h"
#include "storage.h"

namespace linrnn {
namespace LINRNN_ISA {
namespace {

template <class A>
constexpr int LANES = 128 / sizeof(A);  // channels of a block: two of the widest registers

template <class S>
struct SelectiveRows {
    using A = typename Accumulator<S>::type;
    static constexpr int L = LANES<A>;
    const SelectiveScanArgs& args;

    i64 blocks() const { return (args.channels + L - 1) / L; }
    i64 chunks() const { return (args.time + args.chunk - 1) / args.chunk; }
    i64 tile() const { return args.modes * L; }  // one block's states
    i64 width(i64 b) const { return args.channels - b * L < L ? args.channels - b * L : L; }
    i64 padded() const { return (args.modes + 15) / 16 * 16; }

    // Step t of the one sequence that the arrays hold: see unit() of SelectiveScan.
    template <class P = S>
    static P* at(const Array& x, i64 t) {
        return reinterpret_cast<P*>(x.data) + t * x.step;
    }
    // A block's part of (channels) and of (channels, modes), which is transposed; zeros in the lanes
    // beyond the last channel.
    void load_channels(i64 from, i64 c, i64 n, A* to) const {
        std::memset(to, 0, L * sizeof(A));
        if (from) put(to, reinterpret_cast<const A*>(from) + c, n);
    }
    void load_states(i64 from, i64 c, i64 n, A* to) const {
        std::memset(to, 0, size_t(tile()) * sizeof(A));
        if (!from) return;
        auto p = reinterpret_cast<const A*>(from) + c * args.modes;
        for (i64 l = 0; l < n; ++l)
            for (i64 m = 0; m < args.modes; ++m) to[m * L + l] = p[l * args.modes + m];
    }
    void store_states(const A* from, i64 to, i64 c, i64 n) const {
        auto p = reinterpret_cast<A*>(to) + c * args.modes;
        for (i64 l = 0; l < n; ++l)
            for (i64 m = 0; m < args.modes; ++m) p[l * args.modes + m] = from[m * L + l];
    }
    i64 sequence(i64 states, i64 s) const {
        return states ? states + s * args.channels * args.modes * i64(sizeof(A)) : 0;
    }
    A* kept(i64 k, i64 c) const {
        return reinterpret_cast<A*>(args.kept) + k * args.modes * args.channels + c;
    }
    bool resets(i64 t) const {
        return args.reset.data && *at<const unsigned char>(args.reset, t);
    }
};

}  // namespace
}  // namespace LINRNN_ISA
}  // namespace linrnn
