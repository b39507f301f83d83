// The kernels that read operands of any dtype and strides: the steps in place and the gated norm.
#pragma once
#include "../../src/native/gated_norm_args.h"
#include "../../src/native/update_args.h"
#include "mamba.h"

extern "C" int linrnn_conv_update(const void*);
extern "C" int linrnn_selective_update(const void*);
extern "C" int linrnn_outer_update(const void*);
extern "C" int linrnn_delta_update(const void*);
extern "C" int linrnn_gated_norm(const void*);

#define LINRNN_FILL(args, x, memory, dtype, row, head, lane)                                  \
    args.x = (memory).address(), args.x##_dtype = dtype, args.x##_row = row, args.x##_head = head, \
    args.x##_lane = lane

// A step with a state, in which every kernel reads its operands dense.
struct Step : Problem {
    bool has[3];
    Step(Random& random) {
        has_adjoint = false;
        for (bool& one : has) one = random.coin();
    }
    Values or_none(Random& random, bool present, i64 count) {
        return present ? random.numbers(count) : Values();
    }
};

struct ConvStep : Step {
    i64 rows, channels, width;
    ConvStep(Random& random, bool large) : Step(random) {
        name = "conv_update";
        rows = random.size(3), channels = random.size(150), width = 1 + random.below(5);
        if (large) channels += 2000;
        inputs = {random.numbers(rows * channels * width), random.numbers(rows * channels),
                  random.numbers(channels * width, 1), or_none(random, has[0], channels)};
    }
    Many loop() const override {
        Values state = inputs[0], y(inputs[1].size());
        for (i64 r = 0; r < rows * channels; ++r) {
            double sum = has[0] ? inputs[3][size_t(r % channels)] : 0;
            for (i64 j = 0; j < width; ++j) {
                double& slot = state[size_t(r * width + j)];
                slot = j + 1 < width ? state[size_t(r * width + j + 1)] : inputs[1][size_t(r)];
                sum += slot * inputs[2][size_t(r % channels * width + j)];
            }
            y[size_t(r)] = has[1] ? silu(sum) : sum;
        }
        return {y, state};
    }
    Many forward(const Many& in, i64 dtype, i64 threads) const override {
        Memory state(dtype, in[0]), x(dtype, in[1]), weight(dtype, in[2]), bias(dtype, in[3]);
        Memory y(dtype, rows * channels);
        linrnn::ConvUpdateArgs args{};
        args.size = sizeof args, args.dtype = dtype, args.threads = threads, args.silu = has[1];
        args.rows = rows, args.channels = channels, args.width = width;
        args.state = state.address(), args.state_row = channels * width, args.state_channel = width;
        LINRNN_FILL(args, x, x, dtype, channels, 0, 1);
        LINRNN_FILL(args, weight, weight, dtype, 0, width, 1);
        LINRNN_FILL(args, bias, bias, dtype, 0, 0, 1);
        args.y = y.address(), args.y_dtype = dtype;
        run(linrnn_conv_update, &args);
        return {y.values(), state.values()};
    }
};

struct SelectiveStep : Step {
    enum { STATE, X, DT, A, B, C, D, Z };
    i64 rows, channels, modes;
    SelectiveStep(Random& random, bool large) : Step(random) {
        name = "selective_update";
        rows = random.size(3), channels = random.size(100), modes = random.size(35);
        if (large) channels += 2000;
        const i64 numbers = rows * channels;
        inputs = {random.numbers(numbers * modes), random.numbers(numbers),
                  magnitudes(random.numbers(numbers, 1)), magnitudes(random.numbers(channels * modes)),
                  random.numbers(rows * modes), random.numbers(rows * modes),
                  or_none(random, has[0], channels), or_none(random, has[1], numbers)};
        for (double& rate : inputs[A]) rate = -rate;
    }
    Many loop() const override {
        Values state = inputs[STATE], y(inputs[X].size());
        for (i64 r = 0; r < rows * channels; ++r) {
            const double x = inputs[X][size_t(r)], raw = inputs[DT][size_t(r)];
            const double dt = has[2] ? softplus(raw) : raw;
            double sum = has[0] ? inputs[D][size_t(r % channels)] * x : 0;
            for (i64 m = 0; m < modes; ++m) {
                const size_t at = size_t(r / channels * modes + m);
                double& h = state[size_t(r * modes + m)];
                h = std::exp(dt * inputs[A][size_t(r % channels * modes + m)]) * h + dt * x * inputs[B][at];
                sum += inputs[C][at] * h;
            }
            y[size_t(r)] = has[1] ? sum * silu(inputs[Z][size_t(r)]) : sum;
        }
        return {y, state};
    }
    Many forward(const Many& in, i64 dtype, i64 threads) const override {
        std::vector<Memory> memory;
        for (const Values& values : in) memory.emplace_back(dtype, values);
        Memory y(dtype, rows * channels);
        linrnn::SelectiveUpdateArgs args{};
        args.size = sizeof args, args.dtype = dtype, args.threads = threads, args.softplus = has[2];
        args.rows = rows, args.channels = channels, args.modes = modes;
        args.state = memory[STATE].address(), args.state_row = channels * modes, args.state_channel = modes;
        LINRNN_FILL(args, x, memory[X], dtype, channels, 0, 1);
        LINRNN_FILL(args, dt, memory[DT], dtype, channels, 0, 1);
        LINRNN_FILL(args, A, memory[A], dtype, 0, modes, 1);
        LINRNN_FILL(args, B, memory[B], dtype, modes, 0, 1);
        LINRNN_FILL(args, C, memory[C], dtype, modes, 0, 1);
        LINRNN_FILL(args, D, memory[D], dtype, 0, 0, 1);
        LINRNN_FILL(args, z, memory[Z], dtype, channels, 0, 1);
        args.y = y.address(), args.y_dtype = dtype;
        run(linrnn_selective_update, &args);
        return {y.values(), memory[STATE].values()};
    }
};

struct OuterStep : Step {
    enum { STATE, X, DT, A, B, C, D, Z };
    i64 rows, heads, groups, width, modes;
    bool across;  // the state lies (modes, width)
    OuterStep(Random& random, bool large) : Step(random) {
        name = "outer_update";
        rows = random.size(3), groups = 1 + random.below(3), heads = groups * (1 + random.below(3));
        width = random.size(40), modes = random.size(40), across = random.coin();
        if (large) width += 150, modes += 150;
        const i64 numbers = rows * heads * width;
        inputs = {random.numbers(numbers * modes), random.numbers(numbers),
                  magnitudes(random.numbers(rows * heads, 1)), magnitudes(random.numbers(heads)),
                  random.numbers(rows * groups * modes), random.numbers(rows * groups * modes),
                  or_none(random, has[0], heads), or_none(random, has[1], numbers)};
        for (double& rate : inputs[A]) rate = -rate;
    }
    Many loop() const override {
        Values state = inputs[STATE], y(inputs[X].size());
        for (i64 r = 0; r < rows * heads * width; ++r) {
            const i64 unit = r / width, head = unit % heads;
            const i64 group = unit / heads * groups + head / (heads / groups);
            const double x = inputs[X][size_t(r)], raw = inputs[DT][size_t(unit)];
            const double dt = std::fmin(has[2] ? softplus(raw) : raw, 1);
            double sum = has[0] ? inputs[D][size_t(head)] * x : 0;
            for (i64 m = 0; m < modes; ++m) {
                const size_t at = size_t(group * modes + m);
                const i64 place = across ? m * width + r % width : r % width * modes + m;
                double& h = state[size_t(unit * width * modes + place)];
                h = std::exp(dt * inputs[A][size_t(head)]) * h + dt * x * inputs[B][at];
                sum += inputs[C][at] * h;
            }
            y[size_t(r)] = has[1] ? sum * silu(inputs[Z][size_t(r)]) : sum;
        }
        return {y, state};
    }
    Many forward(const Many& in, i64 dtype, i64 threads) const override {
        std::vector<Memory> memory;
        for (const Values& values : in) memory.emplace_back(dtype, values);
        Memory y(dtype, rows * heads * width);
        linrnn::OuterUpdateArgs args{};
        args.size = sizeof args, args.dtype = dtype, args.threads = threads, args.softplus = has[2];
        args.least = 0, args.most = 1;
        args.rows = rows, args.heads = heads, args.groups = groups, args.width = width, args.modes = modes;
        args.state = memory[STATE].address(), args.state_row = heads * width * modes;
        args.state_head = width * modes, args.state_width = across ? 1 : modes;
        args.state_mode = across ? width : 1;
        LINRNN_FILL(args, x, memory[X], dtype, heads * width, width, 1);
        LINRNN_FILL(args, dt, memory[DT], dtype, heads, 1, 0);
        LINRNN_FILL(args, A, memory[A], dtype, 0, 1, 0);
        LINRNN_FILL(args, B, memory[B], dtype, groups * modes, modes, 1);
        LINRNN_FILL(args, C, memory[C], dtype, groups * modes, modes, 1);
        LINRNN_FILL(args, D, memory[D], dtype, 0, 1, 0);
        LINRNN_FILL(args, z, memory[Z], dtype, heads * width, width, 1);
        args.y = y.address(), args.y_dtype = dtype;
        run(linrnn_outer_update, &args);
        return {y.values(), memory[STATE].values()};
    }
};

struct DeltaStep : Step {
    enum { STATE, Q, K, V, G, BETA };
    i64 rows, heads, key_heads, keys, values;
    bool by_channel;
    DeltaStep(Random& random, bool large) : Step(random) {
        name = "delta_update";
        rows = random.size(3), key_heads = 1 + random.below(3), heads = key_heads * (1 + random.below(3));
        keys = random.size(40), values = random.size(40), by_channel = random.coin();
        if (large) keys += 150, values += 150;
        const i64 units = rows * heads, of_keys = rows * key_heads * keys;
        inputs = {random.numbers(units * keys * values), random.numbers(of_keys),
                  random.numbers(of_keys), random.numbers(units * values),
                  or_none(random, has[0], by_channel ? units * keys : units), or_none(random, has[1], units)};
        for (double& log : inputs[G]) log = -std::fabs(log);
        // with longer keys half precision loses all digits
        if (!has[2])
            for (double& k : inputs[K]) k /= 64;
    }
    double unit(int which, i64 head, i64 d) const {
        double sum = 1;
        for (i64 i = 0; has[2] && i < keys; ++i) sum += std::pow(inputs[size_t(which)][size_t(head * keys + i)], 2);
        return inputs[size_t(which)][size_t(head * keys + d)] / std::sqrt(sum);
    }
    Many loop() const override {
        Values state = inputs[STATE], y(inputs[V].size());
        for (i64 u = 0; u < rows * heads; ++u) {
            const i64 head = u / heads * key_heads + u % heads / (heads / key_heads);
            double* S = state.data() + u * keys * values;
            for (i64 d = 0; d < keys; ++d)
                for (i64 p = 0; has[0] && p < values; ++p)
                    S[d * values + p] *= std::exp(inputs[G][size_t(by_channel ? u * keys + d : u)]);
            for (i64 p = 0; p < values; ++p) {
                double missing = inputs[V][size_t(u * values + p)], sum = 0;
                for (i64 d = 0; d < keys; ++d) missing -= unit(K, head, d) * S[d * values + p];
                if (has[1]) missing *= inputs[BETA][size_t(u)];
                for (i64 d = 0; d < keys; ++d) {
                    S[d * values + p] += unit(K, head, d) * missing;
                    sum += unit(Q, head, d) * S[d * values + p];
                }
                y[size_t(u * values + p)] = sum / 2;
            }
        }
        return {y, state};
    }
    Many forward(const Many& in, i64 dtype, i64 threads) const override {
        std::vector<Memory> memory;
        for (const Values& numbers : in) memory.emplace_back(dtype, numbers);
        Memory y(dtype, rows * heads * values);
        linrnn::DeltaUpdateArgs args{};
        args.size = sizeof args, args.dtype = dtype, args.threads = threads, args.norm = has[2];
        args.eps = 1, args.scale = 0.5;
        args.rows = rows, args.heads = heads, args.key_heads = key_heads, args.keys = keys, args.values = values;
        args.state = memory[STATE].address(), args.state_row = heads * keys * values;
        args.state_head = keys * values, args.state_key = values;
        LINRNN_FILL(args, q, memory[Q], dtype, key_heads * keys, keys, 1);
        LINRNN_FILL(args, k, memory[K], dtype, key_heads * keys, keys, 1);
        LINRNN_FILL(args, v, memory[V], dtype, heads * values, values, 1);
        const i64 width = by_channel ? keys : 1;
        LINRNN_FILL(args, g, memory[G], dtype, heads * width, width, by_channel ? 1 : 0);
        args.key_decays = has[0] && by_channel;
        LINRNN_FILL(args, beta, memory[BETA], dtype, heads, 1, 0);
        args.y = y.address(), args.y_dtype = dtype;
        run(linrnn_delta_update, &args);
        return {y.values(), memory[STATE].values()};
    }
};

struct GatedNorms : Problem {
    enum { X, Z, W, BIAS, Q, K, V, SHARE, SKIP, SKIP_WEIGHT };
    i64 rows, groups, width, parts, act;
    bool has[3], added, skipped, norm_first, centre;
    GatedNorms(Random& random, bool large) {
        name = "gated_norm";
        rows = random.size(30), groups = 1 + random.below(3), width = 1 + random.below(60);
        if (large) rows += 300, width += 100;
        parts = 1 + random.below(4), act = random.below(3);
        norm_first = random.coin(), centre = random.coin();
        for (bool& one : has) one = random.coin();
        added = random.coin(), skipped = random.coin();
        const i64 numbers = rows * groups * width;
        inputs = {random.numbers(numbers), has[0] ? random.numbers(numbers) : Values(),
                  has[1] ? random.numbers(groups * width) : Values(),
                  has[2] ? random.numbers(groups * width) : Values()};
        for (int i = Q; i <= V; ++i) inputs.push_back(added ? random.numbers(numbers) : Values());
        inputs.push_back(added ? random.numbers(groups * width) : Values());
        inputs.push_back(skipped ? random.numbers(numbers) : Values());
        inputs.push_back(skipped ? random.numbers(groups * width) : Values());
    }
    // What is added to row r of a group.
    double both(i64 r) const {
        double sum = 0;
        for (i64 i = r * width; added && i < (r + 1) * width; ++i)
            sum += inputs[Q][size_t(i)] * inputs[K][size_t(i)] * inputs[SHARE][size_t(i % (groups * width))];
        return sum;
    }
    double gate(i64 at) const {
        const double z = inputs[Z][size_t(at)];
        return act == 0 ? Gated::sigmoid(z) : act == 1 ? silu(z) : z;
    }
    Many loop() const override {
        Values y = inputs[X];
        for (i64 r = 0; r < rows * groups; ++r) {
            double sum = 0, mean = 0;
            for (i64 i = r * width; i < (r + 1) * width; ++i) {
                if (skipped) y[size_t(i)] += inputs[SKIP_WEIGHT][size_t(i % (groups * width))] * inputs[SKIP][size_t(i)];
                if (has[0] && !norm_first) y[size_t(i)] *= gate(i);
                mean += y[size_t(i)] / double(width);
            }
            for (i64 i = r * width; i < (r + 1) * width; ++i) {
                if (centre) y[size_t(i)] -= mean;
                sum += y[size_t(i)] * y[size_t(i)];
            }
            for (i64 i = r * width; i < (r + 1) * width; ++i) {
                y[size_t(i)] /= std::sqrt(sum / double(width) + 0.5);
                if (has[1]) y[size_t(i)] *= inputs[W][size_t(i % (groups * width))];
                if (has[2]) y[size_t(i)] += inputs[BIAS][size_t(i % (groups * width))];
                if (added) y[size_t(i)] += both(r) * inputs[V][size_t(i)];
                if (has[0] && norm_first) y[size_t(i)] *= gate(i);
            }
        }
        return {y};
    }
    Many call(const Many& in, const Many* weights, i64 dtype, i64 threads) const {
        Memory x(dtype, in[X]), z(dtype, in[Z]), weight(dtype, in[W]), y(dtype, rows * groups * width);
        Memory bias(dtype, in[BIAS]), into(dtype, weights ? (*weights)[0] : Values());
        Memory q(dtype, in[Q]), k(dtype, in[K]), v(dtype, in[V]), share(dtype, in[SHARE]);
        Memory grad_x(dtype, x.count()), grad_z(dtype, z.count());
        Memory grad_q(dtype, q.count()), grad_k(dtype, k.count()), grad_v(dtype, v.count());
        Memory skip(dtype, in[SKIP]), skip_weight(dtype, in[SKIP_WEIGHT]), grad_skip(dtype, skip.count());
        const bool summed = has[1] || has[2] || added || skipped;
        Memory sums(linrnn::F64, zeros(summed ? 4 * parts * groups * width : 0));
        linrnn::GatedNormArgs args{};
        args.size = sizeof args, args.dtype = state_dtype(dtype), args.threads = threads;
        args.act = act, args.norm_first = norm_first, args.centre = centre, args.eps = 0.5;
        args.rows = rows, args.groups = groups, args.width = width;
        const i64 row = groups * width;
        LINRNN_FILL(args, x, x, dtype, row, width, 1);
        LINRNN_FILL(args, z, z, dtype, row, width, 1);
        LINRNN_FILL(args, weight, weight, dtype, 0, width, 1);
        LINRNN_FILL(args, bias, bias, dtype, 0, width, 1);
        LINRNN_FILL(args, q, q, dtype, row, width, 1);
        LINRNN_FILL(args, k, k, dtype, row, width, 1);
        LINRNN_FILL(args, v, v, dtype, row, width, 1);
        LINRNN_FILL(args, share, share, dtype, 0, width, 1);
        LINRNN_FILL(args, skip, skip, dtype, row, width, 1);
        LINRNN_FILL(args, skip_weight, skip_weight, dtype, 0, width, 1);
        args.grad_skip = grad_skip.address();
        args.grad_q = grad_q.address(), args.grad_k = grad_k.address(), args.grad_v = grad_v.address();
        LINRNN_FILL(args, grad, into, dtype, row, width, 1);
        args.y = y.address(), args.y_dtype = dtype;
        args.backward = weights != nullptr, args.parts = parts;
        args.grad_x = grad_x.address(), args.grad_z = grad_z.address(), args.sums = sums.address();
        run(linrnn_gated_norm, &args);
        if (!weights) return {y.values()};
        const Values all = summed ? sum_of(sums.values(), 4 * row) : zeros(4 * row);
        auto of = [&](bool any, i64 i) {
            return any ? Values(all.begin() + i * row, all.begin() + (i + 1) * row) : Values();
        };
        return {grad_x.values(), grad_z.values(), of(has[1], 0), of(has[2], 1),
                grad_q.values(), grad_k.values(), grad_v.values(), of(added, 2), grad_skip.values(), of(skipped, 3)};
    }
    Many forward(const Many& in, i64 dtype, i64 threads) const override {
        return call(in, nullptr, dtype, threads);
    }
    Many backward(const Many& weights, i64 dtype, i64 threads) const override {
        return call(inputs, &weights, dtype, threads);
    }
};
