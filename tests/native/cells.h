// The machine, on programs written out here: a gated mean with its adjoint, a recurrence with a
// matrix of blocks, and one of pairs of channels.
#pragma once
#include <cstring>
#include <initializer_list>

#include "../../src/native/machine_args.h"
#include "scans.h"

extern "C" int linrnn_machine(const void*);

enum MachineOps {
#define LINRNN_MACHINE_OP(name, value) OP_##name,
    LINRNN_MACHINE_OPS(LINRNN_MACHINE_OP) OP_product
#undef LINRNN_MACHINE_OP
#define LINRNN_MACHINE_OP(name) , OP_##name
    LINRNN_MACHINE_SPREADS(LINRNN_MACHINE_OP)
#undef LINRNN_MACHINE_OP
};

// A program, and a call of it, in memory of their own.
class Calls {
  public:
    void program(std::initializer_list<linrnn::MachineSlot> slots,
                 std::initializer_list<linrnn::MachineMatrix> matrices,
                 std::initializer_list<linrnn::MachineCode> codes, const i64 (&levels)[4]) {
        linrnn::MachineProgram head{};
        head.slots = i64(slots.size()), head.matrices = i64(matrices.size());
        for (int i = 0; i < 4; ++i) head.codes[i] = levels[i];
        head.size = i64(sizeof head + slots.size() * sizeof *slots.begin() +
                        matrices.size() * sizeof *matrices.begin() +
                        codes.size() * sizeof *codes.begin());
        put(program_, &head, 1);
        put(program_, slots.begin(), slots.size());
        put(program_, matrices.begin(), matrices.size());
        put(program_, codes.begin(), codes.size());
    }
    void operand(i64 data, i64 seq, i64 step, i64 dtype) {
        operands_.push_back({data, seq, step, dtype});
    }
    void operand(const Rows& x, i64 dtype) {
        const linrnn::Array a = x.array();
        operand(a.data, a.seq, a.step, dtype);
    }
    void run(linrnn::MachineArgs args) {
        std::vector<i64> record;
        args.program = reinterpret_cast<i64>(program_.data());
        args.operands = i64(operands_.size());
        put(record, &args, 1);
        put(record, operands_.data(), operands_.size());
        ::run(linrnn_machine, record.data());
    }

  private:
    template <class P>
    static void put(std::vector<i64>& to, const P* from, size_t count) {
        const size_t at = to.size(), bytes = count * sizeof(P);
        to.resize(at + bytes / 8);
        if (bytes) std::memcpy(to.data() + at, from, bytes);
    }
    std::vector<i64> program_;
    std::vector<linrnn::MachineOperand> operands_;
};

// h = h + sigmoid(z) (u a - h), u one number a channel.
struct GatedMean : Sequences {
    i64 channels, apart;
    double start;

    GatedMean(Random& random, bool large) {
        name = "machine";
        const i64 few[] = {1, 5, 16, 33, 64, 128, 256, 300};
        channels = random.size(1) * few[random.below(8)];
        seqs = random.below(4) ? random.size(4) : random.size(90), time = random.size(40);
        if (large) channels += 500, time += 100, seqs = seqs % 5;
        apart = random.coin() ? 0 : 1 + random.below(5);
        start = random.coin() ? 0 : 0.5;
        lay_out(random);
        inputs = {random.numbers(steps() * channels), random.numbers(steps() * channels),
                  random.numbers(channels)};
        if (random.coin()) inputs.push_back(random.numbers(seqs * channels));
    }
    Many loop() const override {
        Values h(size_t(steps() * channels)), last;
        for (i64 s = 0; s < seqs; ++s)
            for (i64 c = 0; c < channels; ++c) {
                double state = inputs.size() > 3 ? inputs[3][size_t(s * channels + c)] : start;
                for (i64 j = 0; j < length(s); ++j) {
                    const size_t at = size_t(place(s, j) * channels + c);
                    if (cut(place(s, j))) state = start;
                    double gate = 1 / (1 + std::exp(-inputs[1][at]));
                    h[at] = state += gate * (inputs[2][size_t(c)] * inputs[0][at] - state);
                }
                last.push_back(state);
            }
        return {h, last};
    }
    Many call(const Many& in, const Many& weights, i64 dtype, i64 threads) const {
        using namespace linrnn;
        const i64 wide = state_dtype(dtype);
        auto rows_of = [&](i64 of, const Values& x) { return Rows(of, rows(), time, channels, apart, x); };
        Rows a = rows_of(dtype, in[0]), z = rows_of(dtype, in[1]), h = rows_of(dtype, {});
        Memory u(wide, in[2]), initial(wide, in.size() > 3 ? in[3] : Values());
        Memory final(wide, seqs * channels);
        MachineArgs args{};
        describe(args);
        args.dtype = wide, args.threads = threads, args.channels = channels;
        auto states = [&](Calls& c, i64 before, i64 after) {
            c.operand(before, channels, 0, wide), c.operand(after, channels, 0, wide);
        };
        Calls ahead;
        ahead.program({{STATE, 0, start}, {INPUT, 2, 0}, {INPUT, 3, 0}, {CHANNEL, 4, 0},
                       {OUTPUT, 5, 0}, {CHUNK, 0, 0}, {CHUNK, 0, 0}},
                      {},
                      {{OP_sigmoid, 5, 2, 2, 2, 0, 0}, {OP_mul, 6, 1, 3, 1, 0, 0},
                       {OP_lerp, 4, 0, 6, 5, 0, 0}, {OP_move, 0, 4, 4, 4, 0, 0}},
                      {0, 2, 2, 0});
        states(ahead, initial.address(), final.address());
        ahead.operand(a, dtype), ahead.operand(z, dtype);
        ahead.operand(u.address(), 0, 0, wide), ahead.operand(h, dtype);
        ahead.run(args);
        if (weights.empty()) return {h.values(), final.values()};

        Rows into_h = rows_of(dtype, weights[0]), kept = rows_of(wide, loop()[0]);
        Rows grad_a = rows_of(dtype, {}), grad_z = rows_of(dtype, {});
        Memory into_final(wide, weights[1]), grad_u(wide, channels), grad_initial(wide, seqs * channels);
        Calls back;
        enum { CARRY, A, Z, U, BEFORE, INTO, TO_A, TO_Z, TO_U, ON, OFF, ALL, PART };
        back.program({{STATE, 0, 0}, {INPUT, 2, 0}, {INPUT, 3, 0}, {CHANNEL, 4, 0},
                      {PREVIOUS, 5, start}, {INPUT, 7, 0}, {OUTPUT, 8, 0}, {OUTPUT, 9, 0},
                      {SUM, 10, 2}, {CHUNK, 0, 0}, {CHUNK, 0, 0}, {CHUNK, 0, 0}, {CHUNK, 0, 0}},
                     {},
                     {{OP_sigmoid_both, ON, Z, Z, OFF, 0, 0},
                      {OP_add, ALL, CARRY, INTO, CARRY, 0, 0}, {OP_mul, CARRY, ALL, OFF, ALL, 0, 0},
                      {OP_mul, PART, ALL, ON, ALL, 0, 0}, {OP_mul, TO_A, PART, U, PART, 0, 0},
                      {OP_mul, OFF, OFF, PART, OFF, 0, 0}, {OP_mul_sub, ON, U, A, BEFORE, 0, 0},
                      {OP_mul, TO_Z, ON, OFF, ON, 0, 0}, {OP_mul_v, PART, PART, PART, PART, 0, 0.5},
                      {OP_mul_add, TO_U, PART, A, TO_U, 0, 0}},
                     {0, 1, 2, 7});
        states(back, into_final.address(), grad_initial.address());
        back.operand(a, dtype), back.operand(z, dtype), back.operand(u.address(), 0, 0, wide);
        back.operand(kept, wide), back.operand(initial.address(), channels, 0, wide);
        back.operand(into_h, dtype), back.operand(grad_a, dtype), back.operand(grad_z, dtype);
        back.operand(grad_u.address(), 0, 0, wide);
        args.backward = 1;
        if (!seqs) grad_u = Memory(wide, Values(size_t(channels)));
        back.run(args);
        Many grads = {grad_a.values(), grad_z.values(), grad_u.values()};
        if (in.size() > 3) grads.push_back(grad_initial.values());
        return grads;
    }
    Many forward(const Many& in, i64 dtype, i64 threads) const override {
        return call(in, {}, dtype, threads);
    }
    Many backward(const Many& weights, i64 dtype, i64 threads) const override {
        return call(inputs, weights, dtype, threads);
    }
};

// h = tanh(W h + x), W in blocks.
struct DenseCell : Sequences {
    i64 heads, size, channels;
    bool turned;

    DenseCell(Random& random, bool large) {
        name = "machine with a matrix", has_adjoint = false;
        heads = 1 + random.below(3), size = 1 + random.below(40), turned = random.coin();
        seqs = random.size(20), time = random.size(20);
        if (large) size += 100;
        channels = heads * size;
        lay_out(random);
        inputs = {random.numbers(steps() * channels), random.numbers(channels * size, 0.0625)};
    }
    Many loop() const override {
        Values y(size_t(steps() * channels)), last;
        for (i64 s = 0; s < seqs; ++s) {
            Values h(size_t(channels), 0.0), before;
            for (i64 j = 0; j < length(s); ++j) {
                if (cut(place(s, j))) h.assign(size_t(channels), 0.0);
                before = h;
                for (i64 c = 0; c < channels; ++c) {
                    const i64 head = c / size, i = c % size;
                    double sum = inputs[0][size_t(place(s, j) * channels + c)];
                    for (i64 k = 0; k < size; ++k)
                        sum += before[size_t(head * size + k)] *
                               inputs[1][size_t(head * size * size + (turned ? k * size + i : i * size + k))];
                    y[size_t(place(s, j) * channels + c)] = h[size_t(c)] = std::tanh(sum);
                }
            }
            last.insert(last.end(), h.begin(), h.end());
        }
        return {y, last};
    }
    Many forward(const Many& in, i64 dtype, i64 threads) const override {
        using namespace linrnn;
        const i64 wide = state_dtype(dtype);
        Rows x(dtype, rows(), time, channels, 0, in[0]), y(dtype, rows(), time, channels, 3);
        Memory matrix(dtype, in[1]), final(wide, seqs * channels);
        MachineArgs args{};
        describe(args);
        args.dtype = wide, args.threads = threads, args.channels = channels;
        Calls calls;
        calls.program({{STATE, 0, 0}, {INPUT, 2, 0}, {OUTPUT, 4, 0}, {STEP, 0, 0}},
                      {{3, turned}},
                      {{OP_product, 3, 0, 0, 1, 0, 0}, {OP_tanh, 0, 3, 3, 3, 0, 0},
                       {OP_move, 2, 0, 0, 0, 0, 0}},
                      {0, 0, 3, 0});
        calls.operand(0, 0, 0, wide), calls.operand(final.address(), channels, 0, wide);
        calls.operand(x, dtype), calls.operand(matrix.address(), heads, 0, dtype);
        calls.operand(y, dtype);
        calls.run(args);
        return {y.values(), final.values()};
    }
};

// h = roll(tanh(x + fold(w * spread(h)))), w one number for each of the n times that h has a channel.
struct PairsCell : Sequences {
    i64 n, size, on;
    bool each[2];  // of the spread and of the fold

    PairsCell(Random& random, bool large) {
        name = "machine with spreads", has_adjoint = false;
        n = 1 + random.below(40), size = 1 + random.below(40);
        each[0] = random.coin(), each[1] = random.coin();
        seqs = random.size(20), time = random.size(20);
        if (large) size += 100;
        on = random.below(3 * size) - size;
        lay_out(random);
        inputs = {random.numbers(steps() * size), random.numbers(n * size, 0.0625)};
    }
    Many loop() const override {
        Values y(size_t(steps() * size)), last;
        for (i64 s = 0; s < seqs; ++s) {
            Values h(size_t(size), 0.0), sums;
            for (i64 j = 0; j < length(s); ++j) {
                const i64 at = place(s, j);
                if (cut(at)) h.assign(size_t(size), 0.0);
                sums.assign(inputs[0].begin() + at * size, inputs[0].begin() + (at + 1) * size);
                for (i64 k = 0; k < n * size; ++k)
                    sums[size_t(each[1] ? k / n : k % size)] +=
                        inputs[1][size_t(k)] * h[size_t(each[0] ? k / n : k % size)];
                for (i64 c = 0; c < size; ++c) {
                    const i64 to = ((c + on) % size + size) % size;
                    y[size_t(at * size + to)] = h[size_t(to)] = std::tanh(sums[size_t(c)]);
                }
            }
            last.insert(last.end(), h.begin(), h.end());
        }
        return {y, last};
    }
    Many forward(const Many& in, i64 dtype, i64 threads) const override {
        using namespace linrnn;
        const i64 wide = state_dtype(dtype), widths[] = {size, n * size};
        Rows x(dtype, rows(), time, size, 0, in[0]), y(dtype, rows(), time, size, 3);
        Memory w(wide, in[1]), final(wide, seqs * size);
        MachineArgs args{};
        describe(args);
        args.dtype = wide, args.threads = threads, args.channels = n * size;
        args.widths = reinterpret_cast<i64>(widths);
        const double times = double(n);
        Calls calls;
        calls.program({{STATE, 0, 0, 0}, {INPUT, 2, 0, 0}, {OUTPUT, 4, 0, 0}, {CHANNEL, 3, 0, 1},
                       {STEP, 0, 0, 1}, {STEP, 0, 0, 0}, {STEP, 0, 0, 0}},
                      {},
                      {{each[0] ? OP_spread_each : OP_spread, 4, 0, 0, 0, 0, times},
                       {OP_mul, 4, 4, 3, 4, 0, 0},
                       {each[1] ? OP_fold_each : OP_fold, 5, 4, 4, 4, 0, times},
                       {OP_add, 5, 5, 1, 5, 0, 0}, {OP_tanh, 6, 5, 5, 5, 0, 0},
                       {OP_roll, 0, 6, 0, 0, 0, double(on)}, {OP_move, 2, 0, 0, 0, 0, 0}},
                      {0, 0, 7, 0});
        calls.operand(0, 0, 0, wide), calls.operand(final.address(), size, 0, wide);
        calls.operand(x, dtype), calls.operand(w.address(), 0, 0, wide);
        calls.operand(y, dtype);
        calls.run(args);
        return {y.values(), final.values()};
    }
};
