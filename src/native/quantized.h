// A matrix of 8 or 4 bits a number, times the few vectors that one time step has. A tile is 16
// outputs: 4 inputs of each lie side by side, 64 bytes in all, and in 4 bits the high halves of these
// are the next 4 inputs. A weight is (u - zero) scale, where u has no sign.
//
// Whole numbers are multiplied: x of each group becomes the scale that its largest number needs, and
// digits of 8 bits: with three of them it is as exact as a float. Sums of a group have no rounding.
// Nothing is widened: one instruction of VNNI does 64 products. Without it x and weights are floats.
#pragma once
#include <cmath>
#include <cstdlib>
#include <cstring>

#include "flush_subnormals.h"
#include "lanes.h"
#include "storage.h"
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wuninitialized"  // inside GCC's own header
#endif

#ifdef __clang__
#define LINRNN_UNROLLED _Pragma("clang loop unroll(full)")
#else
#define LINRNN_UNROLLED _Pragma("GCC unroll 8")
#endif
#if defined(__x86_64__) && defined(__GNUC__) && defined(__AVX512BW__)
#define LINRNN_VNNI 1
#endif

namespace linrnn {
namespace LINRNN_ISA {
namespace {

constexpr i64 TILE_ROWS = 16;  // outputs of a tile

struct QuantizedMatrix {
    i64 bits, outputs, inputs, group, groups;
    const std::uint8_t* weight;
    const bf16* scales;
    bool zeros;

    i64 tiles() const { return (outputs + TILE_ROWS - 1) / TILE_ROWS; }
    const std::uint8_t* weights_of(i64 tile, i64 g) const {
        return weight + (tile * groups + g) * group * TILE_ROWS * bits / 8;
    }
    const bf16* scales_of(i64 tile, i64 g) const {
        return scales + (tile * groups + g) * TILE_ROWS * (zeros ? 2 : 1);
    }
    // Scales of the outputs of a tile, and the whole numbers that stand for zero.
    void read(i64 tile, i64 g, float* scale, std::int32_t* zero) const {
        const bf16* from = scales_of(tile, g);
        for (i64 l = 0; l < TILE_ROWS; ++l) scale[l] = widen(from[l]);
        for (i64 l = 0; l < TILE_ROWS; ++l)
            zero[l] = zeros ? std::int32_t(widen(from[TILE_ROWS + l])) : 1 << (bits - 1);
    }
    // The 4 inputs of each output that begin at input i of a group, as bytes of a word.
    void words(const std::uint8_t* block, i64 i, std::uint32_t* to) const {
        std::memcpy(to, block + (bits == 8 ? i : i / 8 * 4) * TILE_ROWS, TILE_ROWS * sizeof *to);
        if (bits == 8) return;
        const int shift = i % 8 ? 4 : 0;
        for (i64 l = 0; l < TILE_ROWS; ++l) to[l] = (to[l] >> shift) & 0x0f0f0f0fu;
    }
};

// Rows of x, padded to whole groups with zeros; as floats, and as digits where these are read.
struct QuantizedRows {
    const QuantizedMatrix& w;
    i64 rows, padded;
    int digits;
    float *x = nullptr, *scale = nullptr;  // (rows, padded) and (rows, groups)
    std::int32_t* sums = nullptr;          // (rows, groups, 4): -zero times the sum of each digit
    std::int8_t* numbers = nullptr;        // (groups, group / 8, rows, digits, 8): read by one address
    void* memory = nullptr;

    QuantizedRows(const QuantizedMatrix& w_, i64 rows_, int digits_)
        : w(w_), rows(rows_), padded(w_.group * w_.groups), digits(digits_) {
        const i64 sizes[] = {rows * padded * 4, rows * w.groups * 4, rows * w.groups * 16,
                             rows * padded * digits};
        i64 total = 64;
        for (i64 size : sizes) total += (size + 63) / 64 * 64;
        memory = std::malloc(size_t(total));
        if (!memory) return;
        char* at = reinterpret_cast<char*>((reinterpret_cast<std::uintptr_t>(memory) + 63) / 64 * 64);
        auto next = [&](i64 size) {
            char* here = at;
            at += (size + 63) / 64 * 64;
            return here;
        };
        x = reinterpret_cast<float*>(next(sizes[0]));
        scale = reinterpret_cast<float*>(next(sizes[1]));
        sums = reinterpret_cast<std::int32_t*>(next(sizes[2]));
        numbers = reinterpret_cast<std::int8_t*>(next(sizes[3]));
    }
    QuantizedRows(const QuantizedRows&) = delete;
    ~QuantizedRows() { std::free(memory); }

    template <class S>
    void fill(i64 row, const S* from) {
        float* to = x + row * padded;
        for (i64 i = 0; i < w.inputs; ++i) to[i] = widen(from[i]);
        for (i64 i = w.inputs; i < padded; ++i) to[i] = 0.0f;
        if (digits)
            for (i64 g = 0; g < w.groups; ++g) split(row, g);
    }

    // The largest number of a few digits that are 127 at most, less what the product that makes it
    // of the largest x may be rounded up.
    float most() const { return digits == 3 ? 8355708.0f : digits == 2 ? 32639.0f : 127.0f; }

    void split(i64 row, i64 g) {
        const i64 n = w.group;
        const float* from = x + row * padded + g * n;
        std::uint32_t largest = 0;  // as bits, of which the order of magnitudes is that of numbers
        for (i64 i = 0; i < n; ++i) {
            const std::uint32_t size = to_bits(from[i]) & 0x7fffffffu;
            largest = size > largest ? size : largest;
        }
        const float size = from_bits(largest);
        const bool plain = size > 1e-30f && size < 1e38f;
        // NaN and infinity make all results of the row NaN; what is smaller than that is zero
        scale[row * w.groups + g] = plain ? size / most() : largest > 0x7e967699u ? NAN : 0.0f;
        std::int32_t sum[4] = {}, *negative = sums + (row * w.groups + g) * 4;
        write_digits(from, plain ? most() / size : 0.0f, n, plain, numbers + (g * n * rows + row * 8) * digits, sum);
        const std::int32_t zero = w.zeros ? 1 : 1 << (w.bits - 1);
        for (int d = 0; d < 4; ++d) negative[d] = -zero * sum[d];
    }

#ifdef LINRNN_VNNI
    void write_digits(const float* from, float factor, i64 n, bool plain, std::int8_t* to, std::int32_t* sum) const {
        __m512i total[3] = {};
        for (i64 i = 0; i < n; i += 16, to += 16 * rows * digits) {
            const bool half = n - i < 16;  // 8 numbers are left
            const __m512 part = _mm512_maskz_loadu_ps(plain ? half ? 0xff : 0xffff : 0, from + i);
            __m512i v = _mm512_cvtps_epi32(_mm512_mul_ps(part, _mm512_set1_ps(factor)));
            for (int d = 0; d < digits; ++d) {
                const __m128i digit = _mm512_cvtepi32_epi8(v);
                const __m512i whole = _mm512_cvtepi8_epi32(digit);
                total[d] = _mm512_add_epi32(total[d], whole);
                v = _mm512_srai_epi32(_mm512_sub_epi32(v, whole), 8);
                _mm_storel_epi64(reinterpret_cast<__m128i*>(to + 8 * d), digit);
                if (!half)
                    _mm_storel_epi64(reinterpret_cast<__m128i*>(to + 8 * (d + rows * digits)), _mm_srli_si128(digit, 8));
            }
        }
        for (int d = 0; d < digits; ++d) sum[d] = _mm512_reduce_add_epi32(total[d]);
    }
#else
    void write_digits(const float*, float, i64, bool, std::int8_t*, std::int32_t*) const {}
#endif
};

// sums (M rows, 16) += x of a tile of outputs, a group, in floats: for any processor.
template <int M>
void quantized_floats(const QuantizedMatrix& w, const QuantizedRows& x, i64 tile, i64 g, i64 r, float* sums) {
    float scale[TILE_ROWS], total[M][TILE_ROWS] = {};
    std::int32_t zero[TILE_ROWS];
    w.read(tile, g, scale, zero);
    const std::uint8_t* block = w.weights_of(tile, g);
    const float* row = x.x + r * x.padded + g * w.group;
#ifdef __GNUC__
    constexpr int L = 8;  // vectors of 64 bytes go through memory where registers have 32
    for (int half = 0; half < 2; ++half) {
        typename VectorOf<float, L>::type sum[M] = {};
        typename VectorOf<std::int32_t, L>::type nothing, word;
        std::memcpy(&nothing, zero + half * L, sizeof nothing);
        for (i64 i = 0; i < w.group; i += 4) {
            std::memcpy(&word, block + (w.bits == 8 ? i : i / 8 * 4) * TILE_ROWS + half * 4 * L, sizeof word);
            if (w.bits == 4) word = (i % 8 ? word >> 4 : word) & 0x0f0f0f0f;
            LINRNN_UNROLLED
            for (int j = 0; j < 4; ++j) {
                const auto u = ((word >> (8 * j)) & 255) - nothing;
                const auto weight = __builtin_convertvector(u, typename VectorOf<float, L>::type);
                LINRNN_UNROLLED
                for (int m = 0; m < M; ++m) sum[m] += weight * row[m * x.padded + i + j];
            }
        }
        LINRNN_UNROLLED
        for (int m = 0; m < M; ++m) std::memcpy(total[m] + half * L, &sum[m], sizeof sum[m]);
    }
#else
    for (i64 i = 0; i < w.group; i += 4) {
        std::uint32_t word[TILE_ROWS];
        w.words(block, i, word);
        for (int m = 0; m < M; ++m)
            for (int j = 0; j < 4; ++j)
                for (i64 l = 0; l < TILE_ROWS; ++l)
                    total[m][l] += float(std::int32_t((word[l] >> (8 * j)) & 255u) - zero[l]) *
                                   row[m * x.padded + i + j];
    }
#endif
    for (int m = 0; m < M; ++m)
        for (i64 l = 0; l < TILE_ROWS; ++l) sums[m * TILE_ROWS + l] += total[m][l] * scale[l];
}

inline void quantized_tile(const QuantizedMatrix& w, const QuantizedRows& x, i64 tile, float* sums) {
    for (i64 g = 0; g < w.groups; ++g) {
        i64 r = 0;
        for (; r + 4 <= x.rows; r += 4) quantized_floats<4>(w, x, tile, g, r, sums + r * TILE_ROWS);
        for (; r < x.rows; ++r) quantized_floats<1>(w, x, tile, g, r, sums + r * TILE_ROWS);
    }
}

#ifdef LINRNN_VNNI
// total += u x, of 4 neighbours for each output; in words of the assembler, since compilers copy the sums
// of the intrinsic from register to register, and need it allowed for everything around it.
inline __m512i four_products(__m512i total, __m512i u, const std::int8_t* x) {
    using Four = std::int8_t[4];
    asm("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(total) : "v"(u), "m"(*reinterpret_cast<const Four*>(x)));
    return total;
}
inline __m512 widened(const bf16* from) {
    const __m512i bits = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
    return _mm512_castsi512_ps(_mm512_slli_epi32(bits, 16));
}

// The same by digits, M rows of x at a time.
template <int M, int D, bool FOUR>
struct QuantizedVnni {
    // The processor foresees the stream of weights too late while sums wait: a read alone is 1.3 times
    // as fast without this, 1.1 to 1.2 times with it; 2 KiB ahead, or into the first cache, was no help.
    static constexpr i64 AHEAD = 16384;
    static constexpr bool APART = M * D <= 6;  // so few sums would wait for themselves

    static void group(const QuantizedMatrix& w, const QuantizedRows& x, i64 tile, i64 g, i64 r,
                      float* sums) {
        const i64 n = w.group, step = x.rows * D * 8;
        const std::int8_t* digit = x.numbers + (g * n * x.rows + r * 8) * D;
        __m512i total[M][D], other[M][D];
        LINRNN_UNROLLED
        for (int m = 0; m < M; ++m)
            LINRNN_UNROLLED
            for (int d = 0; d < D; ++d) {
                total[m][d] = _mm512_set1_epi32(x.sums[((r + m) * w.groups + g) * 4 + d]);
                other[m][d] = _mm512_setzero_si512();
            }
        if (w.zeros) {
            const __m512i zero = _mm512_cvttps_epi32(widened(w.scales_of(tile, g) + TILE_ROWS));
            LINRNN_UNROLLED
            for (int m = 0; m < M; ++m)
                LINRNN_UNROLLED
                for (int d = 0; d < D; ++d) total[m][d] = _mm512_mullo_epi32(zero, total[m][d]);
        }
        const std::uint8_t* block = w.weights_of(tile, g);
        const __m512i low = _mm512_set1_epi8(15);
        for (i64 i = 0; i < n; i += 8, digit += step, block += FOUR ? 64 : 128) {
            __builtin_prefetch(block + AHEAD, 0, 2);
            if (!FOUR) __builtin_prefetch(block + AHEAD + 64, 0, 2);
            const __m512i first = _mm512_loadu_si512(block);
            const __m512i a = FOUR ? _mm512_and_si512(first, low) : first;
            const __m512i b = FOUR ? _mm512_and_si512(_mm512_srli_epi16(first, 4), low)
                                   : _mm512_loadu_si512(block + 64);
            LINRNN_UNROLLED
            for (int m = 0; m < M; ++m)
                LINRNN_UNROLLED
                for (int d = 0; d < D; ++d) {
                    const std::int8_t* at = digit + (m * D + d) * 8;
                    total[m][d] = four_products(total[m][d], a, at);
                    if (APART) other[m][d] = four_products(other[m][d], b, at + 4);
                    else total[m][d] = four_products(total[m][d], b, at + 4);
                }
        }
        const __m512 scale = widened(w.scales_of(tile, g));
        LINRNN_UNROLLED
        for (int m = 0; m < M; ++m) {
            __m512 whole = _mm512_setzero_ps();
            LINRNN_UNROLLED
            for (int d = D - 1; d >= 0; --d) {
                const __m512i both = APART ? _mm512_add_epi32(total[m][d], other[m][d]) : total[m][d];
                const __m512 part = _mm512_cvtepi32_ps(both);
                whole = d == D - 1 ? part : _mm512_fmadd_ps(whole, _mm512_set1_ps(256.0f), part);
            }
            float* to = sums + m * TILE_ROWS;
            whole = _mm512_mul_ps(whole, _mm512_set1_ps(x.scale[(r + m) * w.groups + g]));
            _mm512_storeu_ps(to, _mm512_fmadd_ps(whole, scale, _mm512_loadu_ps(to)));
        }
    }
    static void tile(const QuantizedMatrix& w, const QuantizedRows& x, i64 number, float* sums) {
        for (i64 g = 0; g < w.groups; ++g) {
            i64 r = 0;
            for (; r + M <= x.rows; r += M) group(w, x, number, g, r, sums + r * TILE_ROWS);
            for (; r < x.rows; ++r)
                QuantizedVnni<1, D, FOUR>::group(w, x, number, g, r, sums + r * TILE_ROWS);
        }
    }
};
inline bool has_vnni() {
    static const bool found = __builtin_cpu_supports("avx512vnni");
    return found;
}
template <int D, bool FOUR>
void vnni_tile(const QuantizedMatrix& w, const QuantizedRows& x, i64 tile, float* sums) {
    if constexpr (D > 1)
        if (x.digits < D) return vnni_tile<D - 1, FOUR>(w, x, tile, sums);
    if (x.rows < 2) QuantizedVnni<1, D, FOUR>::tile(w, x, tile, sums);
    else if (x.rows < 4) QuantizedVnni<2, D, FOUR>::tile(w, x, tile, sums);
    else QuantizedVnni<4, D, FOUR>::tile(w, x, tile, sums);
}
#endif

// The digits that x is split into here, 0 where it is multiplied as floats.
inline int quantized_digits(i64 digits) {
#ifdef LINRNN_VNNI
    if (has_vnni()) return int(digits);
#endif
    (void)digits;
    return 0;
}

inline void quantized_tile_of(const QuantizedMatrix& w, const QuantizedRows& x, i64 tile, float* sums) {
#ifdef LINRNN_VNNI
    if (x.digits) return w.bits == 4 ? vnni_tile<3, true>(w, x, tile, sums) : vnni_tile<3, false>(w, x, tile, sums);
#endif
    quantized_tile(w, x, tile, sums);
}

constexpr i64 QUANTIZED_ROWS = 16;  // of x that a tile is read for at once
constexpr i64 QUANTIZED_WORTH = i64(1) << 17;  // bytes of weights that repay waking another thread

// put(row, output, value) for all of y = x W^T; row(r, fill) hands rows of x. False: out of memory.
template <class Fill, class Put>
bool quantized_product(const QuantizedMatrix& w, i64 rows, i64 digits, i64 threads, Fill fill, Put put) {
    const i64 bytes = w.outputs * w.groups * w.group * w.bits / 8;
    i64 team = bytes / QUANTIZED_WORTH + 1;
    team = team < threads ? team : threads;
    for (i64 first = 0; first < rows; first += QUANTIZED_ROWS) {
        const i64 count = rows - first < QUANTIZED_ROWS ? rows - first : QUANTIZED_ROWS;
        QuantizedRows x(w, count, quantized_digits(digits));
        if (!x.memory) return false;
        for (i64 r = 0; r < count; ++r) fill(x, r, first + r);
#pragma omp parallel for num_threads(int(team)) if (team > 1) schedule(static)
        for (i64 tile = 0; tile < w.tiles(); ++tile) {
            alignas(64) float sums[QUANTIZED_ROWS * TILE_ROWS] = {};
            quantized_tile_of(w, x, tile, sums);
            const i64 o = tile * TILE_ROWS, n = w.outputs - o < TILE_ROWS ? w.outputs - o : TILE_ROWS;
            for (i64 r = 0; r < count; ++r)
                for (i64 l = 0; l < n; ++l) put(first + r, o + l, sums[r * TILE_ROWS + l]);
        }
    }
    return true;
}

}  // namespace
}  // namespace LINRNN_ISA
}  // namespace linrnn
