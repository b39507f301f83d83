// A recorded step: a product, an operation on broadcast and on turned numbers, and reductions.
#pragma once
#include "../../src/native/recorded_step_args.h"
#include "cells.h"
#include "mamba.h"

extern "C" int linrnn_recorded_step(const void*);

// The product of a matrix of some rows with every row of x.
inline Values product(const Values& matrix, const Values& x, i64 batch, i64 height) {
    const size_t n = batch ? x.size() / size_t(batch) : 0, rows = size_t(height);
    Values y(size_t(batch) * rows);
    for (size_t i = 0; i < y.size(); ++i)
        for (size_t j = 0; j < n; ++j) y[i] += matrix[i % rows * n + j] * x[i / rows * n + j];
    return y;
}

struct RecordedProgram : Problem {
    enum { X, MATRIX, BIAS, SCALE };
    static constexpr double EPS = 0.25;
    i64 batch, model, inner;

    RecordedProgram(Random& random, bool large) {
        name = "recorded_step";
        has_adjoint = false;
        dtypes = {linrnn::F32, linrnn::F64, linrnn::BF16};
        batch = random.size(9), model = random.size(60), inner = random.size(60) + 1;
        if (large) model += 600, inner += 700;  // several threads
        for (i64 size : {batch * model, inner * model, inner, batch})
            inputs.push_back(random.numbers(size, 0.5));
    }
    // y = W x + b;  z[j, b] = scale[b] y[b, j], laid out turned;  the sum and the largest of y's
    // rows;  the rows of y standardised, about their means and about 0.
    Many loop() const override {
        Values y = product(inputs[MATRIX], inputs[X], batch, inner), z(y.size());
        Values total(static_cast<size_t>(batch)), largest(static_cast<size_t>(batch), -1e300);
        for (size_t i = 0; i < y.size(); ++i) {
            const size_t row = i / size_t(inner), column = i % size_t(inner);
            y[i] += inputs[BIAS][column];
            z[column * size_t(batch) + row] = inputs[SCALE][row] * y[i];
            total[row] += y[i];
            largest[row] = std::fmax(largest[row], y[i]);
        }
        Many results{y, z, total, largest};
        for (bool centred : {true, false}) {
            Values rows = y;
            for (i64 b = 0; b < batch; ++b) {
                const auto row = rows.begin() + b * inner;
                const double mean = centred ? total[size_t(b)] / double(inner) : 0;
                double squares = 0;
                for (i64 j = 0; j < inner; ++j) row[j] -= mean, squares += row[j] * row[j];
                for (i64 j = 0; j < inner; ++j) row[j] /= std::sqrt(squares / double(inner) + EPS);
            }
            results.push_back(rows);
        }
        return results;
    }
    Many forward(const Many& in, i64 dtype, i64 threads) const override {
        using linrnn::RecordedOperand;
        const i64 wide = state_dtype(dtype);
        Memory x(wide, in[X]), matrix(dtype, in[MATRIX]), bias(dtype, in[BIAS]);
        Memory scale(wide, in[SCALE]), y(wide, batch * inner), z(wide, batch * inner);
        Memory total(wide, batch), largest(wide, batch);
        Memory centred(wide, batch * inner), divided(wide, batch * inner);
        i64 bases[] = {x.address(), matrix.address(), bias.address(), scale.address(),
                       y.address(), z.address(), total.address(), largest.address(),
                       centred.address(), divided.address()};
        const RecordedOperand none{-1, 0, 0, {0, 0, 0, 0}, 0.0};
        const RecordedOperand rows{4, 0, wide, {0, 0, inner, 1}, 0.0};
        const RecordedOperand zero{-1, 0, 0, {0, 0, 0, 0}, 0.0}, one{-1, 0, 0, {0, 0, 0, 0}, 1.0};
        const RecordedOperand turned{5, 0, wide, {0, 0, 1, batch}, 0.0};
        const i64 first = OP_product;  // what the machine does not have comes behind what it has
        const linrnn::RecordedInstruction program[] = {
            {first + 2, wide, 0.0, {1, batch, inner, model},
             {4, 0, wide, {0, inner, 1, 0}, 0.0}, {0, 0, wide, {0, model, 0, 1}, 0.0},
             {1, 0, dtype, {0, 0, model, 1}, 0.0}, {2, 0, dtype, {0, 0, 1, 0}, 0.0}},
            {OP_mul, wide, 0.0, {1, 1, batch, inner}, turned, rows,
             {3, 0, wide, {0, 0, 1, 0}, 0.0}, none},
            {first, wide, 0.0, {1, 1, batch, inner}, {6, 0, wide, {0, 0, 1, 0}, 0.0}, rows, none, none},
            {first + 1, wide, 0.0, {1, 1, batch, inner}, {7, 0, wide, {0, 0, 1, 0}, 0.0}, rows, none,
             none},
            {first + 3, wide, EPS, {1, 1, batch, inner}, {8, 0, wide, {0, 0, inner, 1}, 0.0}, rows, zero,
             one},
            {first + 3, wide, EPS, {1, 1, batch, inner}, {9, 0, wide, {0, 0, inner, 1}, 0.0}, rows, zero,
             zero},
        };
        Memory before(dtype, in[BIAS]);
        i64 differ = 0;
        const i64 bytes = i64(in[BIAS].size()) * (dtype == linrnn::F64 ? 8 : dtype == linrnn::F32 ? 4 : 2);
        const linrnn::RecordedWatch watch{bias.address(), before.address(), bytes};
        linrnn::RecordedStepArgs args{};
        args.size = sizeof args, args.threads = threads, args.count = 6;
        args.program = reinterpret_cast<i64>(program), args.bases = reinterpret_cast<i64>(bases);
        args.watched = reinterpret_cast<i64>(&watch), args.watches = 1;
        args.differ = reinterpret_cast<i64>(&differ);
        run(linrnn_recorded_step, &args);
        demand(!differ, "a weight differs that does not");
        return {y.values(), z.values(),       total.values(),
                largest.values(), centred.values(), divided.values()};
    }
};
