// Functions and variables of CUDA C that C++ lacks.
#pragma once

#include <cmath>

#include "blocks.h"

#define threadIdx (phalanx_fibres::block->current->index)
#define blockIdx (phalanx_fibres::block->index)
#define blockDim (phalanx_fibres::block->size)
#define gridDim (phalanx_fibres::block->grid)
#define warpSize 32
#define __syncthreads() phalanx_fibres::sync_block(__LINE__)
#define __syncwarp(...) phalanx_fibres::sync_warp(phalanx_fibres::mask_of(__VA_ARGS__), __LINE__)
#define __shfl_sync(mask, value, from) \
    phalanx_fibres::exchange((mask), (value), (from) & 31, __LINE__)
#define __shfl_xor_sync(mask, value, bits) \
    phalanx_fibres::exchange((mask), (value), (phalanx_fibres::block->current->lane ^ (bits)) & 31, __LINE__)
#define __shfl_down_sync(mask, value, by)                                                                     \
    phalanx_fibres::exchange((mask), (value), phalanx_fibres::block->current->lane + (by) > 31                \
                                                  ? phalanx_fibres::block->current->lane                      \
                                                  : phalanx_fibres::block->current->lane + (by), __LINE__)
#define __shfl_up_sync(mask, value, by)                                                                       \
    phalanx_fibres::exchange((mask), (value), phalanx_fibres::block->current->lane < unsigned(by)             \
                                                  ? phalanx_fibres::block->current->lane                      \
                                                  : phalanx_fibres::block->current->lane - (by), __LINE__)
#define __ballot_sync(mask, predicate) phalanx_fibres::ballot((mask), (predicate), __LINE__)
#define __any_sync(mask, predicate) (phalanx_fibres::ballot((mask), (predicate), __LINE__) != 0)
#define __all_sync(mask, predicate) (phalanx_fibres::ballot((mask), !(predicate), __LINE__) == 0)
#define __syncthreads_or(predicate) phalanx_fibres::block_vote((predicate), __LINE__)

namespace phalanx_fibres {
static inline unsigned mask_of(unsigned mask = ~0u) { return mask; }
static inline unsigned ballot(unsigned mask, bool predicate, int line) {
    unsigned bits = 0;
    gather(mask, predicate, line, [&](unsigned lane, bool yes) { bits |= unsigned(yes) << lane; });
    return bits;
}
static inline int block_vote(int predicate, int line) {
    sync_block(line);
    block->vote[0] = 0;
    sync_block(line);
    if (predicate) block->vote[0] = 1;
    sync_block(line);
    return block->vote[0];
}
} // namespace phalanx_fibres

// One CPU thread runs a block, but blocks of several launches may run concurrently.
template <class T>
static inline T atomicAdd(T *at, T value) { return __atomic_fetch_add(at, value, __ATOMIC_RELAXED); }
template <class T>
static inline T atomicOr(T *at, T value) { return __atomic_fetch_or(at, value, __ATOMIC_RELAXED); }
template <class T>
static inline T atomicMin(T *at, T value) {
    T old = __atomic_load_n(at, __ATOMIC_RELAXED);
    while (value < old && !__atomic_compare_exchange_n(at, &old, value, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {}
    return old;
}
template <class T>
static inline T atomicMax(T *at, T value) {
    T old = __atomic_load_n(at, __ATOMIC_RELAXED);
    while (value > old && !__atomic_compare_exchange_n(at, &old, value, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {}
    return old;
}
static inline void __threadfence() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }

template <class To, class From>
static inline To phalanx_bits(From from) {
    static_assert(sizeof(To) == sizeof(From), "bits of one size");
    To to;
    std::memcpy(&to, &from, sizeof(To));
    return to;
}
static inline float __uint_as_float(unsigned v) { return phalanx_bits<float>(v); }
static inline unsigned __float_as_uint(float v) { return phalanx_bits<unsigned>(v); }
static inline float __int_as_float(int v) { return phalanx_bits<float>(v); }
static inline int __float_as_int(float v) { return phalanx_bits<int>(v); }
static inline double __longlong_as_double(long long v) { return phalanx_bits<double>(v); }
static inline long long __double_as_longlong(double v) { return phalanx_bits<long long>(v); }
static inline float rsqrtf(float v) { return 1.0f / std::sqrt(v); }
static inline double rsqrt(double v) { return 1.0 / std::sqrt(v); }
static inline float __frcp_rn(float v) { return 1.0f / v; }
static inline float __fmul_rn(float a, float b) { return a * b; }
static inline float __fdiv_rn(float a, float b) { return a / b; }
static inline double __ddiv_rn(double a, double b) { return a / b; }
static inline float __fadd_rn(float a, float b) { return a + b; }
static inline double __dmul_rn(double a, double b) { return a * b; }
static inline double __dadd_rn(double a, double b) { return a + b; }
static inline float __fdividef(float a, float b) { return a / b; }
#define __expf expf
#define __logf logf
static inline void sincospif(float v, float *sin, float *cos) {
    *sin = static_cast<float>(std::sin(3.14159265358979323846 * double(v)));
    *cos = static_cast<float>(std::cos(3.14159265358979323846 * double(v)));
}
static inline void sincospi(double v, double *sin, double *cos) {
    *sin = std::sin(3.14159265358979323846 * v);
    *cos = std::cos(3.14159265358979323846 * v);
}
static inline int __popc(unsigned v) { return __builtin_popcount(v); }
static inline int __ffs(int v) { return __builtin_ffs(v); }
static inline int __clz(int v) { return v == 0 ? 32 : __builtin_clz(static_cast<unsigned>(v)); }
static inline unsigned __umulhi(unsigned a, unsigned b) { return static_cast<unsigned>((uint64_t(a) * b) >> 32); }
static inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
    return static_cast<unsigned long long>((static_cast<unsigned __int128>(a) * b) >> 64);
}
template <class T>
static inline T __ldg(const T *at) { return *at; }
template <class T>
static inline T min(T a, T b) { return b < a ? b : a; }
template <class T>
static inline T max(T a, T b) { return a < b ? b : a; }
