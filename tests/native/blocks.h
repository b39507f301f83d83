// The kernel of small blocks: block_scan.
#pragma once
#include <complex>

#include "../../src/native/block_scan_args.h"
#include "scans.h"

extern "C" int linrnn_block_scan(const void*);

struct Blocks : Sequences {
    enum { MATRICES, SCATTER, GATHER } kind;
    bool constant;
    i64 blocks, side, unit;
    std::vector<i64> index;

    Blocks(Random& random, bool large) {
        name = "block_scan", kind = decltype(kind)(random.below(3));
        unit = random.coin() ? 2 : 1, constant = kind == MATRICES && random.coin();
        const i64 sides[] = {1, 2, 2, 3, 4, 5, 8, 11};
        side = sides[random.below(8)], blocks = random.size(9), time = random.size(40), seqs = random.size(4);
        if (large) blocks = 300 + random.below(30), time = 60, seqs = 1 + random.below(3), side = 2;
        if (unit == 2) dtypes = {linrnn::C64, linrnn::C128};
        if (large) dtypes = {unit == 2 ? linrnn::C64 : linrnn::F32};
        lay_out(random);
        inputs = {random.numbers((constant ? 1 : steps()) * n() * cells(), 0.5 / double(cells())),
                  random.numbers(steps() * n())};
        if (random.coin()) inputs.push_back(random.numbers(seqs * n()));
        for (i64 i = 0; kind != MATRICES && i < steps() * blocks * side; ++i) index.push_back(random.below(side));
    }
    i64 n() const { return blocks * side * unit; }
    i64 cells() const { return kind == MATRICES ? side : 1; }

    using Number = std::complex<double>;
    Number at(const Values& x, i64 i) const {
        return {x[size_t(i * unit)], unit == 2 ? x[size_t(i * unit + 1)] : 0};
    }
    // The state after a step from the one before, of block c; `where` is the step's place.
    std::vector<Number> next(const std::vector<Number>& h, i64 where, i64 c) const {
        std::vector<Number> to;
        const i64 first = (where * blocks + c) * side, in_a = ((constant ? 0 : where) * blocks + c) * side;
        for (i64 i = 0; i < side; ++i) to.push_back(at(inputs[1], first + i));
        for (i64 i = 0; i < side; ++i) {
            if (kind == MATRICES)
                for (i64 j = 0; j < side; ++j) to[size_t(i)] += at(inputs[0], (in_a + i) * side + j) * h[size_t(j)];
            else {
                const i64 other = index[size_t(first + i)], row = kind == GATHER ? i : other;
                to[size_t(row)] += at(inputs[0], first + i) * h[size_t(kind == GATHER ? other : i)];
            }
        }
        return to;
    }
    Many loop() const override {
        Values h(inputs[1].size()), last;
        for (i64 s = 0; s < seqs; ++s)
            for (i64 c = 0; c < blocks; ++c) {
                std::vector<Number> state(size_t(side), Number(0));
                for (i64 i = 0; i < side && inputs.size() > 2; ++i)
                    state[size_t(i)] = at(inputs[2], (s * blocks + c) * side + i);
                for (i64 j = 0; j < length(s); ++j) {
                    const i64 where = place(s, j);
                    if (cut(where)) state.assign(size_t(side), Number(0));
                    state = next(state, where, c);
                    for (i64 i = 0; i < side; ++i) put(h, (where * blocks + c) * side + i, state[size_t(i)]);
                }
                for (const Number& z : state) {
                    last.push_back(z.real());
                    if (unit == 2) last.push_back(z.imag());
                }
            }
        return {h, last};
    }
    void put(Values& x, i64 i, Number z) const {
        x[size_t(i * unit)] = z.real();
        if (unit == 2) x[size_t(i * unit + 1)] = z.imag();
    }
    linrnn::Array rows_of(const Memory& x, i64 numbers) const {  // strides in numbers
        return {x.address(), time * numbers, numbers};
    }
    // One call, backward where it is given weights.
    Many call(const Many& in, const Many& weights, i64 dtype, i64 threads) const {
        const i64 wide = state_dtype(dtype), width = blocks * side;
        Memory a(dtype, in[0]), b(dtype, in[1]), h(dtype, steps() * n());
        Memory initial(wide, in.size() > 2 ? in[2] : Values()), final(wide, seqs * n());
        Memory into_h(dtype, weights.empty() ? Values() : weights[0]);
        Memory grad_a(dtype, i64(in[0].size())), grad_b(dtype, steps() * n()), grad_initial(wide, seqs * n());
        linrnn::BlockScanArgs args{};
        describe(args);
        args.dtype = dtype, args.threads = threads, args.constant = constant;
        args.blocks = blocks, args.side = side, args.gather = kind == GATHER;
        args.a = rows_of(a, width * cells()), args.b = rows_of(b, width), args.h = rows_of(h, width);
        if (constant) args.a.seq = args.a.step = 0;
        if (!index.empty()) args.index = {reinterpret_cast<i64>(index.data()), time * width, width};
        args.initial = initial.address(), args.final = final.address();
        run(linrnn_block_scan, &args);
        if (weights.empty()) return {h.values(), final.values()};
        Memory into_final(wide, weights[1]);
        args.backward = 1, args.b = rows_of(into_h, width), args.final = into_final.address();
        args.grad_a = grad_a.address(), args.grad_b = grad_b.address(), args.grad_initial = grad_initial.address();
        run(linrnn_block_scan, &args);
        Many grads = {grad_a.values(), grad_b.values()};
        if (in.size() > 2) grads.push_back(grad_initial.values());
        return grads;
    }
    Many forward(const Many& in, i64 dtype, i64 threads) const override { return call(in, {}, dtype, threads); }
    Many backward(const Many& weights, i64 dtype, i64 threads) const override {
        return call(inputs, weights, dtype, threads);
    }
};
