// The weighted mean of RWKV-4 of bfloat16 rows, with its adjoint: wkv.
#pragma once
#include "../../src/native/wkv_args.h"
#include "scans.h"

extern "C" int linrnn_wkv(const void*);

struct WeightedMeans : Problem {
    enum { K, V, R, DECAY, BONUS, MEAN, NORM, INTO_Y, INTO_MEAN, INTO_NORM };
    enum { Y, LAST_MEAN, LAST_NORM, GRAD_K, GRAD_V, GRAD_R, GRAD_MEAN, GRAD_NORM, SUMS, RESULTS };
    static constexpr int NO_HALF_PRODUCTS = 6;
    static constexpr double EMPTY = -1e30;
    static constexpr i64 WINDOW = 8;
    i64 seqs, time, n;
    std::vector<unsigned char> reset;

    WeightedMeans(Random& random, bool large) {
        name = "wkv", has_adjoint = false, dtypes = {linrnn::BF16};
        seqs = random.size(4), time = random.size(20), n = random.size(large ? 600 : 40);
        reset = resets(random, seqs * time, random.coin());
        const i64 numbers = seqs * time * n, states = seqs * n;
        for (i64 size : {numbers, numbers, numbers, n, n, states, states, numbers, states, states})
            inputs.push_back(random.numbers(size));
        for (double& x : inputs[DECAY]) x = std::fabs(x);
        if (random.coin()) inputs[MEAN].assign(size_t(states), 0.0), inputs[NORM].assign(size_t(states), EMPTY);
    }
    static double logistic(double x) { return 1 / (1 + std::exp(-x)); }
    bool cut(i64 at) const { return !reset.empty() && reset[size_t(at)]; }
    Many sizes() const {
        const size_t numbers = size_t(seqs * time * n), states = size_t(seqs * n);
        return {Values(numbers), Values(states),  Values(states), Values(numbers),    Values(numbers),
                Values(numbers), Values(states),  Values(states), Values(2 * states)};
    }
    // One channel of a sequence, along time and back.
    void channel(i64 s, i64 c, Many& all) const {
        const size_t one = size_t(s * n + c), row = size_t(c);
        Values means, norms;
        double mean = inputs[MEAN][one], norm = inputs[NORM][one];
        auto place = [&](i64 t) { return size_t((s * time + t) * n + c); };
        for (i64 t = 0; t < time; ++t) {
            if (cut(s * time + t)) mean = 0, norm = EMPTY;
            means.push_back(mean), norms.push_back(norm);
            const double k = inputs[K][place(t)], v = inputs[V][place(t)], kept = norm - inputs[DECAY][row];
            const double p = logistic(norm - inputs[BONUS][row] - k), q = logistic(kept - k);
            all[Y][place(t)] = logistic(inputs[R][place(t)]) * (v + p * (mean - v));
            mean = v + q * (mean - v);
            norm = std::fmax(kept, k) + std::log1p(std::exp(-std::fabs(kept - k)));
        }
        all[LAST_MEAN][one] = mean, all[LAST_NORM][one] = norm;
        double into_mean = inputs[INTO_MEAN][one], into_norm = inputs[INTO_NORM][one], of_decay = 0, of_bonus = 0;
        for (i64 t = time; t-- > 0;) {
            const double k = inputs[K][place(t)], v = inputs[V][place(t)], gate = logistic(inputs[R][place(t)]);
            const double gap = means[size_t(t)] - v, before = norms[size_t(t)];
            const double p = logistic(before - inputs[BONUS][row] - k), q = logistic(before - inputs[DECAY][row] - k);
            const double into = inputs[INTO_Y][place(t)] * gate;
            const double for_p = into * gap * p * (1 - p), for_q = into_mean * gap * q * (1 - q);
            all[GRAD_R][place(t)] = into * (1 - gate) * (v + p * gap);
            all[GRAD_V][place(t)] = into * (1 - p) + into_mean * (1 - q);
            all[GRAD_K][place(t)] = into_norm * (1 - q) - for_p - for_q;
            of_decay -= for_q + into_norm * q, of_bonus -= for_p;
            into_mean = into * p + into_mean * q, into_norm = for_p + for_q + into_norm * q;
            if (cut(s * time + t)) into_mean = into_norm = 0;
        }
        all[GRAD_MEAN][one] = into_mean, all[GRAD_NORM][one] = into_norm;
        all[SUMS][size_t(s * 2 * n + c)] = of_decay, all[SUMS][size_t((s * 2 + 1) * n + c)] = of_bonus;
    }
    Many loop() const override {
        Many all = sizes();
        for (i64 s = 0; s < seqs; ++s)
            for (i64 c = 0; c < n; ++c) channel(s, c, all);
        return all;
    }
    Many forward(const Many& in, i64 dtype, i64 threads) const override {
        std::vector<Memory> arguments, results;
        for (i64 i = 0; i < i64(in.size()); ++i)
            arguments.emplace_back(i < DECAY || i == INTO_Y ? dtype : i64(linrnn::F32), in[size_t(i)]);
        const Many shape = sizes();
        for (i64 i = 0; i < RESULTS; ++i) {
            const bool sequence = i == Y || (i >= GRAD_K && i <= GRAD_R);
            const i64 type = i == SUMS ? i64(linrnn::F64) : sequence ? dtype : i64(linrnn::F32);
            results.emplace_back(type, i64(shape[size_t(i)].size()));
        }
        Memory marks(linrnn::F32, seqs * ((time + WINDOW - 1) / WINDOW) * 2 * n);
        auto rows = [&](Memory& x) { return linrnn::Array{x.address(), time * n, n}; };
        linrnn::WkvArgs args{};
        args.size = sizeof args, args.dtype = dtype, args.threads = threads;
        args.seqs = seqs, args.time = time, args.channels = n, args.empty = EMPTY;
        args.k = rows(arguments[K]), args.v = rows(arguments[V]), args.r = rows(arguments[R]);
        args.decay = arguments[DECAY].address(), args.bonus = arguments[BONUS].address();
        args.reset = array_of(reset, time), args.y = rows(results[Y]), args.marks = marks.address();
        args.initial_mean = arguments[MEAN].address(), args.initial_norm = arguments[NORM].address();
        args.final_mean = results[LAST_MEAN].address(), args.final_norm = results[LAST_NORM].address();
        const int code = linrnn_wkv(&args);
        if (code == NO_HALF_PRODUCTS) return loop();
        demand(code == 0, "the kernel returned " + std::to_string(code));
        args.backward = 1, args.grad_y = rows(arguments[INTO_Y]);
        args.final_mean = arguments[INTO_MEAN].address(), args.final_norm = arguments[INTO_NORM].address();
        args.grad_k = results[GRAD_K].address(), args.grad_v = results[GRAD_V].address();
        args.grad_r = results[GRAD_R].address(), args.sums = results[SUMS].address();
        args.grad_mean = results[GRAD_MEAN].address(), args.grad_norm = results[GRAD_NORM].address();
        run(linrnn_wkv, &args);
        Many all;
        for (const Memory& x : results) all.push_back(x.values());
        return all;
    }
};
