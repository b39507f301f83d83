// The kernels of Mamba: causal_conv and selective_scan.
#pragma once
#include "../../src/native/causal_conv_args.h"
#include "../../src/native/selective_scan_args.h"
#include "scans.h"

extern "C" int linrnn_causal_conv(const void*);
extern "C" int linrnn_selective_scan(const void*);

inline double silu(double x) { return x * Gated::sigmoid(x); }
inline double softplus(double x) { return std::log1p(std::exp(-std::fabs(x))) + std::fmax(x, 0); }
inline Values magnitudes(Values x) {
    for (double& v : x) v = std::fabs(v);
    return x;
}
inline Values zeros(i64 count) { return Values(size_t(count)); }
// The sum of consecutive parts of one size.
inline Values sum_of(const Values& x, i64 size) {
    Values sum(size_t(size), 0.0);
    for (size_t i = 0; i < x.size(); ++i) sum[i % sum.size()] += x[i];
    return sum;
}

struct Conv : Sequences {
    i64 channels, width, apart, groups;
    bool smooth;

    Conv(Random& random, bool large) {
        name = "causal_conv";
        seqs = random.size(4), time = random.size(100), channels = random.size(150);
        if (large) time += 200, channels += 150;
        width = 1 + random.below(5), apart = random.coin() ? 0 : 3, smooth = random.coin();
        groups = 1 + random.below(5);
        lay_out(random);
        inputs = {random.numbers(steps() * channels), random.numbers(seqs * (width - 1) * channels),
                  random.numbers(width * channels, 1)};
        if (random.coin()) inputs.push_back(random.numbers(channels));
    }
    double term(i64 s, i64 t, i64 c) const {
        if (t >= 0) return inputs[0][size_t(place(s, t) * channels + c)];
        return inputs[1][size_t((s * (width - 1) + width - 1 + t) * channels + c)];
    }
    Many loop() const override {
        Values y(inputs[0].size());
        for (i64 s = 0; s < seqs; ++s)
            for (i64 t = 0; t < length(s); ++t)
                for (i64 c = 0; c < channels; ++c) {
                    double v = inputs.size() > 3 ? inputs[3][size_t(c)] : 0;
                    for (i64 j = 0; j < width; ++j) {
                        v += inputs[2][size_t((width - 1 - j) * channels + c)] * term(s, t - j, c);
                        if (t >= j && cut(place(s, t - j))) break;
                    }
                    y[size_t(place(s, t) * channels + c)] = smooth ? silu(v) : v;
                }
        return {y};
    }
    Many call(const Many& in, const Many* weights, i64 dtype, i64 threads) const {
        const i64 wide = state_dtype(dtype);
        Rows x(dtype, rows(), time, channels, apart, in[0]);
        Rows y(dtype, rows(), time, channels, apart, weights ? (*weights)[0] : Values());
        Memory past(wide, in[1]), taps(wide, in[2]), bias(wide, in.size() > 3 ? in[3] : Values());
        Memory grad_x(dtype, steps() * channels), grad_past(wide, zeros(i64(in[1].size())));
        Memory sums(linrnn::F64, zeros(groups * (width + 1) * channels));
        linrnn::CausalConvArgs args{};
        describe(args);
        args.dtype = dtype, args.threads = threads, args.silu = smooth;
        args.backward = weights != nullptr, args.rows = weights ? groups : 0;
        args.channels = channels, args.width = width, args.x = x.array(), args.y = y.array();
        args.x_channel = args.y_channel = 1;
        args.past = past.address(), args.weight = taps.address(), args.bias = bias.address();
        args.grad_x = {grad_x.address(), time * channels, channels};
        args.grad_past = grad_past.address();
        args.sums = sums.address();
        run(linrnn_causal_conv, &args);
        if (!weights) return {y.values()};
        Values total = sum_of(sums.values(), (width + 1) * channels);
        auto split = total.begin() + width * channels;
        Many grads = {grad_x.values(), grad_past.values(), Values(total.begin(), split)};
        if (in.size() > 3) grads.push_back(Values(split, total.end()));
        return grads;
    }
    Many forward(const Many& in, i64 dtype, i64 threads) const override {
        return call(in, nullptr, dtype, threads);
    }
    Many backward(const Many& weights, i64 dtype, i64 threads) const override {
        return call(inputs, &weights, dtype, threads);
    }
};

struct Selective : Sequences {
    enum { X, DT, A, B, C, D, INITIAL, Z, BIAS };
    i64 channels, modes, chunk, groups, sums_of, apart;
    bool plus, zoh, has[4];  // of D, INITIAL, Z, BIAS: an empty input where it has none

    Selective(Random& random, bool large) {
        name = "selective_scan";
        seqs = random.size(3), time = random.size(40), channels = random.size(70);
        modes = random.size(17), chunk = 1 + random.below(16), apart = random.coin() ? 0 : 5;
        if (large) channels += 200, time += 20;
        lay_out(random);
        groups = 1 + random.below(3), sums_of = seqs ? 1 + random.below(seqs) : 0;
        plus = random.coin(), zoh = random.coin();
        const i64 steps = this->steps();
        inputs = {random.numbers(steps * channels), magnitudes(random.numbers(steps * channels, 1)),
                  magnitudes(random.numbers(channels * modes)), random.numbers(steps * modes),
                  random.numbers(steps * modes)};
        for (double& lam : inputs[A]) lam = -lam;
        const i64 sizes[] = {channels, seqs * channels * modes, steps * channels, channels};
        for (int i = 0; i < 4; ++i) {
            has[i] = random.coin();
            inputs.push_back(has[i] ? random.numbers(sizes[i]) : Values());
        }
        inputs[BIAS] = magnitudes(inputs[BIAS]);
    }
    double step_of(i64 at, i64 c) const {
        double dt = inputs[DT][size_t(at)] + (has[3] ? inputs[BIAS][size_t(c)] : 0);
        return plus ? softplus(dt) : dt;
    }
    Many loop() const override {
        Values y(inputs[X].size()), last;
        for (i64 s = 0; s < seqs; ++s)
            for (i64 c = 0; c < channels; ++c) {
                const size_t first = size_t((s * channels + c) * modes);
                Values h = zeros(modes);
                for (i64 m = 0; has[1] && m < modes; ++m) h[size_t(m)] = inputs[INITIAL][first + size_t(m)];
                for (i64 j = 0; j < length(s); ++j) {
                    const i64 row = place(s, j), at = row * channels + c;
                    if (cut(row)) h = zeros(modes);
                    double x = inputs[X][size_t(at)], dt = step_of(at, c);
                    double sum = has[0] ? inputs[D][size_t(c)] * x : 0;
                    for (i64 m = 0; m < modes; ++m) {
                        double lam = inputs[A][size_t(c * modes + m)];
                        double w = zoh ? std::expm1(dt * lam) / lam : dt;
                        double& state = h[size_t(m)];
                        state = std::exp(dt * lam) * state + w * inputs[B][size_t(row * modes + m)] * x;
                        sum += inputs[C][size_t(row * modes + m)] * state;
                    }
                    y[size_t(at)] = has[2] ? sum * silu(inputs[Z][size_t(at)]) : sum;
                }
                last.insert(last.end(), h.begin(), h.end());
            }
        return {y, last};
    }

    Many call(const Many& in, const Many* weights, i64 dtype, i64 threads) const {
        const i64 wide = state_dtype(dtype);
        const i64 chunks = offsets.empty() ? seqs * ((time + chunk - 1) / chunk) : time / chunk + seqs;
        auto sequence = [&](int i, i64 width) { return Rows(dtype, rows(), time, width, apart, in[size_t(i)]); };
        Rows x = sequence(X, channels), dt = sequence(DT, channels), b = sequence(B, modes);
        Rows c = sequence(C, modes), z = sequence(Z, channels), y(dtype, rows(), time, channels, apart);
        Memory lam(wide, in[A]), skip(wide, in[D]), initial(wide, in[INITIAL]), bias(wide, in[BIAS]);
        Memory final(wide, seqs * channels * modes), kept(wide, chunks * modes * channels);
        linrnn::SelectiveScanArgs args{};
        describe(args);
        args.dtype = dtype, args.threads = threads, args.softplus = plus, args.zoh = zoh;
        args.chunk = chunk, args.channels = channels, args.modes = modes, args.groups = groups, args.rows = seqs;
        args.x = x.array(), args.dt = dt.array(), args.B = b.array(), args.C = c.array();
        if (has[2]) args.z = z.array();
        args.y = y.array(), args.A = lam.address();
        args.D = skip.address(), args.bias = bias.address(), args.initial = initial.address();
        args.final = final.address(), args.kept = kept.address();
        run(linrnn_selective_scan, &args);
        if (!weights) return {y.values(), final.values()};
        return adjoint(args, *weights, dtype);
    }
    Many adjoint(linrnn::SelectiveScanArgs args, const Many& weights, i64 dtype) const {
        const i64 wide = state_dtype(dtype), numbers = steps() * channels;
        Rows into_y(dtype, rows(), time, channels, apart, weights[0]);
        Memory into_final(wide, weights[1]), initial(wide, seqs * channels * modes);
        Memory x(dtype, numbers), dt(dtype, numbers), z(dtype, has[2] ? numbers : 0);
        Memory b(wide, groups * steps() * modes), c(wide, groups * steps() * modes);
        // a group without channels adds nothing, and its part is not written
        const i64 blocks = (channels * bytes_of(wide) + 127) / 128;
        const i64 share = (blocks + groups - 1) / groups, used = share ? (blocks + share - 1) / share : 1;
        Memory sums(linrnn::F64, zeros(sums_of * (modes + 2) * channels));
        args.backward = 1, args.rows = sums_of, args.groups = used;
        args.y = into_y.array(), args.final = into_final.address();
        auto dense = [&](const Memory& m, i64 width) { return linrnn::Array{m.address(), time * width, width}; };
        args.grad_x = dense(x, channels), args.grad_dt = dense(dt, channels);
        args.grad_z = dense(z, channels), args.grad_B = dense(b, modes), args.grad_C = dense(c, modes);
        args.grad_initial = initial.address(), args.sums = sums.address();
        run(linrnn_selective_scan, &args);
        Values total = sum_of(sums.values(), (modes + 2) * channels), of_A(size_t(channels * modes));
        for (i64 m = 0; m < modes; ++m)
            for (i64 k = 0; k < channels; ++k)
                of_A[size_t(k * modes + m)] = total[size_t(m * channels + k)];
        auto skip = total.begin() + modes * channels, bias = skip + channels;
        auto part = [&](const Memory& m) {
            Values all = m.values();
            all.resize(size_t(used * steps() * modes));
            return sum_of(all, steps() * modes);
        };
        return {x.values(), dt.values(), of_A, part(b), part(c), has[0] ? Values(skip, bias) : Values(),
                has[1] ? initial.values() : Values(), z.values(),
                has[3] ? Values(bias, total.end()) : Values()};
    }
    Many forward(const Many& in, i64 dtype, i64 threads) const override {
        return call(in, nullptr, dtype, threads);
    }
    Many backward(const Many& weights, i64 dtype, i64 threads) const override {
        return call(inputs, &weights, dtype, threads);
    }
};
