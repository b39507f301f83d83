// The bank of modes: exceedance. All numbers are small fractions and decays units or zero, so that
// every dtype computes exactly and no rounding moves a wave over its threshold.
#pragma once
#include "../../src/native/exceedance_args.h"
#include "scans.h"

extern "C" int linrnn_exceedance(const void*);

struct Counted : Problem {
    enum { X, OBSERVED, WHEN, DECAY, OUT, WEIGHT, THRESHOLD };
    enum { RE, IM, RUN, STEPS, EXCESS, PLACE, LONGEST, TOP, END, NUMBERS };
    i64 seqs, time, inputs_, modes;
    std::vector<i64> places;

    Counted(Random& random, bool large) {
        name = "exceedance", dtypes = {linrnn::F32, linrnn::F64}, has_adjoint = false;
        seqs = 1 + random.below(4), time = 1 + random.below(30), inputs_ = 1 + random.below(4);
        modes = 1 + random.below(70);
        if (large) seqs += 8, time += 60, modes += 300;
        auto some = [&](i64 count, i64 range, double unit) {
            Values x;
            for (i64 i = 0; i < count; ++i) x.push_back(double(random.below(2 * range + 1) - range) * unit);
            return x;
        };
        inputs = {some(seqs * time * inputs_, 8, 0.125), {}, {}, {}, some(2 * modes, 2, 0.5),
                  some(modes * inputs_, 1, 1.0), {}};
        for (i64 s = 0; s < seqs; ++s)
            for (i64 t = 0, when = 0; t < time; ++t) {
                inputs[OBSERVED].push_back(random.below(4) > 0);
                inputs[WHEN].push_back(double(when += random.below(3)));
                if (random.coin()) places.push_back(s * time + t);
            }
        for (i64 n = 0; n < modes; ++n) {
            const i64 turn = random.below(5);  // 1, i, -1, -i, or 0
            inputs[DECAY].push_back(turn == 0 ? 1 : turn == 2 ? -1 : 0);
            inputs[DECAY].push_back(turn == 1 ? 1 : turn == 3 ? -1 : 0);
            inputs[THRESHOLD].push_back(double(random.below(32) - 16) / 8 + 0.03125);  // no wave is there
        }
    }
    double in(int which, i64 i) const { return inputs[size_t(which)][size_t(i)]; }
    double wave(i64 n, const double* h) const { return in(OUT, 2 * n) * h[0] - in(OUT, 2 * n + 1) * h[1]; }
    void step(i64 s, i64 t, i64 n, double* h) const {
        double drive = 0;
        for (i64 i = 0; i < inputs_; ++i) drive += in(WEIGHT, n * inputs_ + i) * in(X, (s * time + t) * inputs_ + i);
        const double re = in(DECAY, 2 * n) * h[0] - in(DECAY, 2 * n + 1) * h[1] + drive;
        h[1] = in(DECAY, 2 * n) * h[1] + in(DECAY, 2 * n + 1) * h[0], h[0] = re;
    }
    // The features of one reading, what is counted after two, and some waves.
    Many loop() const override {
        Values features(size_t(seqs * 6 * modes)), after(size_t(NUMBERS * seqs * modes)), waves;
        for (i64 n = 0; n < modes; ++n) {
            size_t next = 0;
            for (i64 s = 0; s < seqs; ++s) {
                double x[NUMBERS] = {0, 0, 0, 0, 0, 0, 0, -INFINITY, 0}, seen = 0, until = 0;
                for (i64 reading = 0; reading < 2; ++reading) {
                    for (i64 t = 0; t < time; ++t) {
                        step(s, t, n, x);
                        const double y = wave(n, x), over = y - in(THRESHOLD, n), when = in(WHEN, s * time + t);
                        if (!reading && next < places.size() && places[next] == s * time + t) {
                            waves.push_back(y);
                            ++next;
                        }
                        if (in(OBSERVED, s * time + t) == 0) continue;
                        x[RUN] = over > 0 ? x[RUN] + 1 : 0;
                        if (over > 0) x[STEPS] += 1, x[EXCESS] += over, x[PLACE] += when;
                        x[LONGEST] = std::fmax(x[LONGEST], x[RUN]), x[TOP] = std::fmax(x[TOP], y), x[END] = y;
                        seen += !reading, until = when;
                    }
                    if (!reading) describe(features, s, n, x, seen, until);
                }
                for (int k = 0; k < NUMBERS; ++k)
                    after[size_t((k * seqs + s) * modes + n)] = std::isinf(x[k]) ? -1e9 : x[k];
            }
        }
        return {features, after, waves};
    }
    void describe(Values& to, i64 s, i64 n, const double* x, double seen, double until) const {
        const double all = std::fmax(seen, 1), above = std::fmax(x[STEPS], 1), q = in(THRESHOLD, n);
        const double of[] = {x[STEPS] / all, q + x[EXCESS] / above,
                             x[STEPS] > 0 ? x[PLACE] / above / (until > 0 ? until : 1) : -1,
                             x[LONGEST] / all, seen > 0 ? x[TOP] : q, seen > 0 ? x[END] : q};
        for (i64 k = 0; k < 6; ++k) to[size_t((s * 6 + k) * modes + n)] = of[k];
    }
    Many forward(const Many& in, i64 dtype, i64 threads) const override {
        Memory x(dtype, in[X]), observed(dtype, in[OBSERVED]), when(dtype, in[WHEN]), decay(dtype, in[DECAY]);
        Memory out(dtype, in[OUT]), weight(dtype, in[WEIGHT]), threshold(dtype, in[THRESHOLD]);
        Memory first(dtype, NUMBERS * seqs * modes), second(dtype, NUMBERS * seqs * modes);
        Memory features(dtype, seqs * 6 * modes);
        const i64 count = i64(places.size()), row = count + 3;
        Memory waves(dtype, modes * row);
        linrnn::ExceedanceArgs args{};
        args.size = sizeof args, args.dtype = dtype, args.threads = threads, args.seqs = seqs;
        args.time = time, args.inputs = inputs_, args.modes = modes, args.x = x.address();
        args.observed = observed.address(), args.when = when.address(), args.decay = decay.address();
        args.out = out.address(), args.weight = weight.address();
        args.places = reinterpret_cast<i64>(places.data()), args.count = count, args.row = row;
        args.waves = waves.address();
        run(linrnn_exceedance, &args);
        args.waves = 0, args.threshold = threshold.address();
        args.after = first.address(), args.features = features.address();
        run(linrnn_exceedance, &args);
        args.before = first.address(), args.after = second.address(), args.features = 0;
        run(linrnn_exceedance, &args);
        Values after = second.values(), some;
        for (double& v : after) v = std::isinf(v) ? -1e9 : v;
        for (i64 n = 0; n < modes; ++n)
            for (i64 k = 0; k < count; ++k) some.push_back(waves.at(n * row + k));
        return {features.values(), after, some};
    }
};
