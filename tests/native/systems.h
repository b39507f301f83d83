// The kernels of state-space layers: cauchy, vandermonde, dplr_powers and block_carry.
#pragma once
#include <complex>

#include "../../src/native/block_carry_args.h"
#include "../../src/native/cauchy_args.h"
#include "../../src/native/dplr_powers_args.h"
#include "../../src/native/vandermonde_args.h"
#include "mamba.h"

extern "C" int linrnn_cauchy(const void*);
extern "C" int linrnn_vandermonde(const void*);
extern "C" int linrnn_dplr_powers(const void*);
extern "C" int linrnn_block_carry(const void*);

using Complex = std::complex<double>;
inline Complex complex_at(const Values& x, i64 i) { return {x[size_t(2 * i)], x[size_t(2 * i + 1)]}; }
inline Values scaled(Values x, double by) {
    for (double& v : x) v *= by;
    return x;
}

struct Fractions : Problem {
    enum { BETA, ALPHA, RADIUS, REAL };
    i64 rows, channels, modes, nodes;
    Values angles;

    Fractions(Random& random, bool large) {
        name = "cauchy", dtypes = {linrnn::F32, linrnn::F64};
        rows = random.size(4), channels = random.size(5), modes = random.size(20), nodes = random.size(90);
        if (large) channels += 20, nodes += 200;
        inputs = {random.numbers(rows * channels * modes), random.numbers(rows * channels * modes),
                  random.numbers(channels * modes), random.numbers(channels * modes)};
        for (double& x : inputs[RADIUS]) x = 1 + std::fabs(x);
        for (double& x : inputs[REAL]) x = -0.5 - std::fabs(x);  // a pole that is far from all nodes
        for (i64 n = 0; n < nodes; ++n) angles.push_back(1.5 * double(n) / double(nodes));
    }
    Many loop() const override {
        Values re, im;
        for (i64 i = 0; i < rows * channels; ++i)
            for (double angle : angles) {
                const double s = std::sin(angle), c = std::cos(angle);
                Complex sum = 0;
                for (i64 m = 0; m < modes; ++m) {
                    const size_t at = size_t(i * modes + m), pole = size_t(i % channels * modes + m);
                    const double radius = inputs[RADIUS][pole];
                    const Complex below(c * c * radius * radius - s * s, -2 * s * c * inputs[REAL][pole]);
                    sum += Complex(-c * inputs[ALPHA][at], s * inputs[BETA][at]) / below;
                }
                re.push_back(sum.real()), im.push_back(sum.imag());
            }
        return {re, im};
    }
    Many call(const Many& in, const Many* weights, i64 dtype, i64 threads) const {
        Values sines, cosines;
        for (double angle : angles) sines.push_back(std::sin(angle)), cosines.push_back(std::cos(angle));
        Memory beta(dtype, in[BETA]), alpha(dtype, in[ALPHA]), radius(linrnn::F64, in[RADIUS]);
        Memory real(linrnn::F64, in[REAL]), sine(linrnn::F64, sines), cosine(linrnn::F64, cosines);
        const i64 count = rows * channels * nodes;
        Memory re = weights ? Memory(dtype, (*weights)[0]) : Memory(dtype, count);
        Memory im = weights ? Memory(dtype, (*weights)[1]) : Memory(dtype, count);
        Memory of_beta(dtype, beta.count()), of_alpha(dtype, beta.count());
        Memory of_radius(linrnn::F64, radius.count()), of_real(linrnn::F64, radius.count());
        linrnn::CauchyArgs args{};
        args.size = sizeof args, args.dtype = dtype, args.threads = threads, args.rows = rows;
        args.channels = channels, args.modes = modes, args.nodes = nodes;
        args.beta = beta.address(), args.alpha = alpha.address(), args.radius = radius.address();
        args.real = real.address(), args.sine = sine.address(), args.cosine = cosine.address();
        args.re = re.address(), args.im = im.address(), args.backward = weights != nullptr;
        args.grad_beta = of_beta.address(), args.grad_alpha = of_alpha.address();
        args.grad_radius = of_radius.address(), args.grad_real = of_real.address();
        run(linrnn_cauchy, &args);
        if (!weights) return {re.values(), im.values()};
        return {of_beta.values(), of_alpha.values(), of_radius.values(), of_real.values()};
    }
    Many forward(const Many& in, i64 dtype, i64 threads) const override {
        return call(in, nullptr, dtype, threads);
    }
    Many backward(const Many& weights, i64 dtype, i64 threads) const override {
        return call(inputs, &weights, dtype, threads);
    }
};

struct SumsOfPowers : Problem {
    i64 rows, channels, modes, time;
    bool shared;

    SumsOfPowers(Random& random, bool large) {
        name = "vandermonde", dtypes = {linrnn::C64, linrnn::C128};
        rows = random.size(3), channels = random.size(5), modes = random.size(40), time = random.size(80);
        if (large) channels += 20, time += 300;
        shared = channels && random.coin();
        inputs = {random.numbers(2 * rows * channels * modes),
                  scaled(random.numbers(2 * (shared ? 1 : channels) * modes), 0.34)};  // less than 1
    }
    Many loop() const override {
        Values y;
        for (i64 i = 0; i < rows * channels; ++i)
            for (i64 t = 0; t < time; ++t) {
                double sum = 0;
                for (i64 m = 0; m < modes; ++m) {
                    const Complex a = complex_at(inputs[1], (shared ? 0 : i % channels * modes) + m);
                    sum += (complex_at(inputs[0], i * modes + m) * (t ? std::pow(a, double(t)) : 1.0)).real();
                }
                y.push_back(sum);
            }
        return {y};
    }
    Many call(const Many& in, const Many* weights, i64 dtype, i64 threads) const {
        const i64 scalar = dtype == linrnn::C64 ? linrnn::F32 : linrnn::F64;
        Memory c(dtype, in[0]), a(linrnn::C128, in[1]), of_c(dtype, c.count());
        Memory of_a(linrnn::C128, 2 * channels * modes);
        Memory y = weights ? Memory(scalar, (*weights)[0]) : Memory(scalar, rows * channels * time);
        linrnn::VandermondeArgs args{};
        args.size = sizeof args, args.dtype = dtype, args.threads = threads, args.rows = rows;
        args.channels = channels, args.modes = modes, args.time = time, args.shared = shared;
        args.a = a.address(), args.c = c.address(), args.y = y.address();
        args.backward = weights != nullptr, args.grad_a = of_a.address(), args.grad_c = of_c.address();
        run(linrnn_vandermonde, &args);
        if (!weights) return {y.values()};
        return {of_c.values(), shared ? sum_of(of_a.values(), 2 * modes) : of_a.values()};
    }
    Many forward(const Many& in, i64 dtype, i64 threads) const override {
        return call(in, nullptr, dtype, threads);
    }
    Many backward(const Many& weights, i64 dtype, i64 threads) const override {
        return call(inputs, &weights, dtype, threads);
    }
};

struct LowRankPowers : Problem {
    enum { A, B, C, P, Q };
    i64 channels, modes, rank, steps, rest;

    LowRankPowers(Random& random, bool large) {
        name = "dplr_powers", dtypes = {linrnn::F32, linrnn::F64};
        channels = random.size(4), modes = 1 + random.below(20), rank = 1 + random.below(2);
        steps = i64(1) << random.below(5), rest = random.below(steps);
        if (large) channels += 10, modes += 20;
        const i64 one = 2 * channels * modes;
        inputs = {scaled(random.numbers(one), 0.34), random.numbers(one), random.numbers(one),
                  scaled(random.numbers(rank * one), 0.1), scaled(random.numbers(rank * one), 0.1)};
    }
    using Vector = std::vector<Complex>;
    Vector part(int input, i64 i) const {
        Vector found;
        for (i64 m = 0; m < modes; ++m) found.push_back(complex_at(inputs[size_t(input)], i * modes + m));
        return found;
    }
    static double applied(const Vector& q, const Vector& x) {
        double sum = 0;
        for (size_t m = 0; m < x.size(); ++m) sum += (q[m] * x[m]).real();
        return sum;
    }
    // A step of a state, or with p and q exchanged of what is applied to one.
    Vector step(i64 h, const Vector& x, int p, int q) const {
        const Vector a = part(A, h);
        Vector y;
        for (size_t m = 0; m < x.size(); ++m) y.push_back(a[m] * x[m]);
        for (i64 r = 0; r < rank; ++r) {
            const Vector along = part(p, h * rank + r);
            const double by = applied(part(q, h * rank + r), x);
            for (size_t m = 0; m < x.size(); ++m) y[m] -= by * along[m];
        }
        return y;
    }
    static void append(Values& to, const Vector& x, double sign) {
        for (const Complex& z : x) to.push_back(z.real()), to.push_back(sign * z.imag());
    }
    Values dense(i64 h, i64 n) const {
        Values found;
        for (i64 k = 0; k < 2 * modes; ++k) {
            Vector x(static_cast<size_t>(modes));
            x[size_t(k / 2)] = k % 2 ? Complex(0, 1) : Complex(1, 0);
            for (i64 j = 0; j < n; ++j) x = step(h, x, P, Q);
            append(found, x, 1);
        }
        return found;
    }
    Many loop() const override {
        Many found(rest ? 5 : 4);
        auto extend = [](Values& to, const Values& more) { to.insert(to.end(), more.begin(), more.end()); };
        for (i64 h = 0; h < channels; ++h) {
            Vector state = part(B, h), reader = part(C, h);
            const Vector c = reader;
            Values into;
            for (i64 j = 0; j < steps; ++j) {
                found[0].push_back(applied(c, state));
                Values now;
                append(now, state, 1);
                into.insert(into.begin(), now.begin(), now.end());
                reader = step(h, reader, Q, P), state = step(h, state, P, Q);
                append(found[2], reader, -1);
            }
            extend(found[1], into), extend(found[3], dense(h, steps));
            if (rest) extend(found[4], dense(h, rest));
        }
        return found;
    }
    Many call(const Many& in, const Many* weights, i64 dtype, i64 threads) const {
        const i64 width = 2 * modes, square = channels * width * width;
        const i64 sizes[] = {channels * steps, channels * steps * width, channels * steps * width, square, square};
        std::vector<Memory> system, gradients, results;
        for (const Values& x : in) {
            system.emplace_back(linrnn::C128, x);
            gradients.emplace_back(linrnn::C128, i64(x.size()));
        }
        for (size_t i = 0; i < (rest ? 5 : 4); ++i)
            weights ? results.emplace_back(dtype, (*weights)[i]) : results.emplace_back(dtype, sizes[i]);
        linrnn::DplrPowersArgs args{};
        args.size = sizeof args, args.dtype = dtype, args.threads = threads, args.channels = channels;
        args.modes = modes, args.rank = rank, args.steps = steps, args.rest = rest;
        i64* places[] = {&args.a, &args.b, &args.c, &args.p, &args.q};
        i64* of[] = {&args.grad_a, &args.grad_b, &args.grad_c, &args.grad_p, &args.grad_q};
        i64* written[] = {&args.response, &args.into, &args.out, &args.decay, &args.rest_decay};
        for (size_t i = 0; i < 5; ++i) *places[i] = system[i].address(), *of[i] = gradients[i].address();
        for (size_t i = 0; i < results.size(); ++i) *written[i] = results[i].address();
        args.backward = weights != nullptr;
        run(linrnn_dplr_powers, &args);
        Many found;
        for (const Memory& x : weights ? gradients : results) found.push_back(x.values());
        return found;
    }
    Many forward(const Many& in, i64 dtype, i64 threads) const override {
        return call(in, nullptr, dtype, threads);
    }
    Many backward(const Many& weights, i64 dtype, i64 threads) const override {
        return call(inputs, &weights, dtype, threads);
    }
};

struct Carried : Problem {
    enum { LEFT, FIRST, DECAY };
    i64 channels, seqs, blocks, modes, parts;

    Carried(Random& random, bool large) {
        const bool turning = random.coin();
        name = "block_carry", parts = turning ? 2 : 1;
        dtypes = turning ? std::vector<i64>{linrnn::C64, linrnn::C128} : std::vector<i64>{linrnn::F32, linrnn::F64};
        channels = random.size(4), seqs = random.size(3), blocks = random.size(9), modes = random.size(20);
        if (large) channels += 20, blocks += 30;
        inputs = {random.numbers(parts * channels * seqs * blocks * modes),
                  random.numbers(parts * channels * seqs * modes),
                  scaled(random.numbers(parts * channels * modes), 0.34)};  // less than 1
    }
    Complex number(int input, i64 i) const {
        const Values& x = inputs[size_t(input)];
        return parts == 2 ? complex_at(x, i) : Complex(x[size_t(i)], 0);
    }
    void append(Values& to, Complex z) const {
        to.push_back(z.real());
        if (parts == 2) to.push_back(z.imag());
    }
    Many loop() const override {
        Values before, last;
        for (i64 i = 0; i < channels * seqs; ++i) {
            std::vector<Complex> h;
            for (i64 m = 0; m < modes; ++m) h.push_back(number(FIRST, i * modes + m));
            for (i64 n = 0; n < blocks; ++n)
                for (i64 m = 0; m < modes; ++m) {
                    append(before, h[size_t(m)]);
                    h[size_t(m)] = number(DECAY, i / seqs * modes + m) * h[size_t(m)] +
                                   number(LEFT, (i * blocks + n) * modes + m);
                }
            for (const Complex& z : h) append(last, z);
        }
        return {before, last};
    }
    linrnn::BlockCarryArgs record(i64 dtype, i64 threads) const {
        linrnn::BlockCarryArgs args{};
        args.size = sizeof args, args.dtype = dtype, args.threads = threads;
        args.channels = channels, args.seqs = seqs, args.blocks = blocks, args.modes = modes;
        return args;
    }
    Many forward(const Many& in, i64 dtype, i64 threads) const override {
        Memory left(dtype, in[LEFT]), first(dtype, in[FIRST]), decay(dtype, in[DECAY]);
        Memory last(dtype, parts * channels * seqs * modes);
        linrnn::BlockCarryArgs args = record(dtype, threads);
        args.left = left.address(), args.first = first.address(), args.decay = decay.address();
        args.last = last.address();
        run(linrnn_block_carry, &args);
        return {left.values(), last.values()};
    }
    Many backward(const Many& weights, i64 dtype, i64 threads) const override {
        Memory before(dtype, forward(inputs, dtype, threads)[0]), decay(dtype, inputs[DECAY]);
        Memory left(dtype, weights[0]), last(dtype, weights[1]);
        Memory first(dtype, parts * channels * seqs * modes), of_decay(dtype, parts * channels * modes);
        linrnn::BlockCarryArgs args = record(dtype, threads);
        args.left = left.address(), args.first = first.address(), args.decay = decay.address();
        args.last = last.address(), args.before = before.address(), args.grad_decay = of_decay.address();
        args.backward = 1;
        run(linrnn_block_carry, &args);
        return {left.values(), first.values(), of_decay.values()};
    }
};
