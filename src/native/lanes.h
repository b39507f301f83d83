// A few channels kept in one vector register from step to step: as an array the state would go
// through memory, which costs more than the arithmetic. A complex channel is two lanes, (re, im).
#pragma once
#include <cstring>
#include <type_traits>

#include "array.h"

namespace linrnn {
namespace LINRNN_ISA {
namespace {

// Whether N scalars of type A are worth a register here; clang has no shuffle by a variable mask.
template <class A, bool CX, int N>
constexpr bool fits_register() {
#if defined(__GNUC__) && !defined(__clang__)
    return N >= 8 && N * sizeof(A) <= 64;
#elif defined(__GNUC__)
    return !CX && N >= 8 && N * sizeof(A) <= 64;
#else
    return false;
#endif
}

#ifdef __GNUC__

template <class T, int N>
struct VectorOf {
    typedef T type __attribute__((vector_size(N * sizeof(T))));
};

template <class A, bool CX, int N>
struct Lanes {
    using V = typename VectorOf<A, N>::type;
    V v;

    static Lanes load(const A* p) {
        Lanes x;
        std::memcpy(&x.v, p, sizeof x.v);
        return x;
    }
    void store(A* p) const { std::memcpy(p, &v, sizeof v); }
    Lanes operator+(Lanes x) const { return {v + x.v}; }

    // this * x, or conj(this) * x
    template <bool CONJ = false>
    Lanes times(Lanes x) const {
#ifndef __clang__
        if constexpr (CX) {
            V sign = alternating(CONJ ? A(1) : A(-1), CONJ ? A(-1) : A(1));
            V im = __builtin_shuffle(v, index([](int i) { return i | 1; })) * sign;
            V swapped = __builtin_shuffle(x.v, index([](int i) { return i ^ 1; }));
            return {__builtin_shuffle(v, index([](int i) { return i & ~1; })) * x.v + im * swapped};
        }
#endif
        return {v * x.v};
    }

    using Int = std::conditional_t<sizeof(A) == 4, std::int32_t, std::int64_t>;
    using Index = typename VectorOf<Int, N>::type;
    template <class F>
    static Index index(F f) {
        Index m;
        for (int i = 0; i < N; ++i) m[i] = Int(f(i));
        return m;
    }
    static V alternating(A even, A odd) {
        V s;
        for (int i = 0; i < N; ++i) s[i] = i & 1 ? odd : even;
        return s;
    }
};

// The product of decays so far, in double; real and imaginary parts apart.
template <class A, bool CX, int N>
struct WideProduct {
    static constexpr int C = CX ? N / 2 : N;
    using D = typename VectorOf<double, C>::type;
    D re = D{} + 1.0, im = D{};

    // Products that underflow are cleared: see `flush` in scan.cpp.
    static D flushed(D x, double smallest) {
        return ((x <= smallest) & (x >= -smallest)) ? D{} : x;
    }
    void multiply(Lanes<A, CX, N> a, bool conj, double smallest) {
#ifndef __clang__
        if constexpr (CX) {
            using L = Lanes<A, CX, N>;
            D x = half(__builtin_shuffle(a.v, L::index([](int i) { return 2 * i % N; })));
            D y = half(__builtin_shuffle(a.v, L::index([](int i) { return (2 * i + 1) % N; })));
            if (conj) y = -y;
            D was = re;
            re = flushed(was * x - im * y, smallest);
            im = flushed(was * y + im * x, smallest);
            return;
        }
#endif
        (void)conj;
        if constexpr (!CX) re = flushed(re * __builtin_convertvector(a.v, D), smallest);
    }
    void store(double* p) const {
        for (int i = 0; i < C; ++i) {
            p[CX ? 2 * i : i] = re[i];
            if (CX) p[2 * i + 1] = im[i];
        }
    }
    static D half(typename VectorOf<A, N>::type v) {
        typename VectorOf<A, C>::type low;
        std::memcpy(&low, &v, sizeof low);
        return __builtin_convertvector(low, D);
    }
};

#endif

}  // namespace
}  // namespace LINRNN_ISA
}  // namespace linrnn
