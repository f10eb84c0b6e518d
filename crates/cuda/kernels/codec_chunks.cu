// Chunk codecs of gradients: values that share a scale by chunks, quantised to few bits. Messages have the bits of the codecs in
// phalanx-kernels: no multiply-add is fused, and sums over a chunk have one order.
//
// Values are split into parts, one per rank: part p of P has elements p·count/P .. (p + 1)·count/P. Its message begins at
// p·stride: an f32 scale for each chunk, then all values. A chunk is a multiple of 8 values, which form a word.

// ---- quantisation of a value

// Returns a number of splitmix64's stream `base`.
DEVICE u64 mixed_bits(u64 z) {
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
}
DEVICE float uniform_of(u64 base, u64 index) {
    return __fmul_rn(float(mixed_bits(base + (index + 1) * 0x9e3779b97f4a7c15ull) >> 40), 5.9604644775390625e-8f);
}
// phalanx_kernels::mixed_with.
DEVICE u64 mixed_with(u64 state, u64 word) { return mixed_bits((state ^ word) + 0x9e3779b97f4a7c15ull); }

// Returns the larger magnitude, as bits. Those of infinity and NaN are larger than all finite ones.
struct LargerBits {
    static __device__ __forceinline__ u32 of(u32 a, u32 b) { return a < b ? b : a; }
};

// Returns the largest magnitude of a chunk, computed by a warp.
DEVICE float largest_of(const float *values, int len) {
    u32 largest = 0;
    for (int i = threadIdx.x & 31; i < len; i += 32) largest = LargerBits::of(largest, __float_as_uint(values[i]) & 0x7fffffff);
    return __uint_as_float(warp_reduce<LargerBits>(largest));
}

// Sums Of(value) over a chunk, in one order: eight lanes of f64, then the lanes, then the remainder.
template <class Of> DEVICE double sum_in_lanes(const float *values, int len) {
    const int lane = threadIdx.x & 31, whole = len / 8 * 8;
    double own = 0.0;
    if (lane < 8)
        for (int i = lane; i < whole; i += 8) own = __dadd_rn(own, Of::of(values[i]));
    double sum = 0.0;
    for (int i = 0; i < 8; ++i) sum = __dadd_rn(sum, __shfl_sync(WHOLE_WARP, own, i));
    double tail = 0.0;
    for (int i = whole; i < len; ++i) tail = __dadd_rn(tail, Of::of(values[i]));
    return __dadd_rn(sum, tail);
}
struct Square {
    static __device__ __forceinline__ double of(float v) { return __dmul_rn(double(v), double(v)); }
};
struct Magnitude {
    static __device__ __forceinline__ double of(float v) { return double(fabsf(v)); }
};

// Rounds value/scale to the nearest integer, ties to even, within ±TOP. NaN becomes 0.
template <int TOP> DEVICE int rounded(float value, float scale) {
    const float q = rintf(__fdiv_rn(value, scale));
    if (scale == 0.0f || q != q) return 0;
    return int(q < -float(TOP) ? -float(TOP) : q > float(TOP) ? float(TOP) : q);
}

struct Int8 {
    static constexpr int BITS = 8;
    static __device__ __forceinline__ float scale(const float *values, int len) { return __fdiv_rn(largest_of(values, len), 127.0f); }
    static __device__ __forceinline__ u32 encode(float value, float scale, u64, u64) { return u32(rounded<127>(value, scale)) & 0xff; }
    static __device__ __forceinline__ float level(float scale) { return scale; }
    static __device__ __forceinline__ float decode(u32 bits, float level) { return __fmul_rn(float(int(bits << 24) >> 24), level); }
};

struct Int4 {
    static constexpr int BITS = 4;
    static __device__ __forceinline__ float scale(const float *values, int len) { return __fdiv_rn(largest_of(values, len), 7.0f); }
    static __device__ __forceinline__ u32 encode(float value, float scale, u64, u64) { return u32(rounded<7>(value, scale)) & 0xf; }
    static __device__ __forceinline__ float level(float scale) { return scale; }
    static __device__ __forceinline__ float decode(u32 bits, float level) { return __fmul_rn(float(int(bits << 28) >> 28), level); }
};

struct Qsgd {
    static constexpr int BITS = 8;
    static __device__ __forceinline__ float scale(const float *values, int len) { return float(sqrt(sum_in_lanes<Square>(values, len))); }
    static __device__ __forceinline__ u32 encode(float value, float norm, u64 draw, u64 index) {
        const float z = norm == 0.0f ? 0.0f : __fmul_rn(__fdiv_rn(fabsf(value), norm), 127.0f);
        const float below = floorf(z);
        const float level = __fadd_rn(below, uniform_of(draw, index) < __fadd_rn(z, -below) ? 1.0f : 0.0f);
        const int q = level != level ? 0 : level > 127.0f ? 127 : int(level);
        return u32(__float_as_uint(value) >> 31 ? -q : q) & 0xff;
    }
    static __device__ __forceinline__ float level(float norm) { return __fdiv_rn(norm, 127.0f); }
    static __device__ __forceinline__ float decode(u32 bits, float level) { return Int8::decode(bits, level); }
};

struct Sign {
    static constexpr int BITS = 1;
    static __device__ __forceinline__ float scale(const float *values, int len) {
        return float(__ddiv_rn(sum_in_lanes<Magnitude>(values, len), double(len)));
    }
    static __device__ __forceinline__ u32 encode(float value, float, u64, u64) { return value < 0.0f; }
    static __device__ __forceinline__ float level(float scale) { return scale; }
    static __device__ __forceinline__ float decode(u32 bits, float level) { return __uint_as_float(__float_as_uint(level) ^ bits << 31); }
};

// ---- words of eight values

// Returns the bytes of a message's values.
template <class Kind> DEVICE int word_bytes(int numbers) { return (numbers * Kind::BITS + 7) / 8; }

template <class Kind> DEVICE void put_word(u8 *to, u64 word, int numbers) {
    if (numbers == 8 && Kind::BITS >= 4) {
#pragma unroll
        for (int i = 0; i < Kind::BITS / 4; ++i) reinterpret_cast<u32 *>(to)[i] = u32(word >> 32 * i);
        return;
    }
    for (int i = 0; i < word_bytes<Kind>(numbers); ++i) to[i] = u8(word >> 8 * i);
}

template <class Kind> DEVICE u64 word_at(const u8 *from, int numbers) {
    u64 word = 0;
    if (numbers == 8 && Kind::BITS >= 4) {
#pragma unroll
        for (int i = 0; i < Kind::BITS / 4; ++i) word |= u64(reinterpret_cast<const u32 *>(from)[i]) << 32 * i;
        return word;
    }
    for (int i = 0; i < word_bytes<Kind>(numbers); ++i) word |= u64(from[i]) << 8 * i;
    return word;
}

DEVICE Size chunks_of(Size len, int chunk) { return (len + chunk - 1) / chunk; }

// Returns the length of the longest part.
DEVICE Size longest_of(Size count, int parts) { return (count + parts - 1) / parts; }

// ---- encoding: a warp for each chunk

template <class Kind>
DEVICE void encode(const float *values, Size count, int parts, int chunk, u64 draw, u64 first_part, u8 *messages, Size stride) {
    const int lane = threadIdx.x & 31, warps = blockDim.x >> 5;
    const Size each = chunks_of(longest_of(count, parts), chunk);
    for (Size i = Size(blockIdx.x) * warps + (threadIdx.x >> 5); i < each * parts; i += Size(gridDim.x) * warps) {
        const Size part = i / each, index = i % each, begin = index * chunk;
        const Size start = part * count / parts, len = (part + 1) * count / parts - start;
        if (begin >= len) continue;
        const float *from = values + start + begin;
        const int size = int(min(Size(chunk), len - begin));
        const float scale = Kind::scale(from, size);
        u8 *message = messages + part * stride;
        if (lane == 0) reinterpret_cast<float *>(message)[index] = scale;
        u8 *body = message + 4 * chunks_of(len, chunk) + begin / 8 * Kind::BITS;
        const u64 stream = mixed_with(draw, first_part + u64(part));
        for (int at = lane * 8; at < size; at += 32 * 8) {
            const int numbers = min(8, size - at);
            u64 word = 0;
            for (int n = 0; n < numbers; ++n)
                word |= u64(Kind::encode(from[at + n], scale, stream, u64(begin + at + n))) << n * Kind::BITS;
            put_word<Kind>(body + at / 8 * Kind::BITS, word, numbers);
        }
    }
}

// ---- decoding: a thread for each word

// Calls body(first element, number of values, their sums over `sources` contiguous messages, in order) for all words of all
// parts.
template <class Kind, class Body>
DEVICE void each_word(const u8 *messages, Size stride, int parts, int sources, int chunk, Size count, Body body) {
    const Size each = (longest_of(count, parts) + 7) / 8;
    for (Size i = Size(blockIdx.x) * blockDim.x + threadIdx.x; i < each * parts; i += Size(gridDim.x) * blockDim.x) {
        const Size part = i / each, at = i % each * 8;
        const Size start = part * count / parts, len = (part + 1) * count / parts - start;
        if (at >= len) continue;
        const int numbers = int(min(Size(8), len - at));
        float sums[8];
#pragma unroll 1
        for (int source = 0; source < sources; ++source) {
            const u8 *message = messages + (part * sources + source) * stride;
            const float level = Kind::level(reinterpret_cast<const float *>(message)[at / chunk]);
            const u64 word = word_at<Kind>(message + 4 * chunks_of(len, chunk) + at / 8 * Kind::BITS, numbers);
#pragma unroll
            for (int n = 0; n < 8; ++n) {
                const float value = Kind::decode(u32(word >> n * Kind::BITS) & ((1u << Kind::BITS) - 1), level);
                sums[n] = source == 0 ? value : __fadd_rn(sums[n], value);
            }
        }
        body(start + at, numbers, sums);
    }
}

template <class Kind>
DEVICE void decode(const u8 *messages, Size stride, int parts, int sources, int chunk, float *to, Size count) {
    each_word<Kind>(messages, stride, parts, sources, chunk, count, [&](Size at, int numbers, const float (&sums)[8]) {
        if (numbers == 8 && aligned(to + at)) {
            store(to + at, sums);
            return;
        }
#pragma unroll
        for (int n = 0; n < 8; ++n)
            if (n < numbers) to[at + n] = sums[n];
    });
}

// Writes the quantisation errors, unless the flag `invalid` is set.
template <class Kind>
DEVICE void errors(const u8 *messages, Size stride, int parts, int chunk, const float *values, const u32 *invalid, float *to, Size count) {
    if (*invalid) return;
    each_word<Kind>(messages, stride, parts, 1, chunk, count, [&](Size at, int numbers, const float (&sums)[8]) {
#pragma unroll
        for (int n = 0; n < 8; ++n)
            if (n < numbers) to[at + n] = __fadd_rn(values[at + n], -sums[n]);
    });
}

#define CHUNKS(name, Kind)                                                                                                          \
    KERNEL(encode_##name, 256, const float *values, Size count, int parts, int chunk, u64 draw, u64 first_part, u8 *messages,       \
           Size stride) {                                                                                                           \
        encode<Kind>(values, count, parts, chunk, draw, first_part, messages, stride);                                              \
    }                                                                                                                               \
    KERNEL(decode_##name, 256, const u8 *messages, Size stride, int parts, int sources, int chunk, float *to, Size count) {         \
        decode<Kind>(messages, stride, parts, sources, chunk, to, count);                                                           \
    }                                                                                                                               \
    KERNEL(errors_##name, 256, const u8 *messages, Size stride, int parts, int chunk, const float *values, const u32 *invalid,      \
           float *to, Size count) {                                                                                                 \
        errors<Kind>(messages, stride, parts, chunk, values, invalid, to, count);                                                   \
    }
FOR_F32(CHUNKS(int8, Int8))
FOR_F32(CHUNKS(int4, Int4))
FOR_F32(CHUNKS(qsgd, Qsgd))
FOR_F32(CHUNKS(sign, Sign))

// ---- error feedback

// values += residual; a sum that is not finite sets the flag.
DEVICE void add_residual(float *values, const float *residual, u32 *invalid, Size count) {
    bool sound = true;
    each<4>(count, aligned(values, residual), [&](Size at, auto n) {
        constexpr int M = decltype(n)::value;
        float sums[M], more[M];
        load(values + at, sums);
        load(residual + at, more);
#pragma unroll
        for (int i = 0; i < M; ++i) {
            sums[i] = __fadd_rn(sums[i], more[i]);
            sound = sound && sums[i] - sums[i] == 0;
        }
        store(values + at, sums);
    });
    if (!sound) atomicOr(invalid, 1u);
}

// Invalid values become NaN, so that every rank receives it.
DEVICE void poison(float *values, const u32 *invalid, Size count) {
    if (!*invalid) return;
    each<1>(count, false, [&](Size at, auto) { values[at] = NAN_F32; });
}

FOR_F32(KERNEL(add_residual_f32, 256, float *values, const float *residual, u32 *invalid, Size count) { add_residual(values, residual, invalid, count); })
FOR_F32(KERNEL(poison_f32, 256, float *values, const u32 *invalid, Size count) { poison(values, invalid, count); })
