// Powers of transitions that are diagonal plus low rank, A = diag(a) - sum_r p_r q_r, as blocks of
// time need them, and their adjoint on a CPU. A step of A is O(modes), so powers applied to a vector
// are made one after the other; and a dense power is
//   A^n = diag(a^n) - sum_{j < n} (a^(n-1-j) p) (q A^j),
// one product of two thin matrices. All of it is double precision, in the caches of one core.
//
// Vectors are real numbers, the real parts of all modes before the imaginary ones: a state as it is,
// what is applied to a state as its conjugate, so that applying it is a dot product.
//
// Compiled once for every instruction set: see scan.cpp.
#include <cstdlib>
#include <cstring>

#include "../dplr_powers_args.h"
#include "../sums.h"

namespace linrnn {
namespace LINRNN_ISA {
namespace {

// A matrix of doubles, entry (i, j) at i * row + j * column.
struct Matrix {
    double* at;
    i64 row, column;
};

// to += sign * x y, with rows of `width` numbers, a multiple of 2 * SUM, that y and `to` hold in order.
void add_product(Matrix to, const Matrix& x, const Matrix& y, i64 many, i64 inner, i64 width, double sign) {
    constexpr i64 I = 4, L = 2 * SUM;
    for (i64 i = 0; i < many; i += I)
        for (i64 l0 = 0; l0 < width; l0 += L) {
            alignas(64) double sums[I][L] = {};
            for (i64 j = 0; j < inner; ++j) {
                const double* __restrict from = y.at + j * y.row + l0;
                for (i64 k = 0; k < I; ++k) {
                    const double weight = i + k < many ? x.at[(i + k) * x.row + j * x.column] : 0.0;
                    for (i64 l = 0; l < L; ++l) sums[k][l] += weight * from[l];
                }
            }
            for (i64 k = 0; k < I && i + k < many; ++k) {
                double* __restrict into = to.at + (i + k) * to.row + l0;
                for (i64 l = 0; l < L; ++l) into[l] += sign * sums[k][l];
            }
        }
}

// A diagonal and the outer products that are taken off, and the gradients of all of them.
struct Transition {
    const double *a, *p, *q;  // (width), (rank, width) each
    double *of_a, *of_p, *of_q;
    double turn;  // 1, or -1 of the conjugate diagonal, which moves what is applied to states
    i64 half, rank;

    // to = a x, or conj(a) x
    void rotate(double* __restrict to, const double* __restrict x, double sign) const {
        const double *__restrict re = a, *__restrict im = a + half;
        for (i64 m = 0; m < half; ++m) {
            to[m] = re[m] * x[m] - sign * im[m] * x[half + m];
            to[half + m] = re[m] * x[half + m] + sign * im[m] * x[m];
        }
    }
    static void add(double* __restrict to, const double* __restrict x, double by, i64 n) {
        for (i64 k = 0; k < n; ++k) to[k] += by * x[k];
    }
    void step(double* to, const double* x) const {
        const i64 width = 2 * half;
        rotate(to, x, turn);
        for (i64 r = 0; r < rank; ++r) add(to, p + r * width, -dot(q + r * width, x, width), width);
    }
    // x_0 is there: the powers applied to it, one after the other.
    void powers(double* x, i64 count) const {
        for (i64 j = 1; j < count; ++j) step(x + 2 * j * half, x + 2 * (j - 1) * half);
    }
    // Given gradients of these: adds to those of the transition, and returns that of x_0 in `last`.
    void powers_back(const double* x, const double* grads, i64 count, double* last, double* spare) const {
        const i64 width = 2 * half;
        std::memcpy(last, grads + (count - 1) * width, size_t(width) * sizeof(double));
        for (i64 j = count - 2; j >= 0; --j) {
            const double *__restrict now = x + j * width, *__restrict g = last;
            for (i64 m = 0; m < half; ++m) {
                of_a[m] += now[m] * g[m] + now[half + m] * g[half + m];
                of_a[half + m] += turn * (now[m] * g[half + m] - now[half + m] * g[m]);
            }
            rotate(spare, last, -turn);
            for (i64 r = 0; r < rank; ++r) {
                const double forward = dot(q + r * width, now, width), back = dot(p + r * width, last, width);
                add(of_p + r * width, last, -forward, width);
                add(of_q + r * width, now, -back, width);
                add(spare, q + r * width, -back, width);
            }
            for (i64 k = 0; k < width; ++k) last[k] = spare[k] + grads[j * width + k];
        }
    }
};

template <class S>
struct DplrPowers {
    const DplrPowersArgs& args;
    i64 half, width, steps, rank;

    explicit DplrPowers(const DplrPowersArgs& given)
        : args(given), half(padded(given.modes)), width(2 * half), steps(given.steps), rank(given.rank) {}

    // What a channel works with: vectors; their gradients lie in another one.
    struct Room {
        double *a, *b, *c, *p, *q;         // of the system; p and q (rank, .)
        double *diagonal;                  // a^j, (steps + 1, .)
        double *into, *out;                // A^j b and c A^j, (steps + 1, .)
        double *left, *right;              // q A^j and a^j p, (rank, steps, .)
        double *end;
    };
    Room room(double* from) const {
        const i64 all = (steps + 1) * width, thin = rank * steps * width;
        Room x;
        x.a = from, x.b = x.a + width, x.c = x.b + width, x.p = x.c + width, x.q = x.p + rank * width;
        x.diagonal = x.q + rank * width, x.into = x.diagonal + all, x.out = x.into + all;
        x.left = x.out + all, x.right = x.left + thin, x.end = x.right + thin;
        return x;
    }
    i64 numbers() const { return (3 + 2 * rank + 3 * (steps + 1) + 2 * rank * steps) * width; }

    // Vectors as tensors hold them: complex numbers, their conjugates where sign is -1.
    template <class T>
    void load(double* to, const T* from, double sign) const {
        std::memset(to, 0, size_t(width) * sizeof(double));
        for (i64 m = 0; m < args.modes; ++m)
            to[m] = double(from[2 * m]), to[half + m] = sign * double(from[2 * m + 1]);
    }
    template <class T>
    void store(T* to, const double* from, double sign) const {
        for (i64 m = 0; m < args.modes; ++m)
            to[2 * m] = T(from[m]), to[2 * m + 1] = T(sign * from[half + m]);
    }
    // Where number k of a row of a tensor is in a vector.
    i64 place(i64 k) const { return k / 2 + k % 2 * half; }
    static double* doubles(i64 address, i64 at) { return reinterpret_cast<double*>(address) + at; }
    static S* scalars(i64 address, i64 at) { return reinterpret_cast<S*>(address) + at; }

    Transition moves_states(const Room& x, const Room& g) const {
        return {x.a, x.p, x.q, g.a, g.p, g.q, 1.0, half, rank};
    }
    Transition moves_readers(const Room& x, const Room& g) const {
        return {x.a, x.q, x.p, g.a, g.q, g.p, -1.0, half, rank};
    }
    Transition diagonal_alone(const Room& x, const Room& g) const {
        return {x.a, nullptr, nullptr, g.a, nullptr, nullptr, 1.0, half, 0};
    }

    void compute(i64 h, const Room& x) const {
        const i64 vector = 2 * args.modes;
        load(x.a, doubles(args.a, h * vector), 1), load(x.b, doubles(args.b, h * vector), 1);
        load(x.c, doubles(args.c, h * vector), -1);
        for (i64 r = 0; r < rank; ++r) {
            load(x.p + r * width, doubles(args.p, (h * rank + r) * vector), 1);
            load(x.q + r * width, doubles(args.q, (h * rank + r) * vector), -1);
        }
        const Transition diagonal = diagonal_alone(x, x), readers = moves_readers(x, x);
        for (i64 k = 0; k < width; ++k) x.diagonal[k] = k < half ? 1.0 : 0.0;
        diagonal.powers(x.diagonal, steps + 1);
        copy(x.into, x.b), copy(x.out, x.c);
        moves_states(x, x).powers(x.into, steps);
        readers.powers(x.out, steps + 1);
        for (i64 r = 0; r < rank; ++r) {
            double *left = x.left + r * steps * width, *right = x.right + r * steps * width;
            copy(left, x.q + r * width), copy(right, x.p + r * width);
            readers.powers(left, steps), diagonal.powers(right, steps);
        }
    }
    void copy(double* to, const double* from) const { std::memcpy(to, from, size_t(width) * sizeof(double)); }

    // a^(n - 1 - j) p for j = 0, 1, ...
    Matrix falling(double* right, i64 r, i64 n) const {
        return {right + (r * steps + n - 1) * width, -width, 1};
    }
    Matrix rising(double* left, i64 r) const { return {left + r * steps * width, width, 1}; }
    static Matrix turned(const Matrix& x) { return {x.at, x.column, x.row}; }

    void forward(i64 h, const Room& x, double* dense) const {
        const i64 vector = 2 * args.modes;
        for (i64 j = 0; j < steps; ++j) {
            scalars(args.response, h * steps)[j] = S(dot(x.c, x.into + j * width, width));
            store(scalars(args.into, (h * steps + steps - 1 - j) * vector), x.into + j * width, 1);
            store(scalars(args.out, (h * steps + j) * vector), x.out + (j + 1) * width, 1);
        }
        write_dense(h, x, steps, args.decay, dense);
        if (args.rest) write_dense(h, x, args.rest, args.rest_decay, dense);
    }
    void write_dense(i64 h, const Room& x, i64 n, i64 address, double* dense) const {
        std::memset(dense, 0, size_t(width * width) * sizeof(double));
        for (i64 m = 0; m < half; ++m) {
            const double re = x.diagonal[n * width + m], im = x.diagonal[n * width + half + m];
            dense[m * width + m] = dense[(half + m) * width + half + m] = re;
            dense[m * width + half + m] = im, dense[(half + m) * width + m] = -im;
        }
        for (i64 r = 0; r < rank; ++r)
            add_product({dense, width, 1}, turned(rising(x.left, r)), falling(x.right, r, n), width, n, width, -1);
        const i64 size = 2 * args.modes;
        S* to = scalars(address, h * size * size);
        for (i64 k = 0; k < size; ++k)
            for (i64 l = 0; l < size; ++l) to[k * size + l] = S(dense[place(k) * width + place(l)]);
    }

    void read_dense(i64 h, const Room& x, const Room& g, i64 n, i64 address, double* dense) const {
        const i64 size = 2 * args.modes;
        const S* from = scalars(address, h * size * size);
        double* other = dense + width * width;
        std::memset(dense, 0, size_t(2 * width * width) * sizeof(double));
        for (i64 k = 0; k < size; ++k)
            for (i64 l = 0; l < size; ++l)
                dense[place(k) * width + place(l)] = other[place(l) * width + place(k)] = double(from[k * size + l]);
        for (i64 m = 0; m < half; ++m) {
            double* of = g.diagonal + n * width;
            of[m] += dense[m * width + m] + dense[(half + m) * width + half + m];
            of[half + m] += dense[m * width + half + m] - dense[(half + m) * width + m];
        }
        for (i64 r = 0; r < rank; ++r) {
            const Matrix straight{dense, width, 1}, across{other, width, 1};
            add_product(rising(g.left, r), falling(x.right, r, n), across, n, width, width, -1);
            add_product(falling(g.right, r, n), rising(x.left, r), straight, n, width, width, -1);
        }
    }

    void backward(i64 h, const Room& x, const Room& g, double* dense) const {
        const i64 vector = 2 * args.modes;
        std::memset(g.a, 0, size_t(g.end - g.a) * sizeof(double));
        for (i64 j = 0; j < steps; ++j) {
            const double of = double(scalars(args.response, h * steps)[j]);
            load(g.into + j * width, scalars(args.into, (h * steps + steps - 1 - j) * vector), 1);
            load(g.out + (j + 1) * width, scalars(args.out, (h * steps + j) * vector), 1);
            Transition::add(g.into + j * width, x.c, of, width);
            Transition::add(g.c, x.into + j * width, of, width);
        }
        read_dense(h, x, g, steps, args.decay, dense);
        if (args.rest) read_dense(h, x, g, args.rest, args.rest_decay, dense);

        const Transition diagonal = diagonal_alone(x, g), readers = moves_readers(x, g);
        double *last = dense, *spare = dense + width;
        moves_states(x, g).powers_back(x.into, g.into, steps, g.b, spare);
        readers.powers_back(x.out, g.out, steps + 1, last, spare);
        Transition::add(g.c, last, 1, width);
        diagonal.powers_back(x.diagonal, g.diagonal, steps + 1, last, spare);
        for (i64 r = 0; r < rank; ++r) {
            const i64 at = r * steps * width;
            readers.powers_back(x.left + at, g.left + at, steps, last, spare);
            Transition::add(g.q + r * width, last, 1, width);
            diagonal.powers_back(x.right + at, g.right + at, steps, last, spare);
            Transition::add(g.p + r * width, last, 1, width);
        }
        store(doubles(args.grad_a, h * vector), g.a, 1), store(doubles(args.grad_b, h * vector), g.b, 1);
        store(doubles(args.grad_c, h * vector), g.c, -1);
        for (i64 r = 0; r < rank; ++r) {
            store(doubles(args.grad_p, (h * rank + r) * vector), g.p + r * width, 1);
            store(doubles(args.grad_q, (h * rank + r) * vector), g.q + r * width, -1);
        }
    }

    int dispatch() const {
        const i64 threads = args.channels < args.threads ? args.channels : args.threads;
        const i64 squares = 2 * width * width;
        int failed = 0;
#pragma omp parallel num_threads(int(threads)) if (threads > 1)
        {
            auto work = static_cast<double*>(std::malloc(size_t(squares + 2 * numbers()) * sizeof(double)));
            if (!work) {
#pragma omp atomic
                failed |= 1;
            }
#pragma omp for schedule(static) nowait
            for (i64 h = 0; h < args.channels; ++h) {
                if (!work) continue;
                const Room x = room(work + squares), grads = room(x.end);
                compute(h, x);
                if (args.backward) backward(h, x, grads, work);
                else forward(h, x, work);
            }
            std::free(work);
        }
        return failed;
    }
};

}  // namespace

int dplr_powers(const void* record) {
    const auto& args = *static_cast<const DplrPowersArgs*>(record);
    if (args.size != i64(sizeof(DplrPowersArgs))) return 3;
    switch (args.dtype) {
        case F32: return DplrPowers<float>{args}.dispatch();
        case F64: return DplrPowers<double>{args}.dispatch();
    }
    return 2;
}

}  // namespace LINRNN_ISA
}  // namespace linrnn
