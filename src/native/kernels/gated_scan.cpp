// The recurrence of minGRU and minLSTM from their pre-activations, and its adjoint, on a CPU:
//
//     h_t = keep_t h_{t-1} + add_t value_t
//
// keep and add, which a gate makes of one or two pre-activations, and value, the third or second,
// stay in registers: forward reads each pre-activation once and writes h once. Backward computes
// them again, in one pass against time, and writes the gradient in the layout of the
// pre-activations. Every thread owns some (sequence, channel block) and streams along time.
#include <cstring>

#include "../gated_scan_args.h"
#include "../half_rows.h"
#include "../large_pages.h"
#include "../storage.h"
#include "../vecmath.h"

namespace linrnn {
namespace LINRNN_ISA {
namespace {

enum Gate : i64 { ONE = 0, NORMALISED = 1, FREE = 2 };

// ------------------------------------------------------------------------------- one time step

// What the gates make of their pre-activations; MORE: also what their derivatives need.
template <class A>
struct Gates {
    A keep, add;
    A fall, rise;  // NORMALISED: 1 - sigmoid(forget), 1 - sigmoid(input).  FREE: 1 - keep, 1 - add
};

template <Gate GATE, class A>
LINRNN_INLINE Gates<A> open_gates(A u, A v) {
    if (GATE == ONE) {
        Sigmoid<A> z = vsigmoid_both(u);
        return {z.rest, z.value, A(0), A(0)};
    }
    if (GATE == FREE) {
        Sigmoid<A> f = vsigmoid_both(u), i = vsigmoid_both(v);
        return {f.value, i.value, f.rest, i.rest};
    }
    // f / (f + i) and i / (f + i) with f = 1 / (1 + exp(-u)), i = 1 / (1 + exp(-v)): both
    // denominators divided by the larger of their powers, so nothing overflows or becomes 0 / 0
    A eu = vexp(-magnitude(u)), ev = vexp(-magnitude(v));
    A m = if_negative(v, v, A(0)) - if_negative(u, u, A(0)), e = vexp(-magnitude(m));
    A from_v = (A(1) + ev) * if_negative(m, A(1), e), from_u = (A(1) + eu) * if_negative(m, e, A(1));
    A share = A(1) / (from_u + from_v);
    return {from_v * share, from_u * share, if_negative(u, A(1), eu) / (A(1) + eu),
            if_negative(v, A(1), ev) / (A(1) + ev)};
}

template <class A>
struct Value {
    A value, slope;
};
// g(a) = a + 1/2 for a >= 0, sigmoid(a) below
template <bool POSITIVE, class A>
LINRNN_INLINE Value<A> value_of(A a) {
    if (!POSITIVE) return {a, A(1)};
    a += A(0);  // -0 is not below 0, though its sign bit says so
    A e = vexp(-magnitude(a)), large = A(1) / (A(1) + e), small = e * large;
    return {if_negative(a, small, a + A(0.5)), if_negative(a, small * large, A(1))};
}

template <Gate GATE, bool POSITIVE, class A>
LINRNN_INLINE void advance(A* __restrict h, const A* __restrict a, const A* __restrict u,
                    const A* __restrict v, i64 n) {
    for (i64 i = 0; i < n; ++i) {
        Gates<A> gates = open_gates<GATE>(u[i], GATE == ONE ? A(0) : v[i]);
        h[i] = gates.keep * h[i] + gates.add * value_of<POSITIVE>(a[i]).value;
    }
}

template <class A>
struct Rows {  // of one step: pre-activations, gradients
    A *a, *u, *v;
};

template <Gate GATE, bool POSITIVE, class A>
LINRNN_INLINE void retreat(A* __restrict carry, Rows<const A> x, const A* __restrict before,
                    const A* __restrict grad_h, A* __restrict grad_a, A* __restrict grad_u,
                    A* __restrict grad_v, i64 n) {
    const A *__restrict a = x.a, *__restrict u = x.u, *__restrict v = x.v;
    for (i64 i = 0; i < n; ++i) {
        Gates<A> gates = open_gates<GATE>(u[i], GATE == ONE ? A(0) : v[i]);
        Value<A> value = value_of<POSITIVE>(a[i]);
        A delta = grad_h[i] + carry[i];
        carry[i] = gates.keep * delta;
        grad_a[i] = delta * gates.add * value.slope;
        if (GATE == FREE) {
            grad_u[i] = delta * before[i] * (gates.keep * gates.fall);
            grad_v[i] = delta * value.value * (gates.add * gates.rise);
        } else {
            A balance = delta * (value.value - before[i]) * (gates.keep * gates.add);
            grad_u[i] = GATE == ONE ? balance : -balance * gates.fall;
            if (GATE != ONE) grad_v[i] = balance * gates.rise;
        }
    }
}

#ifdef LINRNN_HALF_PRODUCTS
// -------------------------------------------------------- the same of rows of bfloat16 numbers

struct LanesGates {
    __m512 keep, add, fall, rise;  // as in Gates
};
template <Gate GATE>
LINRNN_BF16_TARGET inline LanesGates open_lanes(__m512 u, __m512 v) {
    if (GATE == ONE) {
        const LanesSigmoid z = lanes_sigmoid(u);
        return {z.rest, z.value, u, u};
    }
    if (GATE == FREE) {
        const LanesSigmoid f = lanes_sigmoid(u), i = lanes_sigmoid(v);
        return {f.value, i.value, f.rest, i.rest};
    }
    // what both have below -30 changes neither their share nor, by more than exp(-30), what they lack
    const __m512 most = _mm512_add_ps(_mm512_max_ps(u, v), _mm512_set1_ps(30.0f));
    const __m512 shift = _mm512_min_ps(_mm512_setzero_ps(), most);
    const __m512 eu = lanes_exp(_mm512_sub_ps(shift, u)), ev = lanes_exp(_mm512_sub_ps(shift, v));
    const __m512 from_u = lanes_plus_one(eu), from_v = lanes_plus_one(ev);
    const __m512 share = lanes_inverse(_mm512_add_ps(from_u, from_v));
    return {_mm512_mul_ps(from_v, share), _mm512_mul_ps(from_u, share),
            _mm512_mul_ps(eu, lanes_inverse(from_u)), _mm512_mul_ps(ev, lanes_inverse(from_v))};
}

struct LanesValue {
    __m512 value, slope;
};
template <bool POSITIVE>
LINRNN_BF16_TARGET inline LanesValue lanes_value(__m512 a) {
    const __m512 one = _mm512_set1_ps(1.0f);
    if (!POSITIVE) return {a, one};
    a = _mm512_add_ps(a, _mm512_setzero_ps());
    const __m512 e = lanes_exp(_mm512_or_ps(a, _mm512_set1_ps(-0.0f)));
    const __m512 large = lanes_inverse(lanes_plus_one(e)), small = _mm512_mul_ps(e, large);
    const __mmask16 below = lanes_negative(a);
    return {_mm512_mask_blend_ps(below, _mm512_add_ps(a, _mm512_set1_ps(0.5f)), small),
            _mm512_mask_blend_ps(below, one, _mm512_mul_ps(small, large))};
}

template <Gate GATE, bool POSITIVE>
LINRNN_BF16_TARGET inline void advance_rows(float* h, const bf16* x, i64 part, bf16* out, i64 n) {
    for (i64 i = 0; i < n; i += 16) {
        const __mmask16 some = lanes_left(n - i);
        const __m512 u = load_lanes(x + part + i, some);
        const LanesGates gates = open_lanes<GATE>(u, GATE == ONE ? u : load_lanes(x + 2 * part + i, some));
        const __m512 in = _mm512_mul_ps(gates.add, lanes_value<POSITIVE>(load_lanes(x + i, some)).value);
        const __m512 now = _mm512_fmadd_ps(gates.keep, load_lanes(h + i, some), in);
        store_lanes(h + i, some, now);
        store_lanes(out + i, some, now);
    }
}

// `to`: gradients of the pre-activations, in their order, n and more apart.
template <Gate GATE, bool POSITIVE, class P>
LINRNN_BF16_TARGET inline void retreat_rows(float* carry, const bf16* x, i64 part, const P* before,
                                            const bf16* grad_h, bf16* to, i64 apart, i64 n) {
    for (i64 i = 0; i < n; i += 16) {
        const __mmask16 some = lanes_left(n - i);
        const __m512 u = load_lanes(x + part + i, some);
        const LanesGates gates = open_lanes<GATE>(u, GATE == ONE ? u : load_lanes(x + 2 * part + i, some));
        const LanesValue value = lanes_value<POSITIVE>(load_lanes(x + i, some));
        const __m512 delta = _mm512_add_ps(load_lanes(grad_h + i, some), load_lanes(carry + i, some));
        const __m512 was = load_lanes(before + i, some), added = _mm512_mul_ps(delta, gates.add);
        const __m512 kept = _mm512_mul_ps(gates.keep, delta);
        store_lanes(carry + i, some, kept);
        store_lanes(to + i, some, _mm512_mul_ps(added, value.slope));
        __m512 for_u, for_v;
        if (GATE == FREE) {
            for_u = _mm512_mul_ps(_mm512_mul_ps(kept, was), gates.fall);
            for_v = _mm512_mul_ps(_mm512_mul_ps(added, value.value), gates.rise);
        } else {
            const __m512 balance = _mm512_mul_ps(_mm512_mul_ps(kept, gates.add), _mm512_sub_ps(value.value, was));
            for_u = GATE == ONE ? balance : lanes_minus(_mm512_mul_ps(balance, gates.fall));
            for_v = _mm512_mul_ps(balance, gates.rise);
        }
        store_lanes(to + apart + i, some, for_u);
        if (GATE != ONE) store_lanes(to + 2 * apart + i, some, for_v);
    }
}
#endif

// ------------------------------------------------------------------- one sequence, some channels

constexpr i64 BLOCK = 512;                // channels: rows of a step stay in L1
constexpr i64 THREAD_ELEMENTS = 8 * 1024;  // pre-activations that occupy a thread for long enough

template <class S, Gate GATE, bool POSITIVE>
struct GatedScan {
    using A = typename Accumulator<S>::type;
    static constexpr i64 PARTS = GATE == ONE ? 2 : 3;
    static constexpr bool HALF = std::is_same<S, bf16>::value;

    const GatedScanArgs& args;

    // Step t of the one sequence that the arrays hold: see unit().
    template <class P = S>
    static P* at(const Array& array, i64 t, i64 c) {
        return reinterpret_cast<P*>(array.data) + t * array.step + c;
    }
    bool cut(i64 t) const {
        return args.reset.data && *at<const std::uint8_t>(args.reset, t, 0);
    }
    A* state(i64 pointer, i64 s, i64 c) const {
        return reinterpret_cast<A*>(pointer) + s * args.channels + c;
    }
    void begin(A* h, i64 n) const {
        for (i64 i = 0; i < n; ++i) h[i] = A(args.start);
    }
    void enter(A* h, i64 s, i64 c, i64 n) const {
        if (args.initial) put(h, state(args.initial, s, c), n);
        else begin(h, n);
    }
    Rows<const A> fetch_x(i64 t, i64 c, A (*buffer)[BLOCK], i64 n) const {
        const S* row = at<const S>(args.x, t, c);
        const A* a = fetch(row, buffer[0], n);
        const A* u = fetch(row + args.x_part, buffer[1], n);
        return {a, u, PARTS == 2 ? u : fetch(row + 2 * args.x_part, buffer[2], n)};
    }

    void forward(i64 s, i64 c, i64 n) const {
        alignas(64) A h[BLOCK], buffer[PARTS][BLOCK];
        enter(h, s, c, n);
#ifdef LINRNN_HALF_PRODUCTS
        if constexpr (HALF) {
            if (has_half_products()) {
                for (i64 t = 0; t < args.time; ++t) {
                    if (cut(t)) begin(h, n);
                    advance_rows<GATE, POSITIVE>(h, at<const S>(args.x, t, c), args.x_part, at(args.h, t, c), n);
                }
                return put(state(args.final, s, c), h, n);
            }
        }
#endif
        for (i64 t = 0; t < args.time; ++t) {
            if (cut(t)) begin(h, n);
            Rows<const A> x = fetch_x(t, c, buffer, n);
            advance<GATE, POSITIVE>(h, x.a, x.u, x.v, n);
            put(at(args.h, t, c), h, n);
        }
        put(state(args.final, s, c), h, n);
    }

    void backward(i64 s, i64 c, i64 n) const {
        alignas(64) A carry[BLOCK], first[BLOCK], fresh[BLOCK], buffer[PARTS][BLOCK];
        alignas(64) A hbuf[BLOCK], gbuf[BLOCK], grad[PARTS][BLOCK];
        put(carry, state(args.final, s, c), n);
        enter(first, s, c, n);
        begin(fresh, n);
        const i64 channels = args.channels;
#ifdef LINRNN_HALF_PRODUCTS
        if constexpr (HALF) {
            if (has_half_products()) {
                for (i64 t = args.time - 1; t >= 0; --t) {
                    const bool clear = cut(t);
                    auto step = [&](const auto* before) {
                        retreat_rows<GATE, POSITIVE>(carry, at<const S>(args.x, t, c), args.x_part, before,
                                                     at<const S>(args.grad_h, t, c), at(args.grad_x, t, c), channels, n);
                    };
                    if (clear) step(fresh), std::memset(carry, 0, size_t(n) * sizeof(A));
                    else if (t) step(at<const S>(args.h, t - 1, c));
                    else step(first);
                }
                return put(state(args.grad_initial, s, c), carry, n);
            }
        }
#endif
        for (i64 t = args.time - 1; t >= 0; --t) {
            bool clear = cut(t);
            const A* before = clear ? fresh
                              : t   ? fetch(at<const S>(args.h, t - 1, c), hbuf, n)
                                    : first;
            const A* grad_h = fetch(at<const S>(args.grad_h, t, c), gbuf, n);
            retreat<GATE, POSITIVE>(carry, fetch_x(t, c, buffer, n), before, grad_h, grad[0],
                                    grad[1], PARTS == 2 ? nullptr : grad[PARTS - 1], n);
            for (i64 p = 0; p < PARTS; ++p) put(at(args.grad_x, t, c) + p * channels, grad[p], n);
            if (clear) std::memset(carry, 0, size_t(n) * sizeof(A));
        }
        put(state(args.grad_initial, s, c), carry, n);
    }

    // Some channels of sequence s, whose kernel sees no other.
    void unit(i64 s, i64 c, i64 n) const {
        const Span span(args, s);
        GatedScanArgs own = args;
        own.time = span.count;
        Array* const arrays[] = {&own.x, &own.h, &own.grad_h, &own.grad_x};
        for (Array* x : arrays) *x = span.of(*x, sizeof(S));
        own.reset = span.of(own.reset, 1);
        if (own.backward) GatedScan{own}.backward(s, c, n);
        else GatedScan{own}.forward(s, c, n);
    }

    int dispatch() const {
        const i64 n = args.channels, size = steps_of(args) * n;
        if (!args.seqs || !n) return 0;
        if (args.backward) advise(args.grad_x.data, size * PARTS * i64(sizeof(S)));
        else advise(args.h.data, size * i64(sizeof(S)));
        i64 worth = size / THREAD_ELEMENTS, threads = worth < args.threads ? worth : args.threads;
        if (threads < 1) threads = 1;
        // share a row between threads, in whole cache lines and no fewer than two of them
        i64 line = 64 / i64(sizeof(S)), parts = (threads + args.seqs - 1) / args.seqs;
        i64 block = (n / parts + line - 1) / line * line;
        if (block < 2 * line) block = 2 * line;
        if (block > BLOCK) block = BLOCK;
        const i64 blocks = (n + block - 1) / block;
#pragma omp parallel for num_threads(int(threads)) schedule(dynamic) if (threads > 1)
        for (i64 j = 0; j < args.seqs * blocks; ++j) {
            i64 s = j / blocks, c = (j % blocks) * block, width = n - c < block ? n - c : block;
            unit(s, c, width);
        }
        return 0;
    }
};

template <class S, Gate GATE>
int run_value(const GatedScanArgs& args) {
    return args.positive ? GatedScan<S, GATE, true>{args}.dispatch()
                         : GatedScan<S, GATE, false>{args}.dispatch();
}

template <class S>
int run_gate(const GatedScanArgs& args) {
    switch (args.gate) {
        case ONE: return run_value<S, ONE>(args);
        case NORMALISED: return run_value<S, NORMALISED>(args);
        default: return run_value<S, FREE>(args);
    }
}

}  // namespace

int gated_scan(const void* record) {
    const GatedScanArgs& args = *static_cast<const GatedScanArgs*>(record);
    if (args.size != i64(sizeof(GatedScanArgs))) return 3;
    switch (args.dtype) {
        case F32: return run_gate<float>(args);
        case F64: return run_gate<double>(args);
        case BF16: return run_gate<bf16>(args);
        case F16: return run_gate<f16>(args);
    }
    return 2;
}

}  // namespace LINRNN_ISA
}  // namespace linrnn
