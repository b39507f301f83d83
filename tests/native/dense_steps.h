// Steps of a GRU or LSTM by tiles of bfloat16 numbers, with their adjoint: dense_steps.
#pragma once
#include "../../src/native/dense_steps_args.h"
#include "scans.h"

extern "C" int linrnn_dense_steps(const void*);

struct DenseGates : Problem {
    enum { PARTS, MATRIX, BIAS, H, C, INTO_Y, INTO_H, INTO_C };
    static constexpr int NO_TILES = 5;
    i64 gates, seqs, time, n;
    std::vector<unsigned char> reset;

    DenseGates(Random& random, bool large) {
        name = "dense_steps", has_adjoint = false, dtypes = {linrnn::BF16};
        gates = 3 + random.below(2), seqs = random.size(19), time = 1 + random.size(7);
        n = 32 * (1 + random.below(large ? 5 : 2));
        reset = resets(random, seqs * time, random.coin());
        const i64 numbers = seqs * time * n;
        inputs = {random.numbers(gates * numbers), random.numbers(gates * n * n, 0.0625)};
        inputs.push_back(random.coin() ? random.numbers(4 * n) : Values());
        for (i64 size : {seqs * n, gates == 4 ? seqs * n : 0, numbers, seqs * n, gates == 4 ? seqs * n : 0})
            inputs.push_back(random.numbers(size));
    }
    bool cut(i64 at) const { return !reset.empty() && reset[size_t(at)]; }
    // The numbers of one step of a sequence.
    struct Step {
        Values gate, inner, h, c, before_h, before_c;
    };
    Step advance(i64 at, const Values& h, const Values& c) const {
        Step x{Values(size_t(gates * n)), Values(size_t(n)), h, c, h, c};
        if (cut(at)) x.before_h.assign(size_t(n), 0.0), x.before_c.assign(c.size(), 0.0);
        const auto logistic = [](double y) { return 1 / (1 + std::exp(-y)); };
        for (i64 i = 0; i < n; ++i) {
            double sum[4] = {};
            for (i64 g = 0; g < gates; ++g)
                for (i64 k = 0; k < n; ++k)
                    sum[g] += inputs[MATRIX][size_t((g * n + i) * n + k)] * x.before_h[size_t(k)];
            auto bias = [&](i64 g) { return inputs[BIAS].empty() ? 0 : inputs[BIAS][size_t(g * n + i)]; };
            auto part = [&](i64 g) { return inputs[PARTS][size_t((at * gates + g) * n + i)] + bias(g); };
            auto gate = [&](i64 g) -> double& { return x.gate[size_t(g * n + i)]; };
            gate(0) = logistic(part(0) + sum[0]), gate(1) = logistic(part(1) + sum[1]);
            if (gates == 4) {
                gate(2) = std::tanh(part(2) + sum[2]), gate(3) = logistic(part(3) + sum[3]);
                x.c[size_t(i)] = gate(1) * x.before_c[size_t(i)] + gate(0) * gate(2);
                x.h[size_t(i)] = gate(3) * std::tanh(x.c[size_t(i)]);
            } else {
                x.inner[size_t(i)] = sum[2] + bias(3);
                gate(2) = std::tanh(part(2) + gate(0) * x.inner[size_t(i)]);
                x.h[size_t(i)] = gate(2) + gate(1) * (x.before_h[size_t(i)] - gate(2));
            }
        }
        return x;
    }
    // Against one step: gradients of its parts and of its products, and what is carried.
    void retreat(const Step& x, Values& dh, Values& dc, double* parts, double* products) const {
        Values direct(size_t(n), 0.0);
        for (i64 i = 0; i < n; ++i) {
            auto gate = [&](i64 g) { return x.gate[size_t(g * n + i)]; };
            auto slope = [&](i64 g) { return gate(g) * (1 - gate(g)); };
            auto bend = 1 - gate(2) * gate(2), h = dh[size_t(i)];
            if (gates == 4) {
                const double tanh_c = std::tanh(x.c[size_t(i)]);
                const double c = dc[size_t(i)] + h * gate(3) * (1 - tanh_c * tanh_c);
                parts[i] = c * gate(2) * slope(0), parts[n + i] = c * x.before_c[size_t(i)] * slope(1);
                parts[2 * n + i] = c * gate(0) * bend, parts[3 * n + i] = h * tanh_c * slope(3);
                dc[size_t(i)] = c * gate(1);
            } else {
                parts[n + i] = h * (x.before_h[size_t(i)] - gate(2)) * slope(1);
                parts[2 * n + i] = h * (1 - gate(1)) * bend;
                parts[i] = parts[2 * n + i] * x.inner[size_t(i)] * slope(0);
                direct[size_t(i)] = h * gate(1);
            }
            for (i64 g = 0; g < gates; ++g)
                products[g * n + i] = parts[g * n + i] * (gates == 3 && g == 2 ? gate(0) : 1);
        }
        for (i64 k = 0; k < n; ++k)
            for (i64 j = 0; j < gates * n; ++j)
                direct[size_t(k)] += inputs[MATRIX][size_t(j * n + k)] * products[j];
        dh = direct;
    }
    Many loop() const override {
        const size_t numbers = size_t(seqs * time * n), states = size_t(seqs * n), wide = size_t(gates);
        const bool lstm = gates == 4;
        Many all = {Values(numbers), Values(states), Values(lstm ? states : 0), Values(numbers * wide),
                    Values(lstm ? 0 : numbers), Values(numbers), Values(states), Values(lstm ? states : 0)};
        for (i64 s = 0; s < seqs; ++s) {
            auto row = [&](const Values& x) {
                return x.empty() ? Values() : Values(x.begin() + s * n, x.begin() + (s + 1) * n);
            };
            auto put = [&](const Values& from, Values& to, i64 at) {
                for (i64 i = 0; i < i64(from.size()); ++i) to[size_t(at * n + i)] = from[size_t(i)];
            };
            std::vector<Step> steps;
            Values h = row(inputs[H]), c = row(inputs[C]);
            for (i64 t = 0; t < time; ++t) {
                steps.push_back(advance(s * time + t, cut(s * time + t) ? Values(size_t(n), 0.0) : h,
                                        cut(s * time + t) ? Values(c.size(), 0.0) : c));
                h = steps.back().h, c = steps.back().c;
                put(h, all[0], s * time + t), put(steps.back().before_h, all[5], s * time + t);
            }
            put(h, all[1], s), put(c, all[2], s);
            Values dh = row(inputs[INTO_H]), dc = row(inputs[INTO_C]), products(size_t(gates * n));
            for (i64 t = time; t-- > 0;) {
                const i64 at = s * time + t;
                for (i64 i = 0; i < n; ++i) dh[size_t(i)] += inputs[INTO_Y][size_t(at * n + i)];
                retreat(steps[size_t(t)], dh, dc, all[3].data() + at * gates * n, products.data());
                for (i64 i = 0; !lstm && i < n; ++i) all[4][size_t(at * n + i)] = products[size_t(2 * n + i)];
                if (cut(at)) dh.assign(size_t(n), 0.0), dc.assign(dc.size(), 0.0);
            }
            put(dh, all[6], s), put(dc, all[7], s);
        }
        return all;
    }
    Many forward(const Many& in, i64 dtype, i64 threads) const override {
        const i64 numbers = seqs * time * n, states = seqs * n, cells = gates == 4 ? states : 0, wide = linrnn::F32;
        Memory parts(dtype, in[PARTS]), matrix(dtype, in[MATRIX]), bias(wide, in[BIAS]), h(wide, in[H]), c(wide, in[C]);
        Memory y(dtype, numbers), inner(dtype, numbers), last_h(wide, states), last_c(wide, cells);
        linrnn::DenseStepsArgs args{};
        args.size = sizeof args, args.dtype = dtype, args.threads = threads, args.gates = gates;
        args.seqs = seqs, args.time = time, args.channels = n, args.reset = array_of(reset, time);
        args.matrix = matrix.address(), args.bias = bias.address(), args.parts = parts.address();
        args.inner = inner.address(), args.h = y.address(), args.initial_h = h.address(), args.initial_c = c.address();
        args.final_h = last_h.address(), args.final_c = last_c.address();
        const int code = linrnn_dense_steps(&args);
        if (code == NO_TILES) return loop();
        demand(code == 0, "the kernel returned " + std::to_string(code));
        Memory into(dtype, in[INTO_Y]), into_h(wide, in[INTO_H]), into_c(wide, in[INTO_C]), before(dtype, numbers);
        Memory grad(dtype, gates * numbers), grad_inner(dtype, gates == 3 ? numbers : 0);
        Memory grad_h(wide, states), grad_c(wide, cells);
        args.backward = 1, args.final_h = into_h.address(), args.final_c = into_c.address();
        args.grad_h = into.address(), args.grad_parts = grad.address(), args.grad_inner = grad_inner.address();
        args.before = before.address();
        args.grad_initial_h = grad_h.address(), args.grad_initial_c = grad_c.address();
        run(linrnn_dense_steps, &args);
        return {y.values(), last_h.values(), last_c.values(), grad.values(), grad_inner.values(), before.values(),
                grad_h.values(), grad_c.values()};
    }
};
