// More functions in the manner of vecmath.h: without branches or calls, but for those said to have.
#pragma once
#include <math.h>

#include "vecmath.h"

namespace linrnn {
namespace LINRNN_ISA {
namespace {

LINRNN_INLINE float root(float x) { return sqrtf(x); }
LINRNN_INLINE double root(double x) { return sqrt(x); }

// exp(x) - 1 = 2^n (exp(r) - 1) + (2^n - 1), computed at half its size, which never overflows too
// early. See vexp.
LINRNN_INLINE float vexpm1(float x) {
    x = x > 89.0f ? 89.0f : x;
    float t, p = reduced_exp(x < -40.0f ? -40.0f : x, t);
    float half = from_bits((to_bits(t) - to_bits(Magic<float>::VALUE) + 126u) << 23);
    float both = 2.0f * (half * p + (half - 0.5f));
    both = t == Magic<float>::VALUE ? p : both;
    return x == 0.0f ? x : both;  // -0
}
LINRNN_INLINE double vexpm1(double x) {
    x = x > 710.0 ? 710.0 : x;
    double t, p = reduced_exp(x < -60.0 ? -60.0 : x, t);
    double half = from_bits64((to_bits(t) - to_bits(Magic<double>::VALUE) + 1022u) << 52);
    double both = 2.0 * (half * p + (half - 0.5));
    both = t == Magic<double>::VALUE ? p : both;
    return x == 0.0 ? x : both;
}

// tanh(x) = -e / (e + 2) with e = exp(-2x) - 1, for positive x.
template <class A>
LINRNN_INLINE A vtanh(A x) {
    A e = vexpm1(A(-2) * magnitude(x)), y = e / (e + A(2));
    return if_negative(x, y, -y);
}

// log(x) = k ln(2) + log(m) with m in [0.75, 1.5).
LINRNN_INLINE float vlog(float x) {
    bool small = x < 1.17549435e-38f;
    float y = small ? x * 8388608.0f : x;
    std::int32_t k = std::int32_t(to_bits(y) - 0x3f400000u) >> 23;
    float m = from_bits(to_bits(y) - (std::uint32_t(k) << 23)), f = m - 1.0f;
    float n = float(k) - (small ? 23.0f : 0.0f);
    float z = log_of(n, f);
    z = x > 3.40282347e38f ? x : z;
    z = x == 0.0f ? -from_bits(0x7f800000u) : z;
    return x >= 0.0f ? z : from_bits(0x7fc00000u);
}
LINRNN_INLINE double vlog(double x) {
    bool small = x < 2.2250738585072014e-308;
    double y = small ? x * 4503599627370496.0 : x;
    std::uint64_t k = (to_bits(y) - 0x3fe8000000000000ull + (2048ull << 52)) >> 52;  // plus 2048
    double m = from_bits64(to_bits(y) - ((k - 2048ull) << 52)), f = m - 1.0;
    double n = from_bits64(0x4330000000000000ull | k) - 4503599627372544.0;  // 2^52 + 2048
    n = n - (small ? 52.0 : 0.0);
    double r = log_of(n, f);
    r = x > 1.7976931348623157e308 ? x : r;
    r = x == 0.0 ? -from_bits64(0x7ff0000000000000ull) : r;
    return x >= 0.0 ? r : from_bits64(0x7ff8000000000000ull);
}

// vsoftplus, NaN and infinities included.
template <class A>
LINRNN_INLINE A vsoftplus_to(A x) {
    A y = vsoftplus(x);
    return x != x ? x : y;
}

// Sine and cosine of x = q pi/2 + r: pi/2 in parts of few bits, so that their products with q are
// exact. Right up to FAR; beyond, a loop of calls has to take over.
template <class A>
struct Turn {
    static constexpr double FAR = 1e6;
    A sin, cos;
};
LINRNN_INLINE double quarter(double x, double& q) {
    const double MAGIC = 6755399441055744.0;
    q = x * 6.36619772367581382433e-01 + MAGIC;
    double n = q - MAGIC;
    double r = x - n * 1.57079632673412561417e+00;
    r = r - n * 6.07710050630396597660e-11;
    return r - n * 2.02226624879595063154e-21;
}
LINRNN_INLINE Turn<double> turn(double x) {
    double q, r = quarter(x, q), z = r * r;
    std::uint64_t k = to_bits(q);
    double s = 1.58969099521155010221e-10;
    s = s * z + -2.50507602534068634195e-08;
    s = s * z + 2.75573137070700676789e-06;
    s = s * z + -1.98412698298579493134e-04;
    s = s * z + 8.33333333332248946124e-03;
    s = s * z + -1.66666666666666324348e-01;
    s = r + r * z * s;
    double c = -1.13596475577881948265e-11;
    c = c * z + 2.08757232129817482790e-09;
    c = c * z + -2.75573143513906633035e-07;
    c = c * z + 2.48015872894767294178e-05;
    c = c * z + -1.38888888888741095749e-03;
    c = c * z + 4.16666666666666019037e-02;
    double half = 0.5 * z, w = 1.0 - half;
    c = w + (((1.0 - w) - half) + z * z * c);
    std::uint64_t odd = 0ull - (k & 1u), a = to_bits(s), b = to_bits(c);
    std::uint64_t sign_s = (k & 2u) << 62, sign_c = ((k + 1u) & 2u) << 62;
    return {from_bits64(((a & ~odd) | (b & odd)) ^ sign_s),
            from_bits64(((b & ~odd) | (a & odd)) ^ sign_c)};
}
LINRNN_INLINE Turn<float> turn(float x) {
    double q;
    float r = float(quarter(double(x), q)), z = r * r;
    std::uint32_t k = std::uint32_t(to_bits(q));
    float s = -1.9515295891e-4f;
    s = s * z + 8.3321608736e-3f;
    s = s * z + -1.6666654611e-1f;
    s = r + r * z * s;
    float c = 2.443315711809948e-5f;
    c = c * z + -1.388731625493765e-3f;
    c = c * z + 4.166664568298827e-2f;
    c = (1.0f - 0.5f * z) + z * z * c;
    std::uint32_t odd = 0u - (k & 1u), a = to_bits(s), b = to_bits(c);
    std::uint32_t sign_s = (k & 2u) << 30, sign_c = ((k + 1u) & 2u) << 30;
    return {from_bits(((a & ~odd) | (b & odd)) ^ sign_s),
            from_bits(((b & ~odd) | (a & odd)) ^ sign_c)};
}
template <class A>
LINRNN_INLINE A vsin(A x) {
    A y = turn(x).sin;
    return x == A(0) ? x : y;  // -0
}
template <class A>
LINRNN_INLINE A vcos(A x) {
    return turn(x).cos;
}
template <class A>
LINRNN_INLINE A vcos_sin(A x, A* sine) {
    Turn<A> both = turn(x);
    *sine = x == A(0) ? x : both.sin;
    return both.cos;
}
inline float far_sin(float x) { return sinf(x); }
inline double far_sin(double x) { return sin(x); }
inline float far_cos(float x) { return cosf(x); }
inline double far_cos(double x) { return cos(x); }

template <class A>
LINRNN_INLINE A both_sigmoids(A x, A* rest) {
    Sigmoid<A> both = vsigmoid_both(x);
    *rest = both.rest;
    return both.value;
}

// The next integer below, and the nearest, of two the even one: one instruction where there is one.
LINRNN_INLINE float below(float x) { return floorf(x); }
LINRNN_INLINE double below(double x) { return floor(x); }
LINRNN_INLINE float nearest(float x) { return rintf(x); }
LINRNN_INLINE double nearest(double x) { return rint(x); }

// Calls of the C library, one number after the other.
inline float division_rest(float x, float y) { return fmodf(x, y); }
inline double division_rest(double x, double y) { return fmod(x, y); }
inline float angle(float y, float x) { return atan2f(y, x); }
inline double angle(double y, double x) { return atan2(y, x); }
inline float power(float x, float y) { return powf(x, y); }
inline double power(double x, double y) { return pow(x, y); }
inline float hyperbolic_sine(float x) { return sinhf(x); }
inline double hyperbolic_sine(double x) { return sinh(x); }
inline float hyperbolic_cosine(float x) { return coshf(x); }
inline double hyperbolic_cosine(double x) { return cosh(x); }
inline float error_function(float x) { return erff(x); }
inline double error_function(double x) { return erf(x); }
template <class A>
inline A normal_part(A x) {
    return A(0.5) * x * (A(1) + error_function(x * A(0.70710678118654752440)));
}

}  // namespace
}  // namespace LINRNN_ISA
}  // namespace linrnn
