// The scans of matrix memories: outer_scan, delta_scan and their adjoints.
#pragma once
#include "../../src/native/memory_scan_args.h"
#include "mamba.h"

extern "C" int linrnn_memory_scan(const void*);

struct Memories : Sequences {
    enum { Q, K, V, G, E, BONUS, BETA, A, B, INITIAL };
    i64 heads, shared, keys, values, channels, apart, width, rank, window;
    bool delta, low_rank = false, constant, normalizer = false, before, rates = false;

    Memories(Random& random, bool large, bool is_delta) : delta(is_delta) {
        name = delta ? "memory_scan, delta" : "memory_scan, outer";
        shared = 1 + random.below(3), heads = shared * random.size(3), seqs = random.size(3);
        time = random.size(70), keys = 1 + random.below(20), values = 1 + random.below(20);
        apart = random.coin() ? 0 : 3, channels = random.below(3), constant = channels && random.coin();
        if (large) time += 60, keys += 30, values += 60;
        lay_out(random);
        rank = random.coin() ? 1 : 1 + random.below(5), before = random.below(3) == 0;
        if (delta) low_rank = random.below(3) == 0, rates = random.below(3) == 0;
        normalizer = !rates && random.coin();
        width = 1 + random.below(columns()), window = random.coin() ? 16 : 64;
        const i64 of_keys = steps() * key_heads() * keys, decays = heads * (channels == 2 ? keys : 1);
        const i64 written = rank * of_keys;
        const i64 sizes[] = {of_keys, written, writes() * heads * values,
                             channels ? (constant ? 1 : steps()) * decays : 0,
                             !low_rank && random.coin() ? steps() * heads * values : 0,
                             rank == 1 && !before && random.coin() ? heads * keys : 0,
                             rates ? writes() * heads * values : delta && random.coin() ? writes() * heads : 0,
                             low_rank ? written : 0, low_rank ? written : 0,
                             random.coin() ? seqs * heads * keys * columns() : 0};
        for (i64 size : sizes) {
            const bool small = inputs.size() == K || inputs.size() == A || inputs.size() == B;
            inputs.push_back(random.numbers(size, small ? 0.125 : 1));
        }
        for (int i : {G, E})
            for (double& x : inputs[size_t(i)]) x = -std::fabs(x);
    }
    i64 key_heads() const { return heads / shared; }
    i64 columns() const { return values + normalizer; }
    i64 writes() const { return steps() * rank; }
    // Rows a step: of what each of its writes has, or all together.
    i64 times(int i) const { return i == K || i == V || i == BETA || i == A || i == B ? rank : 1; }
    bool has(int i) const { return !inputs[size_t(i)].empty(); }
    i64 slices() const { return (columns() + width - 1) / width; }

    // What head h of step or write `row` sees of an input.
    const double* row_of(int i, i64 row, i64 h) const {
        const Values& x = inputs[size_t(i)];
        switch (i) {
            case G: return x.data() + ((constant ? 0 : row) * heads + h) * (channels == 2 ? keys : 1);
            case V:
            case E: return x.data() + (row * heads + h) * values;
            case BETA: return x.data() + (row * heads + h) * (rates ? values : 1);
            case BONUS: return x.data() + h * keys;
        }
        return x.data() + (row * key_heads() + h / shared) * keys;
    }
    double decay(i64 row, i64 h, i64 c) const {
        return channels ? std::exp(row_of(G, row, h)[channels == 2 ? c : 0]) : 1;
    }
    double value(i64 row, i64 h, i64 n) const { return n < values ? row_of(V, row, h)[n] : 1; }
    // One column of a memory after a step, and what is read of it.
    double advance(Values& S, i64 row, i64 h, i64 n) const {
        const double* q = row_of(Q, row, h);
        const double forget = has(E) && n < values ? std::exp(row_of(E, row, h)[n]) : 1;
        double past = 0, own = 0, decayed = 0, o = 0;
        Values old = S;
        for (i64 c = 0; c < keys; ++c) {
            past += q[c] * S[size_t(c)];
            S[size_t(c)] *= decay(row, h, c) * forget;
            decayed += q[c] * S[size_t(c)];
        }
        for (i64 r = 0; r < rank; ++r, old = S) {
            const i64 at = row * rank + (reverse ? rank - 1 - r : r);
            const double *k = row_of(K, at, h), *reader = low_rank ? row_of(A, at, h) : k;
            const Values& seen = low_rank ? old : S;
            double read = 0;
            for (i64 c = 0; delta && c < keys; ++c) read += reader[c] * seen[size_t(c)];
            const double beta = has(BETA) ? row_of(BETA, at, h)[rates ? n : 0] : 1;
            const double write = beta * (value(at, h, n) - (delta && !low_rank ? read : 0));
            for (i64 c = 0; c < keys; ++c) {
                if (low_rank) S[size_t(c)] += row_of(B, at, h)[c] * read;
                own += has(BONUS) ? q[c] * k[c] * row_of(BONUS, row, h)[c] * write : 0;
                S[size_t(c)] += k[c] * write;
            }
        }
        for (i64 c = 0; c < keys; ++c) o += q[c] * S[size_t(c)];
        return 0.5 * (has(BONUS) ? past + own : before ? decayed : o);
    }
    Many loop() const override {
        Values o(size_t(steps() * heads * columns())), last(size_t(seqs * heads * keys * columns()));
        for (i64 s = 0; s < seqs; ++s)
            for (i64 h = 0; h < heads; ++h)
                for (i64 n = 0; n < columns(); ++n) {
                    auto place_of = [&](i64 c) { return size_t(((s * heads + h) * keys + c) * columns() + n); };
                    Values S(size_t(keys), 0.0);
                    for (i64 c = 0; has(INITIAL) && c < keys; ++c) S[size_t(c)] = inputs[INITIAL][place_of(c)];
                    for (i64 j = 0; j < length(s); ++j) {
                        const i64 row = place(s, j);
                        if (cut(row)) S.assign(size_t(keys), 0.0);
                        o[size_t((row * heads + h) * columns() + n)] = advance(S, row, h, n);
                    }
                    for (i64 c = 0; c < keys; ++c) last[place_of(c)] = S[size_t(c)];
                }
        return {o, last};
    }

    i64 wide_width(int i) const {
        switch (i) {
            case V:
            case E: return heads * values;
            case G: return heads * (channels == 2 ? keys : 1);
            case BETA: return heads * (rates ? values : 1);
        }
        return key_heads() * keys;
    }
    Many call(const Many& in, const Many* weights, i64 dtype, i64 threads) const {
        const i64 wide = state_dtype(dtype), columns = this->columns();
        std::vector<Rows> x;
        for (int i : {Q, K, V, G, E, BETA, A, B}) {
            const bool stored = i < G || i == A || i == B, once = i == G && constant;
            const bool none = in[size_t(i)].empty();
            x.emplace_back(stored ? dtype : wide, none ? 0 : once ? 1 : rows(), once ? 1 : time * times(i),
                           wide_width(i), apart, in[size_t(i)]);
        }
        Memory bonus(wide, in[BONUS]), initial(wide, in[INITIAL]);
        Memory final(wide, seqs * heads * keys * columns);
        const i64 count =
            offsets.empty() ? seqs * ((time * rank + window - 1) / window) : time * rank / window + seqs;
        Memory kept(wide, count * heads * keys * columns);
        Rows o(dtype, rows(), time, heads * columns, apart);
        linrnn::MemoryScanArgs args{};
        describe(args);
        args.dtype = dtype, args.threads = threads, args.delta = delta, args.normalizer = normalizer;
        args.channels = channels, args.constant = constant, args.scale = 0.5, args.heads = heads;
        args.key_heads = key_heads(), args.keys = keys, args.values = values, args.window = window;
        args.width = width, args.parts = 1, args.rank = rank, args.reads = 1, args.before = before;
        args.rates = rates, args.q_share = args.k_share = args.a_share = args.b_share = shared;
        args.v_share = args.g_share = args.value_decay_share = args.beta_share = 1;
        linrnn::Array* const places[] = {&args.q, &args.k, &args.v, &args.g, &args.value_decay, &args.beta, &args.a, &args.b};
        for (size_t i = 0; i < x.size(); ++i) *places[i] = x[i].array();
        if (constant) args.g.seq = args.g.step = 0;
        args.bonus = bonus.address(), args.initial = initial.address(), args.kept = kept.address();
        args.o = o.array(), args.final = final.address();
        run(linrnn_memory_scan, &args);
        if (!weights) return {o.values(), final.values()};
        return adjoint(args, *weights, dtype);
    }
    Many adjoint(linrnn::MemoryScanArgs args, const Many& weights, i64 dtype) const {
        const i64 wide = state_dtype(dtype), items = shared * slices();
        const i64 share = (items + 1) / 2, parts = (items + share - 1) / share;
        const i64 of_keys = steps() * key_heads() * keys, of_g = steps() * wide_width(G);
        const i64 written = rank * of_keys;
        Rows into_o(dtype, rows(), time, heads * columns(), apart, weights[0]);
        Memory into_final(wide, weights[1]), initial(wide, seqs * heads * keys * columns());
        const bool single = items == 1;
        const i64 of = single ? dtype : wide;
        Memory q(of, parts * of_keys), k(of, parts * written), v(dtype, writes() * heads * values);
        Memory a(of, low_rank * parts * written), b(of, low_rank * parts * written);
        Memory g(wide, channels && !constant ? slices() * of_g : 0);
        Memory e(wide, has(E) ? steps() * heads * values : 0);
        Memory beta(wide, has(BETA) ? (rates ? 1 : slices()) * writes() * wide_width(BETA) : 0);
        Memory sums(linrnn::F64, zeros(slices() * seqs * heads * 2 * keys));
        args.backward = 1, args.parts = parts, args.o = into_o.array(), args.final = into_final.address();
        auto dense = [&](const Memory& m, int i) {
            return linrnn::Array{m.address(), time * times(i) * wide_width(i), wide_width(i)};
        };
        args.grad_q = dense(q, Q), args.grad_k = dense(k, K), args.grad_v = dense(v, V);
        args.grad_a = dense(a, A), args.grad_b = dense(b, B), args.grad_g = dense(g, G);
        args.grad_value_decay = dense(e, E), args.grad_beta = dense(beta, BETA);
        args.single = single, args.grad_initial = initial.address(), args.sums = sums.address();
        run(linrnn_memory_scan, &args);
        Values total = sum_of(sums.values(), heads * 2 * keys), of_constant, of_bonus;
        for (i64 h = 0; h < heads; ++h)
            for (i64 c = 0; c < keys; ++c) {
                if (channels == 2 || !c) of_constant.push_back(total[size_t(h * 2 * keys + c)]);
                of_bonus.push_back(total[size_t((h * 2 + 1) * keys + c)]);
            }
        auto part = [&](const Memory& m, int i) { return sum_of(m.values(), steps() * times(i) * wide_width(i)); };
        const Values none;
        return {part(q, Q), part(k, K), v.values(),
                !channels ? none : constant ? of_constant : part(g, G), e.values(),
                has(BONUS) ? of_bonus : none, has(BETA) ? part(beta, BETA) : none,
                low_rank ? part(a, A) : none, low_rank ? part(b, B) : none,
                has(INITIAL) ? initial.values() : none};
    }
    Many forward(const Many& in, i64 dtype, i64 threads) const override {
        return call(in, nullptr, dtype, threads);
    }
    Many backward(const Many& weights, i64 dtype, i64 threads) const override {
        return call(inputs, &weights, dtype, threads);
    }
};
