// Steps of a GRU or LSTM whose products are of bfloat16 numbers, by the matrix tiles of AMX, and
// their adjoint. The states stay in float32.
//
// Up to 16 sequences are the rows of a tile. Channels go in groups, whose sums of all gates fill the
// registers; while the products of a group run, vector registers take the functions of the group
// before, which do not wait for one another. The matrix is laid out once a call and stays in
// second-level cache. The order of every sum follows from the shape: the same bits for any number of
// threads.
#include <cstdlib>
#include <cstring>

#include "../dense_steps_args.h"
#include "../half_rows.h"
#include "../half_tiles.h"

namespace linrnn {
namespace LINRNN_ISA {
namespace {

constexpr int NO_TILES = 5;

#ifdef LINRNN_HALF_TILES

constexpr i64 ROWS = 16, LANES = 16, DEEP = 32;  // of a tile: rows, columns, numbers of a factor's row
constexpr i64 PAD = 32;                          // rows of a power of two share lines of a cache

#define LINRNN_TILES_INLINE LINRNN_TILES_TARGET __attribute__((always_inline)) inline
LINRNN_TILES_INLINE __m512 get(const bf16* from) {
    const __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
    return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
}
LINRNN_TILES_INLINE __m512 get(const float* from) { return _mm512_loadu_ps(from); }
LINRNN_TILES_INLINE void set(bf16* to, __m512 x) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), (__m256i)_mm512_cvtneps_pbh(x));
}
LINRNN_TILES_INLINE void set(float* to, __m512 x) { _mm512_storeu_ps(to, x); }

// 1 / (1 + exp(-x)): as good as a result of bfloat16 shows, without a branch for the sign.
LINRNN_TILES_TARGET inline __m512 logistic(__m512 x) {
    return lanes_inverse(lanes_plus_one(lanes_exp_below(_mm512_min_ps(_mm512_set1_ps(87.0f), lanes_minus(x)))));
}
// x (1 - x)
LINRNN_TILES_TARGET inline __m512 slope(__m512 x) { return _mm512_fnmadd_ps(x, x, x); }
// y (1 - x^2)
LINRNN_TILES_TARGET inline __m512 bent(__m512 x, __m512 y) { return _mm512_fnmadd_ps(_mm512_mul_ps(x, x), y, y); }

// Sums of N tiles beside one another, of one left factor with right ones as they follow in memory. Between
// its products `work` is called with numbers from 0 to `deep` - 1, each once.
template <int N, class Work>
LINRNN_TILES_TARGET inline void multiply(const bf16* left, i64 left_bytes, const HalfPair* right, i64 deep, float* to,
                                         const Work& work) {
#define LINRNN_TILE(i, does) \
    if constexpr (N > i) { does; }
    LINRNN_TILE(0, _tile_zero(0))
    LINRNN_TILE(1, _tile_zero(1))
    LINRNN_TILE(2, _tile_zero(2))
    LINRNN_TILE(3, _tile_zero(3))
    LINRNN_TILE(4, _tile_zero(4))
    LINRNN_TILE(5, _tile_zero(5))
    for (i64 k = 0; k < deep; ++k, left += DEEP, right += N * 256) {
        _tile_loadd(6, left, left_bytes);
        LINRNN_TILE(0, _tile_loadd(7, right, 64); _tile_dpbf16ps(0, 6, 7))
        LINRNN_TILE(1, _tile_loadd(7, right + 256, 64); _tile_dpbf16ps(1, 6, 7))
        LINRNN_TILE(2, _tile_loadd(7, right + 512, 64); _tile_dpbf16ps(2, 6, 7))
        LINRNN_TILE(3, _tile_loadd(7, right + 768, 64); _tile_dpbf16ps(3, 6, 7))
        LINRNN_TILE(4, _tile_loadd(7, right + 1024, 64); _tile_dpbf16ps(4, 6, 7))
        LINRNN_TILE(5, _tile_loadd(7, right + 1280, 64); _tile_dpbf16ps(5, 6, 7))
        work(k);
    }
    LINRNN_TILE(0, _tile_stored(0, to, 64))
    LINRNN_TILE(1, _tile_stored(1, to + 256, 64))
    LINRNN_TILE(2, _tile_stored(2, to + 512, 64))
    LINRNN_TILE(3, _tile_stored(3, to + 768, 64))
    LINRNN_TILE(4, _tile_stored(4, to + 1024, 64))
    LINRNN_TILE(5, _tile_stored(5, to + 1280, 64))
#undef LINRNN_TILE
}

// Tiles of up to 16 rows, and one of 16 pairs below one another.
class StepTiles {
public:
    LINRNN_TILES_TARGET explicit StepTiles(i64 rows) {
        struct alignas(64) Shapes {
            std::uint8_t palette, start, reserved[14];
            std::uint16_t bytes[16];
            std::uint8_t rows[16];
        } shapes{};
        shapes.palette = 1;
        for (int i = 0; i < 8; ++i) shapes.bytes[i] = 64, shapes.rows[i] = std::uint8_t(i < 7 ? rows : 16);
        __asm__ volatile("ldtilecfg %0" ::"m"(shapes));
    }
    LINRNN_TILES_TARGET ~StepTiles() { _tile_release(); }
    StepTiles(const StepTiles&) = delete;
};

// The matrix as right factors, in the order in which they are read.
struct Factors {
    const DenseStepsArgs& args;
    const i64 n = args.channels;

    const std::uint16_t* row(i64 i) const { return reinterpret_cast<const std::uint16_t*>(args.matrix) + i * n; }
    static std::uint32_t pair(std::uint16_t low, std::uint16_t high) { return low | std::uint32_t(high) << 16; }

    // For products with h: of a group of `wide` times 16 channels, the tiles of all gates.
    void ahead(HalfPair* to, i64 wide) const {
        for (i64 c = 0; c < n; c += wide * LANES)
            for (i64 k = 0; k < n; k += DEEP)
                for (i64 t = 0; t < args.gates * wide; ++t)
                    for (i64 p = 0; p < 16; ++p)
                        for (i64 j = 0; j < LANES; ++j) {
                            auto from = row(t / wide * n + c + t % wide * LANES + j) + k + 2 * p;
                            (to++)->bits = pair(from[0], from[1]);
                        }
    }
    // For products with gradients of all gates: of a group of `wide` times 16 channels.
    void back(HalfPair* to, i64 wide) const {
        for (i64 c = 0; c < n; c += wide * LANES)
            for (i64 k = 0; k < args.gates * n; k += DEEP)
                for (i64 t = 0; t < wide; ++t)
                    for (i64 p = 0; p < 16; ++p)
                        for (i64 j = 0; j < LANES; ++j) {
                            const i64 at = c + t * LANES + j;
                            (to++)->bits = pair(row(k + 2 * p)[at], row(k + 2 * p + 1)[at]);
                        }
    }
};

// Some sequences, which are rows of tiles. GATES: 3 of a GRU, 4 of an LSTM.
template <int GATES>
struct DenseSteps {
    static constexpr bool LSTM = GATES == 4;
    static constexpr int WIDE = LSTM ? 1 : 2;  // tiles of a group's channels, of each gate
    static constexpr int BACK = 2;             // those of a group of the adjoint
    static constexpr i64 NEAR = ROWS * 32;     // numbers of an array that a group reads

    const DenseStepsArgs& args;
    const HalfPair* factors;
    const i64 first, rows;  // sequences
    const i64 n = args.channels;

    // --------------------------------------------------------------------------------- memory

    struct Room {
        float *h, *c;       // (16, n): states; of the adjoint, what is carried without a product
        bf16* halves[2];    // left factors, (16, depth + PAD), in turn
        float* sums[2];     // of a group, in turn
        bf16* near;         // what is added to a group's sums, (gates, 16, 32)
    };
    static i64 depth(const DenseStepsArgs& args) { return (args.backward ? GATES : 1) * args.channels; }
    static i64 bytes(const DenseStepsArgs& args) {
        return 2 * ROWS * args.channels * 4 + 2 * ROWS * (depth(args) + PAD) * 2 + 2 * 6 * 256 * 4 + GATES * NEAR * 2;
    }
    Room room(void* memory) const {
        auto at = static_cast<char*>(memory);
        auto take = [&](i64 size) { return at += size, at - size; };
        Room r;
        r.h = reinterpret_cast<float*>(take(ROWS * n * 4)), r.c = reinterpret_cast<float*>(take(ROWS * n * 4));
        for (auto& x : r.halves) x = reinterpret_cast<bf16*>(take(ROWS * (depth(args) + PAD) * 2));
        for (auto& x : r.sums) x = reinterpret_cast<float*>(take(6 * 256 * 4));
        r.near = reinterpret_cast<bf16*>(take(GATES * NEAR * 2));
        return r;
    }
    template <class P>
    static P* at(i64 array, i64 number) {
        return reinterpret_cast<P*>(array) + number;
    }
    i64 step(i64 q, i64 t) const { return (first + q) * args.time + t; }
    bool cut(i64 q, i64 t) const {
        const Array& r = args.reset;
        return r.data && *at<const std::uint8_t>(r.data, (first + q) * r.seq + t * r.step);
    }
    void each_row(i64 states, float* to) const {
        for (i64 i = 0; i < rows * n; ++i) to[i] = states ? at<const float>(states, first * n)[i] : 0;
    }

    // -------------------------------------------------------------------------------- forward

    // Copies what is added to a group's sums to where its functions read it. Rows of sequences lie a multiple
    // of 4 KB apart: a store to one of them would hold up loads from all others.
    LINRNN_TILES_INLINE void bring_parts(const Room& r, i64 t, i64 c) const {
        for (i64 q = 0; q < rows; ++q)
            for (int i = 0; i < GATES; ++i)
                std::memcpy(r.near + i * NEAR + q * 32, at<bf16>(args.parts, (step(q, t) * GATES + i) * n + c),
                            WIDE * LANES * sizeof(bf16));
    }

    // The functions of 16 channels of a row. `sums`: their tile of the first gate; `near`: what is added.
    LINRNN_TILES_INLINE void advance(const Room& r, i64 q, i64 t, i64 c, const float* sums, const bf16* near,
                                     bf16* halves) const {
        const i64 place = step(q, t);
        bf16* parts = at<bf16>(args.parts, place * GATES * n + c);
        const float* bias = args.bias ? at<const float>(args.bias, c) : nullptr;
        auto biased = [&](int i, __m512 x) LINRNN_TILES_TARGET {
            return bias ? _mm512_add_ps(x, get(bias + i * n)) : x;
        };
        auto logit = [&](int gate) LINRNN_TILES_TARGET {
            return biased(gate, _mm512_add_ps(get(near + gate * NEAR), get(sums + gate * WIDE * 256)));
        };
        float* state = r.h + q * n + c;
        bf16* inner = args.inner ? at<bf16>(args.inner, place * n + c) : nullptr;
        __m512 h, gate[GATES], kept;
        if constexpr (LSTM) {
            gate[0] = logistic(logit(0)), gate[1] = logistic(logit(1));
            gate[2] = lanes_tanh(logit(2)), gate[3] = logistic(logit(3));
            float* cell = r.c + q * n + c;
            kept = _mm512_fmadd_ps(gate[1], get(cell), _mm512_mul_ps(gate[0], gate[2]));
            set(cell, kept);
            h = _mm512_mul_ps(gate[3], lanes_tanh(kept));
        } else {
            gate[0] = logistic(logit(0)), gate[1] = logistic(logit(1));
            kept = biased(3, get(sums + 2 * WIDE * 256));
            gate[2] = lanes_tanh(_mm512_fmadd_ps(gate[0], kept, biased(2, get(near + 2 * NEAR))));
            h = _mm512_fmadd_ps(gate[1], _mm512_sub_ps(get(state), gate[2]), gate[2]);
        }
        set(state, h);
        set(halves + q * (n + PAD) + c, h);
        set(at<bf16>(args.h, place * n + c), h);
        if (!inner) return;
        for (int i = 0; i < GATES; ++i) set(parts + i * n, gate[i]);
        set(inner, kept);
    }
    LINRNN_TILES_INLINE static void ask(i64 array, i64 number) {
        if (array) _mm_prefetch(at<const char>(array, number * i64(sizeof(bf16))), _MM_HINT_T0);
    }
    // Names what 32 channels of a row's next step read and write.
    LINRNN_TILES_TARGET inline void foresee(i64 q, i64 t, i64 c) const {
        if (c % 32 || t + 1 >= args.time) return;
        const i64 place = step(q, t + 1);
        for (int i = 0; i < GATES; ++i) ask(args.parts, (place * GATES + i) * n + c);
        ask(args.h, place * n + c), ask(args.inner, place * n + c);
    }

    LINRNN_TILES_TARGET void forward(const Room& r) const {
        const StepTiles tiles(rows);
        constexpr int N = GATES * WIDE;
        const i64 wide = WIDE * LANES, groups = n / wide, deep = n / DEEP, units = rows * WIDE;
        const i64 share = (units + deep - 1) / deep;
        each_row(args.initial_h, r.h);
        if (LSTM) each_row(args.initial_c, r.c);
        for (i64 q = 0; q < rows; ++q)
            for (i64 c = 0; c < n; c += LANES) set(r.halves[0] + q * (n + PAD) + c, get(r.h + q * n + c));
        for (i64 t = 0; t < args.time; ++t) {
            bf16 *left = r.halves[t & 1], *next = r.halves[(t + 1) & 1];
            for (i64 q = 0; q < rows; ++q)
                if (cut(q, t)) {
                    std::memset(r.h + q * n, 0, size_t(n) * 4), std::memset(r.c + q * n, 0, size_t(n) * 4);
                    std::memset(left + q * (n + PAD), 0, size_t(n) * 2);
                }
            auto some = [&](i64 g, i64 from, i64 to) LINRNN_TILES_TARGET {
                if (!from) bring_parts(r, t, g * wide);
                for (i64 u = from; u < to && u < units; ++u) {
                    const i64 q = u / WIDE, part = u % WIDE, c = g * wide + part * LANES;
                    foresee(q, t, c);
                    const i64 place = q * 32 + part * LANES;
                    advance(r, q, t, c, r.sums[g & 1] + part * 256 + q * LANES, r.near + place, next);
                }
            };
            for (i64 g = 0; g < groups; ++g)
                multiply<N>(left, (n + PAD) * 2, factors + g * deep * N * 256, deep, r.sums[g & 1],
                            [&](i64 k) LINRNN_TILES_TARGET {
                                if (g) some(g - 1, k * share, (k + 1) * share);
                            });
            some(groups - 1, 0, units);
        }
        for (i64 i = 0; i < rows * n; ++i) at<float>(args.final_h, first * n)[i] = r.h[i];
        for (i64 i = 0; LSTM && i < rows * n; ++i) at<float>(args.final_c, first * n)[i] = r.c[i];
    }

    // ------------------------------------------------------------------------------- backward

    // What 16 channels of a row had before step t, rounded where it was a state after a step.
    LINRNN_TILES_INLINE __m512 earlier(i64 states, i64 initial, i64 q, i64 t, i64 c) const {
        if (cut(q, t)) return _mm512_setzero_ps();
        if (t) return get(at<const bf16>(states, step(q, t - 1) * n + c));
        return initial ? get(at<const float>(initial, (first + q) * n + c)) : _mm512_setzero_ps();
    }
    // Against the functions of 16 channels of a row. `sums`: what the products of the step after it carry.
    LINRNN_TILES_INLINE void retreat(const Room& r, i64 q, i64 t, i64 c, const float* sums, bf16* halves) const {
        const i64 place = step(q, t);
        const bf16* parts = at<bf16>(args.parts, place * GATES * n + c);
        bf16* grads = at<bf16>(args.grad_parts, place * GATES * n + c);
        bf16* row = halves + q * (GATES * n + PAD) + c;
        float* direct = r.h + q * n + c;
        __m512 dh = get(at<const bf16>(args.grad_h, place * n + c));
        const bool passes = t + 1 == args.time || !cut(q, t + 1);
        if (passes) dh = _mm512_add_ps(dh, sums ? _mm512_add_ps(get(direct), get(sums)) : get(direct));
        const __m512 inner = get(at<const bf16>(args.inner, place * n + c));
        const __m512 before = earlier(args.h, args.initial_h, q, t, c);
        set(at<bf16>(args.before, place * n + c), before);
        __m512 gate[GATES], grad[GATES];
        for (int i = 0; i < GATES; ++i) gate[i] = get(parts + i * n);
        if constexpr (LSTM) {
            float* carried = r.c + q * n + c;
            const __m512 bend = lanes_tanh(inner), through = _mm512_mul_ps(dh, gate[3]);
            __m512 dc = bent(bend, through);
            if (passes) dc = _mm512_add_ps(dc, get(carried));
            grad[0] = _mm512_mul_ps(_mm512_mul_ps(dc, gate[2]), slope(gate[0]));
            grad[1] = _mm512_mul_ps(_mm512_mul_ps(dc, earlier(args.inner, args.initial_c, q, t, c)), slope(gate[1]));
            grad[2] = bent(gate[2], _mm512_mul_ps(dc, gate[0]));
            grad[3] = _mm512_mul_ps(_mm512_mul_ps(dh, bend), slope(gate[3]));
            set(carried, _mm512_mul_ps(dc, gate[1]));
            set(direct, _mm512_setzero_ps());
            for (int i = 0; i < GATES; ++i) set(row + i * n, grad[i]), set(grads + i * n, grad[i]);
        } else {
            const __m512 kept = _mm512_mul_ps(dh, gate[1]);
            grad[1] = _mm512_mul_ps(_mm512_mul_ps(dh, _mm512_sub_ps(before, gate[2])), slope(gate[1]));
            grad[2] = bent(gate[2], _mm512_sub_ps(dh, kept));
            grad[0] = _mm512_mul_ps(_mm512_mul_ps(grad[2], inner), slope(gate[0]));
            set(direct, kept);
            for (int i = 0; i < GATES; ++i) set(grads + i * n, grad[i]);
            grad[2] = _mm512_mul_ps(grad[2], gate[0]);
            set(at<bf16>(args.grad_inner, place * n + c), grad[2]);
            for (int i = 0; i < GATES; ++i) set(row + i * n, grad[i]);
        }
    }
    LINRNN_TILES_TARGET inline void look_back(i64 q, i64 t, i64 c) const {
        if (c % 32 || t < 1) return;
        const i64 place = step(q, t - 1);
        for (int i = 0; i < GATES; ++i) {
            ask(args.parts, (place * GATES + i) * n + c);
            ask(args.grad_parts, (place * GATES + i) * n + c);
        }
        ask(args.grad_h, place * n + c), ask(args.before, place * n + c), ask(args.grad_inner, place * n + c);
        ask(args.h, (t > 1 ? place - 1 : place) * n + c), ask(args.inner, (LSTM && t > 1 ? place - 1 : place) * n + c);
    }

    LINRNN_TILES_TARGET void backward(const Room& r) const {
        const StepTiles tiles(rows);
        const i64 wide = BACK * LANES, groups = n / wide, deep = GATES * n / DEEP, units = rows * BACK;
        const i64 share = (units + deep - 1) / deep, row = GATES * n + PAD;
        each_row(args.final_h, r.h);
        if (LSTM) each_row(args.final_c, r.c);
        auto some = [&](i64 t, i64 g, i64 from, i64 to, bool sums) LINRNN_TILES_TARGET {
            for (i64 u = from; u < to && u < units; ++u) {
                const i64 q = u / BACK, part = u % BACK, c = g * wide + part * LANES;
                look_back(q, t, c);
                retreat(r, q, t, c, sums ? r.sums[g & 1] + part * 256 + q * LANES : nullptr, r.halves[t & 1]);
            }
        };
        for (i64 g = 0; args.time && g < groups; ++g) some(args.time - 1, g, 0, units, false);
        for (i64 t = args.time - 1; t >= 0; --t) {
            for (i64 g = 0; g < groups; ++g) {
                float* sums = r.sums[g & 1];
                multiply<BACK>(r.halves[t & 1], row * 2, factors + g * deep * BACK * 256, deep, sums,
                               [&](i64 k) LINRNN_TILES_TARGET {
                                   if (g && t) some(t - 1, g - 1, k * share, (k + 1) * share, true);
                               });
                if (t) continue;
                for (i64 q = 0; q < rows; ++q)
                    for (i64 part = 0; part < BACK; ++part) {
                        float* direct = r.h + q * n + g * wide + part * LANES;
                        set(direct, _mm512_add_ps(get(direct), get(sums + part * 256 + q * LANES)));
                    }
            }
            if (t) some(t - 1, groups - 1, 0, units, true);
        }
        for (i64 q = 0; q < rows; ++q) {
            const bool passes = !args.time || !cut(q, 0);
            for (i64 c = 0; c < n; ++c) {
                at<float>(args.grad_initial_h, (first + q) * n)[c] = passes ? r.h[q * n + c] : 0;
                if (LSTM) at<float>(args.grad_initial_c, (first + q) * n)[c] = passes ? r.c[q * n + c] : 0;
            }
        }
    }
};

template <int GATES>
int run(const DenseStepsArgs& args) {
    using Steps = DenseSteps<GATES>;
    if (!args.seqs || !args.channels) return 0;
    // as many sequences for each thread, and no thread without any
    i64 threads = args.threads < args.seqs ? args.threads : args.seqs;
    if (args.time * args.seqs * args.channels < 4096 || threads < 1) threads = 1;
    i64 together = (args.seqs + threads - 1) / threads;
    together = together < ROWS ? together : ROWS;
    const i64 groups = (args.seqs + together - 1) / together;
    const i64 pairs = GATES * args.channels * args.channels / 2, each = (Steps::bytes(args) + 4095) / 4096 * 4096;
    void* memory = std::malloc(size_t(pairs * 4 + groups * each + 64));
    if (!memory) return 1;
    auto factors = reinterpret_cast<HalfPair*>((reinterpret_cast<std::uintptr_t>(memory) + 63) & ~std::uintptr_t(63));
    char* rooms = reinterpret_cast<char*>(factors + pairs);
    if (args.backward) Factors{args}.back(factors, Steps::BACK);
    else Factors{args}.ahead(factors, Steps::WIDE);
#pragma omp parallel for num_threads(int(threads)) schedule(dynamic) if (threads > 1)
    for (i64 g = 0; g < groups; ++g) {
        const i64 first = g * together, rows = args.seqs - first < together ? args.seqs - first : together;
        const Steps steps{args, factors, first, rows};
        const auto room = steps.room(rooms + g * each);
        if (args.backward) steps.backward(room);
        else steps.forward(room);
    }
    std::free(memory);
    return 0;
}
#endif

}  // namespace

int dense_steps(const void* record) {
    const auto& args = *static_cast<const DenseStepsArgs*>(record);
    if (args.size != i64(sizeof(DenseStepsArgs))) return 3;
    if (args.dtype != BF16) return 2;
#ifdef LINRNN_HALF_TILES
    if (has_half_tiles()) return args.gates == 4 ? run<4>(args) : run<3>(args);
#endif
    return NO_TILES;
}

}  // namespace LINRNN_ISA
}  // namespace linrnn
