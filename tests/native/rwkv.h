// The kernels of a streaming step: linear_step, and RWKV-4's time_mix_step and channel_mix_step.
#pragma once
#include "../../src/native/linear_step_args.h"
#include "../../src/native/rwkv_step_args.h"
#include "mamba.h"

extern "C" int linrnn_linear_step(const void*);
extern "C" int linrnn_time_mix_step(const void*);
extern "C" int linrnn_channel_mix_step(const void*);

// The product of a matrix with every row of x.
inline Values product(const Values& matrix, const Values& x, i64 batch) {
    const size_t n = x.size() / size_t(batch), rows = matrix.size() / n;
    Values y(size_t(batch) * rows);
    for (size_t i = 0; i < y.size(); ++i)
        for (size_t j = 0; j < n; ++j) y[i] += matrix[i % rows * n + j] * x[i / rows * n + j];
    return y;
}

struct OneStep : Problem {
    i64 batch, model, inner;

    OneStep(Random& random, const char* name_, bool large) {
        name = name_;
        has_adjoint = false;
        dtypes = {linrnn::F32, linrnn::F64};
        batch = 1 + random.below(4), model = 1 + random.below(60), inner = 1 + random.below(60);
        if (large) model += 600, inner += 700;  // several threads
    }
    void add(Random& random, std::initializer_list<i64> sizes) {
        for (i64 size : sizes) inputs.push_back(random.numbers(size, 0.5));
    }
    // The record's places of the tensors, in order.
    static std::vector<Memory> place(const Many& in, i64 dtype, std::initializer_list<i64*> places) {
        std::vector<Memory> tensors;
        for (auto& values : in) tensors.emplace_back(dtype, values);
        auto next = tensors.begin();
        for (i64* p : places) *p = address(*next++);
        return tensors;
    }
};

struct Linear : OneStep {
    Linear(Random& random, bool large) : OneStep(random, "linear_step", large) {
        add(random, {batch * model, inner * model, random.coin() ? inner : 0});
    }
    Many loop() const override {
        Values y = product(inputs[1], inputs[0], batch);
        for (size_t i = 0; i < y.size() && !inputs[2].empty(); ++i) y[i] += inputs[2][i % size_t(inner)];
        return {y};
    }
    Many forward(const Many& in, i64 dtype, i64 threads) const override {
        linrnn::LinearStepArgs args{};
        auto tensors = place(in, dtype, {&args.x, &args.weight, &args.bias});
        Memory y(dtype, batch * inner);
        args.size = sizeof args, args.dtype = dtype, args.threads = threads, args.batch = batch;
        args.columns = model, args.rows = inner, args.y = y.address();
        run(linrnn_linear_step, &args);
        return {y.values()};
    }
};

// RWKV-4's two halves mix their input with the one before it.
struct Shifted : OneStep {
    using OneStep::OneStep;
    Values mixed(const Values& mu, const Values& before) const {
        Values to = inputs[0];
        for (size_t i = 0; i < to.size() && !mu.empty(); ++i)
            to[i] = mu[i % size_t(model)] * to[i] + (1 - mu[i % size_t(model)]) * before[i];
        return to;
    }
};

struct TimeMix : Shifted {
    enum { X, MU_K, MU_V, MU_R, KEY, VALUE, RECEPTANCE, OUTPUT, DECAY, BONUS, MEAN, NORM, BEFORE };

    TimeMix(Random& random, bool large) : Shifted(random, "time_mix_step", large) {
        const i64 mu = random.coin() ? model : 0, matrix = inner * model;
        add(random, {batch * model, mu, mu, mu, matrix, matrix, matrix, matrix, inner, inner,
                     batch * inner, batch * inner, mu * batch});
    }
    Values project(int mu, int matrix) const {
        return product(inputs[size_t(matrix)], mixed(inputs[size_t(mu)], inputs[BEFORE]), batch);
    }
    Many loop() const override {
        Values k = project(MU_K, KEY), v = project(MU_V, VALUE), r = project(MU_R, RECEPTANCE);
        Values mean = inputs[MEAN], norm = inputs[NORM];
        for (size_t i = 0; i < k.size(); ++i) {
            const size_t c = i % size_t(inner);
            double now = Gated::sigmoid(inputs[BONUS][c] + k[i] - norm[i]);
            r[i] = Gated::sigmoid(r[i]) * ((1 - now) * mean[i] + now * v[i]);
            double odds = norm[i] - std::exp(inputs[DECAY][c]) - k[i], past = Gated::sigmoid(odds);
            mean[i] = past * mean[i] + (1 - past) * v[i];
            norm[i] = k[i] + softplus(odds);
        }
        return {product(inputs[OUTPUT], r, batch), mean, norm,
                inputs[BEFORE].empty() ? Values() : inputs[X]};
    }
    Many forward(const Many& in, i64 dtype, i64 threads) const override {
        linrnn::TimeMixStepArgs args{};
        auto tensors = place(in, dtype, {&args.x, &args.mu_k, &args.mu_v, &args.mu_r, &args.key,
                                         &args.value, &args.receptance, &args.output,
                                         &args.time_decay, &args.time_first, &args.mean,
                                         &args.log_norm, &args.shift});
        Memory y(dtype, batch * model), mean(dtype, batch * inner), norm(dtype, batch * inner);
        Memory shift(dtype, i64(in[BEFORE].size()));
        args.size = sizeof args, args.dtype = dtype, args.threads = threads, args.batch = batch;
        args.model = model, args.state = inner, args.y = y.address();
        args.new_mean = mean.address(), args.new_log_norm = norm.address();
        args.new_shift = address(shift);
        run(linrnn_time_mix_step, &args);
        return {y.values(), mean.values(), norm.values(), shift.values()};
    }
};

struct ChannelMix : Shifted {
    enum { X, MU_K, MU_R, KEY, RECEPTANCE, VALUE, BEFORE };

    ChannelMix(Random& random, bool large) : Shifted(random, "channel_mix_step", large) {
        add(random, {batch * model, model, model, inner * model, model * model, model * inner,
                     batch * model});
    }
    Many loop() const override {
        Values k = product(inputs[KEY], mixed(inputs[MU_K], inputs[BEFORE]), batch);
        for (double& x : k) x = x < 0 ? 0 : x * x;
        Values gate = product(inputs[RECEPTANCE], mixed(inputs[MU_R], inputs[BEFORE]), batch);
        Values y = product(inputs[VALUE], k, batch);
        for (size_t i = 0; i < y.size(); ++i) y[i] *= Gated::sigmoid(gate[i]);
        return {y, inputs[X]};
    }
    Many forward(const Many& in, i64 dtype, i64 threads) const override {
        linrnn::ChannelMixStepArgs args{};
        auto tensors = place(in, dtype, {&args.x, &args.mu_k, &args.mu_r, &args.key,
                                         &args.receptance, &args.value, &args.past});
        Memory y(dtype, batch * model), past(dtype, batch * model);
        args.size = sizeof args, args.dtype = dtype, args.threads = threads, args.batch = batch;
        args.model = model, args.inner = inner;
        args.y = y.address(), args.new_past = past.address();
        run(linrnn_channel_mix_step, &args);
        return {y.values(), past.values()};
    }
};
