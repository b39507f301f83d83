// One head of one sequence, or a slice of its columns: what a step reads and writes, in wide numbers
// and filled up with zeros to whole registers.
#pragma once
#include <initializer_list>

#include "half_products.h"
#include "memory_scan_args.h"
#include "memory_tile.h"
#include "prefetch.h"

namespace linrnn {
namespace LINRNN_ISA {
namespace {

template <class A>
struct Head {
    using T = Tile<A>;
    using V = typename T::V;
    static constexpr i64 L = T::L;

    const MemoryScanArgs& args;  // the arrays are those of the sequence alone
    i64 s, h;                    // sequence and head
    i64 first, count;            // columns
    bool fresh, fresh_head;      // gradients that heads share, or slices of one, are written, else added to
    // those of what several heads share
    const i64 q_head = of(args.q_share), k_head = of(args.k_share), v_head = of(args.v_share);
    const i64 a_head = of(args.a_share), b_head = of(args.b_share), g_head = of(args.g_share);
    const i64 e_head = of(args.value_decay_share), beta_head = of(args.beta_share);
    const bool many = args.rank > 1;  // writes of a step

    i64 columns() const { return args.values + args.normalizer; }
    i64 of(i64 share) const { return share == 1 ? h : i64(unsigned(h) / unsigned(share)); }
    i64 keys() const { return T::padded(args.keys); }
    i64 width() const { return T::padded(count); }
    i64 size() const { return keys() * width(); }
    bool low_rank() const { return args.a.data != 0; }
    bool early() const { return args.bonus != 0; }
    // A step here is one write. Those of a step outside share its row of what is not written.
    i64 row(i64 t) const { return many ? divided(t) : t; }
    bool opens(i64 t) const { return !many || write(t) == 0; }
    bool reads(i64 t) const {
        return !many || args.reads > 1 || write(t) == (args.before ? 0 : args.rank - 1);
    }
    // By the rank: of 32 bits three times as fast as of 64.
    LINRNN_INLINE i64 divided(i64 t) const {
        return t >> 32 ? t / args.rank : i64(unsigned(t) / unsigned(args.rank));
    }
    i64 write(i64 t) const { return t - divided(t) * args.rank; }
    i64 read_row(i64 t) const { return args.reads > 1 ? t : row(t); }
    LINRNN_INLINE bool resets(i64 t) const {
        return args.reset.data && opens(t) &&
               reinterpret_cast<const unsigned char*>(args.reset.data)[row(t) * args.reset.step];
    }

    // ------------------------------------------------------------------------------------- rows

    template <class S>
    static const S* at(const Array& x, i64 t, i64 channel) {
        return reinterpret_cast<const S*>(x.data) + t * x.step + channel;
    }
    static void clear(A* to, i64 from, i64 end) {
        for (i64 i = from; i < end; ++i) to[i] = A(0);
    }
    void stored(const Array& x, i64 t, i64 channel, i64 n, A* __restrict to) const {
        if constexpr (sizeof(A) == 8) {
            copy(to, at<double>(x, t, channel), n);
        } else if (args.dtype == F32) {
            copy(to, at<float>(x, t, channel), n);
        } else if (args.dtype == BF16) {
            auto from = at<bf16>(x, t, channel);
            for (i64 i = 0; i < n; ++i) to[i] = widen(from[i]);
        } else {
            auto from = at<f16>(x, t, channel);
            for (i64 i = 0; i < n; ++i) to[i] = widen(from[i]);
        }
    }
    void store(const Array& x, i64 t, i64 channel, i64 n, const A* __restrict from) const {
        i64 place = x.data + (t * x.step + channel) * stored_bytes();
#ifdef LINRNN_HALF_PRODUCTS
        if constexpr (sizeof(A) == 4)
            if (args.dtype == BF16 && has_half_products()) return to_halves(from, reinterpret_cast<HalfPair*>(place), n);
#endif
        if constexpr (sizeof(A) == 8) put(reinterpret_cast<double*>(place), from, n);
        else if (args.dtype == F32) put(reinterpret_cast<float*>(place), from, n);
        else if (args.dtype == BF16) put(reinterpret_cast<bf16*>(place), from, n);
        else put(reinterpret_cast<f16*>(place), from, n);
    }
    void ask(const Array& x, i64 t, i64 channel, i64 n, i64 bytes) const {
        if (x.data) prefetch(x.data + (t * x.step + channel) * bytes, n * bytes);
    }
    i64 stored_bytes() const { return args.dtype == F64 ? 8 : args.dtype == F32 ? 4 : 2; }
    // Names what a step is computed from, if there is one.
    void ask(i64 t) const {
        if (t < 0 || t >= args.time) return;
        const i64 bytes = stored_bytes();
        ask(args.q, read_row(t), q_head * args.keys, args.keys, bytes);
        ask(args.k, t, k_head * args.keys, args.keys, bytes);
        ask(args.v, t, v_head * args.values + first, given(), bytes);
        ask(args.a, t, a_head * args.keys, args.keys, bytes);
        ask(args.b, t, b_head * args.keys, args.keys, bytes);
        if (args.channels == 2) ask(args.g, row(t), g_head * args.keys, args.keys, i64(sizeof(A)));
    }
    // The same for its values alone.
    void ask_values(i64 t) const {
        if (t >= 0 && t < args.time) ask(args.v, t, v_head * args.values + first, given(), stored_bytes());
    }
    // The same for the gradient of what it gives.
    void ask_out(i64 t) const {
        if (t >= 0) ask(args.o, read_row(t), h * columns() + first, count, stored_bytes());
    }
    // Names the rows of a step's gradients that are written once.
    void ask_slopes(i64 t) const {
        if (t < 0) return;
        auto name = [](const Array& x, i64 at, i64 channel, i64 n, i64 bytes) {
            if (x.data) prefetch<true>(x.data + (at * x.step + channel) * bytes, n * bytes);
        };
        const i64 bytes = stored_bytes(), key = h * args.keys;
        name(args.grad_v, t, h * args.values + first, given(), bytes);
        if (args.single) name(args.grad_q, read_row(t), key, args.keys, bytes);
        for (const Array* x : {&args.grad_k, &args.grad_a, &args.grad_b})
            if (args.single) name(*x, t, key, args.keys, bytes);
        if (args.channels == 2 && !args.constant) name(args.grad_g, row(t), key, args.keys, i64(sizeof(A)));
    }
    // Of q, k, a or b.
    void key_row(const Array& x, i64 of_head, i64 t, A* to) const {
        stored(x, t, of_head * args.keys, args.keys, to);
        clear(to, args.keys, keys());
    }
    void query_row(i64 t, A* to) const {
        if (many && !reads(t)) return clear(to, 0, keys());
        key_row(args.q, q_head, many ? read_row(t) : t, to);
        const A scale = A(args.scale);
        for (i64 i = 0; scale != A(1) && i < args.keys; ++i) to[i] *= scale;
    }
    // Columns that are values; a normalizer is one more.
    i64 given() const { return first + count > args.values ? args.values - first : count; }
    void value_row(i64 t, A* to) const {
        stored(args.v, t, v_head * args.values + first, given(), to);
        clear(to, given(), width());
        if (given() < count) to[given()] = A(1);
    }
    void out_row(i64 t, A* to) const {
        if (many && !reads(t)) return clear(to, 0, width());
        stored(args.o, many ? read_row(t) : t, h * columns() + first, count, to);
        clear(to, count, width());
    }
    LINRNN_INLINE void put_out(i64 t, const A* from) const {
        if (many && !reads(t)) return;
        store(args.o, many ? read_row(t) : t, h * columns() + first, count, from);
    }
    A beta(i64 t) const { return args.beta.data && !args.rates ? *at<A>(args.beta, t, beta_head) : A(1); }
    // Of every channel of a value.
    void rates(i64 t, A* to) const {
        copy(to, at<A>(args.beta, t, beta_head * args.values + first), count);
        clear(to, count, width());
    }
    A head_decay(i64 t) const {
        if (!args.channels || !opens(t)) return A(1);
        const A decay = vexp(*at<A>(args.g, row(t), g_head));
        return args.sign.data ? *at<A>(args.sign, row(t), g_head) * decay : decay;
    }
    void key_decay(i64 t, A* __restrict to) const {
        const i64 at_key = g_head * args.keys;
        const A* g = args.channels == 2 && opens(t) ? at<A>(args.g, row(t), at_key) : nullptr;
        const A* sign = g && args.sign.data ? at<A>(args.sign, row(t), at_key) : nullptr;
        const A same = args.channels == 2 ? A(1) : head_decay(t);
        if (g)
            for (i64 i = 0; i < args.keys; ++i) to[i] = vexp(g[i]);
        else
            for (i64 i = 0; i < args.keys; ++i) to[i] = same;
        for (i64 i = 0; sign && i < args.keys; ++i) to[i] *= sign[i];
        for (i64 i = args.keys; i < keys(); ++i) to[i] = A(1);
    }
    void value_decay(i64 t, A* __restrict to) const {
        const bool decays = args.value_decay.data && opens(t);
        const A* e = decays ? at<A>(args.value_decay, row(t), e_head * args.values + first) : nullptr;
        for (i64 i = 0; i < width(); ++i) to[i] = A(1);
        for (i64 i = 0; e && i < given(); ++i) to[i] = vexp(e[i]);
    }
    void bonus(A* to) const {
        copy(to, reinterpret_cast<const A*>(args.bonus) + h * args.keys, args.keys);
        clear(to, args.keys, keys());
    }

    // ----------------------------------------------------------------------------------- memories

    // Memory `index` of an array (.., heads, keys, columns), from where this head's columns begin.
    A* memory(i64 pointer, i64 index) const {
        return reinterpret_cast<A*>(pointer) + (index * args.heads + h) * args.keys * columns() + first;
    }
    void load_memory(i64 pointer, i64 index, A* S) const {
        std::memset(S, 0, size_t(size()) * sizeof(A));
        if (!pointer) return;
        const A* from = memory(pointer, index);
        for (i64 c = 0; c < args.keys; ++c) copy(S + c * width(), from + c * columns(), count);
    }
    void forget(A* S) const { std::memset(S, 0, size_t(size()) * sizeof(A)); }
    void store_memory(const A* S, i64 pointer, i64 index) const {
        A* to = memory(pointer, index);
        for (i64 c = 0; c < args.keys; ++c) copy(to + c * columns(), S + c * width(), count);
    }

    // ---------------------------------------------------------------------------------- gradients

    // Of what `share` heads have one of.
    void add_keys(const Array& x, i64 share, i64 t, A* __restrict from, A scale) const {
        if (args.single) {
            for (i64 i = 0; scale != A(1) && i < args.keys; ++i) from[i] *= scale;
            return store(x, t, h * args.keys, args.keys, from);
        }
        const bool together = share * args.key_heads == args.heads;
        A* __restrict to = const_cast<A*>(at<A>(x, t, (together ? of(share) : h) * args.keys));
        if (together ? fresh : fresh_head)
            for (i64 i = 0; i < args.keys; ++i) to[i] = scale * from[i];
        else
            for (i64 i = 0; i < args.keys; ++i) to[i] += scale * from[i];
    }
    void put_values(i64 t, const A* from) const {
        store(args.grad_v, t, h * args.values + first, given(), from);
    }
    void put_value_decay(i64 t, const A* from) const {
        if (!opens(t)) return;
        copy(const_cast<A*>(at<A>(args.grad_value_decay, row(t), h * args.values + first)), from, given());
    }
    // Rows of the double sums: of a constant g and of the bonus.
    double* sums(i64 which) const {
        const i64 slice = first / args.width;
        return reinterpret_cast<double*>(args.sums) +
               (((slice * args.seqs + s) * args.heads + h) * 2 + which) * args.keys;
    }
    // The gradient of the decays of a step, one a key.
    void put_decay(i64 t, const A* from) const {
        if (!opens(t)) return;
        if (args.channels == 2 && args.constant) {
            for (i64 i = 0; i < args.keys; ++i) sums(0)[i] += double(from[i]);
        } else if (args.channels == 2) {
            copy(const_cast<A*>(at<A>(args.grad_g, row(t), h * args.keys)), from, args.keys);
        } else if (args.channels) {
            A total = A(0);
            for (i64 i = 0; i < args.keys; ++i) total += from[i];
            put_head_decay(t, total);
        }
    }
    void put_head_decay(i64 t, A total) const {
        if (!opens(t)) return;
        if (args.constant) *sums(0) += double(total);
        else *const_cast<A*>(at<A>(args.grad_g, row(t), h)) = total;
    }
    // From the gradient of what is written and what a rate of 1 would write.
    void put_beta(i64 t, const A* written, const A* error) const {
        if (!args.beta.data) return;
        if (!args.rates) {
            *const_cast<A*>(at<A>(args.grad_beta, t, h)) = T::dot(written, error, width());
            return;
        }
        A* to = const_cast<A*>(at<A>(args.grad_beta, t, h * args.values + first));
        for (i64 i = 0; i < given(); ++i) to[i] = written[i] * error[i];
    }
};

}  // namespace
}  // namespace LINRNN_ISA
}  // namespace linrnn
