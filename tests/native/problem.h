// What is checked of a kernel, and how.
#pragma once
#include <cstdio>
#include <string>

#include "arrays.h"

using Many = std::vector<Values>;

// A call with its inputs as numbers.
struct Problem {
    std::string name;
    Many inputs;
    std::vector<i64> dtypes = {linrnn::F32, linrnn::F64, linrnn::BF16, linrnn::F16};
    bool has_adjoint = true;

    virtual ~Problem() = default;
    virtual Many loop() const = 0;  // the outputs, by the definition in double precision
    virtual Many forward(const Many& inputs, i64 dtype, i64 threads) const = 0;
    // Gradients of the inputs, given those of the outputs.
    virtual Many backward(const Many&, i64, i64) const { return {}; }
};

struct Failure {
    std::string what;
};

inline void demand(bool holds, const std::string& what) {
    if (!holds) throw Failure{what};
}

inline void compare(const Many& got, const Many& expected, double tolerance,
                    const std::string& what) {
    demand(got.size() == expected.size(), what + ": number of results");
    for (size_t i = 0; i < got.size(); ++i) {
        demand(got[i].size() == expected[i].size(), what + ": size of result " + std::to_string(i));
        double scale = 1;
        for (double x : expected[i]) scale = std::fmax(scale, std::fabs(x));
        for (size_t j = 0; j < got[i].size(); ++j)
            if (!(std::fabs(got[i][j] - expected[i][j]) <= tolerance * scale))
                throw Failure{what + ": result " + std::to_string(i) + " at " + std::to_string(j) +
                              " is " + std::to_string(got[i][j]) + ", expected " +
                              std::to_string(expected[i][j])};
    }
}

inline double dot(const Many& a, const Many& b) {
    double sum = 0;
    for (size_t i = 0; i < a.size(); ++i)
        for (size_t j = 0; j < a[i].size(); ++j) sum += a[i][j] * b[i][j];
    return sum;
}

inline Many moved(const Many& from, const Many& along, double by) {
    Many to = from;
    for (size_t i = 0; i < to.size(); ++i)
        for (size_t j = 0; j < to[i].size(); ++j) to[i][j] += by * along[i][j];
    return to;
}

inline Many any_like(const Many& x, Random& random) {
    Many y;
    for (auto& values : x) y.push_back(random.numbers(i64(values.size())));
    return y;
}

inline double tolerance_of(i64 dtype) {
    const double table[] = {1e-4, 1e-9, 1e-4, 1e-9, 4e-2, 4e-3, 4e-2};
    return table[dtype];
}

// Outputs against the loop; one directional derivative of the outputs, in float64, against the
// gradients; every dtype and several threads against float64 and one.
inline void check(const Problem& p, Random& random) {
    const i64 exact = is_complex(p.dtypes[0]) ? linrnn::C128 : linrnn::F64;
    const i64 several = 2 + random.below(3);
    Many expected = p.loop();
    for (i64 dtype : p.dtypes)
        for (i64 threads : {i64(1), several})
            compare(p.forward(p.inputs, dtype, threads), expected, tolerance_of(dtype),
                    p.name + ", dtype " + std::to_string(dtype));
    if (!p.has_adjoint) return;
    Many weights = any_like(expected, random), along = any_like(p.inputs, random);
    Many grads = p.backward(weights, exact, 1);
    double by = 1e-6, got = dot(grads, along);
    double ahead = dot(p.forward(moved(p.inputs, along, by), exact, 1), weights);
    double behind = dot(p.forward(moved(p.inputs, along, -by), exact, 1), weights);
    double slope = (ahead - behind) / (2 * by);
    // rounding of both sums, which may cancel, leaves eps / by
    double most = 1e-6 * (std::fabs(slope) + std::fabs(ahead)) + 1e-4;
    demand(std::fabs(got - slope) <= most, p.name + ": slope " + std::to_string(slope) +
                                               ", by the gradients " + std::to_string(got));
    for (i64 dtype : p.dtypes)
        for (i64 threads : {i64(1), several})
            compare(p.backward(weights, dtype, threads), grads, 4 * tolerance_of(dtype),
                    p.name + " backward, dtype " + std::to_string(dtype));
}
