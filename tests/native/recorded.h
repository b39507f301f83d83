// A recorded step: a product, an operation on broadcast and on turned numbers, and reductions.
#pragma once
#include "../../src/native/recorded_step_args.h"
#include "cells.h"
#include "rwkv.h"

extern "C" int linrnn_recorded_step(const void*);

struct RecordedProgram : OneStep {
    enum { X, MATRIX, BIAS, SCALE };

    RecordedProgram(Random& random, bool large) : OneStep(random, "recorded_step", large) {
        ++inner;  // no largest of nothing
        add(random, {batch * model, inner * model, inner, batch});
    }
    // y = W x + b;  z[j, b] = scale[b] y[b, j], laid out turned;  the sum and the largest of y's rows.
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
        return {y, z, total, largest};
    }
    Many forward(const Many& in, i64 dtype, i64 threads) const override {
        using linrnn::RecordedOperand;
        const i64 wide = state_dtype(dtype);
        Memory x(wide, in[X]), matrix(dtype, in[MATRIX]), bias(dtype, in[BIAS]);
        Memory scale(wide, in[SCALE]), y(wide, batch * inner), z(wide, batch * inner);
        Memory total(wide, batch), largest(wide, batch);
        i64 bases[] = {x.address(), matrix.address(), bias.address(), scale.address(),
                       y.address(), z.address(), total.address(), largest.address()};
        const RecordedOperand none{-1, 0, 0, {0, 0, 0, 0}, 0.0};
        const RecordedOperand rows{4, 0, wide, {0, 0, inner, 1}, 0.0};
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
        };
        Memory before(dtype, in[BIAS]);
        i64 differ = 0;
        const i64 bytes = i64(in[BIAS].size()) * (dtype == linrnn::F64 ? 8 : dtype == linrnn::F32 ? 4 : 2);
        const linrnn::RecordedWatch watch{bias.address(), before.address(), bytes};
        linrnn::RecordedStepArgs args{};
        args.size = sizeof args, args.threads = threads, args.count = 4;
        args.program = reinterpret_cast<i64>(program), args.bases = reinterpret_cast<i64>(bases);
        args.watched = reinterpret_cast<i64>(&watch), args.watches = 1;
        args.differ = reinterpret_cast<i64>(&differ);
        run(linrnn_recorded_step, &args);
        demand(!differ, "a weight differs that does not");
        return {y.values(), z.values(), total.values(), largest.values()};
    }
};
