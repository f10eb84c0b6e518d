// The beginning of every kernel source: element types, conversions, packs of 16 bytes, and sums over warps and blocks. It is
// concatenated, as NVRTC has no headers, and also compiles as C++ after `fibres.h`.
//
// A kernel is declared by KERNEL(name, maximum threads of a block, parameters...). Sizes have 64 bits. The compute type of 16-bit
// elements is f32.

#ifndef PHALANX_FIBRES
#define KERNEL(name, threads, ...) extern "C" __global__ void __launch_bounds__(threads, 1) name(__VA_ARGS__)
#endif
#define DEVICE static __device__ __forceinline__

// A source is compiled for one element type at a time, so that a training does not wait for kernels that it does not run: f32,
// f64, or one of the 16-bit types with its partners. Without any of these macros it is compiled for all types.
#if !defined(ONLY_F32) && !defined(ONLY_F64) && !defined(ONLY_BF16) && !defined(ONLY_F16)
#define ONLY_F32
#define ONLY_F64
#define ONLY_BF16
#define ONLY_F16
#endif
#ifdef ONLY_F32
#define FOR_F32(...) __VA_ARGS__
#else
#define FOR_F32(...)
#endif
#ifdef ONLY_F64
#define FOR_F64(...) __VA_ARGS__
#else
#define FOR_F64(...)
#endif
#ifdef ONLY_BF16
#define FOR_BF16(...) __VA_ARGS__
#else
#define FOR_BF16(...)
#endif
#ifdef ONLY_F16
#define FOR_F16(...) __VA_ARGS__
#else
#define FOR_F16(...)
#endif

typedef long long Size;
typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;

// ---- element types

struct alignas(2) bf16 {
    u16 bits;
};
struct alignas(2) f16 {
    u16 bits;
};

// The compute type of elements.
template <class T> struct WideOf {
    typedef float type;
};
template <> struct WideOf<double> {
    typedef double type;
};
template <class T> using Wide = typename WideOf<T>::type;

#define INFINITE_F32 __int_as_float(0x7f800000)
#define NAN_F32 __int_as_float(0x7fffffff)

#ifdef PHALANX_FIBRES
// IEEE 754 half precision in software, rounded to nearest, ties to even.
DEVICE float half_to_float(u16 bits) {
    u32 sign = u32(bits & 0x8000) << 16, exponent = bits >> 10 & 31, fraction = bits & 1023;
    if (exponent == 31) return __uint_as_float(sign | 0x7f800000 | fraction << 13);
    if (exponent == 0) return (sign ? -1.0f : 1.0f) * float(fraction) * 5.9604644775390625e-8f;
    return __uint_as_float(sign | (exponent + 112) << 23 | fraction << 13);
}
DEVICE u16 float_to_half(float value) {
    u32 bits = __float_as_uint(value), sign = bits >> 16 & 0x8000;
    bits &= 0x7fffffff;
    if (bits > 0x7f800000) return 0x7fff;
    if (bits >= 0x477ff000) return u16(sign | 0x7c00);
    if (bits < 0x38800000) {
        // Below the smallest normal number, adding 0.5 leaves the rounded fraction in the low bits.
        float shifted = __uint_as_float(bits) + 0.5f;
        return u16(sign | (__float_as_uint(shifted) - 0x3f000000));
    }
    bits += 0xc8000fff + (bits >> 13 & 1);
    return u16(sign | bits >> 13);
}
DEVICE u16 float_to_bfloat(float value) {
    u32 bits = __float_as_uint(value);
    if ((bits & 0x7fffffff) > 0x7f800000) return 0x7fff;
    return u16((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
#else
DEVICE float half_to_float(u16 bits) {
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
    return value;
}
DEVICE u16 float_to_half(float value) {
    u16 bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    return bits;
}
DEVICE u16 float_to_bfloat(float value) {
    u16 bits;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    return bits;
}
#endif

DEVICE float widen(float v) { return v; }
DEVICE double widen(double v) { return v; }
DEVICE float widen(bf16 v) { return __uint_as_float(u32(v.bits) << 16); }
DEVICE float widen(f16 v) { return half_to_float(v.bits); }
// Masks.
DEVICE float widen(u8 v) { return float(v); }

// Rounds to an element type.
template <class T> struct Narrow;
template <> struct Narrow<float> {
    DEVICE float of(double v) { return float(v); }
    DEVICE float of(float v) { return v; }
};
template <> struct Narrow<u8> {
    DEVICE u8 of(float v) { return u8(v); }
};
template <> struct Narrow<double> {
    DEVICE double of(double v) { return v; }
};
template <> struct Narrow<bf16> {
    DEVICE bf16 of(float v) { return bf16{float_to_bfloat(v)}; }
};
template <> struct Narrow<f16> {
    DEVICE f16 of(float v) { return f16{float_to_half(v)}; }
};
template <class T, class W> DEVICE T narrow(W v) { return Narrow<T>::of(v); }

// ---- elementary functions of f32 and f64 under one name

DEVICE float exp_of(float v) { return expf(v); }
DEVICE double exp_of(double v) { return exp(v); }
DEVICE float log_of(float v) { return logf(v); }
DEVICE double log_of(double v) { return log(v); }
DEVICE float log1p_of(float v) { return log1pf(v); }
DEVICE double log1p_of(double v) { return log1p(v); }
DEVICE float sqrt_of(float v) { return sqrtf(v); }
DEVICE double sqrt_of(double v) { return sqrt(v); }
DEVICE float erf_of(float v) { return erff(v); }
DEVICE double erf_of(double v) { return erf(v); }
DEVICE float tanh_of(float v) { return tanhf(v); }
DEVICE double tanh_of(double v) { return tanh(v); }
DEVICE float abs_of(float v) { return fabsf(v); }
DEVICE double abs_of(double v) { return fabs(v); }
// Returns true if the number is finite.
DEVICE bool is_finite(double v) { return v - v == 0; }
// Returns the larger one, or the other one if one is NaN.
DEVICE float larger(float a, float b) { return fmaxf(a, b); }
DEVICE double larger(double a, double b) { return fmax(a, b); }
DEVICE float smaller(float a, float b) { return fminf(a, b); }
DEVICE double smaller(double a, double b) { return fmin(a, b); }

// ---- packs: neighbours that are moved together, 16 bytes at a time

template <int N> struct Count {
    static constexpr int value = N;
};

// The elements that fill 16 bytes of the smallest of some types. One for f64, which is used to check gradients, not for speed.
template <class A, class B = A, class C = A> struct PackOf {
    static constexpr int smallest =
        sizeof(A) < sizeof(B) ? (sizeof(A) < sizeof(C) ? sizeof(A) : sizeof(C)) : (sizeof(B) < sizeof(C) ? sizeof(B) : sizeof(C));
    static constexpr int value = smallest == 8 ? 1 : 16 / smallest;
};

template <int BYTES> struct RawOf;
template <> struct RawOf<1> {
    typedef u8 type;
};
template <> struct RawOf<2> {
    typedef u16 type;
};
template <> struct RawOf<4> {
    typedef u32 type;
};
template <> struct RawOf<8> {
    typedef uint2 type;
};
template <> struct RawOf<16> {
    typedef uint4 type;
};

// The elements per access.
template <class T, int N> struct Piece {
    static constexpr int bytes = N * sizeof(T) > 16 ? 16 : N * sizeof(T);
    static constexpr int count = bytes / sizeof(T);
    typedef typename RawOf<bytes>::type Raw;
    union Bits {
        Raw raw;
        T at[count];
        __device__ Bits() {}
    };
};

// Reads N neighbours and widens them. For N > 1 the address must be aligned to the access.
template <int N, class T> DEVICE void load(const T *from, Wide<T> (&to)[N]) {
    typedef Piece<T, N> P;
#pragma unroll
    for (int piece = 0; piece < N / P::count; ++piece) {
        typename P::Bits bits;
        bits.raw = reinterpret_cast<const typename P::Raw *>(from)[piece];
#pragma unroll
        for (int i = 0; i < P::count; ++i) to[piece * P::count + i] = widen(bits.at[i]);
    }
}

// Rounds N numbers and writes them as neighbours.
template <int N, class T, class W> DEVICE void store(T *to, const W (&from)[N]) {
    typedef Piece<T, N> P;
#pragma unroll
    for (int piece = 0; piece < N / P::count; ++piece) {
        typename P::Bits bits;
#pragma unroll
        for (int i = 0; i < P::count; ++i) bits.at[i] = narrow<T>(from[piece * P::count + i]);
        reinterpret_cast<typename P::Raw *>(to)[piece] = bits.raw;
    }
}

DEVICE bool aligned(const void *at) { return (reinterpret_cast<u64>(at) & 15) == 0; }
template <class... P> DEVICE bool aligned(const void *at, P... more) { return aligned(at) && aligned(more...); }

// Calls body(index, Count<N>) for packs and body(index, Count<1>) for the remainder, over all threads of the grid.
template <int N, class Body> DEVICE void each(Size count, bool packed, Body body) {
    const Size stride = Size(gridDim.x) * blockDim.x, first = Size(blockIdx.x) * blockDim.x + threadIdx.x;
    const Size packs = packed ? count / N : 0;
    // Other threads hide the latency; unrolling would take their registers.
#pragma unroll 1
    for (Size i = first; i < packs; i += stride) body(i * N, Count<N>());
#pragma unroll 1
    for (Size i = packs * N + first; i < count; i += stride) body(i, Count<1>());
}

// The loop of one group of threads over a row: packs, then the remainder.
template <int N, class Body> DEVICE void each_of_row(int width, bool packed, int member, int members, Body body) {
    const int packs = packed ? width / N : 0;
#pragma unroll 1
    for (int i = member; i < packs; i += members) body(i * N, Count<N>());
#pragma unroll 1
    for (int i = packs * N + member; i < width; i += members) body(i, Count<1>());
}

// ---- sums over warps and blocks, in an order that depends on the number of threads alone

#define WHOLE_WARP 0xffffffffu

struct Add {
    template <class T> static __device__ __forceinline__ T of(T a, T b) { return a + b; }
};
struct Larger {
    template <class T> static __device__ __forceinline__ T of(T a, T b) { return larger(a, b); }
};

// Returns the result in every lane. The block's threads must be a multiple of 32.
template <class Op, class T> DEVICE T warp_reduce(T v) {
#pragma unroll
    for (int bits = 16; bits > 0; bits >>= 1) v = Op::of(v, __shfl_xor_sync(WHOLE_WARP, v, bits));
    return v;
}

// Returns the result in every thread, for blocks of up to 1024 threads in one dimension. `shared` has 32 elements, and can be
// reused at once.
template <class Op, class T> DEVICE T block_reduce(T v, T *shared) {
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, warps = blockDim.x >> 5;
    v = warp_reduce<Op>(v);
    if (warps == 1) return v;
    if (lane == 0) shared[warp] = v;
    __syncthreads();
    v = shared[0];
    for (int i = 1; i < warps; ++i) v = Op::of(v, shared[i]);
    __syncthreads();
    return v;
}

// Threads that work on a row together: a warp, or the whole block.
template <bool BLOCK> struct Group {
    int member, members, index, groups;
    DEVICE Group make() {
        Group group;
        group.member = BLOCK ? threadIdx.x : threadIdx.x & 31;
        group.members = BLOCK ? blockDim.x : 32;
        group.index = BLOCK ? 0 : threadIdx.x >> 5;
        group.groups = BLOCK ? 1 : blockDim.x >> 5;
        return group;
    }
    template <class Op, class T> __device__ __forceinline__ T reduce(T v, T *shared) const {
        return BLOCK ? block_reduce<Op>(v, shared) : warp_reduce<Op>(v);
    }
    // Waits until all members have come here.
    __device__ __forceinline__ void sync() const {
        if (BLOCK) __syncthreads();
        else __syncwarp();
    }
};
