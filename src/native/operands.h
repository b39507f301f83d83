// How kernels read tensors of any dtype and strides, and write dense ones of any dtype.
#pragma once
#include <cstdlib>
#include <type_traits>

#include "half_rows.h"
#include "operand_args.h"
#include "storage.h"
#include "vecmath.h"

namespace linrnn {
namespace LINRNN_ISA {
namespace {

constexpr i64 LANES = 16;  // sums that run apart, so that they become vector code
// Numbers of a state that repay another thread, as in gemv.h.
constexpr i64 WORTH = i64(1) << 17;

template <class A, class S>
inline const A* lanes_of(const S* from, i64 stride, i64 n, A* __restrict buffer) {
    if constexpr (std::is_same<S, A>::value)
        if (stride == 1) return from;
    if (stride == 1)
        for (i64 i = 0; i < n; ++i) buffer[i] = A(widen(from[i]));
    else
        for (i64 i = 0; i < n; ++i) buffer[i] = A(widen(from[i * stride]));
    return buffer;
}

template <class A>
LINRNN_APART const A* converted(i64 data, i64 dtype, i64 at, i64 stride, i64 n, A* buffer) {
    return as_stored(data, dtype, [=](auto* from) { return lanes_of(from + at, stride, n, buffer); });
}

// Lanes of an operand as numbers of A: where they lie, or converted into `buffer`.
template <class A>
inline const A* read(const Operand& x, i64 row, i64 head, i64 n, A* buffer) {
    const i64 at = row * x.row + head * x.head;
    if (x.lane == 1 && x.dtype == (std::is_same<A, float>::value ? F32 : F64))
        return reinterpret_cast<const A*>(x.data) + at;
    return converted(x.data, x.dtype, at, x.lane, n, buffer);
}

// One number of an operand, `absent` where there is none.
template <class A>
inline A number(const Operand& x, i64 row, i64 head, A absent) {
    A buffer;
    return x.data ? *read(x, row, head, 1, &buffer) : absent;
}

// n numbers of the dense output, from number `at` on.
template <class A>
LINRNN_APART void write(i64 data, i64 dtype, i64 at, i64 n, const A* from) {
#ifdef LINRNN_HALF_PRODUCTS
    if constexpr (std::is_same<A, float>::value)
        if (dtype == BF16 && has_half_products())
            return to_halves(from, reinterpret_cast<HalfPair*>(reinterpret_cast<bf16*>(data) + at), n);
#endif
    as_stored(data, dtype, [=](auto* to) {
        for (i64 i = 0; i < n; ++i) put_number(from[i], to[at + i]);
    });
}

// A row of the state, which is computed in A: itself, or a copy that is put back.
template <class A>
inline A* open_row(A* row, A*, i64) {
    return row;
}
template <class A, class T>
inline A* open_row(T* row, A* buffer, i64 n) {
    for (i64 i = 0; i < n; ++i) buffer[i] = widen(row[i]);
    return buffer;
}
template <class A>
inline void close_row(A*, const A*, i64) {}
template <class A, class T>
inline void close_row(T* row, const A* from, i64 n) {
    put(row, from, n);
}

// The sum of LANES numbers.
template <class A>
LINRNN_INLINE A sum_of_lanes(A* parts) {
    return sum_by_halves<LANES>(parts);
}

// y *= silu(z)
template <class A>
inline void gate(A* __restrict y, const A* __restrict z, i64 n) {
    for (i64 i = 0; i < n; ++i) y[i] *= z[i] * vsigmoid(z[i]);
}

// Threads for some units of work on a state of some numbers.
inline i64 threads_for(i64 units, i64 numbers, i64 most) {
    i64 threads = numbers / WORTH + 1;
    threads = threads < units ? threads : units;
    return threads < most ? threads : most;
}

// Calls step(unit, work) for every unit, with room for `room` numbers each; 1 where there is none.
template <class A, class Step>
inline int for_each(i64 units, i64 threads, i64 room, const Step& step) {
    int failed = 0;
#pragma omp parallel num_threads(int(threads)) if (threads > 1)
    {
        A* work = static_cast<A*>(std::malloc(size_t(room) * sizeof(A)));
#pragma omp for schedule(static)
        for (i64 u = 0; u < units; ++u) {
            if (work) step(u, work);
            else failed = 1;
        }
        std::free(work);
    }
    return failed;
}

// The kernel for the dtype of a state.
#define LINRNN_UPDATE(name, Kernel, Args)                              \
    int name(const void* record) {                                     \
        const auto& args = *static_cast<const Args*>(record);          \
        if (args.size != i64(sizeof(Args))) return 3;                  \
        switch (args.dtype) {                                          \
            case F32: return Kernel<float>{args}.dispatch();           \
            case F64: return Kernel<double>{args}.dispatch();          \
            case BF16: return Kernel<bf16>{args}.dispatch();           \
            case F16: return Kernel<f16>{args}.dispatch();             \
        }                                                              \
        return 2;                                                      \
    }

}  // namespace
}  // namespace LINRNN_ISA
}  // namespace linrnn
