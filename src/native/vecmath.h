// Exponential, logarithm and what gates are made of, without branches, tables or calls, so that a
// loop over them becomes vector code without -ffast-math. Within 2 units in the last place of the
// true value (a sigmoid 2.5), subnormal results included; infinities and NaN as IEEE has them.
#pragma once
#include <cstdint>
#include <cstring>

#include "storage.h"

// A single call that is not inlined keeps a whole loop from becoming vector code.
#if defined(__GNUC__)
#define LINRNN_INLINE inline __attribute__((always_inline))
#elif defined(_MSC_VER)
#define LINRNN_INLINE __forceinline
#else
#define LINRNN_INLINE inline
#endif

// Once for all its callers: of whole rows, so that a call costs nothing beside them, and a compiler
// has a fraction of the work.
#if defined(__GNUC__)
#define LINRNN_APART __attribute__((noinline))
#elif defined(_MSC_VER)
#define LINRNN_APART __declspec(noinline)
#else
#define LINRNN_APART
#endif

// Before a loop whose rows are the same or do not overlap: nothing is checked while it runs.
#if defined(__clang__)
#define LINRNN_INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#elif defined(__GNUC__)
#define LINRNN_INDEPENDENT _Pragma("GCC ivdep")
#elif defined(_MSC_VER)
#define LINRNN_INDEPENDENT __pragma(loop(ivdep))
#else
#define LINRNN_INDEPENDENT
#endif

namespace linrnn {
namespace LINRNN_ISA {
namespace {

inline double from_bits64(std::uint64_t u) {
    double d;
    std::memcpy(&d, &u, 8);
    return d;
}
inline std::uint64_t to_bits(double d) {
    std::uint64_t u;
    std::memcpy(&u, &d, 8);
    return u;
}

LINRNN_INLINE float magnitude(float x) { return from_bits(to_bits(x) & 0x7fffffffu); }
LINRNN_INLINE double magnitude(double x) { return from_bits64(to_bits(x) & 0x7fffffffffffffffull); }

// `a` where x is negative, -0 included, else `b`: a mask and not a comparison, since several of
// the same comparison in a loop are made a branch, which keeps the loop from becoming vector code.
LINRNN_INLINE float if_negative(float x, float a, float b) {
    std::uint32_t mask = 0u - (to_bits(x) >> 31);
    return from_bits((to_bits(a) & mask) | (to_bits(b) & ~mask));
}
LINRNN_INLINE double if_negative(double x, double a, double b) {
    std::uint64_t mask = std::uint64_t(0) - (to_bits(x) >> 63);
    return from_bits64((to_bits(a) & mask) | (to_bits(b) & ~mask));
}

// The sum of N numbers, a power of two, which are overwritten. As a loop over halves compilers leave
// it one that branches.
template <int N, class A>
LINRNN_INLINE A sum_by_halves(A* parts) {
    if constexpr (N > 1) {
        for (int i = 0; i < N / 2; ++i) parts[i] += parts[i + N / 2];
        return sum_by_halves<N / 2>(parts);
    }
    return parts[0];
}

// exp(x) = 2^n (1 + p) with p = exp(r) - 1 and |r| <= ln(2) / 2, for an x that is not large: returns
// p. Adding MAGIC rounds to an integer and leaves it in the low bits of t; ln(2) in two parts keeps r
// exact. The polynomials are Chebyshev interpolants of (exp(r) - 1 - r) / r^2.
template <class A>
struct Magic;
template <>
struct Magic<float> {
    static constexpr float VALUE = 12582912.0f;  // 1.5 * 2^23
};
template <>
struct Magic<double> {
    static constexpr double VALUE = 6755399441055744.0;  // 1.5 * 2^52
};
LINRNN_INLINE float reduced_exp(float x, float& t) {
    t = x * 1.44269504f + Magic<float>::VALUE;
    float n = t - Magic<float>::VALUE;
    float r = x - n * 0.693359375f;
    r = r - n * -2.12194440e-4f;
    float q = 1.39262508e-3f;
    q = q * r + 8.36323288e-3f;
    q = q * r + 4.16665542e-2f;
    q = q * r + 1.66665766e-1f;
    q = q * r + 0.5f;
    return r + r * r * q;
}
LINRNN_INLINE double reduced_exp(double x, double& t) {
    t = x * 1.4426950408889634 + Magic<double>::VALUE;
    double n = t - Magic<double>::VALUE;
    double r = x - n * 6.93147180369123816490e-01;
    r = r - n * 1.90821492927058770002e-10;
    double q = 2.09147553258932022e-9;
    q = q * r + 2.51053127296221018e-8;
    q = q * r + 2.75572734787185805e-7;
    q = q * r + 2.75572551700008874e-6;
    q = q * r + 2.48015873256774619e-5;
    q = q * r + 1.98412698750022788e-4;
    q = q * r + 1.38888888888837112e-3;
    q = q * r + 8.33333333332608312e-3;
    q = q * r + 4.16666666666666698e-2;
    q = q * r + 1.6666666666666671e-1;
    q = q * r + 0.5;
    return r + r * r * q;
}

// exp(x); 2^n in two factors reaches the subnormals.
LINRNN_INLINE float vexp(float x) {
    x = x > 89.0f ? 89.0f : x;  // a NaN passes both
    x = x < -104.0f ? -104.0f : x;
    float t, p = 1.0f + reduced_exp(x, t);
    std::uint32_t u = to_bits(t) - to_bits(Magic<float>::VALUE) + 1024u, half = u >> 1;
    return p * from_bits((half - 512u + 127u) << 23) * from_bits((u - half - 512u + 127u) << 23);
}
LINRNN_INLINE double vexp(double x) {
    x = x > 710.0 ? 710.0 : x;
    x = x < -746.0 ? -746.0 : x;
    double t, p = 1.0 + reduced_exp(x, t);
    std::uint64_t u = to_bits(t) - to_bits(Magic<double>::VALUE) + 4096u, half = u >> 1;
    return p * from_bits64((half - 2048u + 1023u) << 52) *
           from_bits64((u - half - 2048u + 1023u) << 52);
}

// n ln(2) + log(1 + f) with 1 + f in [0.75, 1.5).
LINRNN_INLINE float log_of(float n, float f) {
    float p = 3.94422283e-2f;
    p = p * f + -9.29186892e-2f;
    p = p * f + 1.17161110e-1f;
    p = p * f + -1.26993086e-1f;
    p = p * f + 1.42704628e-1f;
    p = p * f + -1.66566670e-1f;
    p = p * f + 1.99999253e-1f;
    p = p * f + -2.50001532e-1f;
    p = p * f + 3.33333358e-1f;
    p = p * f + -4.99999996e-1f;
    return n * 0.693359375f + (f + (f * f * p + n * -2.12194440e-4f));
}
LINRNN_INLINE double log_of(double n, double f) {
    // with s = f / (2 + f): log(1 + f) = log((1 + s) / (1 - s)), a series in s^2
    double s = f / (2.0 + f), z = s * s, square = 0.5 * f * f;
    double p = 1.360903026285849872e-1;
    p = p * z + 1.320970824205946325e-1;
    p = p * z + 1.538886780540561371e-1;
    p = p * z + 1.818173762630293717e-1;
    p = p * z + 2.222222304835158806e-1;
    p = p * z + 2.85714285672759346e-1;
    p = p * z + 4.000000000000794104e-1;
    p = p * z + 6.666666666666666418e-1;
    double correction = square - s * (square + z * p);
    return n * 6.93147180369123816490e-01 + (f - (correction - n * 1.90821492927058770002e-10));
}

// log(1 + x) = k ln(2) + log(1 + f) with 1 + f in [0.75, 1.5), for finite x > -1. k is read off
// the rounded 1 + x, but f = 2^-k x + (2^-k - 1) comes from x itself, so nothing is lost near 0.
LINRNN_INLINE float log1p_finite(float x) {
    std::uint32_t k = (to_bits(1.0f + x) - 0x3f400000u + (32u << 23)) >> 23;  // plus 32
    float scale = 0.25f * from_bits((161u - k) << 23);                        // 2^-k
    float n = from_bits(0x4b000000u | k) - 8388640.0f;                        // 2^23 + 32
    return log_of(n, x * scale + (scale - 1.0f));
}
LINRNN_INLINE double log1p_finite(double x) {
    std::uint64_t k = (to_bits(1.0 + x) - 0x3fe8000000000000ull + (64ull << 52)) >> 52;  // plus 64
    double scale = 0.25 * from_bits64((1089u - k) << 52);
    double n = from_bits64(0x4330000000000000ull | k) - 4503599627370560.0;  // 2^52 + 64
    return log_of(n, x * scale + (scale - 1.0));
}

template <class A>
LINRNN_INLINE A vlog1p_any(A x, A largest, A infinity, A nan) {
    A y = log1p_finite(x);
    y = x > A(-1) ? y : nan;
    y = x == A(-1) ? -infinity : y;
    return x > largest ? infinity : y;
}
LINRNN_INLINE float vlog1p(float x) {
    return vlog1p_any(x, 3.40282347e38f, from_bits(0x7f800000u), from_bits(0x7fc00000u));
}
LINRNN_INLINE double vlog1p(double x) {
    return vlog1p_any(x, 1.7976931348623157e308, from_bits64(0x7ff0000000000000ull),
                      from_bits64(0x7ff8000000000000ull));
}

// sigmoid(x) and 1 - sigmoid(x), each to its own relative precision, for one exponential.
template <class A>
struct Sigmoid {
    A value, rest;
};
template <class A>
LINRNN_INLINE Sigmoid<A> vsigmoid_both(A x) {
    A e = vexp(-magnitude(x)), large = A(1) / (A(1) + e), small = e * large;
    return {if_negative(x, small, large), if_negative(x, large, small)};
}
template <class A>
LINRNN_INLINE A vsigmoid(A x) {
    A e = vexp(-magnitude(x));
    return if_negative(x, e, A(1)) / (A(1) + e);
}

// log(1 + exp(x)) = max(x, 0) + log(1 + exp(-|x|))
template <class A>
LINRNN_INLINE A vsoftplus(A x) {
    return if_negative(x, A(0), x) + log1p_finite(vexp(-magnitude(x)));
}

}  // namespace
}  // namespace LINRNN_ISA
}  // namespace linrnn
