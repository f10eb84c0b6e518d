// Fills, conversions and in-place sums.

template <class Raw> DEVICE void fill(Raw *to, Raw value, Size count) {
    constexpr int N = 16 / sizeof(Raw);
    union {
        Raw at[N];
        uint4 raw;
    } pack;
#pragma unroll
    for (int i = 0; i < N; ++i) pack.at[i] = value;
    each<N>(count, aligned(to), [&](Size at, auto n) {
        if (decltype(n)::value == 1) to[at] = value;
        else *reinterpret_cast<uint4 *>(to + at) = pack.raw;
    });
}

// Sets every element to these bits.
KERNEL(fill_b1, 256, u8 *to, u64 bits, Size count) { fill<u8>(to, u8(bits), count); }
KERNEL(fill_b2, 256, u16 *to, u64 bits, Size count) { fill<u16>(to, u16(bits), count); }
KERNEL(fill_b4, 256, u32 *to, u64 bits, Size count) { fill<u32>(to, u32(bits), count); }
KERNEL(fill_b8, 256, u64 *to, u64 bits, Size count) { fill<u64>(to, bits, count); }

// ---- conversions, as Rust's `as`: floats are truncated to integers, and saturate

template <class From, class To> struct Convert;
template <class T> struct IsInteger {
    static constexpr bool value = false;
};
template <> struct IsInteger<u8> {
    static constexpr bool value = true;
    static constexpr double lowest = 0.0, highest = 255.0;
};
template <> struct IsInteger<u32> {
    static constexpr bool value = true;
    static constexpr double lowest = 0.0, highest = 4294967295.0;
};
template <> struct IsInteger<i64> {
    static constexpr bool value = true;
    static constexpr double lowest = -9223372036854775808.0, highest = 9223372036854774784.0;
};

template <class To, class W> DEVICE To cut_off(W from) {
    if (from != from) return To(0);
    double v = double(from);
    if (v >= IsInteger<To>::highest) return To(IsInteger<To>::highest < 1e18 ? To(IsInteger<To>::highest) : To(0x7fffffffffffffffll));
    if (v <= IsInteger<To>::lowest) return To(IsInteger<To>::lowest);
    return To(v);
}

// Converts a wide float to any float type, with a single rounding.
DEVICE float single_of(double v) { return float(v); }
DEVICE float single_of(float v) { return v; }
template <class To> struct FloatTo {
    template <class W> static __device__ __forceinline__ To of(W v) { return narrow<To>(single_of(v)); }
};
template <> struct FloatTo<double> {
    template <class W> static __device__ __forceinline__ double of(W v) { return double(v); }
};
template <> struct FloatTo<float> {
    template <class W> static __device__ __forceinline__ float of(W v) { return float(v); }
};
#define TO_INTEGER(T)                                                                          \
    template <> struct FloatTo<T> {                                                            \
        template <class W> static __device__ __forceinline__ T of(W v) { return cut_off<T>(v); } \
    };
TO_INTEGER(u8)
TO_INTEGER(u32)
TO_INTEGER(i64)

template <class From> DEVICE auto read(const From *at) { return widen(*at); }
DEVICE auto read(const u8 *at) { return float(*at); }
DEVICE auto read(const u32 *at) { return double(*at); }
DEVICE auto read(const i64 *at) { return double(*at); }

template <class From, class To> DEVICE void convert(const From *from, To *to, Size count) {
    each<1>(count, false, [&](Size at, auto) { to[at] = FloatTo<To>::of(read(from + at)); });
}

// Between floats of at most 32 bits, where memory bandwidth matters.
template <class From, class To> DEVICE void convert_packs(const From *from, To *to, Size count) {
    constexpr int N = PackOf<From, To>::value;
    each<N>(count, aligned(from, to), [&](Size at, auto n) {
        float values[decltype(n)::value];
        load(from + at, values);
        store(to + at, values);
    });
}

#define CONVERT(A, From, B, To) \
    KERNEL(convert_##A##_##B, 256, const From *from, To *to, Size count) { convert(from, to, count); }
#define CONVERT_PACKS(A, From, B, To) \
    KERNEL(convert_##A##_##B, 256, const From *from, To *to, Size count) { convert_packs(from, to, count); }
#define CONVERT_INTEGER(A, From)  \
    CONVERT(A, From, f32, float)  \
    CONVERT(A, From, f64, double) \
    CONVERT(A, From, bf16, bf16)  \
    CONVERT(A, From, f16, f16)

FOR_BF16(CONVERT_PACKS(f32, float, bf16, bf16))
FOR_F16(CONVERT_PACKS(f32, float, f16, f16))
FOR_BF16(CONVERT_PACKS(bf16, bf16, f32, float))
FOR_F16(CONVERT_PACKS(f16, f16, f32, float))
FOR_BF16(CONVERT_PACKS(bf16, bf16, f16, f16))
FOR_BF16(CONVERT_PACKS(f16, f16, bf16, bf16))
FOR_F64(CONVERT(f32, float, f64, double))
FOR_F64(CONVERT(f64, double, f32, float))
FOR_BF16(CONVERT(f64, double, bf16, bf16))
FOR_F16(CONVERT(f64, double, f16, f16))
FOR_BF16(CONVERT(bf16, bf16, f64, double))
FOR_F16(CONVERT(f16, f16, f64, double))
CONVERT_INTEGER(u8, u8)
CONVERT_INTEGER(u32, u32)
CONVERT_INTEGER(i64, i64)
FOR_F32(CONVERT(f32, float, u8, u8))
FOR_F32(CONVERT(f32, float, u32, u32))
FOR_F32(CONVERT(f32, float, i64, i64))
FOR_F64(CONVERT(f64, double, u8, u8))
FOR_F64(CONVERT(f64, double, u32, u32))
FOR_F64(CONVERT(f64, double, i64, i64))
KERNEL(convert_u8_u32, 256, const u8 *from, u32 *to, Size count) {
    each<1>(count, false, [&](Size at, auto) { to[at] = from[at]; });
}
KERNEL(convert_u8_i64, 256, const u8 *from, i64 *to, Size count) {
    each<1>(count, false, [&](Size at, auto) { to[at] = from[at]; });
}
KERNEL(convert_u32_i64, 256, const u32 *from, i64 *to, Size count) {
    each<1>(count, false, [&](Size at, auto) { to[at] = from[at]; });
}
KERNEL(convert_i64_u32, 256, const i64 *from, u32 *to, Size count) {
    each<1>(count, false, [&](Size at, auto) {
        i64 v = from[at];
        to[at] = u32(v);
    });
}

// ---- to += addend, each sum rounded once

template <class To, class From> DEVICE void accumulate(To *to, const From *addend, Size count) {
    constexpr int N = PackOf<To, From>::value;
    each<N>(count, aligned(to, addend), [&](Size at, auto n) {
        constexpr int M = decltype(n)::value;
        Wide<To> sums[M];
        Wide<From> more[M];
        load(to + at, sums);
        load(addend + at, more);
#pragma unroll
        for (int i = 0; i < M; ++i) sums[i] += more[i];
        store(to + at, sums);
    });
}

#define ACCUMULATE(A, To, B, From) \
    KERNEL(accumulate_##A##_##B, 256, To *to, const From *addend, Size count) { accumulate(to, addend, count); }
FOR_F32(ACCUMULATE(f32, float, f32, float))
FOR_F64(ACCUMULATE(f64, double, f64, double))
FOR_BF16(ACCUMULATE(f32, float, bf16, bf16))
FOR_F16(ACCUMULATE(f32, float, f16, f16))
FOR_BF16(ACCUMULATE(bf16, bf16, bf16, bf16))
FOR_BF16(ACCUMULATE(bf16, bf16, f32, float))
FOR_F16(ACCUMULATE(f16, f16, f16, f16))
FOR_F16(ACCUMULATE(f16, f16, f32, float))

// Increments a counter.
KERNEL(count_up, 1, i64 *counter) { *counter += 1; }

// Bytes passed as an argument.
struct Carried {
    u64 words[64];
};
KERNEL(write_bytes, 512, Carried from, u8 *to, int count) {
    const int i = threadIdx.x;
    if (i < count) to[i] = u8(from.words[i / 8] >> (i % 8 * 8));
}
