// The kernels with a scan's record: scan, log_scan; and gated_scan.
#pragma once
#include "../../src/native/gated_scan_args.h"
#include "../../src/native/scan_args.h"
#include "problem.h"

extern "C" int linrnn_scan(const void*);
extern "C" int linrnn_log_scan(const void*);
extern "C" int linrnn_gated_scan(const void*);

inline void run(int (*kernel)(const void*), const void* record) {
    int code = kernel(record);
    demand(code == 0, "the kernel returned " + std::to_string(code));
}
inline std::vector<unsigned char> resets(Random& random, i64 count, bool any) {
    std::vector<unsigned char> mask;
    for (i64 i = 0; any && i < count; ++i) mask.push_back(random.below(7) == 0);
    return mask;
}
inline linrnn::Array array_of(const std::vector<unsigned char>& mask, i64 time) {
    return {mask.empty() ? 0 : reinterpret_cast<i64>(mask.data()), time, 1};
}

// A batch, or sequences packed into one row, some of them empty; read forward or backward.
struct Sequences : Problem {
    i64 seqs = 0, time = 0;
    bool reverse = false;
    std::vector<i64> offsets;
    std::vector<unsigned char> reset;

    void lay_out(Random& random) {
        reverse = random.coin();
        if (random.below(3) == 0) pack(random);
        reset = resets(random, rows() * time, random.coin());
    }
    void pack(Random& random) {
        seqs = random.size(6), time = seqs ? time : 0;
        offsets.assign(size_t(seqs) + 1, time);
        offsets[0] = 0;
        for (i64 s = 1; s < seqs; ++s)
            offsets[size_t(s)] = offsets[size_t(s) - 1] + random.below(time - offsets[size_t(s) - 1] + 1);
    }
    i64 rows() const { return offsets.empty() ? seqs : 1; }
    i64 steps() const { return rows() * time; }
    i64 length(i64 s) const {
        return offsets.empty() ? time : offsets[size_t(s) + 1] - offsets[size_t(s)];
    }
    // Where the step that sequence s reads as number j lies; before the first one, there is none.
    i64 place(i64 s, i64 j) const {
        return (offsets.empty() ? s * time : offsets[size_t(s)]) + (reverse ? length(s) - 1 - j : j);
    }
    bool cut(i64 place) const { return !reset.empty() && reset[size_t(place)]; }
    template <class Args>
    void describe(Args& args) const {
        args.size = sizeof args, args.reverse = reverse, args.seqs = seqs, args.time = time;
        args.offsets = offsets.empty() ? 0 : reinterpret_cast<i64>(offsets.data());
        args.reset = array_of(reset, time);
    }
};

struct Scan : Sequences {
    bool logs, constant;
    i64 channels, unit, apart;

    Scan(Random& random, bool of_logs, bool large) : logs(of_logs) {
        bool complex = !logs && random.coin();
        constant = random.coin(), unit = complex ? 2 : 1;
        name = logs ? "log_scan" : "scan";
        has_adjoint = !logs;
        const i64 few[] = {1, 2, 3, 4, 8, 16, 17, 33, 70};
        channels = random.size(1) * few[random.below(9)], time = random.size(150), seqs = random.size(4);
        if (large && random.coin()) seqs = 1, channels = 5 + random.below(4), time = 26000;
        else if (large) seqs = 1 + random.below(3), channels = 4200 + random.below(99), time = 40;
        if (large) dtypes = {linrnn::F32};
        if (complex) dtypes = {linrnn::C64, linrnn::C128, linrnn::CBF16};
        apart = random.coin() ? 0 : unit * (1 + random.below(5));
        lay_out(random);
        const double size = logs ? 2 : complex ? 0.5 : 1;
        inputs = {random.numbers((constant ? 1 : rows() * time) * n(), size),
                  random.numbers(rows() * time * n())};
        for (double& a : inputs[0])
            if (logs && a > 0) a = -a;  // nothing grows without end
        if (random.coin()) inputs.push_back(random.numbers(seqs * n()));
    }
    i64 n() const { return channels * unit; }

    void advance(double* h, const double* a, const double* b) const {
        if (logs) {
            double kept = *a + *h, most = std::fmax(kept, *b);
            *h = most + std::log1p(std::exp(std::fmin(kept, *b) - most));
        } else if (unit == 1) {
            *h = *a * *h + *b;
        } else {
            double re = h[0], im = h[1];
            h[0] = a[0] * re - a[1] * im + b[0];
            h[1] = a[0] * im + a[1] * re + b[1];
        }
    }
    Many loop() const override {
        Values h(inputs[1].size()), last;
        for (i64 s = 0; s < seqs; ++s)
            for (i64 c = 0; c < n(); c += unit) {
                double empty = logs ? -INFINITY : 0, state[2] = {empty, empty};
                for (i64 u = 0; u < unit && inputs.size() > 2; ++u)
                    state[u] = inputs[2][size_t(s * n() + c + u)];
                for (i64 j = 0; j < length(s); ++j) {
                    size_t at = size_t(place(s, j) * n() + c);
                    if (cut(place(s, j))) state[0] = state[1] = empty;
                    advance(state, &inputs[0][constant ? size_t(c) : at], &inputs[1][at]);
                    for (i64 u = 0; u < unit; ++u) h[at + size_t(u)] = state[u];
                }
                for (i64 u = 0; u < unit; ++u) last.push_back(state[u]);
            }
        for (double& x : last)  // an empty sequence: compared as numbers
            if (std::isinf(x)) x = -1e30;
        return {h, last};
    }

    struct Operands {
        Rows a, b, h;
        Memory initial, final;
    };
    // Pairs of halves have decays as precise as states.
    static i64 decay_dtype(i64 dtype) { return dtype == linrnn::CBF16 ? i64(linrnn::C64) : dtype; }
    Operands operands(const Many& in, i64 dtype) const {
        i64 state = state_dtype(dtype);
        const i64 decay = decay_dtype(dtype);
        return {constant ? Rows(decay, 1, 1, n(), 0, in[0]) : rows_of(decay, in[0]),
                rows_of(dtype, in[1]), Rows(dtype, rows(), time, n(), apart),
                Memory(state, in.size() > 2 ? in[2] : Values()), Memory(state, seqs * n())};
    }
    Rows rows_of(i64 dtype, const Values& values) const {
        return Rows(dtype, rows(), time, n(), apart, values);
    }
    linrnn::ScanArgs record(const Operands& o, i64 dtype, i64 threads) const {
        linrnn::ScanArgs args{};
        describe(args);
        args.dtype = dtype, args.threads = threads, args.constant = constant, args.channels = channels;
        args.a = o.a.array(), args.b = o.b.array(), args.h = o.h.array();
        args.initial = o.initial.address(), args.final = o.final.address();
        return args;
    }
    Many forward(const Many& in, i64 dtype, i64 threads) const override {
        Operands o = operands(in, dtype);
        auto args = record(o, dtype, threads);
        run(logs ? linrnn_log_scan : linrnn_scan, &args);
        Values last = o.final.values();
        for (double& x : last)
            if (std::isinf(x)) x = -1e30;
        return {o.h.values(), last};
    }
    Many backward(const Many& weights, i64 dtype, i64 threads) const override {
        Operands o = operands(inputs, dtype);
        auto args = record(o, dtype, threads);
        run(linrnn_scan, &args);
        Rows into_h = rows_of(dtype, weights[0]);
        Memory into_final(state_dtype(dtype), weights[1]);
        Memory a(decay_dtype(dtype), i64(inputs[0].size())), b(dtype, i64(inputs[1].size()));
        Memory initial(state_dtype(dtype), seqs * n());
        args.backward = 1, args.b = into_h.array(), args.final = into_final.address();
        args.grad_a = a.address(), args.grad_b = b.address(), args.grad_initial = initial.address();
        run(linrnn_scan, &args);
        Many grads = {a.values(), b.values()};
        if (inputs.size() > 2) grads.push_back(initial.values());
        return grads;
    }
};

struct Gated : Sequences {
    i64 channels, parts, gate, apart;
    bool positive;
    double start;

    Gated(Random& random, bool large) {
        name = "gated_scan";
        gate = random.below(3), parts = gate ? 3 : 2, positive = random.coin();
        seqs = random.size(4), time = random.size(60), channels = random.size(70);
        if (large) channels += 500, time += 40;
        apart = random.coin() ? 0 : 1 + random.below(5);
        start = random.coin() ? 0 : 0.5;
        lay_out(random);
        inputs = {random.numbers(steps() * parts * channels)};
        if (random.coin()) inputs.push_back(random.numbers(seqs * channels));
    }
    static double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

    Many loop() const override {
        Values h(size_t(steps() * channels)), last;
        for (i64 s = 0; s < seqs; ++s)
            for (i64 c = 0; c < channels; ++c) {
                double state = inputs.size() > 1 ? inputs[1][size_t(s * channels + c)] : start;
                for (i64 j = 0; j < length(s); ++j) {
                    const i64 at = place(s, j);
                    const double* x = &inputs[0][size_t(at * parts * channels + c)];
                    double f = sigmoid(x[channels]), i = gate ? sigmoid(x[2 * channels]) : f;
                    double keep = gate == 0 ? 1 - f : gate == 1 ? f / (f + i) : f;
                    double add = gate == 0 ? f : gate == 1 ? i / (f + i) : i;
                    double value = !positive ? *x : *x < 0 ? sigmoid(*x) : *x + 0.5;
                    if (cut(at)) state = start;
                    state = keep * state + add * value;
                    h[size_t(at * channels + c)] = state;
                }
                last.push_back(state);
            }
        return {h, last};
    }
    // One call, backward where it is given weights.
    Many call(const Many& in, const Many& weights, i64 dtype, i64 threads) const {
        const i64 width = parts * channels, wide = state_dtype(dtype);
        Rows x(dtype, rows(), time, width, apart, in[0]), h(dtype, rows(), time, channels, apart);
        Memory initial(wide, in.size() > 1 ? in[1] : Values()), final(wide, seqs * channels);
        Rows into_h(dtype, rows(), time, channels, apart, weights.empty() ? Values() : weights[0]);
        Memory grad_x(dtype, steps() * width), grad_initial(wide, seqs * channels);
        linrnn::GatedScanArgs args{};
        describe(args);
        args.dtype = dtype, args.threads = threads, args.channels = channels;
        args.gate = gate, args.positive = positive, args.start = start;
        args.x = x.array(), args.x_part = channels, args.h = h.array();
        args.initial = initial.address(), args.final = final.address();
        run(linrnn_gated_scan, &args);
        if (weights.empty()) return {h.values(), final.values()};
        Memory into_final(wide, weights[1]);
        args.backward = 1, args.final = into_final.address(), args.grad_h = into_h.array();
        args.grad_x = {grad_x.address(), time * width, width};
        args.grad_initial = grad_initial.address();
        run(linrnn_gated_scan, &args);
        Many grads = {grad_x.values()};
        if (in.size() > 1) grads.push_back(grad_initial.values());
        return grads;
    }
    Many forward(const Many& in, i64 dtype, i64 threads) const override {
        return call(in, {}, dtype, threads);
    }
    Many backward(const Many& weights, i64 dtype, i64 threads) const override {
        return call(inputs, weights, dtype, threads);
    }
};
