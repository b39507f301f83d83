// The scans of matrix memories and their adjoints on a CPU, outer_scan and delta_scan: every head
// has a memory S (keys, columns),
//   S_t = diag(exp g_t) S_{t-1} diag(exp e_t) + b_t (a_t' S_{t-1}) + k_t u_t',   o_t = S_t' q_t
// with u_t = beta_t v_t, or, by the delta rule, beta_t (v_t - exp(e_t) S_{t-1}' exp(g_t) k_t). A step of
// several writes is as many steps here, of which the first alone decays and resets.
//
// A unit is one head of one sequence, or a slice of its columns whose width follows from the shapes
// alone. Where a step resets, a stretch begins anew from a memory of zeros, so that nothing is ever
// multiplied by what was before. The adjoint starts from the memory kept before each window.
// Every order is fixed: the same bits in every call and for any number of threads.
//
// Compiled once for every instruction set: see scan.cpp.
#include <cstdlib>
#include <cstring>

#include "../flush_subnormals.h"
#include "../large_pages.h"
#include "../memory_adjoint.h"
#include "../memory_half_adjoint.h"
#include "../memory_half_keys_adjoint.h"
#include "../memory_half_low_rank_adjoint.h"
#include "../memory_steps.h"
#ifdef _OPENMP
#include <omp.h>
#endif

namespace linrnn {
namespace LINRNN_ISA {
namespace {

template <class A>
struct MemoryScan {
    const MemoryScanArgs& args;

    i64 columns() const { return args.values + args.normalizer; }
    i64 slices() const { return (columns() + args.width - 1) / args.width; }
    i64 shared() const { return args.heads / args.key_heads; }
    i64 writes(i64 steps) const { return steps * args.rank; }
    // Heads that there are gradients of, of what `share` heads have one of.
    i64 slope_heads(i64 share) const {
        return share * args.key_heads == args.heads ? args.key_heads : args.heads;
    }
    i64 stored() const { return args.dtype == F64 ? 8 : args.dtype == F32 ? 4 : 2; }
    i64 windows(i64 time) const { return (time + args.window - 1) / args.window; }

    Head<A> head(const MemoryScanArgs& own, i64 s, i64 h, i64 slice, bool fresh) const {
        const i64 first = slice * args.width, left = columns() - first;
        return {own, s, h, first, left < args.width ? left : args.width, fresh, fresh || !slice};
    }
    // The arrays of sequence s; partial gradients of a part and of a slice.
    MemoryScanArgs alone(i64 s, i64 part, i64 slice) const {
        const Span span(args, s);
        MemoryScanArgs own = args;
        own.time = writes(span.count);
        auto written = [&](const Array& x, i64 bytes) {
            const i64 first = writes(span.first) + (args.reverse ? args.rank - 1 : 0);
            return Array{x.data ? x.data + (span.row * x.seq + first * x.step) * bytes : 0, 0, span.by * x.step};
        };
        auto read = [&](const Array& x, i64 bytes) { return args.reads > 1 ? written(x, bytes) : span.of(x, bytes); };
        own.q = read(args.q, stored()), own.o = read(args.o, stored());
        for (Array* x : {&own.k, &own.v, &own.a, &own.b, &own.grad_v}) *x = written(*x, stored());
        for (Array* x : {&own.g, &own.sign, &own.value_decay, &own.grad_value_decay}) *x = span.of(*x, sizeof(A));
        own.beta = written(args.beta, sizeof(A));
        own.reset = span.of(own.reset, 1);
        if (!args.backward) return own;
        const i64 row = steps_of(args) * i64(sizeof(A)), rows = writes(row);
        const i64 bytes = args.single ? stored() : i64(sizeof(A));
        own.grad_q = read(args.grad_q, bytes);
        own.grad_q.data += part * (args.reads > 1 ? rows : row) * slope_heads(args.q_share) * args.keys;
        auto slope = [&](Array& x, i64 share) {
            x = written(x, bytes), x.data += part * rows * slope_heads(share) * args.keys;
        };
        slope(own.grad_k, args.k_share), slope(own.grad_a, args.a_share), slope(own.grad_b, args.b_share);
        own.grad_g = span.of(args.grad_g, sizeof(A));
        own.grad_g.data += slice * row * args.heads * (args.channels == 2 ? args.keys : 1);
        own.grad_beta = written(args.grad_beta, sizeof(A));
        if (!args.rates) own.grad_beta.data += slice * rows * args.heads;
        return own;
    }
    // Of the kept memories of sequence s.
    i64 kept_before(i64 s) const {
        auto cuts = reinterpret_cast<const i64*>(args.offsets);
        return cuts ? writes(cuts[s]) / args.window + s : s * windows(writes(args.time));
    }
    // Where the stretch from step t on ends: no other step of it resets, and no window is left.
    static i64 end_of(const Head<A>& head, i64 t) {
        i64 end = (t / head.args.window + 1) * head.args.window;
        end = end < head.args.time ? end : head.args.time;
        for (i64 i = t + 1; i < end; ++i)
            if (head.resets(i)) return i;
        return end;
    }

    // Of products by halves, whatever the chunk.
    auto registers() const {
        if constexpr (Halves<A>::exist) return Halves<A>::registers(Halves<A>::usable(args));
        else return 0;
    }
    void forward(i64 s, i64 h, i64 slice, A* work) const {
        const MemoryScanArgs own = alone(s, 0, slice);
        const Head<A> head = this->head(own, s, h, slice, true);
        if (own.time && own.time <= few() && !args.kept && head.count == head.width())
            return Steps<A>{head}.decode(work);
        if constexpr (HalfKeys<A>::exist) {
            if (HalfKeys<A>::usable(args)) return forward_by_keys<HalfKeys<A>>(head, s, work);
            if (HalfLowRank<A>::usable(args)) return forward_by_keys<HalfLowRank<A>>(head, s, work);
        }
        [[maybe_unused]] const auto registers = this->registers();
        const Chunk<A> chunk(head, work);
        A* S = work += Chunk<A>::halves_room(head);
        work += head.size();
        forward(head, s, chunk, S, work);
    }
    // Blocks of 16 steps of bfloat16 rows.
    template <class Blocks>
    void forward_by_keys(const Head<A>& head, i64 s, A* work) const {
        [[maybe_unused]] const auto registers = Blocks::registers();
        A* S = work;
        work += head.size();
        const Blocks blocks(head, work);
        forward(head, s, blocks, S, work);
    }
    template <class Chunks>
    void forward(const Head<A>& head, i64 s, const Chunks& chunk, A* S, A* work) const {
        const Steps<A> steps{head};
        head.load_memory(args.initial, s, S);
        for (i64 t = 0, end; t < head.args.time; t = end) {
            if (args.kept && t % args.window == 0)
                head.store_memory(S, args.kept, kept_before(s) + t / args.window);
            end = end_of(head, t);
            if (head.resets(t)) head.forget(S);
            for (i64 n; end - t > few(); t += n) {
                n = chunk.steps(t, end);
                chunk.forward(t, n, S, work);
            }
            steps.forward(t, end, S, work);
        }
        head.store_memory(S, args.final, s);
    }
    // Steps that take longer as a chunk than one by one: measured at 16 to 128 keys and columns.
    i64 few() const { return args.reads > 1 ? 0 : args.a.data ? 12 : args.value_decay.data ? 6 : 3; }

    void backward(i64 s, i64 h, i64 slice, i64 part, bool fresh, A* work) const {
        const MemoryScanArgs own = alone(s, part, slice);
        const Head<A> head = this->head(own, s, h, slice, fresh);
        if constexpr (HalfKeys<A>::exist) {
            if (HalfKeys<A>::usable(args)) return backward_by_keys<HalfKeysAdjoint<A>>(head, s, work);
            if (HalfLowRank<A>::usable(args)) return backward_by_keys<HalfLowRankAdjoint<A>>(head, s, work);
        }
        [[maybe_unused]] const auto registers = this->registers();
        const Adjoint<A> adjoint(head, work);
        work += Chunk<A>::halves_room(head);
        A *S = work, *R = S + head.size();
        work = R + head.size();
        load(head, args.final, s, R, work);
        backward(head, S, R, [&](i64 begin, i64 end) { adjoint.backward(begin, end, S, R, work); },
                 [&](i64 window) { load(head, args.kept, kept_before(s) + window, S, work); });
        Tile<A>::transpose(R, head.keys(), S, head.width(), head.width(), head.keys());
        head.store_memory(S, args.grad_initial, s);
    }
    template <class Blocks>
    void backward_by_keys(const Head<A>& head, i64 s, A* work) const {
        [[maybe_unused]] const auto registers = Blocks::registers();
        A *S = work, *R = S + head.size();
        work = R + head.size();
        Blocks adjoint(head, work);
        head.load_memory(args.final, s, R);
        backward(head, S, R, [&](i64 begin, i64 end) { adjoint.backward(begin, end, S, R); },
                 [&](i64 window) { head.load_memory(args.kept, kept_before(s) + window, S); });
        head.store_memory(R, args.grad_initial, s);
    }
    // Goes through windows from the last one on, a stretch without resets after the other.
    template <class Stretch, class Load>
    void backward(const Head<A>& head, A* S, A* R, Stretch stretch, Load load) const {
        for (i64 w = windows(head.args.time) - 1; w >= 0; --w) {
            const i64 first = w * args.window;
            i64 end = first + args.window < head.args.time ? first + args.window : head.args.time;
            while (end > first) {
                i64 begin = end - 1;
                while (begin > first && !head.resets(begin)) --begin;
                const bool cut = head.resets(begin);
                if (cut) head.forget(S);
                else load(w);
                stretch(begin, end);
                if (cut) head.forget(R);
                end = begin;
            }
        }
    }
    // A memory as the adjoint has it, with the keys of a column side by side.
    void load(const Head<A>& head, i64 pointer, i64 index, A* to, A* work) const {
        head.load_memory(pointer, index, work);
        Tile<A>::transpose(work, head.width(), to, head.keys(), head.keys(), head.width());
    }

    // Part `part` of the heads and slices of a key head, one after the other.
    void backward(i64 s, i64 key_head, i64 part, A* work) const {
        const i64 items = shared() * slices(), share = (items + args.parts - 1) / args.parts;
        for (i64 i = part * share; i < items && i < (part + 1) * share; ++i)
            backward(s, key_head * shared() + i / slices(), i % slices(), part, i == part * share, work);
    }

    // -------------------------------------------------------------------- chunks of bfloat16 rows

    bool by_halves() const {
        if constexpr (HalfChunk<A>::exist) return HalfChunk<A>::usable(args);
        return false;
    }
    // Heads and slices of part `part` of those that share a key: f(its number, head, slice).
    template <class F>
    void each_item(i64 key_head, i64 part, F f) const {
        const i64 items = shared() * slices(), share = (items + args.parts - 1) / args.parts;
        for (i64 i = part * share; i < items && i < (part + 1) * share; ++i)
            f(i - part * share, key_head * shared() + i / slices(), i % slices());
    }
    i64 items_of_part() const { return (shared() * slices() + args.parts - 1) / args.parts; }
    // One memory beside the other, and the room of a chunk.
    i64 halves_room() const {
        if constexpr (HalfChunk<A>::exist) {
            const Head<A> largest = head(args, 0, 0, 0, true);
            HalfAdjoint<A> adjoint(args, largest.keys(), largest.width());
            float* const begin = nullptr;
            const i64 chunk = args.backward ? adjoint.lay_out(begin) - begin
                                            : static_cast<HalfChunk<A>&>(adjoint).lay_out(begin) - begin;
            return items_of_part() * largest.size() + chunk;
        }
        return 0;
    }
    void forward_halves(i64 s, i64 key_head, i64 part, A* work) const {
        if constexpr (HalfChunk<A>::exist) {
            const MemoryScanArgs own = alone(s, part, 0);
            const Head<A> first = this->head(own, s, key_head * shared(), 0, true);
            HalfChunk<A> chunk(args, first.keys(), first.width());
            const i64 size = first.size();
            if (own.time <= few() && !args.kept)
                return each_item(key_head, part, [&](i64, i64 h, i64 slice) { forward(s, h, slice, work); });
            [[maybe_unused]] const auto registers = HalfChunk<A>::registers();
            A* const memories = chunk.lay_out(work);
            auto each = [&](auto f) {
                each_item(key_head, part, [&](i64 i, i64 h, i64 slice) {
                    f(this->head(own, s, h, slice, true), memories + i * size);
                });
            };
            each([&](const Head<A>& head, A* S) { head.load_memory(args.initial, s, S); });
            for (i64 t = 0, end; t < own.time; t = end) {
                end = end_of(first, t);
                const bool keep = args.kept && t % args.window == 0, forget = first.resets(t);
                chunk.open(first, t, end - t);
                each([&](const Head<A>& head, A* S) {
                    if (keep) chunk.keep_memory(head, S, kept_before(s) + t / args.window);
                    if (forget) head.forget(S);
                    chunk.forward(head, S);
                });
            }
            each([&](const Head<A>& head, A* S) { head.store_memory(S, args.final, s); });
        }
    }
    void backward_halves(i64 s, i64 key_head, i64 part, A* work) const {
        if constexpr (HalfChunk<A>::exist) {
            const MemoryScanArgs own = alone(s, part, 0);
            const Head<A> first = this->head(own, s, key_head * shared(), 0, true);
            HalfAdjoint<A> chunk(args, first.keys(), first.width());
            const i64 size = first.size();
            [[maybe_unused]] const auto registers = HalfChunk<A>::registers();
            A* const slopes = chunk.lay_out(work);
            auto each = [&](auto f) {
                each_item(key_head, part, [&](i64 i, i64 h, i64 slice) {
                    const MemoryScanArgs of_slice = slice ? alone(s, part, slice) : own;
                    f(this->head(of_slice, s, h, slice, true), slopes + i * size);
                });
            };
            each([&](const Head<A>& head, A* R) { head.load_memory(args.final, s, R); });
            for (i64 end = own.time, begin; end > 0; end = begin) {
                const i64 window = (end - 1) / args.window;
                begin = end - 1;
                while (begin > window * args.window && !first.resets(begin)) --begin;
                const bool forget = first.resets(begin);
                chunk.open(first, begin, end - begin);
                each([&](const Head<A>& head, A* R) {
                    chunk.backward(head, kept_before(s) + window, forget, R);
                    if (forget) head.forget(R);
                });
                chunk.close(first);
            }
            each([&](const Head<A>& head, A* R) { head.store_memory(R, args.grad_initial, s); });
        }
    }

    // One of `each` in a sequence.
    void unit(i64 u, i64 each, A* work) const {
        const i64 s = u / each, i = u % each;
        if (by_halves()) args.backward ? backward_halves(s, i / args.parts, i % args.parts, work)
                                       : forward_halves(s, i / args.parts, i % args.parts, work);
        else if (args.backward) backward(s, i / args.parts, i % args.parts, work);
        else forward(s, i / slices(), i % slices(), work);
    }

    i64 by_keys_room(const Head<A>& largest) const {
        if constexpr (HalfKeys<A>::exist) {
            if (HalfKeys<A>::usable(args)) return blocks_room<HalfKeys<A>, HalfKeysAdjoint<A>>(largest);
            if (HalfLowRank<A>::usable(args)) return blocks_room<HalfLowRank<A>, HalfLowRankAdjoint<A>>(largest);
        }
        return 0;
    }
    template <class Blocks, class Backward>
    i64 blocks_room(const Head<A>& largest) const {
        A *const begin = nullptr, *end = begin;
        if (args.backward) Backward(largest, end);
        else Blocks(largest, end).lay_out(end);
        return (args.backward ? 2 : 1) * largest.size() + (end - begin);
    }
    i64 room() const {
        const Head<A> largest = head(args, 0, 0, 0, true);
        const Adjoint<A> adjoint(largest, nullptr);
        const i64 steps = Steps<A>{largest}.room(), chunk = adjoint.room();
        const i64 need = args.backward ? adjoint.backward_room() : chunk > steps ? chunk : steps;
        const i64 halves = Chunk<A>::halves_room(largest);
        const i64 whole = halves + (args.backward ? 2 : 1) * largest.size() + need;
        i64 most = whole;
        for (i64 other : {by_halves() ? halves_room() : 0, by_keys_room(largest)}) most = most > other ? most : other;
        return (most + 127) / 64 * 64;
    }

    int dispatch() const {
        if (!args.seqs || !args.heads || !args.keys || !columns()) return 0;
        const bool of_keys = args.backward || by_halves();
        const i64 units = args.seqs * (of_keys ? args.key_heads * args.parts : args.heads * slices());
        if (!args.backward) advise(args.o.data, steps_of(args) * args.reads * args.heads * columns() * stored());
        // what repays waking another thread
        const i64 worth = writes(steps_of(args)) * args.heads * args.keys * columns() / 65536 + 1;
        i64 threads = worth < args.threads ? worth : args.threads;
        threads = threads < units ? threads : units;
        if (threads < 1) return 0;
        const i64 stride = room();
        void* memory = std::malloc(size_t(threads * stride) * sizeof(A) + 64);
        if (!memory) return 1;
        A* work = reinterpret_cast<A*>((reinterpret_cast<std::uintptr_t>(memory) + 63) & ~std::uintptr_t(63));
        if (threads == 1) {  // a team of one takes longer than a step of decoding
            FlushSubnormals flush;
            for (i64 u = 0; u < units; ++u) unit(u, units / args.seqs, work);
        } else {
#pragma omp parallel num_threads(int(threads))
            {
#ifdef _OPENMP
                A* mine = work + omp_get_thread_num() * stride;
#else
                A* mine = work;
#endif
                FlushSubnormals flush;
#pragma omp for schedule(dynamic)
                for (i64 u = 0; u < units; ++u) unit(u, units / args.seqs, mine);
            }
        }
        std::free(memory);
        return 0;
    }
};

}  // namespace

int memory_scan(const void* record) {
    const auto& args = *static_cast<const MemoryScanArgs*>(record);
    if (args.size != i64(sizeof(MemoryScanArgs))) return 3;
    switch (args.dtype) {
        case F64: return MemoryScan<double>{args}.dispatch();
        case F32:
        case BF16:
        case F16: return MemoryScan<float>{args}.dispatch();
    }
    return 2;
}

}  // namespace LINRNN_ISA
}  // namespace linrnn
