// Products with weights of 8 or 4 bits, and the weights themselves.
#pragma once
#include "../../src/native/quantized_args.h"
#include "problem.h"
#include "scans.h"

extern "C" int linrnn_quantized(const void*);

struct FewBits : Problem {
    enum { X, U, SCALE, ZERO, BIAS };
    static constexpr i64 TILE = 16;
    i64 rows, inputs_, outputs, bits, group, digits;
    bool zeros;

    FewBits(Random& random, bool large) {
        name = "quantized";
        dtypes = {linrnn::F32, linrnn::BF16, linrnn::F16};
        has_adjoint = false;
        rows = random.size(20), inputs_ = random.size(150) + 1, outputs = random.size(50) + 1;
        if (large) inputs_ += 500, outputs += 900;  // several threads
        bits = random.below(2) ? 8 : 4, zeros = random.below(2), digits = 3;
        const i64 sizes[] = {32, 64, 128, (inputs_ + 7) / 8 * 8};
        group = sizes[random.below(bits == 8 ? 4 : 3)];
        const i64 scales = tiles() * groups() * TILE;
        inputs = {random.numbers(rows * inputs_, 0.5), Values(size_t(outputs * inputs_)),
                  random.numbers(scales, 0.5), Values(size_t(scales)), random.numbers(outputs, 0.5)};
        for (double& scale : inputs[SCALE]) scale /= 64;
        for (double& u : inputs[U]) u = double(random.below(i64(1) << bits));
        for (double& zero : inputs[ZERO]) zero = double(zeros ? random.below(i64(1) << bits) : i64(1) << (bits - 1));
    }
    i64 groups() const { return (inputs_ + group - 1) / group; }
    i64 tiles() const { return (outputs + TILE - 1) / TILE; }
    size_t scale_at(i64 o, i64 i) const {
        return size_t((o / TILE * groups() + i / group) * TILE + o % TILE);
    }
    double weight(const Many& in, i64 o, i64 i) const {
        return (in[U][size_t(o * inputs_ + i)] - in[ZERO][scale_at(o, i)]) * in[SCALE][scale_at(o, i)];
    }
    Many loop() const override {
        Values y, w;
        for (i64 r = 0; r < rows; ++r)
            for (i64 o = 0; o < outputs; ++o) {
                double sum = inputs[BIAS][size_t(o)];
                for (i64 i = 0; i < inputs_; ++i)
                    sum += inputs[X][size_t(r * inputs_ + i)] * weight(inputs, o, i);
                y.push_back(sum);
            }
        for (i64 o = 0; o < outputs; ++o)
            for (i64 i = 0; i < inputs_; ++i) w.push_back(weight(inputs, o, i));
        return {y, w};
    }
    std::vector<std::uint8_t> packed(const Values& u) const {
        std::vector<std::uint8_t> bytes(size_t(tiles() * TILE * groups() * group * bits / 8));
        for (i64 o = 0; o < outputs; ++o)
            for (i64 i = 0; i < inputs_; ++i) {
                const i64 block = (o / TILE * groups() + i / group) * group * TILE, j = i % group;
                const i64 lane = o % TILE * 4 + j % 4, number = i64(u[size_t(o * inputs_ + i)]);
                if (bits == 8) bytes[size_t(block + j / 4 * 64 + lane)] = std::uint8_t(number);
                else bytes[size_t(block / 2 + j / 8 * 64 + lane)] |= std::uint8_t(number << (j % 8 / 4 * 4));
            }
        return bytes;
    }
    Many forward(const Many& in, i64 dtype, i64 threads) const override {
        Values scales;
        const size_t each = size_t(TILE);
        for (size_t at = 0; at < in[SCALE].size(); at += each) {
            scales.insert(scales.end(), in[SCALE].begin() + long(at), in[SCALE].begin() + long(at + each));
            if (zeros) scales.insert(scales.end(), in[ZERO].begin() + long(at), in[ZERO].begin() + long(at + each));
        }
        const std::vector<std::uint8_t> bytes = packed(in[U]);
        Memory x(dtype, in[X]), scale(linrnn::BF16, scales), bias(dtype, in[BIAS]);
        Memory y(dtype, rows * outputs), w(linrnn::F32, outputs * inputs_);
        linrnn::QuantizedArgs args{};
        args.size = sizeof args, args.dtype = dtype, args.threads = threads, args.bits = bits;
        args.outputs = outputs, args.inputs = inputs_, args.group = group, args.groups = groups();
        args.weight = reinterpret_cast<i64>(bytes.data()), args.scales = scale.address();
        args.zeros = zeros, args.rows = rows, args.digits = digits, args.count = outputs;
        args.x_step = inputs_, args.bias = bias.address(), args.y_step = outputs;
        args.x = x.address(), args.y = y.address();
        if (rows) run(linrnn_quantized, &args);
        args.x = 0, args.y = w.address(), args.y_step = inputs_;
        run(linrnn_quantized, &args);
        return {y.values(), w.values()};
    }
};
