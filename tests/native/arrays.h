// Numbers as kernels store them, in memory of exactly their size, so that a sanitizer sees a step
// beyond, and at addresses that are a multiple of one number's size and of no more; and numbers
// that every dtype can hold, so that all can be compared.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include "../../src/native/array.h"

using linrnn::i64;
using Values = std::vector<double>;

inline i64 bytes_of(i64 dtype) {
    const i64 sizes[] = {4, 8, 4, 8, 2, 2, 2};  // of a scalar: a complex number is two
    return sizes[dtype];
}
inline bool is_complex(i64 dtype) {
    return dtype == linrnn::C64 || dtype == linrnn::C128 || dtype == linrnn::CBF16;
}
inline bool is_bf16(i64 dtype) { return dtype == linrnn::BF16 || dtype == linrnn::CBF16; }
inline i64 state_dtype(i64 dtype) {
    if (dtype == linrnn::CBF16) return linrnn::C64;
    return dtype == linrnn::BF16 || dtype == linrnn::F16 ? i64(linrnn::F32) : dtype;
}

class Memory {
  public:
    Memory(i64 dtype, i64 count) : dtype_(dtype), count_(count) {
        const size_t size = size_t(bytes_of(dtype)), bytes = (size_t(count) + 1) * size;
        data_.reset(static_cast<unsigned char*>(std::malloc(bytes)));
        std::memset(data_.get(), 0xff, bytes);  // all NaN
    }
    Memory(i64 dtype, const Values& values) : Memory(dtype, i64(values.size())) {
        for (i64 i = 0; i < count_; ++i) set(i, values[size_t(i)]);
    }
    // As of a tensor: null where there is nothing.
    i64 address() const { return count_ ? reinterpret_cast<i64>(first()) : 0; }
    i64 count() const { return count_; }

    double at(i64 i) const {
        const unsigned char* p = first() + i * bytes_of(dtype_);
        std::uint16_t half;
        float single;
        double number;
        switch (bytes_of(dtype_)) {
            case 8: return std::memcpy(&number, p, 8), number;
            case 4: return std::memcpy(&single, p, 4), single;
        }
        std::memcpy(&half, p, 2);
        if (is_bf16(dtype_)) {
            std::uint32_t wide = std::uint32_t(half) << 16;
            return std::memcpy(&single, &wide, 4), single;
        }
        int exponent = half >> 10 & 31, fraction = half & 1023;
        number = exponent == 31 ? (fraction ? NAN : INFINITY)
                 : exponent     ? std::ldexp(1024 + fraction, exponent - 25)
                                : std::ldexp(fraction, -24);
        return half & 0x8000 ? -number : number;
    }
    // Half precision takes only numbers that it can hold.
    void set(i64 i, double number) {
        unsigned char* p = first() + i * bytes_of(dtype_);
        float single = float(number);
        if (bytes_of(dtype_) == 8) return void(std::memcpy(p, &number, 8));
        if (bytes_of(dtype_) == 4) return void(std::memcpy(p, &single, 4));
        std::uint32_t wide;
        std::memcpy(&wide, &single, 4);
        std::uint32_t rebiased = (wide >> 13 & 0x3ffff) - (112u << 10);
        std::uint16_t half = std::uint16_t(is_bf16(dtype_) ? wide >> 16
                                           : number == 0   ? 0
                                                           : (wide >> 16 & 0x8000) | rebiased);
        std::memcpy(p, &half, 2);
    }
    Values values() const {
        Values all;
        for (i64 i = 0; i < count_; ++i) all.push_back(at(i));
        return all;
    }

  private:
    // one number further than malloc, which aligns for all there are
    unsigned char* first() const { return data_.get() + bytes_of(dtype_); }
    struct Free {
        void operator()(unsigned char* p) const { std::free(p); }
    };
    i64 dtype_, count_;
    std::unique_ptr<unsigned char, Free> data_;
};

// A (sequence, time, channel) array with room between rows, which ends with its last number.
class Rows {
  public:
    // width: scalars of a row; an element of a complex array is two.
    Rows(i64 dtype, i64 seqs, i64 time, i64 width, i64 apart)
        : step_(width + apart), seq_(time * step_ + apart), unit_(is_complex(dtype) ? 2 : 1),
          seqs_(seqs), time_(time), width_(width),
          memory_(dtype, seqs && time ? (seqs - 1) * seq_ + (time - 1) * step_ + width : 0) {}
    Rows(i64 dtype, i64 seqs, i64 time, i64 width, i64 apart, const Values& values)
        : Rows(dtype, seqs, time, width, apart) {
        i64 i = 0;
        for (double value : values) memory_.set(place(i++), value);
    }
    linrnn::Array array() const { return {memory_.address(), seq_ / unit_, step_ / unit_}; }
    Values values() const {
        Values all;
        for (i64 i = 0; i < seqs_ * time_ * width_; ++i) all.push_back(memory_.at(place(i)));
        return all;
    }

  private:
    i64 place(i64 i) const {
        return i / (time_ * width_) * seq_ + i / width_ % time_ * step_ + i % width_;
    }
    i64 step_, seq_, unit_, seqs_, time_, width_;
    Memory memory_;
};

// The same numbers in every run (S. Vigna's splitmix64).
class Random {
  public:
    explicit Random(std::uint64_t seed) : state_(seed) {}
    i64 below(i64 n) {
        std::uint64_t z = state_ += 0x9e3779b97f4a7c15u;
        z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
        z = (z ^ z >> 27) * 0x94d049bb133111ebu;
        return i64((z ^ z >> 31) % std::uint64_t(n));
    }
    bool coin() { return below(2); }
    // From 1 to most; or 0, once in a while.
    i64 size(i64 most) { return below(16) ? 1 + below(most) : 0; }
    // Odd multiples of 1/128 below `size` <= 2 in modulus: every dtype holds them, none is 0.
    double number(double size = 2) { return double(2 * below(i64(size * 128)) + 1) / 128 - size; }
    Values numbers(i64 count, double size = 2) {
        Values all;
        for (i64 i = 0; i < count; ++i) all.push_back(number(size));
        return all;
    }

  private:
    std::uint64_t state_;
};
