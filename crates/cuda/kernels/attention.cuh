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

// The state of the draws of a query's weights.
DEVICE u64 row_of(const Kept &kept, const Sizes &of, int sample, int head, int query) {
    return Kept::row(kept.row(sample, of.heads, head), query);
}
