// The kernels of token_mix, of the keys of RWKV-7, of the decays of RWKV-6, of skips, of heads and of
// the gradients of weights; and rounding.
#pragma once
#include "../../src/native/log_decays_args.h"
#include "../../src/native/low_rank_keys_args.h"
#include "../../src/native/round_args.h"
#include "../../src/native/scale_heads_args.h"
#include "../../src/native/skip_args.h"
#include "../../src/native/token_mix_args.h"
#include "../../src/native/weight_gradient_args.h"
#include "mamba.h"

extern "C" int linrnn_log_decays(const void*);
extern "C" int linrnn_low_rank_keys(const void*);
extern "C" int linrnn_round(const void*);
extern "C" int linrnn_scale_heads(const void*);
extern "C" int linrnn_skip(const void*);
extern "C" int linrnn_token_mix(const void*);
extern "C" int linrnn_weight_gradient(const void*);

struct Mixes : Problem {
    enum { X, PAST, MU, MOVED };
    i64 seqs, time, channels, mixes, parts, apart;
    Values marks;

    Mixes(Random& random, bool large) {
        name = "token_mix";
        seqs = random.size(3), time = random.size(90), channels = random.size(60);
        mixes = 1 + random.below(5), parts = 1 + random.below(4), apart = random.coin() ? 0 : 3;
        if (large) time += 200, channels += 100;
        const i64 numbers = seqs * time * channels;
        inputs = {random.numbers(numbers), random.numbers(seqs * channels), random.numbers(mixes * channels),
                  random.coin() ? random.numbers(mixes * numbers) : Values()};
        marks = random.coin() ? Values() : Values(size_t(seqs * time));
        for (double& mark : marks) mark = random.below(9) == 0;
    }
    double before(i64 s, i64 t, i64 c) const {
        if (!marks.empty() && marks[size_t(s * time + t)] != 0) return 0;
        return t ? inputs[X][size_t((s * time + t - 1) * channels + c)] : inputs[PAST][size_t(s * channels + c)];
    }
    Many loop() const override {
        Many outputs;
        for (i64 i = 0; i < mixes; ++i) {
            Values y = inputs[X];
            for (i64 at = 0; at < i64(y.size()); ++at) {
                const i64 c = at % channels, row = at / channels;
                double m = inputs[MU][size_t(i * channels + c)];
                if (!inputs[MOVED].empty()) m += inputs[MOVED][size_t(i * i64(y.size()) + at)];
                y[size_t(at)] += m * (before(row / time, row % time, c) - y[size_t(at)]);
            }
            outputs.push_back(y);
        }
        return outputs;
    }
    Many call(const Many& in, const Many* weights, i64 dtype, i64 threads) const {
        const i64 wide = state_dtype(dtype), numbers = seqs * time * channels;
        Rows x(dtype, seqs, time, channels, apart, in[X]);
        Memory past(wide, in[PAST]), mu(wide, in[MU]), moved(dtype, in[MOVED]);
        std::vector<unsigned char> reset(marks.begin(), marks.end());
        std::vector<Memory> outputs;
        std::vector<i64> addresses;
        for (i64 i = 0; i < mixes; ++i) {
            if (weights) outputs.emplace_back(dtype, (*weights)[size_t(i)]);
            else outputs.emplace_back(dtype, numbers);
            addresses.push_back(outputs.back().address());
        }
        Memory grad_x(dtype, numbers), grad_past(wide, zeros(seqs * channels)), grad_moved(dtype, moved.count());
        Memory sums(linrnn::F64, zeros(parts * mixes * channels));
        linrnn::TokenMixArgs args{};
        args.size = sizeof args, args.dtype = wide, args.threads = threads;
        args.seqs = seqs, args.time = time, args.channels = channels, args.mixes = mixes;
        args.x = x.array(), args.x_dtype = dtype, args.past = past.address(), args.mu = mu.address();
        args.moved = {moved.address(), time * channels, channels};
        args.moved_dtype = dtype, args.moved_mix = numbers;
        if (!reset.empty()) args.reset = {reinterpret_cast<i64>(reset.data()), time, 1};
        args.outputs = reinterpret_cast<i64>(addresses.data()), args.output_dtype = dtype;
        args.backward = weights != nullptr, args.parts = parts;
        args.grad_x = grad_x.address(), args.grad_past = grad_past.address();
        args.grad_moved = grad_moved.address(), args.sums = sums.address();
        run(linrnn_token_mix, &args);
        if (weights)
            return {grad_x.values(), grad_past.values(), sum_of(sums.values(), mixes * channels), grad_moved.values()};
        Many results;
        for (const Memory& y : outputs) results.push_back(y.values());
        return results;
    }
    Many forward(const Many& in, i64 dtype, i64 threads) const override {
        return call(in, nullptr, dtype, threads);
    }
    Many backward(const Many& weights, i64 dtype, i64 threads) const override {
        return call(inputs, &weights, dtype, threads);
    }
};

struct LowRankKeys : Problem {
    enum { KEY, RATE, DECAY, DIRECTION, RELAX };
    static constexpr double EPS = 0.5, SCALE = -0.6;
    i64 rows, heads, width, parts;

    LowRankKeys(Random& random, bool large) {
        name = "low_rank_keys";
        rows = random.size(30), heads = 1 + random.below(3), width = 1 + random.below(60);
        if (large) rows += 300, width += 100;
        parts = 1 + random.below(4);
        const i64 numbers = rows * heads * width;
        for (int i = KEY; i <= DECAY; ++i) inputs.push_back(random.numbers(numbers));
        for (int i = DIRECTION; i <= RELAX; ++i) inputs.push_back(random.numbers(heads * width));
    }
    Many loop() const override {
        const Values &key = inputs[KEY], &direction = inputs[DIRECTION], &relax = inputs[RELAX];
        Many y(4, Values(key.size()));
        for (i64 head = 0; head < rows * heads; ++head) {
            double sum = EPS;
            auto along = [&](i64 i) { return key[size_t(i)] * direction[size_t(i % (heads * width))]; };
            for (i64 i = head * width; i < (head + 1) * width; ++i) sum += along(i) * along(i);
            for (i64 i = head * width; i < (head + 1) * width; ++i) {
                const auto at = size_t(i);
                const double s = Gated::sigmoid(inputs[RATE][at]), c = along(i) / std::sqrt(sum);
                y[0][at] = key[at] * (1 + (s - 1) * relax[size_t(i % (heads * width))]);
                y[1][at] = -c, y[2][at] = c * s;
                y[3][at] = SCALE * Gated::sigmoid(inputs[DECAY][at]);
            }
        }
        return y;
    }
    Many call(const Many& in, const Many* weights, i64 dtype, i64 threads) const {
        const i64 wide = state_dtype(dtype), channels = heads * width, numbers = rows * channels;
        Memory key(dtype, in[KEY]), rate(dtype, in[RATE]), decay(dtype, in[DECAY]);
        Memory direction(wide, in[DIRECTION]), relax(wide, in[RELAX]);
        std::vector<Memory> y;
        for (size_t i = 0; i < 4; ++i)
            if (weights) y.emplace_back(i < 3 ? dtype : wide, (*weights)[i]);
            else y.emplace_back(i < 3 ? dtype : wide, numbers);
        Memory grad_key(dtype, numbers), grad_rate(dtype, numbers), grad_decay(dtype, numbers);
        Memory sums(linrnn::F64, zeros(2 * parts * channels));
        linrnn::LowRankKeysArgs args{};
        args.size = sizeof args, args.dtype = wide, args.threads = threads;
        args.rows = rows, args.heads = heads, args.width = width, args.eps = EPS, args.scale = SCALE;
        args.key = key.address(), args.rate = rate.address(), args.decay = decay.address();
        args.key_dtype = args.rate_dtype = args.decay_dtype = args.out_dtype = dtype;
        args.direction = direction.address(), args.relax = relax.address();
        args.k = y[0].address(), args.a = y[1].address(), args.b = y[2].address(), args.g = y[3].address();
        args.backward = weights != nullptr, args.parts = parts;
        args.grad_key = grad_key.address(), args.grad_rate = grad_rate.address();
        args.grad_decay = grad_decay.address(), args.sums = sums.address();
        run(linrnn_low_rank_keys, &args);
        if (!weights) return {y[0].values(), y[1].values(), y[2].values(), y[3].values()};
        const Values both = sum_of(sums.values(), 2 * channels);
        return {grad_key.values(), grad_rate.values(), grad_decay.values(),
                Values(both.begin(), both.begin() + channels), Values(both.begin() + channels, both.end())};
    }
    Many forward(const Many& in, i64 dtype, i64 threads) const override {
        return call(in, nullptr, dtype, threads);
    }
    Many backward(const Many& weights, i64 dtype, i64 threads) const override {
        return call(inputs, &weights, dtype, threads);
    }
};

struct LogDecays : Problem {
    enum { X, BASE };
    static constexpr double LIMIT = 1.5;  // some sums are beyond
    i64 rows, channels, parts;

    LogDecays(Random& random, bool large) {
        name = "log_decays";
        rows = random.size(30), channels = 1 + random.below(60);
        if (large) rows += 300, channels += 100;
        parts = 1 + random.below(4);
        inputs = {random.numbers(rows * channels), random.numbers(channels)};
        for (i64 i = 0; i < rows * channels; ++i) {  // none so near a limit that its side is unclear
            const double sum = inputs[X][size_t(i)] + inputs[BASE][size_t(i % channels)];
            if (std::abs(std::abs(sum) - LIMIT) < 0.1) inputs[X][size_t(i)] += 0.25;
        }
    }
    Many loop() const override {
        Values y = inputs[X];
        for (i64 i = 0; i < i64(y.size()); ++i) {
            const double sum = y[size_t(i)] + inputs[BASE][size_t(i % channels)];
            y[size_t(i)] = -std::exp(sum > LIMIT ? LIMIT : sum < -LIMIT ? -LIMIT : sum);
        }
        return {y};
    }
    Many call(const Many& in, const Many* weights, i64 dtype, i64 threads) const {
        const i64 wide = state_dtype(dtype), numbers = rows * channels;
        Memory x(dtype, in[X]), base(wide, in[BASE]), grad_x(dtype, numbers);
        Memory g = weights ? Memory(wide, (*weights)[0]) : Memory(wide, numbers);
        Memory sums(linrnn::F64, zeros(parts * channels));
        linrnn::LogDecaysArgs args{};
        args.size = sizeof args, args.dtype = wide, args.threads = threads;
        args.rows = rows, args.channels = channels, args.limit = LIMIT;
        args.x = x.address(), args.x_dtype = dtype, args.base = base.address(), args.g = g.address();
        args.backward = weights != nullptr, args.parts = parts;
        args.grad_x = grad_x.address(), args.sums = sums.address();
        run(linrnn_log_decays, &args);
        if (!weights) return {g.values()};
        return {grad_x.values(), sum_of(sums.values(), channels)};
    }
    Many forward(const Many& in, i64 dtype, i64 threads) const override {
        return call(in, nullptr, dtype, threads);
    }
    Many backward(const Many& weights, i64 dtype, i64 threads) const override {
        return call(inputs, &weights, dtype, threads);
    }
};

struct LogSigmoids : Problem {
    i64 rows, channels, parts;

    LogSigmoids(Random& random, bool large) {
        name = "log_sigmoid";
        rows = random.size(30), channels = 1 + random.below(60);
        if (large) rows += 300, channels += 100;
        parts = 1 + random.below(4);
        inputs = {random.numbers(rows * channels)};
    }
    Many loop() const override {
        Values y = inputs[0];
        for (double& v : y) v = -SCALE * (std::log1p(std::exp(-std::abs(v))) + (v < 0 ? -v : 0));
        return {y};
    }
    Many call(const Many& in, const Many* weights, i64 dtype, i64 threads) const {
        const i64 wide = state_dtype(dtype), numbers = rows * channels;
        Memory x(dtype, in[0]), grad_x(dtype, numbers);
        Memory g = weights ? Memory(wide, (*weights)[0]) : Memory(wide, numbers);
        Memory sums(linrnn::F64, zeros(parts * channels));
        linrnn::LogDecaysArgs args{};
        args.size = sizeof args, args.dtype = wide, args.threads = threads;
        args.rows = rows, args.channels = channels, args.sigmoid = 1, args.scale = SCALE;
        args.x = x.address(), args.x_dtype = dtype, args.g = g.address();
        args.backward = weights != nullptr, args.parts = parts;
        args.grad_x = grad_x.address(), args.sums = sums.address();
        run(linrnn_log_decays, &args);
        if (!weights) return {g.values()};
        return {grad_x.values()};
    }
    Many forward(const Many& in, i64 dtype, i64 threads) const override {
        return call(in, nullptr, dtype, threads);
    }
    Many backward(const Many& weights, i64 dtype, i64 threads) const override {
        return call(inputs, &weights, dtype, threads);
    }

private:
    static constexpr double SCALE = 0.0625;
};

struct Skips : Problem {
    enum { Z, WEIGHT, X };
    i64 rows, channels, parts;

    Skips(Random& random, bool large) {
        name = "skip";
        rows = random.size(30), channels = 1 + random.below(60);
        if (large) rows += 300, channels += 100;
        parts = 1 + random.below(4);
        const i64 numbers = rows * channels;
        inputs = {random.numbers(numbers), random.numbers(channels), random.numbers(numbers)};
    }
    Many loop() const override {
        Values y = inputs[Z];
        for (i64 i = 0; i < i64(y.size()); ++i)
            y[size_t(i)] += inputs[WEIGHT][size_t(i % channels)] * inputs[X][size_t(i)];
        return {y};
    }
    Many call(const Many& in, const Many* weights, i64 dtype, i64 threads) const {
        const i64 wide = state_dtype(dtype), numbers = rows * channels;
        Memory z(dtype, in[Z]), weight(wide, in[WEIGHT]), x(dtype, in[X]);
        Memory grad_z(dtype, numbers), grad_x(dtype, numbers);
        Memory y = weights ? Memory(wide, (*weights)[0]) : Memory(wide, numbers);
        Memory sums(linrnn::F64, zeros(parts * channels));
        linrnn::SkipArgs args{};
        args.size = sizeof args, args.dtype = wide, args.threads = threads;
        args.rows = rows, args.channels = channels, args.y = y.address();
        args.z = z.address(), args.x = x.address(), args.z_dtype = args.x_dtype = dtype;
        args.weight = weight.address(), args.backward = weights != nullptr, args.parts = parts;
        args.grad_z = grad_z.address(), args.grad_x = grad_x.address(), args.sums = sums.address();
        run(linrnn_skip, &args);
        if (!weights) return {y.values()};
        return {grad_z.values(), sum_of(sums.values(), channels), grad_x.values()};
    }
    Many forward(const Many& in, i64 dtype, i64 threads) const override {
        return call(in, nullptr, dtype, threads);
    }
    Many backward(const Many& weights, i64 dtype, i64 threads) const override {
        return call(inputs, &weights, dtype, threads);
    }
};

// Of a processor without matrix tiles there is nothing to check.
struct WeightGradients : Problem {
    static constexpr int NO_TILES = 5;
    i64 rows, outputs, given, apart;
    bool summed;

    WeightGradients(Random& random, bool large) {
        name = "weight_gradient", has_adjoint = false, dtypes = {linrnn::BF16};
        rows = random.size(90), outputs = 1 + random.below(70), given = 1 + random.below(70);
        if (large) rows += 600, outputs += 60;
        apart = random.below(4), summed = random.coin();
        inputs = {random.numbers(rows * outputs), random.numbers(rows * given)};
    }
    Many loop() const override {
        Values y(size_t(outputs * given)), sums(size_t(summed ? outputs : 0));
        for (i64 at = 0; summed && at < rows * outputs; ++at) sums[size_t(at % outputs)] += inputs[0][size_t(at)];
        for (i64 t = 0; t < rows; ++t)
            for (i64 i = 0; i < outputs * given; ++i)
                y[size_t(i)] += inputs[0][size_t(t * outputs + i / given)] * inputs[1][size_t(t * given + i % given)];
        return {y, sums};
    }
    Many forward(const Many& in, i64 dtype, i64 threads) const override {
        Rows grad(dtype, 1, rows, outputs, apart, in[0]), x(dtype, 1, rows, given, apart, in[1]);
        Memory y(linrnn::F32, outputs * given), sums(linrnn::F32, summed ? outputs : 0);
        linrnn::WeightGradientArgs args{};
        args.size = sizeof args, args.dtype = dtype, args.threads = threads;
        args.rows = rows, args.outputs = outputs, args.inputs = given;
        args.grad = grad.array().data, args.grad_step = outputs + apart;
        args.x = x.array().data, args.x_step = given + apart, args.weight = y.address();
        args.sums = sums.address();
        const int code = linrnn_weight_gradient(&args);
        if (code == NO_TILES) return loop();
        demand(code == 0, "the kernel returned " + std::to_string(code));
        return {y.values(), sums.values()};
    }
};

struct Rounded : Problem {
    i64 count;

    Rounded(Random& random, bool large) {
        name = "round", has_adjoint = false, dtypes = {linrnn::BF16};
        count = random.size(200) + (large ? 200000 : 0);
        inputs = {random.numbers(count)};
        for (double& x : inputs[0]) x = double(float(x / 3));  // none that bfloat16 holds, but 0
    }
    // To seven digits of the fraction, ties to even.
    Many loop() const override {
        Values y = inputs[0];
        for (double& x : y) {
            int exponent;
            const double fraction = std::frexp(x, &exponent);
            x = std::ldexp(std::nearbyint(std::ldexp(fraction, 8)), exponent - 8);
        }
        return {y};
    }
    Many forward(const Many& in, i64 dtype, i64 threads) const override {
        Memory x(linrnn::F32, in[0]), y(dtype, count);
        linrnn::RoundArgs args{};
        args.size = sizeof args, args.dtype = dtype, args.threads = threads, args.count = count;
        args.x = x.address(), args.y = y.address();
        run(linrnn_round, &args);
        compare({y.values()}, loop(), 0, name);
        Memory back(linrnn::F32, count);
        args.widens = 1, args.x = y.address(), args.y = back.address();
        run(linrnn_round, &args);
        compare({back.values()}, {y.values()}, 0, name + ", back");
        return {y.values()};
    }
};

struct ScaledHeads : Problem {
    enum { X, SCALE };
    i64 rows, heads, channels;

    ScaledHeads(Random& random, bool large) {
        name = "scale_heads";
        rows = random.size(30), heads = 1 + random.below(4), channels = 1 + random.below(60);
        if (large) rows += 300, channels += 100;
        inputs = {random.numbers(rows * heads * channels), random.numbers(rows * heads)};
    }
    Many loop() const override {
        Values y = inputs[X];
        for (i64 i = 0; i < i64(y.size()); ++i) y[size_t(i)] *= inputs[SCALE][size_t(i / channels)];
        return {y};
    }
    Many call(const Many& in, const Many* weights, i64 dtype, i64 threads) const {
        const i64 wide = state_dtype(dtype), numbers = rows * heads * channels;
        Memory x(dtype, in[X]), scales(wide, in[SCALE]), grad_x(dtype, numbers), grad_scales(wide, rows * heads);
        Memory y = weights ? Memory(dtype, (*weights)[0]) : Memory(dtype, numbers);
        linrnn::ScaleHeadsArgs args{};
        args.size = sizeof args, args.dtype = dtype, args.threads = threads;
        args.rows = rows, args.heads = heads, args.channels = channels, args.x_row = heads * channels;
        args.x = x.address(), args.scales = scales.address(), args.y = y.address();
        args.backward = weights != nullptr;
        args.grad_x = grad_x.address(), args.grad_scales = grad_scales.address();
        run(linrnn_scale_heads, &args);
        if (!weights) return {y.values()};
        return {grad_x.values(), grad_scales.values()};
    }
    Many forward(const Many& in, i64 dtype, i64 threads) const override {
        return call(in, nullptr, dtype, threads);
    }
    Many backward(const Many& weights, i64 dtype, i64 threads) const override {
        return call(inputs, &weights, dtype, threads);
    }
};
