// What the memory of RWKV-7 is written with, of each head (tensors are dense rows of heads * width):
//   c = key d / sqrt(sum (key d)^2 + eps),   s = sigmoid(rate)
//   k = key (1 + (s - 1) r),   a = -c,   b = c s,   g = scale sigmoid(decay)
// with d and r a number for each channel, and its adjoint, which computes c and the gates again.
//
// Compiled once for every instruction set: see scan.cpp.
#include <cmath>
#include <initializer_list>

#include "../large_pages.h"
#include "../low_rank_keys_args.h"
#include "../operands.h"

namespace linrnn {
namespace LINRNN_ISA {
namespace {

template <class A>
struct LowRankKeys {
    static constexpr i64 BLOCK = 16;  // rows of a unit of work
    static constexpr i64 ROOM = 12;   // rows of a head that one takes on its way
    const LowRankKeysArgs& args;
    const i64 n = args.width;

    // n numbers of a dense tensor, from number `at` on.
    const A* row(i64 data, i64 dtype, i64 at, A* buffer) const {
        return read(Operand{data + at * bytes_of(dtype), dtype, 0, 0, 1}, 0, 0, n, buffer);
    }
    // The same through sigmoids.
    A* sigmoids(i64 data, i64 dtype, i64 at, A* to) const {
#ifdef LINRNN_HALF_PRODUCTS
        if constexpr (std::is_same<A, float>::value)
            if (dtype == BF16 && has_half_products())
                return sigmoid_row(reinterpret_cast<const bf16*>(data) + at, to, n), to;
#endif
        const A* x = row(data, dtype, at, to);
        LINRNN_INDEPENDENT
        for (i64 i = 0; i < n; ++i) to[i] = vsigmoid(x[i]);
        return to;
    }
    const A* wide_row(i64 data, i64 at) const { return reinterpret_cast<const A*>(data) + at; }

    // A head of a row, from number `at` on; its channels begin at `channel`.
    struct Head {
        const A *key, *direction, *relax;
        A *rate, *unit;  // s, c
        A size;          // 1 / sqrt(sum + eps)
    };
    Head open(i64 at, i64 channel, A* work) const {
        Head h{row(args.key, args.key_dtype, at, work), wide_row(args.direction, channel),
               wide_row(args.relax, channel), sigmoids(args.rate, args.rate_dtype, at, work + n), work + 2 * n, A(0)};
        alignas(64) A parts[LANES] = {};
        i64 i = 0;
        for (; i + LANES <= n; i += LANES)
            for (i64 l = 0; l < LANES; ++l) {
                const A u = h.key[i + l] * h.direction[i + l];
                parts[l] += u * u;
            }
        for (i64 l = 0; i < n; ++i, ++l) {
            const A u = h.key[i] * h.direction[i];
            parts[l] += u * u;
        }
        h.size = A(1) / std::sqrt(sum_of_lanes(parts) + A(args.eps));
        const A *key = h.key, *direction = h.direction, size = h.size;
        A* c = h.unit;
        LINRNN_INDEPENDENT
        for (i64 j = 0; j < n; ++j) c[j] = size * (key[j] * direction[j]);
        return h;
    }
    void forward(i64 at, i64 channel, A* work) const {
        const Head h = open(at, channel, work);
        const A* gate = sigmoids(args.decay, args.decay_dtype, at, work + 4 * n);
        const A *key = h.key, *relax = h.relax, *s = h.rate, *c = h.unit, scale = A(args.scale);
        A *k = work + 5 * n, *a = work + 6 * n, *b = work + 7 * n;
        A* g = reinterpret_cast<A*>(args.g) + at;
        LINRNN_INDEPENDENT
        for (i64 i = 0; i < n; ++i) {
            k[i] = key[i] * (A(1) + (s[i] - A(1)) * relax[i]);
            a[i] = -c[i];
            b[i] = c[i] * s[i];
            g[i] = scale * gate[i];
        }
        write(args.k, args.out_dtype, at, n, k);
        write(args.a, args.out_dtype, at, n, a);
        write(args.b, args.out_dtype, at, n, b);
    }

    void backward(i64 at, i64 channel, A* work, double* sums) const {
        const Head h = open(at, channel, work);
        const A* of_k = row(args.k, args.out_dtype, at, work + 4 * n);
        const A* of_a = row(args.a, args.out_dtype, at, work + 5 * n);
        const A* of_b = row(args.b, args.out_dtype, at, work + 6 * n);
        const A* gate = sigmoids(args.decay, args.decay_dtype, at, work + 7 * n);
        const A *of_g = wide_row(args.g, at), *key = h.key, *relax = h.relax, *s = h.rate, *c = h.unit;
        const A *direction = h.direction, size = h.size, scale = A(args.scale);
        A *into = work + 8 * n, *into_key = work + 9 * n, *into_rate = work + 10 * n, *into_decay = work + 11 * n;
        alignas(64) A parts[LANES] = {};
        i64 j = 0;
        for (; j + LANES <= n; j += LANES)
            for (i64 l = 0; l < LANES; ++l) {
                into[j + l] = of_b[j + l] * s[j + l] - of_a[j + l];
                parts[l] += c[j + l] * into[j + l];
            }
        for (i64 l = 0; j < n; ++j, ++l) {
            into[j] = of_b[j] * s[j] - of_a[j];
            parts[l] += c[j] * into[j];
        }
        const A along = sum_of_lanes(parts);
        double *of_direction = sums + channel, *of_relax = of_direction + args.heads * n;
        LINRNN_INDEPENDENT
        for (i64 i = 0; i < n; ++i) {
            const A of_u = size * (into[i] - c[i] * along), less = s[i] - A(1), shared = of_k[i] * key[i];
            into_key[i] = of_u * direction[i] + of_k[i] * (A(1) + less * relax[i]);
            into_rate[i] = (of_b[i] * c[i] + shared * relax[i]) * (s[i] * (A(1) - s[i]));
            into_decay[i] = of_g[i] * (scale * (gate[i] * (A(1) - gate[i])));
            of_direction[i] += double(of_u * key[i]);
            of_relax[i] += double(shared * less);
        }
        write(args.grad_key, args.key_dtype, at, n, into_key);
        write(args.grad_rate, args.rate_dtype, at, n, into_rate);
        write(args.grad_decay, args.decay_dtype, at, n, into_decay);
    }

    int dispatch() const {
        const i64 rows = args.rows, channels = args.heads * n, numbers = rows * channels;
        if (!numbers) return 0;
        const i64 units = args.backward ? args.parts : (rows + BLOCK - 1) / BLOCK;
        const i64 share = (rows + units - 1) / units;
        for (i64 data : {args.k, args.a, args.b})
            if (!args.backward) advise(data, numbers * bytes_of(args.out_dtype));
        if (!args.backward) advise(args.g, numbers * i64(sizeof(A)));
        advise(args.grad_key, numbers * bytes_of(args.key_dtype));
        advise(args.grad_rate, numbers * bytes_of(args.rate_dtype));
        advise(args.grad_decay, numbers * bytes_of(args.decay_dtype));
        // a gate is worth several products
        const i64 threads = threads_for(units, 4 * numbers, args.threads);
        return for_each<A>(units, threads, ROOM * n, [&](i64 unit, A* work) {
            const i64 end = (unit + 1) * share < rows ? (unit + 1) * share : rows;
            double* sums = reinterpret_cast<double*>(args.sums) + 2 * unit * channels;
            for (i64 i = unit * share; i < end; ++i)
                for (i64 channel = 0; channel < channels; channel += n)
                    if (args.backward) backward(i * channels + channel, channel, work, sums);
                    else forward(i * channels + channel, channel, work);
        });
    }
};

}  // namespace

int low_rank_keys(const void* record) {
    const auto& args = *static_cast<const LowRankKeysArgs*>(record);
    if (args.size != i64(sizeof(LowRankKeysArgs))) return 3;
    switch (args.dtype) {
        case F32: return LowRankKeys<float>{args}.dispatch();
        case F64: return LowRankKeys<double>{args}.dispatch();
    }
    return 2;
}

}  // namespace LINRNN_ISA
}  // namespace linrnn
