// The selective scan of bfloat16 rows where a processor has AVX-512-BF16, without zero-order hold. A
// few modes of a block of 32 channels take all steps of a chunk before the next modes do: their states
// stay in registers, and the adjoint's tape of a few modes in first-level cache. Rows of a chunk are
// widened once for all modes. States, sums and decays are float32, a decay's logarithm within 5e-7 of
// itself; step sizes and gates are within two millionths, where they are rounded to one part in 512.
#pragma once
#include <initializer_list>

#include "half_rows.h"
#include "selective_rows.h"

#ifdef LINRNN_HALF_PRODUCTS

namespace linrnn {
namespace LINRNN_ISA {
namespace {

// 2^x of any x: 1 for 0, and of a small one the error is as small a part.
LINRNN_BF16_TARGET inline __m512 lanes_power_of_two(__m512 x) {
    const __m512 r = _mm512_reduce_ps(x, 0x8), n = _mm512_sub_ps(x, r);  // to the nearest integer
    __m512 q = _mm512_set1_ps(1.33335384e-3f);
    q = _mm512_fmadd_ps(q, r, _mm512_set1_ps(9.66624563e-3f));
    q = _mm512_fmadd_ps(q, r, _mm512_set1_ps(5.55050022e-2f));
    q = _mm512_fmadd_ps(q, r, _mm512_set1_ps(2.40223513e-1f));
    q = _mm512_fmadd_ps(q, r, _mm512_set1_ps(6.93147144e-1f));
    q = _mm512_fmadd_ps(q, r, _mm512_set1_ps(1.0f));
    return _mm512_scalef_ps(q, n);
}

struct SelectiveHalf : SelectiveRows<bf16> {
    static constexpr i64 V = 16;                      // numbers of a register; a block's row fills two
    static constexpr int AHEAD = 4, BACK = 2;         // modes in registers at once
    static constexpr float LOG2E = 1.44269504f, LN2 = 0.693147181f;

    // Rows of a chunk, each (steps, L), and modes of it, (steps, padded).
    float *x = nullptr, *dt = nullptr, *input = nullptr, *y = nullptr, *gate = nullptr, *B = nullptr, *C = nullptr;
    // of the adjoint: of y before the gate, slopes of dt and of the gate, sums over modes
    float *grad = nullptr, *slope = nullptr, *gate_slope = nullptr, *for_x = nullptr, *for_dt = nullptr;
    float *before = nullptr, *decay = nullptr;        // its tape of a few modes, (steps, modes, L)
    float *for_B = nullptr, *for_C = nullptr;         // (steps, modes, V): sums over blocks, by lanes
    bool* cut = nullptr;                              // (steps)
    i64 start = 0, steps = 0;                         // of the chunk
    bool any_cut = false;

    explicit SelectiveHalf(const SelectiveScanArgs& args_) : SelectiveRows<bf16>{args_} {}

    static bool usable(const SelectiveScanArgs& args) { return has_half_products() && !args.zoh; }

    // -------------------------------------------------------------------------------------- rooms

    // A row more than there are steps: distances that are multiples of 4 KiB would make loads wait for
    // unrelated stores.
    i64 rows_room() const { return (args.chunk + 1) * L; }
    i64 sums_room() const { return args.chunk * args.modes * V + L; }
    i64 room(i64 share) const {
        const i64 common = 2 * share * tile() + 2 * args.chunk * padded() + (args.chunk + 63) / 64 * V;
        if (!args.backward) return common + 5 * rows_room();
        return common + (10 + 2 * BACK) * rows_room() + 2 * sums_room() + tile();
    }
    // Where everything lies from `work` on; the end of it.
    float* lay_out(float* work) {
        auto take = [&work](i64 n) {
            float* here = work;
            work += n;
            return here;
        };
        for (float** row : {&x, &dt, &input, &y, &gate}) *row = take(rows_room());
        for (float** row : {&B, &C}) *row = take(args.chunk * padded());
        cut = reinterpret_cast<bool*>(take((args.chunk + 63) / 64 * V));
        if (!args.backward) return work;
        for (float** row : {&grad, &slope, &gate_slope, &for_x, &for_dt}) *row = take(rows_room());
        for (float** tape : {&before, &decay}) *tape = take(BACK * rows_room());
        for (float** sums : {&for_B, &for_C}) *sums = take(sums_room());
        return work;
    }

    // --------------------------------------------------------------------------------------- rows

    // A block's part of a row: which lanes of its registers are channels.
    struct Some {
        __mmask16 lanes[2];
        explicit Some(i64 n) : lanes{lanes_left(n), lanes_left(n > V ? n - V : 0)} {}
    };

    // What all blocks read of chunk k.
    void open_chunk(i64 k) {
        start = k * args.chunk;
        steps = args.time - start < args.chunk ? args.time - start : args.chunk;
        any_cut = false;
        for (i64 j = 0; j < steps; ++j) {
            fetch(at(args.B, start + j), B + j * padded(), args.modes);
            fetch(at(args.C, start + j), C + j * padded(), args.modes);
            any_cut |= cut[j] = resets(start + j);
        }
    }

    // The block that comes next: its first step and channel, c < 0 where there is none.
    struct Next {
        i64 start, c;
    };
    // Rows of an array that the next block reads or writes. No hardware looks for rows that lie so far
    // apart. Requests for all of them at once would make other loads wait.
    struct Ahead {
        const char* row;
        i64 step;  // bytes
        void ask(i64 j) const { __builtin_prefetch(row + j * step); }
    };
    Ahead ahead(const Next& next, i64 which) const {
        const Array* const arrays[] = {&args.x, &args.dt, &args.y, &args.z, &args.grad_x, &args.grad_dt, &args.grad_z};
        const Array& array = *arrays[which];
        if (next.c < 0 || !array.data) return {reinterpret_cast<const char*>(y), 0};
        return {reinterpret_cast<const char*>(at(array, next.start) + next.c), array.step * i64(sizeof(bf16))};
    }
    // Each group of modes asks for an array; here for those that are left.
    void ask_rest(const Next& next, i64 groups) const {
        for (i64 which = groups; which < (args.backward ? 7 : 4); ++which)
            for (i64 j = 0; j < steps; ++j) ahead(next, which).ask(j);
    }

    // Widens a block's rows; y begins as D x.
    LINRNN_BF16_TARGET void open_rows(i64 c, const Some& some, const float* skip, const float* bias) {
        for (i64 j = 0, t = start; j < steps; ++j, ++t) {
            for (int i = 0; i < 2; ++i) {
                const i64 to = j * L + i * V;
                const __m512 u = load_lanes(at(args.x, t) + c + i * V, some.lanes[i]);
                const __m512 raw = _mm512_add_ps(load_lanes(at(args.dt, t) + c + i * V, some.lanes[i]),
                                                 _mm512_loadu_ps(bias + i * V));
                LanesSoftplus size{raw, _mm512_set1_ps(1.0f)};
                if (args.softplus) size = lanes_softplus(raw);
                const __m512 skipped = _mm512_mul_ps(_mm512_loadu_ps(skip + i * V), u);
                _mm512_storeu_ps(dt + to, size.value);
                _mm512_storeu_ps(input + to, _mm512_mul_ps(size.value, u));
                _mm512_storeu_ps(y + to, skipped);
                if (args.z.data) {
                    const __m512 z = load_lanes(at(args.z, t) + c + i * V, some.lanes[i]);
                    const LanesSigmoid s = lanes_sigmoid(z);
                    _mm512_storeu_ps(gate + to, _mm512_mul_ps(z, s.value));
                    if (args.backward) {
                        const __m512 rise = lanes_plus_one(_mm512_mul_ps(z, s.rest));
                        _mm512_storeu_ps(gate_slope + to, _mm512_mul_ps(s.value, rise));
                    }
                }
                if (!args.backward) continue;
                _mm512_storeu_ps(x + to, u);
                _mm512_storeu_ps(slope + to, size.slope);
            }
        }
    }

    // ---------------------------------------------------------------------------------- forward

    // G modes through all steps of a chunk.
    template <int G, bool CUT>
    LINRNN_BF16_TARGET void advance(i64 mode, float* states, const float* rates, const Ahead& next) const {
        const float *const sizes = dt, *const inputs = input, *b = B + mode, *c = C + mode;
        float* const out = y;
        const i64 count = steps, apart = padded();
        const bool* const cuts = cut;
        __m512 h[G][2], a[G][2];
        for (int m = 0; m < G; ++m)
            for (int i = 0; i < 2; ++i) {
                h[m][i] = _mm512_loadu_ps(states + (mode + m) * L + i * V);
                a[m][i] = _mm512_loadu_ps(rates + (mode + m) * L + i * V);
            }
        for (i64 j = 0; j < count; ++j, b += apart, c += apart) {
            next.ask(j);
            for (int i = 0; i < 2; ++i) {
                const i64 at = j * L + i * V;
                const __m512 size = _mm512_loadu_ps(sizes + at), in = _mm512_loadu_ps(inputs + at);
                __m512 sum = _mm512_loadu_ps(out + at);
                for (int m = 0; m < G; ++m) {
                    if (CUT && cuts[j]) h[m][i] = _mm512_setzero_ps();
                    const __m512 d = lanes_power_of_two(_mm512_mul_ps(size, a[m][i]));
                    h[m][i] = _mm512_fmadd_ps(d, h[m][i], _mm512_mul_ps(_mm512_set1_ps(b[m]), in));
                    sum = _mm512_fmadd_ps(_mm512_set1_ps(c[m]), h[m][i], sum);
                }
                _mm512_storeu_ps(out + at, sum);
            }
        }
        for (int m = 0; m < G; ++m)
            for (int i = 0; i < 2; ++i) _mm512_storeu_ps(states + (mode + m) * L + i * V, h[m][i]);
    }
    template <bool CUT>
    void advance(float* h, const float* rates, const Next& next) const {
        const i64 whole = args.modes / AHEAD, groups = whole + args.modes % AHEAD;
        for (i64 group = 0; group < groups; ++group) {
            const Ahead rows = ahead(next, group < 4 ? group : 0);
            if (group < whole) advance<AHEAD, CUT>(group * AHEAD, h, rates, rows);
            else advance<1, CUT>(args.modes - groups + group, h, rates, rows);
        }
        ask_rest(next, groups);
    }

    LINRNN_BF16_TARGET void close_rows(i64 c, const Some& some) const {
        for (i64 j = 0; j < steps; ++j)
            for (int i = 0; i < 2; ++i) {
                const i64 from = j * L + i * V;
                __m512 out = _mm512_loadu_ps(y + from);
                if (args.z.data) out = _mm512_mul_ps(out, _mm512_loadu_ps(gate + from));
                store_lanes(at(args.y, start + j) + c + i * V, some.lanes[i], out);
            }
    }

    // Decays as powers of two: A log2(e) of a block.
    void load_rates(i64 c, i64 n, float* to) const {
        load_states(args.A, c, n, to);
        for (i64 i = 0; i < tile(); ++i) to[i] *= LOG2E;
    }

    void forward_block(i64 k, i64 c, i64 n, float* h, const float* rates, const Next& next) {
        alignas(64) float skip[L], bias[L];
        const Some some(n);
        load_channels(args.D, c, n, skip);
        load_channels(args.bias, c, n, bias);
        if (args.kept)
            for (i64 m = 0; m < args.modes; ++m) put(kept(k, c) + m * args.channels, h + m * L, n);
        open_rows(c, some, skip, bias);
        if (any_cut) advance<true>(h, rates, next);
        else advance<false>(h, rates, next);
        close_rows(c, some);
    }

    // Blocks [first, last) of one sequence.
    void forward(i64 s, i64 first, i64 last, float* work) {
        float *rates = lay_out(work), *h = rates + (last - first) * tile();
        for (i64 b = first; b < last; ++b) {
            load_rates(b * L, width(b), rates + (b - first) * tile());
            load_states(sequence(args.initial, s), b * L, width(b), h + (b - first) * tile());
        }
        for (i64 k = 0; k < chunks(); ++k) {
            open_chunk(k);
            for (i64 b = first; b < last; ++b) {
                const bool more = b + 1 < last;
                const Next next{more ? start : start + args.chunk, (more ? b + 1 : first) * L};
                forward_block(k, b * L, width(b), h + (b - first) * tile(), rates + (b - first) * tile(), next);
            }
        }
        for (i64 b = first; b < last; ++b)
            store_states(h + (b - first) * tile(), sequence(args.final, s), b * L, width(b));
    }

    // --------------------------------------------------------------------------------- backward

    // The gradient of y before the gate, and what it adds to that of D.
    LINRNN_BF16_TARGET void open_grad(i64 c, const Some& some, float* of_D) const {
        for (int i = 0; i < 2; ++i) {
            __m512 sum = _mm512_setzero_ps();
            for (i64 j = 0; j < steps; ++j) {
                const i64 to = j * L + i * V;
                const __m512 out = load_lanes(at(args.y, start + j) + c + i * V, some.lanes[i]);
                __m512 g = out;
                if (args.z.data) {
                    g = _mm512_mul_ps(out, _mm512_loadu_ps(gate + to));
                    _mm512_storeu_ps(gate_slope + to, _mm512_mul_ps(out, _mm512_loadu_ps(gate_slope + to)));
                }
                sum = _mm512_fmadd_ps(g, _mm512_loadu_ps(x + to), sum);
                _mm512_storeu_ps(grad + to, g);
                _mm512_storeu_ps(for_x + to, _mm512_setzero_ps());
                _mm512_storeu_ps(for_dt + to, _mm512_setzero_ps());
            }
            _mm512_storeu_ps(of_D + i * V, sum);
        }
    }

    // Forward again from the states before the chunk, with a tape.
    template <int G, bool CUT>
    LINRNN_BF16_TARGET void replay(i64 mode, const float* states, const Some& some, const float* rates,
                                   const Ahead& next) const {
        const float *const sizes = dt, *const inputs = input, *const grads = grad, *b = B + mode, *c = C + mode;
        float *const out = y, *const states_before = before, *const decays = decay, *of_C = for_C + mode * V;
        const i64 count = steps, apart = padded(), modes = args.modes;
        const bool* const cuts = cut;
        __m512 h[G][2], a[G][2];
        for (int m = 0; m < G; ++m)
            for (int i = 0; i < 2; ++i) {
                h[m][i] = load_lanes(states + m * args.channels + i * V, some.lanes[i]);
                a[m][i] = _mm512_loadu_ps(rates + (mode + m) * L + i * V);
            }
        for (i64 j = 0; j < count; ++j, b += apart, c += apart, of_C += modes * V) {
            next.ask(j);
            __m512 total[G];
            for (int m = 0; m < G; ++m) total[m] = _mm512_loadu_ps(of_C + m * V);
            for (int i = 0; i < 2; ++i) {
                const i64 row = j * L + i * V;
                const __m512 g = _mm512_loadu_ps(grads + row), size = _mm512_loadu_ps(sizes + row);
                const __m512 in = _mm512_loadu_ps(inputs + row);
                __m512 sum = _mm512_loadu_ps(out + row);
                for (int m = 0; m < G; ++m) {
                    const i64 tape = (j * G + m) * L + i * V;
                    if (CUT && cuts[j]) h[m][i] = _mm512_setzero_ps();
                    const __m512 d = lanes_power_of_two(_mm512_mul_ps(size, a[m][i]));
                    _mm512_storeu_ps(states_before + tape, h[m][i]);
                    _mm512_storeu_ps(decays + tape, d);
                    h[m][i] = _mm512_fmadd_ps(d, h[m][i], _mm512_mul_ps(_mm512_set1_ps(b[m]), in));
                    total[m] = _mm512_fmadd_ps(g, h[m][i], total[m]);
                    sum = _mm512_fmadd_ps(_mm512_set1_ps(c[m]), h[m][i], sum);
                }
                _mm512_storeu_ps(out + row, sum);
            }
            for (int m = 0; m < G; ++m) _mm512_storeu_ps(of_C + m * V, total[m]);
        }
    }

    // Back through the steps: carry is the gradient of the states that the chunk left.
    template <int G, bool CUT>
    LINRNN_BF16_TARGET void retreat(i64 mode, const float* rates, float* carry, float* of_A) const {
        const i64 apart = padded(), across = args.modes * V, last = steps - 1;
        const float *const sizes = dt, *const inputs = input, *const grads = grad;
        const float *const states_before = before, *const decays = decay;
        const float *b = B + mode + last * apart, *c = C + mode + last * apart;
        float *const to_x = for_x, *const to_dt = for_dt, *of_B = for_B + mode * V + last * across;
        const bool* const cuts = cut;
        __m512 back[G][2], sum_A[G][2], a[G][2];
        for (int m = 0; m < G; ++m)
            for (int i = 0; i < 2; ++i) {
                back[m][i] = _mm512_loadu_ps(carry + (mode + m) * L + i * V);
                a[m][i] = _mm512_loadu_ps(rates + (mode + m) * L + i * V);
                sum_A[m][i] = _mm512_setzero_ps();
            }
        for (i64 j = last; j >= 0; --j, b -= apart, c -= apart, of_B -= across) {
            __m512 total[G];
            for (int m = 0; m < G; ++m) total[m] = _mm512_loadu_ps(of_B + m * V);
            for (int i = 0; i < 2; ++i) {
                const i64 row = j * L + i * V;
                const __m512 g = _mm512_loadu_ps(grads + row), size = _mm512_loadu_ps(sizes + row);
                const __m512 in = _mm512_loadu_ps(inputs + row);
                __m512 of_x = _mm512_loadu_ps(to_x + row), of_dt = _mm512_loadu_ps(to_dt + row);
                for (int m = 0; m < G; ++m) {
                    const i64 tape = (j * G + m) * L + i * V;
                    const __m512 delta = _mm512_fmadd_ps(_mm512_set1_ps(c[m]), g, back[m][i]);
                    back[m][i] = _mm512_mul_ps(_mm512_loadu_ps(decays + tape), delta);
                    const __m512 through = _mm512_mul_ps(back[m][i], _mm512_loadu_ps(states_before + tape));
                    of_dt = _mm512_fmadd_ps(through, a[m][i], of_dt);
                    total[m] = _mm512_fmadd_ps(delta, in, total[m]);
                    of_x = _mm512_fmadd_ps(delta, _mm512_set1_ps(b[m]), of_x);
                    sum_A[m][i] = _mm512_fmadd_ps(through, size, sum_A[m][i]);
                    if (CUT && cuts[j]) back[m][i] = _mm512_setzero_ps();
                }
                _mm512_storeu_ps(to_x + row, of_x);
                _mm512_storeu_ps(to_dt + row, of_dt);
            }
            for (int m = 0; m < G; ++m) _mm512_storeu_ps(of_B + m * V, total[m]);
        }
        for (int m = 0; m < G; ++m)
            for (int i = 0; i < 2; ++i) {
                _mm512_storeu_ps(carry + (mode + m) * L + i * V, back[m][i]);
                _mm512_storeu_ps(of_A + (mode + m) * L + i * V, sum_A[m][i]);
            }
    }
    // All modes of a block there and back, from the states before the chunk, `states`.
    template <bool CUT>
    void there_and_back(const float* states, const Some& some, const float* rates, float* carry, float* of_A,
                        const Next& next) const {
        const i64 whole = args.modes / BACK, groups = whole + args.modes % BACK;
        for (i64 group = 0; group < groups; ++group) {
            const Ahead rows = ahead(next, group < 7 ? group : 0);
            const i64 mode = group < whole ? group * BACK : args.modes - groups + group;
            const float* from = states + mode * args.channels;
            if (group < whole) {
                replay<BACK, CUT>(mode, from, some, rates, rows);
                retreat<BACK, CUT>(mode, rates, carry, of_A);
            } else {
                replay<1, CUT>(mode, from, some, rates, rows);
                retreat<1, CUT>(mode, rates, carry, of_A);
            }
        }
        ask_rest(next, groups);
    }

    // Writes the gradients of a block's rows, and what they add to that of the bias.
    LINRNN_BF16_TARGET void close_grad(i64 c, const Some& some, const float* skip, float* of_bias) const {
        for (int i = 0; i < 2; ++i) {
            __m512 sum = _mm512_setzero_ps();
            for (i64 j = 0, t = start; j < steps; ++j, ++t) {
                const i64 from = j * L + i * V, to = c + i * V;
                const __m512 of_input = _mm512_loadu_ps(for_x + from);
                __m512 of_x = _mm512_mul_ps(of_input, _mm512_loadu_ps(dt + from));
                of_x = _mm512_fmadd_ps(_mm512_loadu_ps(skip + i * V), _mm512_loadu_ps(grad + from), of_x);
                __m512 of_dt = _mm512_mul_ps(_mm512_loadu_ps(for_dt + from), _mm512_set1_ps(LN2));
                of_dt = _mm512_fmadd_ps(_mm512_loadu_ps(x + from), of_input, of_dt);
                of_dt = _mm512_mul_ps(of_dt, _mm512_loadu_ps(slope + from));
                sum = _mm512_add_ps(sum, of_dt);
                store_lanes(at(args.grad_x, t) + to, some.lanes[i], of_x);
                store_lanes(at(args.grad_dt, t) + to, some.lanes[i], of_dt);
                if (!args.z.data) continue;
                const __m512 of_z = _mm512_mul_ps(_mm512_loadu_ps(y + from), _mm512_loadu_ps(gate_slope + from));
                store_lanes(at(args.grad_z, t) + to, some.lanes[i], of_z);
            }
            _mm512_storeu_ps(of_bias + i * V, sum);
        }
    }

    void backward_block(i64 k, i64 c, i64 n, const float* rates, float* carry, float* of_A, double* sums, const Next& next) {
        alignas(64) float skip[L], bias[L], of_D[L], of_bias[L];
        const Some some(n);
        load_channels(args.D, c, n, skip);
        load_channels(args.bias, c, n, bias);
        open_rows(c, some, skip, bias);
        open_grad(c, some, of_D);
        if (next.c >= 0) {
            const float* states = kept(next.start / args.chunk, next.c);
            for (i64 m = 0; m < args.modes; ++m)
                for (i64 i = 0; i < 2; ++i) __builtin_prefetch(states + m * args.channels + i * V);
        }
        if (any_cut) there_and_back<true>(kept(k, c), some, rates, carry, of_A, next);
        else there_and_back<false>(kept(k, c), some, rates, carry, of_A, next);
        close_grad(c, some, skip, of_bias);
        const i64 channels = args.channels;
        for (i64 m = 0; m < args.modes; ++m)
            for (i64 l = 0; l < n; ++l) sums[m * channels + c + l] += double(of_A[m * L + l]);
        double *to_D = sums + args.modes * channels + c, *to_bias = to_D + channels;
        for (i64 l = 0; l < n; ++l) to_D[l] += double(of_D[l]), to_bias[l] += double(of_bias[l]);
    }

    // Adds up the lanes of a chunk's sums over channels.
    LINRNN_BF16_TARGET void write_modes(const float* from, const Array& to) const {
        for (i64 t = start; t < start + steps; ++t)
            for (i64 m = 0; m < args.modes; ++m, from += V)
                at<float>(to, t)[m] = _mm512_reduce_add_ps(_mm512_loadu_ps(from));
    }

    // Blocks [first, last) of one sequence; sums go to row `row`.
    void backward(i64 s, i64 first, i64 last, i64 row, float* work) {
        float *rates = lay_out(work), *carry = rates + (last - first) * tile();
        float* of_A = carry + (last - first) * tile();
        auto sums = reinterpret_cast<double*>(args.sums) + row * (args.modes + 2) * args.channels;
        for (i64 b = first; b < last; ++b) {
            load_rates(b * L, width(b), rates + (b - first) * tile());
            load_states(sequence(args.final, s), b * L, width(b), carry + (b - first) * tile());
        }
        for (i64 k = chunks() - 1; k >= 0; --k) {
            open_chunk(k);
            for (float* lanes : {for_B, for_C}) std::memset(lanes, 0, size_t(steps * args.modes * V) * sizeof(float));
            for (i64 b = first; b < last; ++b) {
                const bool more = b + 1 < last, there = more || k > 0;
                const Next next{more ? start : start - args.chunk, there ? (more ? b + 1 : first) * L : -1};
                const i64 at = (b - first) * tile();
                backward_block(k, b * L, width(b), rates + at, carry + at, of_A, sums, next);
            }
            write_modes(for_B, args.grad_B);
            write_modes(for_C, args.grad_C);
        }
        for (i64 b = first; b < last; ++b)
            store_states(carry + (b - first) * tile(), sequence(args.grad_initial, s), b * L, width(b));
    }
};

}  // namespace
}  // namespace LINRNN_ISA
}  // namespace linrnn
#endif
