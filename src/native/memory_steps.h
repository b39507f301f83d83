// One step after the other: the few steps of decoding, and what the chunks are not written for. The
// adjoint keeps the memory before every step of a block, and that before every block of a window.
#pragma once
#include "memory_head.h"

namespace linrnn {
namespace LINRNN_ISA {
namespace {

template <class A>
struct Steps {
    using T = Tile<A>;
    using V = typename T::V;
    static constexpr i64 L = T::L, BLOCK = 8;

    const Head<A>& head;
    const MemoryScanArgs& args = head.args;
    const i64 keys = head.keys(), width = head.width(), size = head.size();
    const bool early = head.early(), low_rank = head.low_rank(), delta = args.delta;

    // Of one step; `read` is what it sees of the memory before it, `write` what goes to its key.
    struct Row {
        A *q, *k, *a, *b, *decay, *bonus, *v, *column_decay, *read, *write, *o;
        A beta;
    };
    i64 room() const { return 6 * keys + 5 * width; }
    A* lay_out(A* p, Row& r) const {
        for (A** x : {&r.q, &r.k, &r.a, &r.b, &r.decay, &r.bonus}) *x = p, p += keys;
        for (A** x : {&r.v, &r.column_decay, &r.read, &r.write, &r.o}) *x = p, p += width;
        if (early) head.bonus(r.bonus);
        return p;
    }
    void load(i64 t, Row& r) const {
        head.query_row(t, r.q);
        head.key_row(args.k, t, r.k);
        head.key_decay(t, r.decay);
        head.value_row(t, r.v);
        r.beta = head.beta(t);
        if (args.value_decay.data) head.value_decay(t, r.column_decay);
        if (low_rank) {
            head.key_row(args.a, t, r.a);
            head.key_row(args.b, t, r.b);
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

    // The memory after a step, and what is read, of W registers of columns from n on.
    template <int W>
    void columns(const Row& r, const A* from, i64 from_ld, A* to, i64 to_ld, i64 n) const {
        V o[W] = {}, read[W] = {}, write[W], forget[W];
        const A* x = early ? r.q : r.a;
        if (delta || early)
            for (i64 c = 0; c < args.keys; ++c)
                for (int w = 0; w < W; ++w) read[w] += x[c] * T::load(from + c * from_ld + n + w * L);
        const A weight = early ? bonus_weight(r) : A(0);
        for (int w = 0; w < W; ++w) {
            V v = T::load(r.v + n + w * L);
            write[w] = delta && !low_rank ? r.beta * (v - read[w]) : r.beta * v;
            if (early) o[w] = read[w] + weight * v;
            if (args.value_decay.data) forget[w] = T::load(r.column_decay + n + w * L);
        }
        for (i64 c = 0; c < args.keys; ++c)
            for (int w = 0; w < W; ++w) {
                V S = r.decay[c] * T::load(from + c * from_ld + n + w * L);
                if (args.value_decay.data) S = S * forget[w];
                if (low_rank) S += r.b[c] * read[w];
                S += r.k[c] * write[w];
                if (!early) o[w] += r.q[c] * S;
                T::store(to + c * to_ld + n + w * L, S);
            }
        for (int w = 0; w < W; ++w) {
            T::store(r.o + n + w * L, o[w]);
            T::store(r.read + n + w * L, read[w]);
            T::store(r.write + n + w * L, write[w]);
        }
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

    // ----------------------------------------------------------------------------------- backward

    i64 backward_room() const {
        return room() + (args.window / BLOCK + BLOCK + 3) * size + 6 * keys + 4 * width;
    }

    // Sums over the columns, one a key.
    struct Sums {
        A *q, *k, *a, *b, *decay;
    };
    // Sums over the keys, one a column.
    struct Across {
        A *write, *read, *decay, *o;
    };

    // From the gradient R of the memory after a step to that before it.
    void retreat(i64 t, const Row& r, const A* before, const A* after, A* R, const Sums& to,
                 const Across& to_columns) const {
        head.out_row(t, to_columns.o);
        arrive(r, after, R, to, to_columns);
        A for_beta = A(0);
        for (i64 n = 0; n < width; ++n) {
            A write = to_columns.write[n];
            const bool differs = delta && !low_rank;
            for_beta += write * (differs ? r.v[n] - r.read[n] : r.v[n]);
            if (differs) to_columns.read[n] = -r.beta * write;
            to_columns.write[n] = r.beta * write;
        }
        if (early) {
            const A weight = bonus_weight(r), slope = T::dot(to_columns.o, r.v, width);
            double* total = head.sums(1);
            for (i64 n = 0; n < width; ++n) to_columns.write[n] += weight * to_columns.o[n];
            for (i64 c = 0; c < args.keys; ++c) {
                to.q[c] = slope * r.bonus[c] * r.k[c];
                to.k[c] += slope * r.bonus[c] * r.q[c];
                total[c] += double(slope * r.q[c] * r.k[c]);
            }
        }
        leave(r, before, R, to, to_columns);
        head.add_keys(args.grad_q, t, to.q, A(args.scale));
        head.add_keys(args.grad_k, t, to.k, A(1));
        if (low_rank) {
            head.add_keys(args.grad_a, t, to.a, A(1));
            head.add_keys(args.grad_b, t, to.b, A(1));
        }
        head.put_decay(t, to.decay);
        head.put_beta(t, for_beta);
        head.put_values(t, to_columns.write);
        if (args.value_decay.data)
            copy(const_cast<A*>(head.template at<A>(args.grad_value_decay, t, head.h * args.values + head.first)),
                 to_columns.decay, head.given());
    }
    // What the output adds to R, and what the writes leave in it.
    void arrive(const Row& r, const A* after, A* R, const Sums& to, const Across& to_columns) const {
        for (i64 n = 0; n < width; ++n)
            to_columns.write[n] = to_columns.read[n] = to_columns.decay[n] = A(0);
        for (i64 c = 0; c < args.keys; ++c) {
            V q{}, k{}, b{};
            for (i64 n = 0; n < width; n += L) {
                V now = T::load(R + c * width + n), o = T::load(to_columns.o + n);
                if (!early) {
                    now += r.q[c] * o;
                    q += T::load(after + c * width + n) * o;
                    T::store(R + c * width + n, now);
                }
                k += now * T::load(r.write + n);
                T::store(to_columns.write + n, T::load(to_columns.write + n) + r.k[c] * now);
                if (!low_rank) continue;
                b += now * T::load(r.read + n);
                T::store(to_columns.read + n, T::load(to_columns.read + n) + r.b[c] * now);
            }
            to.q[c] = T::sum(q), to.k[c] = T::sum(k);
            if (low_rank) to.b[c] = T::sum(b);
        }
    }
    // R becomes the gradient of the memory before the step.
    void leave(const Row& r, const A* before, A* R, const Sums& to, const Across& to_columns) const {
        for (i64 c = 0; c < args.keys; ++c) {
            V q{}, read{}, decay{};
            for (i64 n = 0; n < width; n += L) {
                V now = T::load(R + c * width + n), S = T::load(before + c * width + n);
                V o = T::load(to_columns.o + n), reads = T::load(to_columns.read + n);
                if (delta) read += reads * S;
                if (delta && !low_rank) now += r.k[c] * reads;
                if (args.value_decay.data) {
                    V forget = T::load(r.column_decay + n);
                    V both = now * (r.decay[c] * (forget * S));
                    T::store(to_columns.decay + n, T::load(to_columns.decay + n) + both);
                    decay += both;
                    now = now * forget;
                } else {
                    decay += now * (r.decay[c] * S);
                }
                now = r.decay[c] * now;
                if (early) q += S * o, now += r.q[c] * o;
                if (low_rank) now += r.a[c] * reads;
                T::store(R + c * width + n, now);
            }
            if (early) to.q[c] += T::sum(q);
            if (low_rank) to.a[c] = T::sum(read);
            else if (delta) to.k[c] += r.decay[c] * T::sum(read);
            to.decay[c] = T::sum(decay);
        }
    }

    // Steps [begin, end) with the memory S before them, from the gradient R of that after them. A
    // step that resets may only be the first.
    void backward(i64 begin, i64 end, A* S, A* R, A* work) const {
        Row r;
        Sums sums;
        Across across;
        work = lay_out(work, r);
        for (A** x : {&sums.q, &sums.k, &sums.a, &sums.b, &sums.decay}) *x = work, work += keys;
        for (A** x : {&across.write, &across.read, &across.decay, &across.o}) *x = work, work += width;
        A *blocks = work, *states = blocks + (args.window / BLOCK + 1) * size;
        const size_t bytes = size_t(size) * sizeof(A);
        i64 last = (end - begin - 1) / BLOCK;
        std::memcpy(blocks, S, bytes);
        for (i64 block = 0; block < last; ++block) {
            A* next = blocks + (block + 1) * size;
            std::memcpy(next, blocks + block * size, bytes);
            forward_only(begin + block * BLOCK, BLOCK, next, r);
        }
        for (i64 block = last; block >= 0; --block) {
            i64 from = begin + block * BLOCK, n = end - from < BLOCK ? end - from : BLOCK;
            std::memcpy(states, blocks + block * size, bytes);
            for (i64 j = 0; j < n; ++j) {
                load(from + j, r);
                step(r, states + j * size, width, states + (j + 1) * size, width);
            }
            for (i64 j = n - 1; j >= 0; --j) {
                load(from + j, r);
                see(r, states + j * size);
                retreat(from + j, r, states + j * size, states + (j + 1) * size, R, sums, across);
            }
        }
    }
    void forward_only(i64 t, i64 n, A* S, Row& r) const {
        for (i64 j = 0; j < n; ++j) {
            load(t + j, r);
            step(r, S, width, S, width);
        }
    }
    // What a step reads and writes once more.
    void see(const Row& r, const A* before) const {
        for (i64 n = 0; n < width; n += L) {
            V read{}, v = T::load(r.v + n);
            for (i64 c = 0; delta && c < args.keys; ++c) read += r.a[c] * T::load(before + c * width + n);
            T::store(r.read + n, read);
            T::store(r.write + n, delta && !low_rank ? r.beta * (v - read) : r.beta * v);
        }
    }
};

}  // namespace
}  // namespace LINRNN_ISA
}  // namespace linrnn
