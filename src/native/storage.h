// What tensors are stored as and what a kernel computes in: bfloat16 and float16 are widened to
// float32 on the way in and rounded on the way out. Included by kernels, once for each
// instruction set, so everything here has internal linkage.
#pragma once
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "array.h"

namespace linrnn {
namespace LINRNN_ISA {
namespace {

struct bf16 {
    std::uint16_t bits;
};
struct f16 {
    std::uint16_t bits;
};

inline float from_bits(std::uint32_t u) {
    float f;
    std::memcpy(&f, &u, 4);
    return f;
}
inline std::uint32_t to_bits(float f) {
    std::uint32_t u;
    std::memcpy(&u, &f, 4);
    return u;
}

inline float widen(float x) { return x; }
inline double widen(double x) { return x; }
inline float widen(bf16 x) { return from_bits(std::uint32_t(x.bits) << 16); }
inline void narrow(float f, bf16& out) {
    std::uint32_t u = to_bits(f);
    std::uint32_t rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
    std::uint32_t nan = (u >> 16) | 0x40u;
    out.bits = std::uint16_t((u & 0x7fffffffu) > 0x7f800000u ? nan : rounded);
}

// IEEE half by integer arithmetic: rebias the exponent with a multiplication; exact, and rounds to
// nearest even on the way back. A subnormal half is the last bits of a number about 0.5: as bits of a
// float it would be a subnormal float, which a kernel may have flushed to zero.
inline float widen(f16 x) {
    std::uint32_t sign = std::uint32_t(x.bits & 0x8000u) << 16;
    std::uint32_t rest = std::uint32_t(x.bits & 0x7fffu) << 13;
    float normal = from_bits(rest) * from_bits(0x77800000u);  // 2^112
    float subnormal = from_bits(0x3f000000u | (x.bits & 0x3ffu)) - 0.5f;
    std::uint32_t magnitude = x.bits & 0x7c00u ? to_bits(normal) : to_bits(subnormal);
    std::uint32_t special = 0x7f800000u | rest;
    std::uint32_t bits = (x.bits & 0x7c00u) == 0x7c00u ? special : magnitude;
    return from_bits(bits | sign);
}
inline void narrow(float f, f16& out) {
    std::uint32_t u = to_bits(f), sign = (u >> 16) & 0x8000u, m = u & 0x7fffffffu;
    std::uint32_t normal = (m - 0x38000000u + 0xfffu + ((m >> 13) & 1u)) >> 13;
    // adding 0.5 aligns a subnormal half's unit with the last bit of the float
    std::uint32_t subnormal = to_bits(from_bits(m) + 0.5f) - 0x3f000000u;
    std::uint32_t r = m < 0x38800000u ? subnormal : normal;
    r = m >= 0x477ff000u ? 0x7c00u : r;
    r = m > 0x7f800000u ? 0x7e00u : r;
    out.bits = std::uint16_t(r | sign);
}

// A number, rounded to the type that it is stored as.
template <class A, class S>
inline void put_number(A x, S& to) {
    if constexpr (std::is_arithmetic<S>::value) to = S(x);
    else narrow(float(x), to);
}

inline i64 bytes_of(i64 dtype) { return dtype == F64 ? 8 : dtype == F32 ? 4 : 2; }

// Calls a function with an address of numbers of a dtype of floating point.
template <class F>
inline auto as_stored(i64 data, i64 dtype, const F& function) {
    switch (dtype) {
        case F64: return function(reinterpret_cast<double*>(data));
        case BF16: return function(reinterpret_cast<bf16*>(data));
        case F16: return function(reinterpret_cast<f16*>(data));
        default: return function(reinterpret_cast<float*>(data));
    }
}

template <class S>
struct Accumulator {
    using type = float;
};
template <>
struct Accumulator<double> {
    using type = double;
};

// Rows of storage as rows of the accumulation type: themselves, or converted into `buffer`.
inline const float* fetch(const float* row, float*, i64) { return row; }
inline const double* fetch(const double* row, double*, i64) { return row; }
template <class S>
inline const float* fetch(const S* row, float* buffer, i64 n) {
    for (i64 i = 0; i < n; ++i) buffer[i] = widen(row[i]);
    return buffer;
}

// Nothing may be at null, which memcpy may not be given.
template <class A>
inline void copy(A* to, const A* from, i64 n) {
    if (n > 0) std::memcpy(to, from, size_t(n) * sizeof(A));
}

inline void put(float* to, const float* from, i64 n) { copy(to, from, n); }
inline void put(double* to, const double* from, i64 n) { copy(to, from, n); }
template <class S>
inline void put(S* to, const float* from, i64 n) {
    for (i64 i = 0; i < n; ++i) narrow(from[i], to[i]);
}

}  // namespace
}  // namespace LINRNN_ISA
}  // namespace linrnn
