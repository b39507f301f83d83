// The kernel of online learning: traces.
#pragma once
#include "../../src/native/traces_args.h"
#include "problem.h"

extern "C" int linrnn_traces(const void*);

struct Owed : Problem {
    enum { BEFORE, KEEP, SLOPE, X, CREDIT, GAIN };
    i64 parts, rows, outputs, inputs_, channels;
    std::vector<i64> index, pairs;  // no pairs: each output has a trace of its own
    bool first, still;  // nothing is owed before; the map is given nothing
    bool together;      // one call, which adds a gain to the total

    Owed(Random& random, bool large) {
        name = "traces", dtypes = {linrnn::F32, linrnn::F64}, has_adjoint = false;
        parts = 1 + random.below(3), rows = random.size(3), outputs = random.size(5);
        inputs_ = random.size(40), channels = 1 + random.below(4);
        if (large) rows += 8, outputs += 40, inputs_ += 400;
        if (random.below(4) == 0) inputs_ = 1;
        first = random.coin(), still = random.coin(), together = !still && random.coin();
        const i64 owed = parts * rows * outputs * inputs_;
        inputs = {random.numbers(owed), random.numbers(rows * parts * parts * channels),
                  random.numbers(rows * parts * outputs), random.numbers(rows * inputs_),
                  random.numbers(parts * rows * channels), random.numbers(rows * 2 * outputs)};
        for (i64 o = 0; o < outputs; ++o) index.push_back(random.below(channels));
        if (parts != 2 || random.coin()) return;
        for (i64 o = 0; o < 2 * outputs; ++o) {
            pairs.push_back(o);
            std::swap(pairs.back(), pairs[size_t(random.below(o + 1))]);
        }
    }
    i64 rows_of_total() const { return pairs.empty() ? outputs : i64(pairs.size()); }
    i64 row(i64 which, i64 o) const { return pairs.empty() ? o : pairs[size_t(which * outputs + o)]; }
    double before(i64 p, i64 b, i64 o, i64 i) const {
        return first ? 0 : inputs[BEFORE][size_t(((p * rows + b) * outputs + o) * inputs_ + i)];
    }
    double slope(i64 b, i64 p, i64 o) const {
        return still ? 0 : inputs[SLOPE][size_t((b * parts + p) * outputs + o)];
    }
    double gain(i64 which, i64 b, i64 o) const {
        const i64 many = rows_of_total();
        return together ? inputs[GAIN][size_t(b * many + row(which, o))] : 0;
    }
    Many loop() const override {
        Values after, total(size_t(rows_of_total() * inputs_));
        for (i64 p = 0; p < parts; ++p)
            for (i64 b = 0; b < rows; ++b)
                for (i64 o = 0; o < outputs; ++o)
                    for (i64 i = 0; i < inputs_; ++i) {
                        const i64 c = index[size_t(o)];
                        double sum = slope(b, p, o) * inputs[X][size_t(b * inputs_ + i)];
                        for (i64 q = 0; q < parts; ++q)
                            sum += inputs[KEEP][size_t(((b * parts + p) * parts + q) * channels + c)] * before(q, b, o, i);
                        const double credit = inputs[CREDIT][size_t((p * rows + b) * channels + c)];
                        after.push_back(sum);
                        const double x = inputs[X][size_t(b * inputs_ + i)];
                        total[size_t(row(0, o) * inputs_ + i)] += credit * before(p, b, o, i);
                        if (p == 0) total[size_t(row(0, o) * inputs_ + i)] += gain(0, b, o) * x;
                        if (pairs.empty()) continue;
                        if (p == 0) total[size_t(row(1, o) * inputs_ + i)] += gain(1, b, o) * x;
                        // the other has the parts (-before(1), before(0))
                        total[size_t(row(1, o) * inputs_ + i)] += credit * (p ? 1 : -1) * before(1 - p, b, o, i);
                    }
        return {after, total};
    }
    Many forward(const Many& in, i64 dtype, i64 threads) const override {
        Memory before(dtype, in[BEFORE]), keep(dtype, in[KEEP]), slope(dtype, in[SLOPE]), x(dtype, in[X]);
        Memory credit(dtype, in[CREDIT]), after(dtype, before.count());
        Memory total(dtype, rows_of_total() * inputs_), gain(dtype, in[GAIN]);
        linrnn::TracesArgs args{};
        args.size = sizeof args, args.dtype = dtype, args.threads = threads, args.parts = parts;
        args.rows = rows, args.outputs = outputs, args.inputs = inputs_, args.channels = channels;
        args.index = reinterpret_cast<i64>(index.data()), args.keep = keep.address();
        args.before = first ? 0 : before.address(), args.credit = credit.address();
        args.slope = still ? 0 : slope.address(), args.x = still ? 0 : x.address();
        args.after = after.address();
        if (together) {
            args.total = total.address(), args.gain = gain.address();
            args.pairs = pairs.empty() ? 0 : reinterpret_cast<i64>(pairs.data());
            run(linrnn_traces, &args);
            return {after.values(), total.values()};
        }
        run(linrnn_traces, &args);
        args.after = 0, args.total = total.address();
        args.pairs = pairs.empty() ? 0 : reinterpret_cast<i64>(pairs.data());
        if (!first) run(linrnn_traces, &args);
        return {after.values(), first ? Values(size_t(rows_of_total() * inputs_)) : total.values()};
    }
};
