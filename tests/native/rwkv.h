// The kernels of a streaming step: linear_step, norm_step, RWKV-4's time_mix_step and
// channel_mix_step, and the program that runs several.
#pragma once
#include <cstring>

#include "../../src/native/linear_step_args.h"
#include "../../src/native/norm_step_args.h"
#include "../../src/native/rwkv_step_args.h"
#include "../../src/native/step_program_args.h"
#include "mamba.h"

extern "C" int linrnn_linear_step(const void*);
extern "C" int linrnn_norm_step(const void*);
extern "C" int linrnn_step_program(const void*);
extern "C" int linrnn_time_mix_step(const void*);
extern "C" int linrnn_channel_mix_step(const void*);

// The product of a matrix of some rows with every row of x.
inline Values product(const Values& matrix, const Values& x, i64 batch, i64 height) {
    const size_t n = batch ? x.size() / size_t(batch) : 0, rows = size_t(height);
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
        dtypes = {linrnn::F32, linrnn::F64, linrnn::BF16};
        batch = random.size(4), model = random.size(60), inner = random.size(60);
        if (large) model += 600, inner += 700;  // several threads
    }
    void add(Random& random, std::initializer_list<i64> sizes) {
        for (i64 size : sizes) inputs.push_back(random.numbers(size, 0.5));
    }
    // The record's places of the tensors, in order: the input, weights, and the last are states.
    static std::vector<Memory> place(const Many& in, i64 dtype, std::initializer_list<i64*> places,
                                     size_t states = 0) {
        std::vector<Memory> tensors;
        for (auto& values : in) {
            bool weight = !tensors.empty() && tensors.size() < in.size() - states;
            tensors.emplace_back(weight ? dtype : state_dtype(dtype), values);
        }
        auto next = tensors.begin();
        for (i64* p : places) *p = (next++)->address();
        return tensors;
    }
};

struct Linear : OneStep {
    Linear(Random& random, bool large) : OneStep(random, "linear_step", large) {
        add(random, {batch * model, inner * model, random.coin() ? inner : 0});
    }
    Many loop() const override {
        Values y = product(inputs[1], inputs[0], batch, inner);
        for (size_t i = 0; i < y.size() && !inputs[2].empty(); ++i) y[i] += inputs[2][i % size_t(inner)];
        return {y};
    }
    Many forward(const Many& in, i64 dtype, i64 threads) const override {
        linrnn::LinearStepArgs args{};
        auto tensors = place(in, dtype, {&args.x, &args.weight, &args.bias});
        Memory y(state_dtype(dtype), batch * inner);
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
        for (double& norm : inputs[NORM])
            if (random.coin()) norm = 0;  // nothing read yet
    }
    Values project(int mu, int matrix) const {
        return product(inputs[size_t(matrix)], mixed(inputs[size_t(mu)], inputs[BEFORE]), batch,
                       inner);
    }
    Many loop() const override {
        Values k = project(MU_K, KEY), v = project(MU_V, VALUE), r = project(MU_R, RECEPTANCE);
        Values mean = inputs[MEAN], norm = inputs[NORM];
        for (double& n : norm) n = n == 0 ? -1e30 : n;
        for (size_t i = 0; i < k.size(); ++i) {
            const size_t c = i % size_t(inner);
            double now = Gated::sigmoid(inputs[BONUS][c] + k[i] - norm[i]);
            r[i] = Gated::sigmoid(r[i]) * ((1 - now) * mean[i] + now * v[i]);
            double odds = norm[i] - std::exp(inputs[DECAY][c]) - k[i], past = Gated::sigmoid(odds);
            mean[i] = past * mean[i] + (1 - past) * v[i];
            norm[i] = k[i] + softplus(odds);
        }
        return {product(inputs[OUTPUT], r, batch, model), mean, norm,
                inputs[BEFORE].empty() ? Values() : inputs[X]};
    }
    Many forward(const Many& in, i64 dtype, i64 threads) const override {
        linrnn::TimeMixStepArgs args{};
        auto tensors = place(in, dtype, {&args.x, &args.mu_k, &args.mu_v, &args.mu_r, &args.key,
                                         &args.value, &args.receptance, &args.output,
                                         &args.time_decay, &args.time_first, &args.mean,
                                         &args.log_norm, &args.shift}, 3);
        const i64 wide = state_dtype(dtype);
        Memory y(wide, batch * model), mean(wide, batch * inner), norm(wide, batch * inner);
        Memory shift(wide, i64(in[BEFORE].size()));
        args.size = sizeof args, args.dtype = dtype, args.threads = threads, args.batch = batch;
        args.model = model, args.state = inner, args.y = y.address();
        args.new_mean = mean.address(), args.new_log_norm = norm.address();
        args.new_shift = shift.address();
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
        Values k = product(inputs[KEY], mixed(inputs[MU_K], inputs[BEFORE]), batch, inner);
        for (double& x : k) x = x < 0 ? 0 : x * x;
        Values gate = product(inputs[RECEPTANCE], mixed(inputs[MU_R], inputs[BEFORE]), batch, model);
        Values y = product(inputs[VALUE], k, batch, model);
        for (size_t i = 0; i < y.size(); ++i) y[i] *= Gated::sigmoid(gate[i]);
        return {y, inputs[X]};
    }
    Many forward(const Many& in, i64 dtype, i64 threads) const override {
        linrnn::ChannelMixStepArgs args{};
        auto tensors = place(in, dtype, {&args.x, &args.mu_k, &args.mu_r, &args.key,
                                         &args.receptance, &args.value, &args.past}, 1);
        Memory y(state_dtype(dtype), batch * model), past(state_dtype(dtype), batch * model);
        args.size = sizeof args, args.dtype = dtype, args.threads = threads, args.batch = batch;
        args.model = model, args.inner = inner;
        args.y = y.address(), args.new_past = past.address();
        run(linrnn_channel_mix_step, &args);
        return {y.values(), past.values()};
    }
};

// A norm of a sum, then a matrix product, alone or as a program of two calls.
struct NormThenLinear : OneStep {
    enum { X, WEIGHT, BIAS, MATRIX, ADDED };
    i64 kind;
    bool whole;

    NormThenLinear(Random& random, bool whole_, bool large)
        : OneStep(random, whole_ ? "step_program" : "norm_step", large), whole(whole_) {
        kind = random.below(3);
        const i64 added = random.coin() ? batch * model : 0;
        add(random, {batch * model, kind > 0 && random.coin() ? model : 0,
                     kind > 0 && random.coin() ? model : 0, inner * model, added});
    }
    Values sum() const {
        Values x = inputs[X];
        for (size_t i = 0; i < x.size() && !inputs[ADDED].empty(); ++i) x[i] += inputs[ADDED][i];
        return x;
    }
    Values normalised() const {
        Values y = sum();
        const size_t n = size_t(model);
        for (size_t b = 0; kind > 0 && b < size_t(batch); ++b) {
            double mean = 0, square = 0, *row = &y[b * n];
            for (size_t i = 0; kind == linrnn::LAYER_NORM && i < n; ++i) mean += row[i] / double(n);
            for (size_t i = 0; i < n; ++i) square += (row[i] - mean) * (row[i] - mean) / double(n);
            for (size_t i = 0; i < n; ++i) {
                row[i] = (row[i] - mean) / std::sqrt(square + 0.25);
                if (!inputs[WEIGHT].empty()) row[i] *= inputs[WEIGHT][i];
                if (!inputs[BIAS].empty()) row[i] += inputs[BIAS][i];
            }
        }
        return y;
    }
    Many loop() const override {
        if (!whole) return {normalised(), sum()};
        return {product(inputs[MATRIX], normalised(), batch, inner)};
    }
    Many forward(const Many& in, i64 dtype, i64 threads) const override {
        struct {
            linrnn::StepProgramArgs program;
            linrnn::StepCall calls[2];
            linrnn::NormStepArgs norm;
            linrnn::LinearStepArgs linear;
        } all{};
        auto &args = all.norm;
        auto tensors = place(in, dtype, {&args.x, &args.weight, &args.bias, &all.linear.weight, &args.added}, 1);
        const i64 wide = state_dtype(dtype);
        Memory z(wide, batch * model), total(wide, batch * model), y(wide, batch * inner);
        double eps = 0.25;
        std::memcpy(&args.eps, &eps, sizeof eps);
        args.size = sizeof args, args.dtype = dtype, args.threads = threads, args.batch = batch;
        args.model = model, args.norm = kind, args.sum = total.address(), args.y = z.address();
        if (!whole) {
            run(linrnn_norm_step, &args);
            return {z.values(), total.values()};
        }
        all.linear.size = sizeof all.linear, all.linear.dtype = dtype, all.linear.threads = threads;
        all.linear.batch = batch, all.linear.columns = model, all.linear.rows = inner;
        all.linear.x = z.address(), all.linear.y = y.address();
        all.program = {sizeof all.program, sizeof all, 2};
        const char *base = reinterpret_cast<char*>(&all);
        all.calls[0] = {1, reinterpret_cast<char*>(&all.norm) - base};
        all.calls[1] = {0, reinterpret_cast<char*>(&all.linear) - base};
        run(linrnn_step_program, &all);
        return {y.values()};
    }
};
