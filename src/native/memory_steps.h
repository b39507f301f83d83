// One step after the other: the few steps of decoding, and those that are left over of chunks.
#pragma once
#include "memory_head.h"

namespace linrnn {
namespace LINRNN_ISA {
namespace {

template <class A>
struct Steps {
    using T = Tile<A>;
    using V = typename T::V;
    static constexpr i64 L = T::L;

    const Head<A>& head;
    const MemoryScanArgs& args = head.args;
    const i64 keys = head.keys(), width = head.width();
    const bool early = head.early(), low_rank = head.low_rank(), delta = args.delta;

    // Of one step.
    struct Row {
        A *q, *k, *a, *b, *decay, *bonus, *v, *column_decay, *rates, *o;
        A beta;
    };
    i64 room() const { return 6 * keys + 4 * width; }
    A* lay_out(A* p, Row& r) const {
        for (A** x : {&r.q, &r.k, &r.a, &r.b, &r.decay, &r.bonus}) *x = p, p += keys;
        for (A** x : {&r.v, &r.column_decay, &r.rates, &r.o}) *x = p, p += width;
        if (early) head.bonus(r.bonus);
        return p;
    }
    void load(i64 t, Row& r) const {
        head.query_row(t, r.q);
        head.key_row(args.k, head.k_head, t, r.k);
        head.key_decay(t, r.decay);
        head.value_row(t, r.v);
        r.beta = head.beta(t);
        if (args.rates) head.rates(t, r.rates);
        if (args.value_decay.data) head.value_decay(t, r.column_decay);
        if (low_rank) {
            head.key_row(args.a, head.a_head, t, r.a);
            head.key_row(args.b, head.b_head, t, r.b);
        } else if (delta) {
            for (i64 c = 0; c < keys; ++c) r.a[c] = r.decay[c] * r.k[c];
        }
    }
    A bonus_weight(const Row& r) const {
        A total = A(0);
        for (i64 c = 0; c < args.keys; ++c) total += r.q[c] * r.k[c] * r.bonus[c];
        return total;
    }

    // ------------------------------------------------------------------------------------ forward

    template <int W>
    LINRNN_INLINE void product(const A* x, const A* from, i64 from_ld, V (&to)[W]) const {
        for (i64 c = 0; c < args.keys; ++c)
            for (int w = 0; w < W; ++w) to[w] += x[c] * T::load(from + c * from_ld + w * L);
    }
    // The memory after a step, and what is read, of W registers of columns from n on.
    template <int W>
    void columns(const Row& r, const A* from, i64 from_ld, A* to, i64 to_ld, i64 n) const {
        V o[W] = {}, read[W] = {}, write[W], forget[W];
        if (delta) product(r.a, from + n, from_ld, read);
        if (early) product(r.q, from + n, from_ld, o);
        const A weight = early ? bonus_weight(r) : A(0);
        for (int w = 0; w < W; ++w) {
            const V v = T::load(r.v + n + w * L);
            if (args.value_decay.data) forget[w] = T::load(r.column_decay + n + w * L);
            const V error = !delta || low_rank ? v : v - (args.value_decay.data ? forget[w] * read[w] : read[w]);
            write[w] = args.rates ? T::load(r.rates + n + w * L) * error : r.beta * error;
            if (early) o[w] += weight * write[w];
        }
        for (i64 c = 0; c < args.keys; ++c)
            for (int w = 0; w < W; ++w) {
                V S = r.decay[c] * T::load(from + c * from_ld + n + w * L);
                if (args.value_decay.data) S = S * forget[w];
                if (args.before) o[w] += r.q[c] * S;
                if (low_rank) S += r.b[c] * read[w];
                S += r.k[c] * write[w];
                if (!early && !args.before) o[w] += r.q[c] * S;
                T::store(to + c * to_ld + n + w * L, S);
            }
        for (int w = 0; w < W; ++w) T::store(r.o + n + w * L, o[w]);
    }
    void step(const Row& r, const A* from, i64 from_ld, A* to, i64 to_ld) const {
        i64 n = 0;
        for (; n + 4 * L <= width; n += 4 * L) columns<4>(r, from, from_ld, to, to_ld, n);
        for (; n < width; n += L) columns<1>(r, from, from_ld, to, to_ld, n);
    }

    // Steps [t, end), of which none resets but the first.
    void forward(i64 t, i64 end, A* S, A* work) const {
        Row r;
        lay_out(work, r);
        for (; t < end; ++t) {
            load(t, r);
            step(r, S, width, S, width);
            head.put_out(t, r.o);
        }
    }

    // Few steps, straight from one memory into another.
    void decode(A* work) const {
        Row r;
        lay_out(work, r);
        const i64 ld = head.columns();
        A* to = head.memory(args.final, head.s);
        const A* from = args.initial ? head.memory(args.initial, head.s) : nullptr;
        for (i64 t = 0; t < args.time; ++t, from = to) {
            if (!from || head.resets(t)) {
                for (i64 c = 0; c < args.keys; ++c) head.clear(to + c * ld, 0, width);
                from = to;
            }
            load(t, r);
            step(r, from, ld, to, ld);
            head.put_out(t, r.o);
        }
    }
};

}  // namespace
}  // namespace LINRNN_ISA
}  // namespace linrnn
