// Sparse codecs of gradients: some values with their indices, and the residuals of the rest.
//
// The largest values are found exactly, as in phalanx-kernels: NaN is larger than any value, and equal magnitudes go to the lower
// index. The bits of magnitudes are ordered as magnitudes are. So the threshold is found digit by digit, from counts of digits,
// and values above it are written in the order of indices.

DEVICE u32 magnitude_of(float v) { return __float_as_uint(v) & 0x7fffffff; }

// ---- the k-th largest magnitude

// The known digits of the threshold.
struct Threshold {
    // The digits so far; the lower bits are 0.
    u32 key;
    // The number of values to take among those with these digits.
    u32 wanted;
};

constexpr int DIGITS = 2048;

// Counts the values with the threshold's digits so far, by their next digit of `bits` bits above `shift`.
DEVICE void count_digits(const float *values, Size count, const Threshold *threshold, u32 *counts, int shift, int bits) {
    __shared__ u32 own[DIGITS];
    for (int i = threadIdx.x; i < DIGITS; i += blockDim.x) own[i] = 0;
    __syncthreads();
    const u32 known = u32(u64(threshold->key) >> (shift + bits)), mask = (1u << bits) - 1;
    each<1>(count, false, [&](Size at, auto) {
        const u32 key = magnitude_of(values[at]);
        if (u32(u64(key) >> (shift + bits)) == known) atomicAdd(&own[key >> shift & mask], 1u);
    });
    __syncthreads();
    for (int i = threadIdx.x; i < DIGITS; i += blockDim.x)
        if (own[i]) atomicAdd(&counts[i], own[i]);
}

// Returns the sum of the values of all earlier threads; `shared` has 32 elements.
DEVICE u32 block_exclusive_sum(u32 value, u32 *shared) {
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    u32 sum = value;
#pragma unroll
    for (int by = 1; by < 32; by <<= 1) {
        const u32 before = __shfl_up_sync(WHOLE_WARP, sum, by);
        if (lane >= by) sum += before;
    }
    if (lane == 31) shared[warp] = sum;
    __syncthreads();
    u32 base = 0;
    for (int i = 0; i < warp; ++i) base += shared[i];
    __syncthreads();
    return base + sum - value;
}

// Settles the next digit, and clears the counts for the one after. One block of 256.
DEVICE void settle_digit(u32 *counts, Threshold *threshold, int shift) {
    __shared__ u32 shared[32];
    constexpr int EACH = DIGITS / 256;
    const Threshold before = *threshold;
    const int highest = DIGITS - 1 - threadIdx.x * EACH;
    u32 own[EACH], sum = 0;
#pragma unroll
    for (int i = 0; i < EACH; ++i) {
        own[i] = counts[highest - i];
        counts[highest - i] = 0;
        sum += own[i];
    }
    u32 above = block_exclusive_sum(sum, shared);
    // All values above are taken; the digit is the one that completes the number.
    if (above < before.wanted && before.wanted <= above + sum) {
#pragma unroll
        for (int i = 0; i < EACH; ++i) {
            if (before.wanted <= above + own[i]) {
                *threshold = Threshold{before.key | u32(highest - i) << shift, before.wanted - above};
                return;
            }
            above += own[i];
        }
    }
}

// ---- writing the entries

// Counts the values of each tile above the threshold, and those at it.
DEVICE void count_tiles(const float *values, Size count, const Threshold *threshold, u32 *tiles, Size tile, Size number) {
    __shared__ u32 shared[32];
    const u32 key = threshold->key;
    for (Size t = blockIdx.x; t < number; t += gridDim.x) {
        u32 above = 0, equal = 0;
        const Size end = min(count, (t + 1) * tile);
        for (Size at = t * tile + threadIdx.x; at < end; at += blockDim.x) {
            const u32 own = magnitude_of(values[at]);
            above += own > key;
            equal += own == key;
        }
        const u32 before_above = block_exclusive_sum(above, shared), before_equal = block_exclusive_sum(equal, shared);
        if (threadIdx.x == blockDim.x - 1) {
            tiles[2 * t] = before_above + above;
            tiles[2 * t + 1] = before_equal + equal;
        }
    }
}

// Computes the sums of all tiles before each. One block.
DEVICE void sum_tiles(u32 *tiles, Size number) {
    __shared__ u32 shared[32];
    __shared__ u32 totals[2];
    u32 above = 0, equal = 0;
    for (Size first = 0; first < number; first += blockDim.x) {
        const Size t = first + threadIdx.x;
        const u32 own_above = t < number ? tiles[2 * t] : 0, own_equal = t < number ? tiles[2 * t + 1] : 0;
        const u32 before_above = block_exclusive_sum(own_above, shared), before_equal = block_exclusive_sum(own_equal, shared);
        if (t < number) {
            tiles[2 * t] = above + before_above;
            tiles[2 * t + 1] = equal + before_equal;
        }
        if (threadIdx.x == blockDim.x - 1) {
            totals[0] = before_above + own_above;
            totals[1] = before_equal + own_equal;
        }
        __syncthreads();
        above += totals[0];
        equal += totals[1];
        __syncthreads();
    }
}

// Writes indices and values above the threshold, and the first ones at it that are needed, in ascending order. The number of
// entries precedes the indices.
DEVICE void write_top_k(const float *values, Size count, const Threshold *threshold, const u32 *tiles, Size tile, Size number, u32 *indices,
                          float *numbers, u32 taken) {
    __shared__ u32 shared[32];
    __shared__ u32 totals[2];
    const Threshold of = *threshold;
    if (blockIdx.x == 0 && threadIdx.x == 0) indices[0] = taken;
    for (Size t = blockIdx.x; t < number; t += gridDim.x) {
        u32 above = tiles[2 * t], equal = tiles[2 * t + 1];
        const Size end = min(count, (t + 1) * tile);
        for (Size first = t * tile; first < end; first += blockDim.x) {
            const Size at = first + threadIdx.x;
            const float value = at < end ? values[at] : 0.0f;
            const u32 key = magnitude_of(value);
            const u32 is_above = at < end && key > of.key, is_equal = at < end && key == of.key;
            const u32 before_above = block_exclusive_sum(is_above, shared), before_equal = block_exclusive_sum(is_equal, shared);
            const u32 equals = equal + before_equal;
            if (is_above || (is_equal && equals < of.wanted)) {
                const u32 place = above + before_above + (equals < of.wanted ? equals : of.wanted);
                indices[1 + place] = u32(at);
                numbers[place] = value;
            }
            if (threadIdx.x == blockDim.x - 1) {
                totals[0] = before_above + is_above;
                totals[1] = before_equal + is_equal;
            }
            __syncthreads();
            above += totals[0];
            equal += totals[1];
            __syncthreads();
        }
    }
}

FOR_F32(KERNEL(count_digits_f32, 256, const float *values, Size count, const Threshold *threshold, u32 *counts, int shift, int bits) {
    count_digits(values, count, threshold, counts, shift, bits);
})
FOR_F32(KERNEL(settle_digit_f32, 256, u32 *counts, Threshold *threshold, int shift) { settle_digit(counts, threshold, shift); })
FOR_F32(KERNEL(count_tiles_f32, 256, const float *values, Size count, const Threshold *threshold, u32 *tiles, Size tile, Size number) {
    count_tiles(values, count, threshold, tiles, tile, number);
})
FOR_F32(KERNEL(sum_tiles_f32, 256, u32 *tiles, Size number) { sum_tiles(tiles, number); })
FOR_F32(KERNEL(write_top_k_f32, 256, const float *values, Size count, const Threshold *threshold, const u32 *tiles, Size tile, Size number,
               u32 *indices, float *numbers, u32 taken) {
    write_top_k(values, count, threshold, tiles, tile, number, indices, numbers, taken);
})
FOR_F32(KERNEL(begin_threshold, 1, Threshold *threshold, u32 wanted) { *threshold = Threshold{0, wanted}; })

// ---- values at random indices: one of each of `taken` runs of nearly equal length, by stream `draw`

DEVICE u64 stream_bits(u64 base, u64 index) {
    u64 z = base + (index + 1) * 0x9e3779b97f4a7c15ull;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
}
DEVICE Size drawn_index(u64 draw, Size count, Size taken, Size run) {
    const u64 start = u64(run) * u64(count) / u64(taken), end = u64(run + 1) * u64(count) / u64(taken);
    return Size(start + __umul64hi(stream_bits(draw, u64(run)), end - start));
}

FOR_F32(KERNEL(gather_random_f32, 256, const float *values, Size count, u64 draw, float *numbers, Size taken) {
    each<1>(taken, false, [&](Size run, auto) { numbers[run] = values[drawn_index(draw, count, taken, run)]; });
})
FOR_F32(KERNEL(clear_random_f32, 256, float *values, Size count, u64 draw, const u32 *invalid, Size taken) {
    if (*invalid) return;
    each<1>(taken, false, [&](Size run, auto) { values[drawn_index(draw, count, taken, run)] = 0.0f; });
})
FOR_F32(KERNEL(add_random_f32, 256, const float *numbers, float *values, Size count, u64 draw, Size first, Size end, Size taken) {
    each<1>(taken, false, [&](Size run, auto) {
        const Size at = drawn_index(draw, count, taken, run);
        if (at >= first && at < end) values[at] = __fadd_rn(values[at], numbers[run]);
    });
})

// ---- values at given indices

// Adds values to their elements within first..end.
FOR_F32(KERNEL(scatter_f32, 256, const u32 *indices, const float *numbers, float *values, Size first, Size end) {
    each<1>(Size(indices[0]), false, [&](Size i, auto) {
        const Size at = indices[1 + i];
        if (at >= first && at < end) values[at] = __fadd_rn(values[at], numbers[i]);
    });
})

// Subtracts the sent values at the indices, or with `cleared` sets the elements to 0.
FOR_F32(KERNEL(subtract_entries_f32, 256, const u32 *indices, const float *numbers, float *values, const u32 *invalid, int cleared, Size taken) {
    if (*invalid) return;
    each<1>(taken, false, [&](Size i, auto) {
        const Size at = indices[1 + i];
        values[at] = cleared ? 0.0f : __fadd_rn(values[at], -numbers[i]);
    });
})

// residual = values, unless the flag `invalid` is set.
FOR_F32(KERNEL(store_residual_f32, 256, const float *values, float *residual, const u32 *invalid, Size count) {
    if (*invalid) return;
    each<4>(count, aligned(values, residual), [&](Size at, auto n) {
        float some[decltype(n)::value];
        load(values + at, some);
        store(residual + at, some);
    });
})

// ---- momentum before sending (Deep Gradient Compression)

FOR_F32(KERNEL(flag_not_finite_f32, 256, const float *values, u32 *invalid, Size count) {
    bool sound = true;
    each<4>(count, aligned(values), [&](Size at, auto n) {
        constexpr int M = decltype(n)::value;
        float some[M];
        load(values + at, some);
        for (int i = 0; i < M; ++i) sound = sound && some[i] - some[i] == 0;
    });
    if (!sound) atomicOr(invalid, 1u);
})

// u = momentum·u + g, v = v + u, g = v. If the flag `invalid` is set, g becomes NaN, and the others are unchanged.
FOR_F32(KERNEL(accumulate_momentum_f32, 256, float *gradients, float *velocity, float *sum, float momentum, const u32 *invalid, Size count) {
    const bool broken = *invalid;
    each<1>(count, false, [&](Size at, auto) {
        if (broken) {
            gradients[at] = NAN_F32;
            return;
        }
        const float u = __fadd_rn(__fmul_rn(momentum, velocity[at]), gradients[at]);
        const float v = __fadd_rn(sum[at], u);
        velocity[at] = u;
        sum[at] = v;
        gradients[at] = v;
    });
})
