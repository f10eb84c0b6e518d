// Sizes, masks and dropout of attention, which all its kernels share.
//
// Queries are [samples, length, heads, dim], keys and values [samples, keys, key_heads, dim]; the positions of each are a pitch
// apart, so that all three may be parts of one array.

// Sizes, and the mask's numbers. `window` is 0 without a window.
struct Sizes {
    int heads, key_heads, length, keys, dim, causal, window, q_pitch, k_pitch, v_pitch;
};

// The factor of scores and that of kept weights.
struct Factors {
    double numbers[2];
    __device__ __forceinline__ double score() const { return numbers[0]; }
    __device__ __forceinline__ double kept() const { return numbers[1]; }
};

// The arrays of a mask, if it has them: the number of keys of each sample, and the first key of each query.
struct Mask {
    const u32 *lengths, *starts;
    // The keys first..end that a query sees.
    __device__ __forceinline__ void range(const Sizes &of, int sample, int query, int &first, int &end) const {
        first = 0;
        end = of.keys;
        if (of.causal) end = min(of.keys, max(0, query + 1 + of.keys - of.length));
        if (of.window) first = max(0, end - of.window);
        if (starts) first = max(first, int(min(starts[Size(sample) * of.length + query], u32(of.keys))));
        if (lengths) end = min(end, int(min(lengths[sample], u32(of.keys))));
    }
    // The smallest range with all keys that queries from..to see.
    __device__ __forceinline__ void range_of(const Sizes &of, int sample, int from, int to, int &first, int &end) const {
        range(of, sample, from, first, end);
        int ignored;
        if (starts) {
            for (int query = from + 1, own; query < to; ++query) {
                range(of, sample, query, own, ignored);
                first = min(first, own);
            }
        }
        if (of.causal) range(of, sample, to - 1, ignored, end);
    }
};

// Dropout of weights: key (seed, step, rank, stream), the smallest number of 32 bits of a kept weight or 0 without dropout, and the
// first sample.
struct Dropout {
    u64 numbers[6];
};

DEVICE u64 mixed(u64 z) {
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
}

// Draws the kept weights as the kernels of the CPU: splitmix64 (Steele et al. 2014) from a state for each query.
struct Kept {
    u64 key, threshold, first_sample;
    static constexpr u64 GOLDEN = 0x9e3779b97f4a7c15ull;
    __device__ __forceinline__ Kept(const Dropout &of, const u64 *step) : key(0), threshold(of.numbers[4]), first_sample(of.numbers[5]) {
        if (threshold == 0) return;
#pragma unroll
        for (int i = 0; i < 4; ++i) key = mixed(mixed(key + GOLDEN) + (step && i == 1 ? *step : of.numbers[i]));
    }
    __device__ __forceinline__ bool all() const { return threshold == 0; }
    __device__ __forceinline__ u64 row(const Sizes &of, int sample, int head, int query) const {
        const u64 index = (first_sample + u64(sample)) * u64(of.heads) + u64(head);
        return mixed(mixed(key + (index + 1) * GOLDEN) + u64(query));
    }
    __device__ __forceinline__ bool operator()(u64 row, int of_key) const { return (mixed(row + (u64(of_key) + 1) * GOLDEN) >> 32) >= threshold; }
};
