// The dtypes, the strided array and the field lists of every kernel's record.
#pragma once
#include <cstdint>

namespace linrnn {

using i64 = std::int64_t;

// CBF16: complex numbers as pairs of BF16.
enum DType : i64 { F32 = 0, F64 = 1, C64 = 2, C128 = 3, BF16 = 4, F16 = 5, CBF16 = 6 };

// A (sequence, time, channel) array; strides in elements, the channel stride is 1.
struct Array {
    i64 data, seq, step;
};

// Where sequence s of a record lies: a row of a batch, or a piece of one packed row between two of the
// `offsets`; its steps are counted in the order of reading, which `reverse` turns around.
struct Span {
    i64 s, row, first, by, count;

    template <class Args>
    Span(const Args& args, i64 s_) : s(s_) {
        auto cuts = reinterpret_cast<const i64*>(args.offsets);
        const i64 start = cuts ? cuts[s] : 0;
        count = cuts ? cuts[s + 1] - start : args.time;
        row = cuts ? 0 : s, by = args.reverse ? -1 : 1;
        first = args.reverse ? start + count - 1 : start;
    }
    // The sequence alone, of numbers of some bytes.
    Array of(const Array& x, i64 bytes) const {
        return {x.data ? x.data + (row * x.seq + first * x.step) * bytes : 0, 0, by * x.step};
    }
};

// Steps of all sequences.
template <class Args>
inline i64 steps_of(const Args& args) {
    auto cuts = reinterpret_cast<const i64*>(args.offsets);
    return cuts ? cuts[args.seqs] : args.seqs * args.time;
}

// The fields of a record are listed once, as FIELDS(WORD, ARRAY, REAL): the struct is made of the
// list, and so is what the library tells Python (api.cpp).
#define LINRNN_WORD(name) i64 name;
#define LINRNN_ARRAY(name) Array name;
#define LINRNN_REAL(name) double name;
#define LINRNN_RECORD(Name, FIELDS)                       \
    struct Name {                                         \
        i64 size; /* sizeof(Name) */                      \
        FIELDS(LINRNN_WORD, LINRNN_ARRAY, LINRNN_REAL)    \
    };

}  // namespace linrnn
