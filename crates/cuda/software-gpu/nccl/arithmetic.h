// Element types and reductions by NCCL's numbers, and sums in the order of ranks.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <type_traits>
#include <vector>

#include "../half.h"

namespace software_gpu {

enum { INT8 = 0, UINT8, INT32, UINT32, INT64, UINT64, FLOAT16, FLOAT32, FLOAT64, BFLOAT16, TYPES };
enum { SUM = 0, PROD, MAX, MIN, AVG, REDUCTIONS };

inline size_t size_of(int type) {
    static const size_t sizes[TYPES] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2};
    return sizes[type];
}
inline std::string type_name(int type) {
    static const char *names[TYPES] = {"int8",   "uint8",   "int32",   "uint32",  "int64",
                                       "uint64", "float16", "float32", "float64", "bfloat16"};
    return type >= 0 && type < TYPES ? names[type] : "type " + std::to_string(type);
}
inline std::string reduction_name(int op) {
    static const char *names[REDUCTIONS] = {"sum", "prod", "max", "min", "avg"};
    return op >= 0 && op < REDUCTIONS ? names[op] : "reduction " + std::to_string(op);
}

// 16-bit elements are computed in f32 and rounded after each step.
struct Half {
    uint16_t bits;
    float wide() const { return from_half(bits); }
    static Half of(float value) { return {to_half(value)}; }
};
struct Bfloat {
    uint16_t bits;
    float wide() const { return from_bfloat(bits); }
    static Bfloat of(float value) { return {to_bfloat(value)}; }
};
template <class T, class = void>
struct Number {
    typedef T Wide;
    static Wide widen(T value) { return value; }
    static T narrow(Wide value) { return value; }
};
template <class T>
struct Number<T, std::enable_if_t<std::is_class_v<T>>> {
    typedef float Wide;
    static Wide widen(T value) { return value.wide(); }
    static T narrow(Wide value) { return T::of(value); }
};

template <class T>
void reduce_as(char *to, const std::vector<const char *> &parts, size_t count, int op) {
    typedef Number<T> N;
    typedef typename N::Wide W;
    const W scale = std::is_floating_point_v<W> ? W(1) / W(parts.size()) : W(1);
    const bool averages = op == AVG && std::is_floating_point_v<W>;
    auto element = [](const char *part, size_t i) {
        T value;
        std::memcpy(&value, part + i * sizeof(T), sizeof(T));
        return value;
    };
    auto first = [&](T value) { return averages ? N::narrow(N::widen(value) * scale) : value; };
    for (size_t i = 0; i < count; ++i) {
        T total = first(element(parts[0], i));
        for (size_t rank = 1; rank < parts.size(); ++rank) {
            const W a = N::widen(total), b = N::widen(first(element(parts[rank], i)));
            switch (op) {
            case PROD: total = N::narrow(W(a * b)); break;
            case MAX: total = N::narrow(std::max(a, b)); break;
            case MIN: total = N::narrow(std::min(a, b)); break;
            default: total = N::narrow(W(a + b));
            }
        }
        if (op == AVG && !averages) total = N::narrow(W(N::widen(total) / W(parts.size())));
        std::memcpy(to + i * sizeof(T), &total, sizeof(T));
    }
}

// Writes the reduction of the ranks' parts to `to`, in the order of ranks.
inline void reduce(char *to, const std::vector<const char *> &parts, size_t count, int type, int op) {
    const bool wraps = op == SUM || op == PROD;
    switch (type) {
    // Sums and products of signed numbers wrap as those of unsigned ones.
    case INT8: wraps ? reduce_as<uint8_t>(to, parts, count, op) : reduce_as<int8_t>(to, parts, count, op); break;
    case UINT8: reduce_as<uint8_t>(to, parts, count, op); break;
    case INT32: wraps ? reduce_as<uint32_t>(to, parts, count, op) : reduce_as<int32_t>(to, parts, count, op); break;
    case UINT32: reduce_as<uint32_t>(to, parts, count, op); break;
    case INT64: wraps ? reduce_as<uint64_t>(to, parts, count, op) : reduce_as<int64_t>(to, parts, count, op); break;
    case UINT64: reduce_as<uint64_t>(to, parts, count, op); break;
    case FLOAT16: reduce_as<Half>(to, parts, count, op); break;
    case FLOAT32: reduce_as<float>(to, parts, count, op); break;
    case FLOAT64: reduce_as<double>(to, parts, count, op); break;
    case BFLOAT16: reduce_as<Bfloat>(to, parts, count, op); break;
    }
}

} // namespace software_gpu
