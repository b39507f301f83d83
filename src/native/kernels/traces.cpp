// Traces of a linear map y = W x whose outputs each move one channel of a state with few parts:
//
//   after[p, b, o] = sum_q keep[b, p, q, channel of o] before[q, b, o] + slope[b, p, o] x[b]
//   total[o]       = sum_{p, b} credit[p, b, channel of o] before[p, b, o] + sum_b gain[b, o] x[b]
//
// each a vector over the inputs; one of them, or both. Memory is all that they cost: every trace is
// read once and written once, and a total stays in the cache while all rows are added to it.
//
// Where the two parts are those of a complex channel, a second output may move i times what the one
// at hand does; it has no trace, for its parts would be (-before[1], before[0]). Pairs name the rows
// of both among (2 outputs) of the total.
//
// Compiled once for every instruction set: see scan.cpp.
#include <algorithm>

#include "../traces_args.h"

namespace linrnn {
namespace LINRNN_ISA {
namespace {

constexpr i64 BLOCK = 16 << 10;       // bytes of a total that are summed at a time
constexpr i64 WORTH = i64(1) << 17;  // numbers that repay waking another thread

template <class S>
struct Traces {
    const TracesArgs& args;

    static S* at(i64 address, i64 i) { return address ? reinterpret_cast<S*>(address) + i : nullptr; }
    i64 place(i64 p, i64 b, i64 o) const {
        return ((p * args.rows + b) * args.outputs + o) * args.inputs;
    }
    S keep(i64 b, i64 p, i64 q, i64 c) const {
        return *at(args.keep, ((b * args.parts + p) * args.parts + q) * args.channels + c);
    }
    S slope(i64 b, i64 p, i64 o) const {
        return args.slope ? *at(args.slope, (b * args.parts + p) * args.outputs + o) : S(0);
    }

    static void set(S* __restrict y, S by, const S* __restrict x, i64 n) {
        if (x) for (i64 i = 0; i < n; ++i) y[i] = by * x[i];
        else for (i64 i = 0; i < n; ++i) y[i] = S(0);
    }
    static void add(S* __restrict y, S by, const S* __restrict x, i64 n) {
        for (i64 i = 0; i < n; ++i) y[i] += by * x[i];
    }
    static void one(S* __restrict y, S k, const S* __restrict e, S g, const S* __restrict x, i64 n) {
        for (i64 i = 0; i < n; ++i) y[i] = k * e[i] + g * x[i];
    }
    static void two(S* __restrict y, S* __restrict z, const S* k, const S* __restrict e,
                    const S* __restrict f, const S* g, const S* __restrict x, i64 n) {
        const S a = k[0], b = k[1], c = k[2], d = k[3], u = g[0], v = g[1];
        for (i64 i = 0; i < n; ++i) {
            const S re = e[i], im = f[i], in = x[i];
            y[i] = a * re + b * im + u * in;
            z[i] = c * re + d * im + v * in;
        }
    }

    static void sum(S* __restrict y, S by, const S* __restrict e, S with, const S* __restrict f, i64 n) {
        for (i64 i = 0; i < n; ++i) y[i] += by * e[i] + with * f[i];
    }
    static void both(S* __restrict y, S* __restrict z, S by, const S* __restrict e, S with,
                     const S* __restrict f, i64 n) {
        for (i64 i = 0; i < n; ++i) {
            const S re = e[i], im = f[i];
            y[i] += by * re + with * im;
            z[i] += with * re - by * im;
        }
    }

    // What `one` and `two` do, with sums at the same time: w(e, f, x) of the numbers that are read.
    template <class W>
    static void one_and(S* __restrict y, S k, const S* __restrict e, S g, const S* __restrict x, i64 n,
                        S* __restrict t, W w) {
        for (i64 i = 0; i < n; ++i) {
            const S was = e[i], in = x[i];
            y[i] = k * was + g * in;
            t[i] += w(was, in);
        }
    }
    template <class W>
    static void two_and(S* __restrict y, S* __restrict z, const S* k, const S* __restrict e,
                        const S* __restrict f, const S* g, const S* __restrict x, i64 n,
                        S* __restrict t, W w) {
        const S a = k[0], b = k[1], c = k[2], d = k[3], u = g[0], v = g[1];
        for (i64 i = 0; i < n; ++i) {
            const S re = e[i], im = f[i], in = x[i];
            y[i] = a * re + b * im + u * in;
            z[i] = c * re + d * im + v * in;
            t[i] += w(re, im, in);
        }
    }
    static void two_and_both(S* __restrict y, S* __restrict z, const S* k, const S* __restrict e,
                             const S* __restrict f, const S* g, const S* __restrict x, i64 n,
                             S* __restrict t, S* __restrict r, S by, S with, S to_t, S to_r) {
        const S a = k[0], b = k[1], c = k[2], d = k[3], u = g[0], v = g[1];
        for (i64 i = 0; i < n; ++i) {
            const S re = e[i], im = f[i], in = x[i];
            y[i] = a * re + b * im + u * in;
            z[i] = c * re + d * im + v * in;
            t[i] += by * re + with * im + to_t * in;
            r[i] += with * re - by * im + to_r * in;
        }
    }

    void advance(i64 b, i64 o, i64 c) const {
        const i64 n = args.inputs, parts = args.parts;
        const S* x = args.slope ? at(args.x, b * n) : nullptr;
        if (x && args.before && parts == 1)
            return one(at(args.after, place(0, b, o)), keep(b, 0, 0, c), at(args.before, place(0, b, o)),
                       slope(b, 0, o), x, n);
        if (x && args.before && parts == 2) {
            const S k[] = {keep(b, 0, 0, c), keep(b, 0, 1, c), keep(b, 1, 0, c), keep(b, 1, 1, c)};
            const S g[] = {slope(b, 0, o), slope(b, 1, o)};
            return two(at(args.after, place(0, b, o)), at(args.after, place(1, b, o)), k,
                       at(args.before, place(0, b, o)), at(args.before, place(1, b, o)), g, x, n);
        }
        for (i64 p = 0; p < parts; ++p) {
            S* after = at(args.after, place(p, b, o));
            set(after, slope(b, p, o), x, n);
            for (i64 q = 0; args.before && q < parts; ++q)
                add(after, keep(b, p, q, c), at(args.before, place(q, b, o)), n);
        }
    }
    // Of a single input, where a vector over inputs would be one number.
    void advance_numbers(i64 b, i64 first, i64 end, const i64* __restrict index) const {
        const S x = args.slope ? *at(args.x, b) : S(0);
        for (i64 p = 0; p < args.parts; ++p) {
            S* __restrict after = at(args.after, place(p, b, 0));
            for (i64 o = first; o < end; ++o) after[o] = slope(b, p, o) * x;
            for (i64 q = 0; args.before && q < args.parts; ++q) {
                const S* __restrict before = at(args.before, place(q, b, 0));
                const S* __restrict by = at(args.keep, ((b * args.parts + p) * args.parts + q) * args.channels);
                for (i64 o = first; o < end; ++o) after[o] += by[index[o]] * before[o];
            }
        }
    }

    S credit(i64 p, i64 b, i64 c) const { return *at(args.credit, (p * args.rows + b) * args.channels + c); }
    S* total(i64 which, i64 o) const {
        const i64* rows = reinterpret_cast<const i64*>(args.pairs);
        return at(args.total, (rows ? rows[which * args.outputs + o] : o) * args.inputs);
    }
    void gather(i64 b, i64 o, i64 c) const {
        const i64 n = args.inputs;
        if (args.pairs)
            return both(total(0, o), total(1, o), credit(0, b, c), at(args.before, place(0, b, o)),
                        credit(1, b, c), at(args.before, place(1, b, o)), n);
        if (args.parts == 2)
            return sum(total(0, o), credit(0, b, c), at(args.before, place(0, b, o)), credit(1, b, c),
                       at(args.before, place(1, b, o)), n);
        for (i64 p = 0; p < args.parts; ++p) add(total(0, o), credit(p, b, c), at(args.before, place(p, b, o)), n);
    }
    void gather_numbers(i64 b, i64 first, i64 end, const i64* __restrict index) const {
        S* __restrict y = at(args.total, 0);
        for (i64 p = 0; p < args.parts; ++p) {
            const S* __restrict before = at(args.before, place(p, b, 0));
            const S* __restrict by = at(args.credit, (p * args.rows + b) * args.channels);
            for (i64 o = first; o < end; ++o) y[o] += by[index[o]] * before[o];
        }
    }

    S gain(i64 which, i64 b, i64 o) const {
        const i64* rows = reinterpret_cast<const i64*>(args.pairs);
        const i64 row = rows ? rows[which * args.outputs + o] : o;
        return args.gain ? *at(args.gain, b * args.outputs * (rows ? 2 : 1) + row) : S(0);
    }
    // Both at once, where a trace has one part or two; false of others.
    bool both_of(i64 b, i64 o, i64 c) const {
        const i64 n = args.inputs;
        const S* x = at(args.x, b * n);
        const S more = gain(0, b, o);
        if (args.parts == 1 && !args.pairs) {
            const S by = credit(0, b, c);
            one_and(at(args.after, place(0, b, o)), keep(b, 0, 0, c), at(args.before, place(0, b, o)),
                    slope(b, 0, o), x, n, total(0, o), [=](S e, S in) { return by * e + more * in; });
            return true;
        }
        if (args.parts != 2) return false;
        const S k[] = {keep(b, 0, 0, c), keep(b, 0, 1, c), keep(b, 1, 0, c), keep(b, 1, 1, c)};
        const S g[] = {slope(b, 0, o), slope(b, 1, o)};
        const S by = credit(0, b, c), with = credit(1, b, c);
        S *y = at(args.after, place(0, b, o)), *z = at(args.after, place(1, b, o));
        const S *e = at(args.before, place(0, b, o)), *f = at(args.before, place(1, b, o));
        if (args.pairs)
            two_and_both(y, z, k, e, f, g, x, n, total(0, o), total(1, o), by, with, more, gain(1, b, o));
        else
            two_and(y, z, k, e, f, g, x, n, total(0, o),
                    [=](S re, S im, S in) { return by * re + with * im + more * in; });
        return true;
    }

    void vectors_of(i64 b, i64 first, i64 end, const i64* index) const {
        for (i64 o = first; o < end; ++o) {
            const i64 c = index[o];
            if (args.after && args.total && args.before && args.slope && both_of(b, o, c)) continue;
            if (args.after) advance(b, o, c);
            if (args.total && args.before) gather(b, o, c);
            for (i64 which = 0; args.gain && which < (args.pairs ? 2 : 1); ++which)
                add(total(which, o), gain(which, b, o), at(args.x, b * args.inputs), args.inputs);
        }
    }
    void numbers_of(i64 b, i64 first, i64 end, const i64* index) const {
        if (args.after) advance_numbers(b, first, end, index);
        if (args.total && args.before) gather_numbers(b, first, end, index);
        for (i64 o = first; args.gain && o < end; ++o) *total(0, o) += gain(0, b, o) * *at(args.x, b);
    }

    int run() const {
        const auto* index = reinterpret_cast<const i64*>(args.index);
        const i64 bytes = std::max<i64>(1, args.inputs * i64(sizeof(S)));
        const i64 numbers = args.parts * args.rows * args.outputs * args.inputs;
        const i64 most = std::max<i64>(1, std::min(args.threads, numbers / WORTH));
        // without a total to keep at hand, one run through memory is as long as can be
        const i64 size = std::max<i64>(1, args.total ? BLOCK / bytes : (args.outputs + most - 1) / most);
        const i64 blocks = (args.outputs + size - 1) / size, team = std::max<i64>(1, std::min(most, blocks));
#pragma omp parallel for schedule(static) num_threads(int(team)) if (team > 1)
        for (i64 block = 0; block < blocks; ++block) {
            const i64 first = block * size, end = std::min(first + size, args.outputs);
            for (i64 which = 0; args.total && which < (args.pairs ? 2 : 1); ++which)
                for (i64 o = first; o < end; ++o) std::fill_n(total(which, o), args.inputs, S(0));
            for (i64 b = 0; b < args.rows; ++b) {
                if (args.inputs == 1 && !args.pairs) numbers_of(b, first, end, index);
                else vectors_of(b, first, end, index);
            }
        }
        return 0;
    }
};

}  // namespace

int traces(const void* record) {
    const auto& args = *static_cast<const TracesArgs*>(record);
    if (args.size != i64(sizeof(TracesArgs))) return 3;
    switch (args.dtype) {
        case F32: return Traces<float>{args}.run();
        case F64: return Traces<double>{args}.run();
    }
    return 2;
}

}  // namespace LINRNN_ISA
}  // namespace linrnn
