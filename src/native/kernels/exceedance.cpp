// Complex modes h_t = decay h_(t-1) + W x_t, and what their waves Re(out h_t) do above a threshold:
// see linrnn/nn/exceedance.py. A register of modes goes through all steps of a sequence with its nine
// numbers beside it, which are written once. Steps at which nothing was observed move the modes alone.
//
// Compiled once for every instruction set: see scan.cpp.
#include <algorithm>
#include <cstdlib>
#include <limits>

#include "../exceedance_args.h"
#include "../flush_subnormals.h"
#include "../lanes.h"

namespace linrnn {
namespace LINRNN_ISA {
namespace {

#if defined(__AVX512F__)
constexpr i64 REGISTER = 64;
#elif defined(__AVX__)
constexpr i64 REGISTER = 32;
#else
constexpr i64 REGISTER = 16;
#endif
constexpr i64 WORTH = i64(1) << 17;  // steps of modes that repay waking another thread

template <class A>
struct Exceedance {
#ifdef __GNUC__
    static constexpr i64 N = REGISTER / i64(sizeof(A));
    using V = typename VectorOf<A, int(N)>::type;
#else
    static constexpr i64 N = 1;
    using V = A;
#endif
    enum { RE, IM, RUN, STEPS, EXCESS, PLACE, LONGEST, TOP, END, NUMBERS };
    enum { DECAY_RE, DECAY_IM, OUT_RE, OUT_IM, THRESHOLD, CONSTANTS };
    const ExceedanceArgs& args;

    static V load(const A* p) {
        V v;
        std::memcpy(&v, p, sizeof v);
        return v;
    }
    static V spread(A x) { return V{} + x; }
    static V larger(V a, V b) { return a > b ? a : b; }

    i64 blocks() const { return (args.modes + N - 1) / N; }
    i64 width(i64 block) const { return std::min(N, args.modes - block * N); }

    // The constants of a block, and weights of the inputs that any of its modes reads.
    struct Block {
        A* constants;  // (CONSTANTS, N)
        A* weights;    // (inputs, N)
        i64* inputs;
        i64 count;
    };
    i64 bytes() const { return N * (CONSTANTS + args.inputs) * i64(sizeof(A)) + (1 + args.inputs) * 8; }
    Block block(char* room, i64 b) const {
        char* at = room + b * bytes();
        auto* inputs = reinterpret_cast<i64*>(at);
        auto* constants = reinterpret_cast<A*>(inputs + 1 + args.inputs);
        return {constants, constants + N * CONSTANTS, inputs + 1, inputs[0]};
    }
    void lay(char* room, i64 b) const {
        Block to = block(room, b);
        const A *decay = reinterpret_cast<A*>(args.decay), *out = reinterpret_cast<A*>(args.out);
        const A *q = reinterpret_cast<A*>(args.threshold), *weight = reinterpret_cast<A*>(args.weight);
        const i64 first = b * N, n = width(b);
        std::fill_n(to.constants, N * (CONSTANTS + args.inputs), A(0));
        for (i64 l = 0; l < n; ++l) {
            A* c = to.constants + l;
            c[DECAY_RE * N] = decay[2 * (first + l)], c[DECAY_IM * N] = decay[2 * (first + l) + 1];
            c[OUT_RE * N] = out[2 * (first + l)], c[OUT_IM * N] = out[2 * (first + l) + 1];
            if (q) c[THRESHOLD * N] = q[first + l];
        }
        i64 count = 0;
        for (i64 i = 0; i < args.inputs; ++i) {
            A* row = to.weights + count * N;
            bool reads = false;
            for (i64 l = 0; l < n; ++l) {
                row[l] = weight[(first + l) * args.inputs + i];
                reads = reads || row[l] != A(0);
            }
            if (reads) to.inputs[count++] = i;
        }
        to.inputs[-1] = count;
    }

    // The modes of a block on their way through a sequence.
    struct Modes {
        V re, im;
        const V decay_re, decay_im, out_re, out_im;
        Modes(V re_, V im_, const A* c)
            : re(re_), im(im_), decay_re(load(c + DECAY_RE * N)), decay_im(load(c + DECAY_IM * N)),
              out_re(load(c + OUT_RE * N)), out_im(load(c + OUT_IM * N)) {}
        void step(V drive) {
            const V was = re;
            re = decay_re * was + (drive - decay_im * im);
            im = decay_re * im + decay_im * was;
        }
        V wave() const { return out_re * re - out_im * im; }
    };
    static V drive(const Block& block, const A* x) {
        V sum = load(block.weights) * spread(x[block.inputs[0]]);
        for (i64 k = 1; k < block.count; ++k) sum += load(block.weights + k * N) * spread(x[block.inputs[k]]);
        return sum;
    }
    // Calls each(t, modes) after every step.
    template <class Each>
    void through(i64 s, const Block& block, Modes& modes, const Each& each) const {
        const A* x = reinterpret_cast<const A*>(args.x) + s * args.time * args.inputs;
        if (block.count == 1) {  // of one channel every mode reads its values or its differences
            const V weight = load(block.weights);
            x += block.inputs[0];
            for (i64 t = 0; t < args.time; ++t, x += args.inputs) modes.step(weight * spread(*x)), each(t);
        } else if (block.count) {
            for (i64 t = 0; t < args.time; ++t, x += args.inputs) modes.step(drive(block, x)), each(t);
        } else {
            for (i64 t = 0; t < args.time; ++t) modes.step(V{}), each(t);
        }
    }

    A* place(i64 address, i64 number, i64 s, i64 b) const {
        return reinterpret_cast<A*>(address) + (number * args.seqs + s) * args.modes + b * N;
    }
    V before(i64 number, i64 s, i64 b, A otherwise) const {
        if (!args.before) return spread(otherwise);
        A lanes[N] = {};
        std::copy_n(place(args.before, number, s, b), width(b), lanes);
        return load(lanes);
    }

    void count(i64 s, i64 b, const Block& block) const {
        const A* observed = reinterpret_cast<const A*>(args.observed) + s * args.time;
        const A* when = reinterpret_cast<const A*>(args.when) + s * args.time;
        const V q = load(block.constants + THRESHOLD * N), zero = V{}, one = spread(A(1));
        Modes modes(before(RE, s, b, A(0)), before(IM, s, b, A(0)), block.constants);
        V run = before(RUN, s, b, A(0)), steps = before(STEPS, s, b, A(0));
        V excess = before(EXCESS, s, b, A(0)), at = before(PLACE, s, b, A(0));
        V longest = before(LONGEST, s, b, A(0)), end = before(END, s, b, A(0));
        V top = before(TOP, s, b, -std::numeric_limits<A>::infinity());
        i64 seen = 0;
        A until = 0;
        through(s, block, modes, [&](i64 t) {
            if (observed[t] == A(0)) return;
            const V wave = modes.wave(), over = wave - q;
            const auto above = wave > q;
            run = above ? run + one : zero;
            steps = above ? steps + one : steps;
            excess = above ? excess + over : excess;
            at = above ? at + spread(when[t]) : at;
            longest = larger(longest, run), top = larger(wave, top), end = wave;
            ++seen, until = when[t];
        });
        const V numbers[NUMBERS] = {modes.re, modes.im, run, steps, excess, at, longest, top, end};
        A lanes[NUMBERS][N];
        std::memcpy(lanes, numbers, sizeof lanes);
        const i64 n = width(b);
        for (i64 k = 0; args.after && k < NUMBERS; ++k) std::copy_n(lanes[k], n, place(args.after, k, s, b));
        if (args.features) describe(s, b, lanes, block.constants + THRESHOLD * N, seen, until);
    }
    // The statistics of `ModeBank`, of one sequence from its beginning to its end.
    void describe(i64 s, i64 b, const A (&lanes)[NUMBERS][N], const A* q, i64 seen, A until) const {
        A* to = reinterpret_cast<A*>(args.features) + s * 6 * args.modes + b * N;
        const i64 n = width(b), next = args.modes;
        const double all = seen ? double(seen) : 1.0, end = until > A(0) ? double(until) : 1.0;
        for (i64 l = 0; l < n; ++l) {
            const double steps = double(lanes[STEPS][l]), above = steps > 1.0 ? steps : 1.0;
            to[l] = A(steps / all);
            to[l + next] = A(double(q[l]) + double(lanes[EXCESS][l]) / above);
            to[l + 2 * next] = steps > 0.0 ? A(double(lanes[PLACE][l]) / above / end) : A(-1);
            to[l + 3 * next] = A(double(lanes[LONGEST][l]) / all);
            to[l + 4 * next] = seen ? lanes[TOP][l] : q[l];
            to[l + 5 * next] = seen ? lanes[END][l] : q[l];
        }
    }

    void waves(i64 s, i64 b, const Block& block) const {
        auto places = reinterpret_cast<const i64*>(args.places), last = places + args.count;
        auto next = std::lower_bound(places, last, s * args.time);
        if (next == last || *next >= (s + 1) * args.time) return;
        Modes modes(V{}, V{}, block.constants);
        const i64 n = width(b);
        through(s, block, modes, [&](i64 t) {
            if (next == last || *next != s * args.time + t) return;
            A* to = reinterpret_cast<A*>(args.waves) + b * N * args.row + (next++ - places);
            const V wave = modes.wave();
            A lanes[N];
            std::memcpy(lanes, &wave, sizeof lanes);
            for (i64 l = 0; l < n; ++l) to[l * args.row] = lanes[l];
        });
    }

    int run() const {
        const i64 many = blocks(), units = args.seqs * many;
        char* room = static_cast<char*>(std::malloc(size_t(std::max<i64>(1, many * bytes()))));
        if (!room) return 1;
        for (i64 b = 0; b < many; ++b) lay(room, b);
        const i64 worth = units * N * std::max<i64>(1, args.time) / WORTH + 1;
        const i64 threads = std::max<i64>(1, std::min({args.threads, worth, units}));
#pragma omp parallel num_threads(int(threads)) if (threads > 1)
        {
            FlushSubnormals flush;
#pragma omp for schedule(static)
            for (i64 unit = 0; unit < units; ++unit) {
                const i64 s = unit / many, b = unit % many;
                if (args.waves) waves(s, b, block(room, b));
                else count(s, b, block(room, b));
            }
        }
        std::free(room);
        return 0;
    }
};

}  // namespace

int exceedance(const void* record) {
    const auto& args = *static_cast<const ExceedanceArgs*>(record);
    if (args.size != i64(sizeof(ExceedanceArgs))) return 3;
    switch (args.dtype) {
        case F32: return Exceedance<float>{args}.run();
        case F64: return Exceedance<double>{args}.run();
    }
    return 2;
}

}  // namespace LINRNN_ISA
}  // namespace linrnn
