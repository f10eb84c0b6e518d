// Dropout, drawn as by the kernels of the CPU: splitmix64 (Steele et al. 2014) from a state for each row of each sample.

// Key (seed, step, rank, stream), the smallest number of 32 bits of a kept element or 0 without dropout, the first sample, the first
// of the rows that are there, and the number of rows of a sample or 0 if all are there.
struct Dropout {
    u64 numbers[8];
};

DEVICE u64 mixed(u64 z) {
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
}

// Tells which elements are kept.
struct Kept {
    u64 key, threshold, first_sample, first_row, all_rows;
    static constexpr u64 GOLDEN = 0x9e3779b97f4a7c15ull;
    // The step on the device, if given, replaces that of the key: a graph has the rest by value.
    __device__ __forceinline__ Kept(const Dropout &of, const u64 *step)
        : key(0), threshold(of.numbers[4]), first_sample(of.numbers[5]), first_row(of.numbers[6]), all_rows(of.numbers[7]) {
        if (threshold == 0) return;
#pragma unroll
        for (int i = 0; i < 4; ++i) key = mixed(mixed(key + GOLDEN) + (step && i == 1 ? *step : of.numbers[i]));
    }
    __device__ __forceinline__ bool all() const { return threshold == 0; }
    // The state of row `row` of the `rows` that are there of each sample.
    __device__ __forceinline__ u64 row(u64 sample, u64 rows, u64 row) const {
        return mixed(key + ((first_sample + sample) * (all_rows ? all_rows : rows) + first_row + row + 1) * GOLDEN);
    }
    // The state of row `index` within a row.
    __device__ __forceinline__ static u64 row(u64 state, u64 index) { return mixed(state + index); }
    __device__ __forceinline__ bool operator()(u64 row, u64 element) const {
        return (mixed(row + (element + 1) * GOLDEN) >> 32) >= threshold;
    }
};
