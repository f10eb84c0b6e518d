// Counter-based random numbers: ChaCha8 (Bernstein 2008). Element i is word i of the stream, as in phalanx_tensor::Key: the
// cipher's key is seed, step and rank, and its nonce is the stream.

struct Key {
    u64 seed, step, rank, stream;
};

// The key at the step on the device, if given: a graph has the rest by value.
DEVICE Key at_step(Key key, const u64 *step) {
    if (step) key.step = *step;
    return key;
}

DEVICE u32 rotated(u32 v, int by) { return v << by | v >> (32 - by); }

DEVICE void quarter(u32 &a, u32 &b, u32 &c, u32 &d) {
    a += b;
    d = rotated(d ^ a, 16);
    c += d;
    b = rotated(b ^ c, 12);
    a += b;
    d = rotated(d ^ a, 8);
    c += d;
    b = rotated(b ^ c, 7);
}

// Computes the 16 words of a block of the stream.
DEVICE void chacha(const Key &key, u64 block, u32 (&words)[16]) {
    const u32 start[16] = {0x61707865, 0x3320646e, 0x79622d32, 0x6b206574, u32(key.seed), u32(key.seed >> 32),
                           u32(key.step), u32(key.step >> 32), u32(key.rank), u32(key.rank >> 32), 0, 0,
                           u32(block), u32(block >> 32), u32(key.stream), u32(key.stream >> 32)};
#pragma unroll
    for (int i = 0; i < 16; ++i) words[i] = start[i];
#pragma unroll
    for (int round = 0; round < 4; ++round) {
        quarter(words[0], words[4], words[8], words[12]);
        quarter(words[1], words[5], words[9], words[13]);
        quarter(words[2], words[6], words[10], words[14]);
        quarter(words[3], words[7], words[11], words[15]);
        quarter(words[0], words[5], words[10], words[15]);
        quarter(words[1], words[6], words[11], words[12]);
        quarter(words[2], words[7], words[8], words[13]);
        quarter(words[3], words[4], words[9], words[14]);
    }
#pragma unroll
    for (int i = 0; i < 16; ++i) words[i] += start[i];
}

// Calls body(words, the element of the first word; it may be before 0) for each block of elements start..start + count.
template <class Body> DEVICE void each_block(const Key &key, u64 start, Size count, Body body) {
    const u64 first = start / 16, blocks = (start + u64(count) + 15) / 16 - first;
    for (u64 i = u64(blockIdx.x) * blockDim.x + threadIdx.x; i < blocks; i += u64(gridDim.x) * blockDim.x) {
        u32 words[16];
        chacha(key, first + i, words);
        body(words, Size((first + i) * 16) - Size(start));
    }
}

// The uniform numbers.
template <class Y> DEVICE void uniform(const Key &key, u64 start, Y *y, Size count) {
    if (count == 0) return;
    each_block(key, start, count, [&](const u32 (&words)[16], Size at) {
#pragma unroll
        for (int i = 0; i < 16; ++i)
            if (at + i >= 0 && at + i < count) y[at + i] = Y(double(words[i]) * 2.3283064365386963e-10);
    });
}
KERNEL(uniform_f64, 256, Key by, const u64 *step, u64 start, double *y, Size count) { uniform(at_step(by, step), start, y, count); }

// The Box-Muller transform of two words, as in Key::normal.
DEVICE void normal_pair(u32 first, u32 second, float &a, float &b) {
    // ln u with u = (first + 1) / 2^32. Near 1 it is computed from 1 − u, which f32 holds exactly.
    const float log = first >= 0x80000000u ? log1pf(-float(0xffffffffu - first) * 2.3283064365386963e-10f)
                                           : logf((float(first) + 1.0f) * 2.3283064365386963e-10f);
    const float radius = sqrtf(-2.0f * log);
    float sin, cos;
    sincospif(float(second) * 4.6566128730773926e-10f, &sin, &cos);
    a = radius * cos;
    b = radius * sin;
}
DEVICE void normal_pair(u32 first, u32 second, double &a, double &b) {
    const double u = (double(first) + 1.0) * 2.3283064365386963e-10;
    const double radius = sqrt(-2.0 * log(u));
    double sin, cos;
    sincospi(double(second) * 4.6566128730773926e-10, &sin, &cos);
    a = radius * cos;
    b = radius * sin;
}

template <class Y> DEVICE void normal(const Key &key, u64 start, Y *y, Size count) {
    if (count == 0) return;
    each_block(key, start, count, [&](const u32 (&words)[16], Size at) {
#pragma unroll
        for (int i = 0; i < 16; i += 2) {
            Wide<Y> a, b;
            normal_pair(words[i], words[i + 1], a, b);
            if (at + i >= 0 && at + i < count) y[at + i] = narrow<Y>(a);
            if (at + i + 1 >= 0 && at + i + 1 < count) y[at + i + 1] = narrow<Y>(b);
        }
    });
}

#define NORMAL(S, Y) \
    KERNEL(normal_##S, 256, Key by, const u64 *step, u64 start, Y *y, Size count) { normal(at_step(by, step), start, y, count); }
FOR_F32(NORMAL(f32, float))
FOR_F64(NORMAL(f64, double))
FOR_BF16(NORMAL(bf16, bf16))
FOR_F16(NORMAL(f16, f16))

// Samples of `length` elements: of each run of `all`, those `own` that are there from `first` on.
struct SamplePart {
    Size length, first, own, all;
    __device__ __forceinline__ u64 index(Size element) const { return u64(element / own * all + first + element % own); }
};

// y = x·scale where elements are kept, and 0 elsewhere.
template <class X> DEVICE void dropout(const X *x, X *y, const Kept &kept, SamplePart part, double scale, Size count) {
    typedef Wide<X> W;
    constexpr int N = PackOf<X>::value;
    each<N>(count, aligned(x, y), [&](Size at, auto n) {
        constexpr int M = decltype(n)::value;
        W values[M];
        load(x + at, values);
        Size sample = at / part.length, element = at % part.length;
        u64 row = kept.row(u64(sample), 1, 0);
#pragma unroll
        for (int i = 0; i < M; ++i) {
            values[i] *= kept(row, part.index(element)) ? W(scale) : W(0);
            if (++element == part.length) {
                element = 0;
                row = kept.row(u64(++sample), 1, 0);
            }
        }
        store(y + at, values);
    });
}

#define DROPOUT(S, X)                                                                                                        \
    KERNEL(dropout_##S, 256, const X *x, X *y, const u64 *step, Dropout dropout_of, SamplePart part, double scale,           \
           Size count) {                                                                                                     \
        dropout(x, y, Kept(dropout_of, step), part, scale, count);                                                           \
    }
FOR_F32(DROPOUT(f32, float))
FOR_F64(DROPOUT(f64, double))
FOR_BF16(DROPOUT(bf16, bf16))
FOR_F16(DROPOUT(f16, f16))
