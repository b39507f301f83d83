// Real parts of sums of powers, y_t = Re sum_m c_m a_m^t, and their adjoint on a CPU. Step t is
// i Q + j and a^t is (a^Q)^i a^j, so that about 2 sqrt(T) powers of each mode are made, in double
// precision, and nothing of modes times length is ever written.
//
// Compiled once for every instruction set: see scan.cpp.
#include <cmath>
#include <cstdlib>
#include <cstring>

#include "../storage.h"
#include "../vandermonde_args.h"

namespace linrnn {
namespace LINRNN_ISA {
namespace {

struct Complex {
    double re, im;
    Complex operator*(Complex x) const { return {re * x.re - im * x.im, re * x.im + im * x.re}; }
    Complex operator+(Complex x) const { return {re + x.re, im + x.im}; }
    Complex times(double x) const { return {re * x, im * x}; }
    Complex conjugate() const { return {re, -im}; }
};

template <class A>
struct Vandermonde {
    static constexpr i64 COARSE = 4, L = 32;  // sums that are made at once
    const VandermondeArgs& args;
    i64 size, count;     // Q, and how many of it there are
    i64 a_mode, a_step;  // between the powers of neighbouring modes, and those of one

    explicit Vandermonde(const VandermondeArgs& given) : args(given) {
        // the adjoint does more beside each sum over Q steps
        const i64 root = i64(std::sqrt(double(args.time))) * (args.backward ? 4 : 1) + 1;
        size = (root + L - 1) / L * L;
        count = (args.time + size - 1) / size;
        // what is summed is outside: steps lie side by side for outputs, modes for the adjoint
        a_mode = args.backward ? 1 : size, a_step = args.backward ? wide() : 1;
    }
    i64 wide() const { return (args.modes + L - 1) / L * L; }
    i64 place(i64 row, i64 h) const { return row * args.channels + h; }

    // What a channel works with.
    struct Room {
        Complex *next, *before, *coarse;  // a^Q, a^(Q - 1), a^(i Q), of every mode
        Complex *earlier;                 // a^(i Q - 1), and zero for i = 0
        Complex *of_a, *of_c;             // sums: (modes), (rows, modes)
        A *re, *im;                       // a^j, modes times Q
        A *grad, *ahead;                  // of a piece of the output: g_j, and (j + 1) g_(j + 1)
    };
    i64 bytes() const {
        return (5 + args.rows) * args.modes * i64(sizeof(Complex)) +
               (2 * wide() + 2) * size * i64(sizeof(A));
    }
    Room room(void* work) const {
        auto z = static_cast<Complex*>(work);
        const i64 m = args.modes;
        auto x = reinterpret_cast<A*>(z + (5 + args.rows) * m);
        A* grad = x + 2 * wide() * size;
        return {z,         z + m, z + 2 * m,    z + 3 * m, z + 4 * m,
                z + 5 * m, x,     x + wide() * size, grad,      grad + size};
    }

    void powers(i64 h, const Room& room) const {
        for (i64 k = 0; k < 2 * wide() * size; ++k) room.re[k] = 0;  // modes that are not there
        auto a = reinterpret_cast<const Complex*>(args.a) + (args.shared ? 0 : h * args.modes);
        for (i64 m = 0; m < args.modes; ++m) {
            Complex power{1, 0}, before{0, 0};
            A *re = room.re + m * a_mode, *im = room.im + m * a_mode;
            for (i64 j = 0; j < size; ++j) {
                re[j * a_step] = A(power.re), im[j * a_step] = A(power.im);
                before = power, power = power * a[m];
            }
            room.next[m] = power, room.before[m] = before, room.coarse[m] = {1, 0};
        }
    }

    void forward(i64 h, const Room& room) const {
        for (i64 i = 0; i < count; i += COARSE) {
            for (i64 row = 0; row < args.rows; ++row)
                for (i64 j = 0; j < size; j += L) piece(row, h, i, j, room);
            for (i64 m = 0; m < args.modes; ++m)
                for (i64 k = 0; k < COARSE; ++k) room.coarse[m] = room.coarse[m] * room.next[m];
        }
    }
    // Steps j to j + L of a few rows of Q.
    void piece(i64 row, i64 h, i64 i, i64 j, const Room& room) const {
        alignas(64) A sums[COARSE][L] = {};
        auto c = reinterpret_cast<const A*>(args.c) + 2 * place(row, h) * args.modes;
        for (i64 m = 0; m < args.modes; ++m) {
            const A *__restrict re = room.re + m * size + j, *__restrict im = room.im + m * size + j;
            Complex weight = Complex{double(c[2 * m]), double(c[2 * m + 1])} * room.coarse[m];
            for (i64 k = 0; k < COARSE; ++k) {
                const A x = A(weight.re), y = A(weight.im);
                for (i64 l = 0; l < L; ++l) sums[k][l] += x * re[l] - y * im[l];
                weight = weight * room.next[m];
            }
        }
        A* y = reinterpret_cast<A*>(args.y) + place(row, h) * args.time;
        for (i64 k = 0; k < COARSE; ++k)
            for (i64 l = 0, t = (i + k) * size + j; l < L && t + l < args.time; ++l) y[t + l] = sums[k][l];
    }

    // With z = a^(i Q), what row i adds to the gradient of c is conj(z) S, and to that of a conj(c)
    // times conj(z) S' + i Q conj(z / a) S, where S sums g conj(a^j), and S' j g conj(a^(j - 1)).
    void backward(i64 h, const Room& room) const {
        std::memset(static_cast<void*>(room.earlier), 0,
                    size_t((2 + args.rows) * args.modes) * sizeof(Complex));
        for (i64 i = 0; i < count; ++i) {
            for (i64 row = 0; row < args.rows; ++row) piece_back(row, h, i, room);
            for (i64 m = 0; m < args.modes; ++m) {
                room.earlier[m] = room.coarse[m] * room.before[m];
                room.coarse[m] = room.coarse[m] * room.next[m];
            }
        }
        auto grad_a = reinterpret_cast<Complex*>(args.grad_a) + h * args.modes;
        for (i64 m = 0; m < args.modes; ++m) grad_a[m] = room.of_a[m];
        for (i64 row = 0; row < args.rows; ++row) {
            A* grad_c = reinterpret_cast<A*>(args.grad_c) + 2 * place(row, h) * args.modes;
            for (i64 m = 0; m < args.modes; ++m) {
                grad_c[2 * m] = A(room.of_c[row * args.modes + m].re);
                grad_c[2 * m + 1] = A(room.of_c[row * args.modes + m].im);
            }
        }
    }
    void piece_back(i64 row, i64 h, i64 i, const Room& room) const {
        auto c = reinterpret_cast<const A*>(args.c) + 2 * place(row, h) * args.modes;
        const A* g = reinterpret_cast<const A*>(args.y) + place(row, h) * args.time + i * size;
        const i64 left = args.time - i * size;
        for (i64 j = 0; j < size; ++j) room.grad[j] = j < left ? g[j] : A(0);
        for (i64 j = 0; j < size; ++j)
            room.ahead[j] = j + 1 < size ? A(j + 1) * room.grad[j + 1] : A(0);
        for (i64 m = 0; m < args.modes; m += L) {
            alignas(64) A re[L] = {}, im[L] = {}, inside_re[L] = {}, inside_im[L] = {};
            for (i64 j = 0; j < size; ++j) {
                const A *__restrict x = room.re + j * a_step + m, *__restrict y = room.im + j * a_step + m;
                const A now = room.grad[j], ahead = room.ahead[j];
                for (i64 l = 0; l < L; ++l) {
                    re[l] += now * x[l], im[l] += now * y[l];
                    inside_re[l] += ahead * x[l], inside_im[l] += ahead * y[l];
                }
            }
            for (i64 l = 0; l < L && m + l < args.modes; ++l)
                add(row, i, m + l, {double(c[2 * (m + l)]), double(c[2 * (m + l) + 1])},
                    {double(re[l]), -double(im[l])}, {double(inside_re[l]), -double(inside_im[l])}, room);
        }
    }
    void add(i64 row, i64 i, i64 m, Complex c, Complex sum, Complex inside, const Room& room) const {
        const Complex z = room.coarse[m].conjugate();
        const Complex before = room.earlier[m].conjugate().times(double(i * size));
        Complex& of_c = room.of_c[row * args.modes + m];
        of_c = of_c + z * sum;
        room.of_a[m] = room.of_a[m] + c.conjugate() * (z * inside + before * sum);
    }

    void channel(i64 h, const Room& room) const {
        powers(h, room);
        if (args.backward) backward(h, room);
        else forward(h, room);
    }

    int dispatch() const {
        const i64 worth = args.rows * args.channels * args.modes * args.time / 16384 + 1;
        const i64 threads = worth < args.threads ? worth : args.threads;
        int failed = 0;
#pragma omp parallel num_threads(int(threads)) if (threads > 1)
        {
            void* work = std::malloc(size_t(bytes()));
            if (!work) {
#pragma omp atomic
                failed |= 1;
            }
#pragma omp for schedule(static) nowait
            for (i64 h = 0; h < args.channels; ++h)
                if (work) channel(h, room(work));
            std::free(work);
        }
        return failed;
    }
};

}  // namespace

int vandermonde(const void* record) {
    const auto& args = *static_cast<const VandermondeArgs*>(record);
    if (args.size != i64(sizeof(VandermondeArgs))) return 3;
    switch (args.dtype) {
        case C64: return Vandermonde<float>{args}.dispatch();
        case C128: return Vandermonde<double>{args}.dispatch();
    }
    return 2;
}

}  // namespace LINRNN_ISA
}  // namespace linrnn
