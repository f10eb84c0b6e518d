// Attention softmax(q·kᵀ·scale)·v in one pass over the keys (FlashAttention, Dao et al. 2022), and its gradients, in f32 and f64.
//
// A block has 32 rows of a head with eight threads each, and walks over the other side in tiles of 32. Forward keeps the logarithm
// of each row's sum of exponentials [samples, heads, length], from which backward recomputes the weights. Backward has two passes,
// one for queries and one for keys and values, so that blocks share no sums.

// The pitch of tile rows: whole packs of four, and one more pack, so that rows begin in different banks.
DEVICE int pitch_of(int dim) { return (dim + 3) / 4 * 4 + 4; }

// Loads rows first..first + 32 of a head, `apart` elements apart, into a tile. Missing rows are zeros.
template <class W> DEVICE void load_tile(const W *from, int apart, W *tile, int first, int rows, int dim) {
    const int pitch = pitch_of(dim), width = pitch - 4;
#pragma unroll 1
    for (int i = threadIdx.x; i < 32 * width; i += 256) {
        const int row = i / width, column = i % width;
        const bool inside = first + row < rows && column < dim;
        tile[row * pitch + column] = inside ? from[Size(first + row) * apart + column] : W(0);
    }
}

// Multiplies one row with four rows of a tile, eight apart.
template <class W> DEVICE void dots(const W *row, const W *tile, int dim, W (&to)[4]) {
    const int pitch = pitch_of(dim);
#pragma unroll
    for (int i = 0; i < 4; ++i) to[i] = 0;
#pragma unroll 1
    for (int d = 0; d < dim; d += 4) {
        W own[4];
        load(row + d, own);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            W other[4];
            load(tile + i * 8 * pitch + d, other);
#pragma unroll
            for (int j = 0; j < 4; ++j) to[i] += own[j] * other[j];
        }
    }
}

// Computes sums += weights (of 32 rows) times the tile's rows. A thread has every eighth pack of four columns.
template <int PACKS, class W> DEVICE void add_rows(const W *weights, const W *tile, int dim, int thread, W (&sums)[PACKS][4]) {
    const int pitch = pitch_of(dim);
#pragma unroll 1
    for (int j = 0; j < 32; ++j) {
        const W weight = weights[j];
#pragma unroll
        for (int i = 0; i < PACKS; ++i) {
            const int d = 4 * (thread + 8 * i);
            if (d >= dim) continue;
            W values[4];
            load(tile + j * pitch + d, values);
#pragma unroll
            for (int k = 0; k < 4; ++k) sums[i][k] += weight * values[k];
        }
    }
}

template <int PACKS, class W> DEVICE void store_rows(W *to, int dim, int thread, const W (&sums)[PACKS][4], W factor) {
#pragma unroll
    for (int i = 0; i < PACKS; ++i)
#pragma unroll
        for (int k = 0; k < 4; ++k) {
            const int d = 4 * (thread + 8 * i) + k;
            if (d < dim) to[d] = sums[i][k] * factor;
        }
}

template <class Op, class W> DEVICE W of_eight(W v) {
#pragma unroll
    for (int bits = 4; bits > 0; bits >>= 1) v = Op::of(v, __shfl_xor_sync(WHOLE_WARP, v, bits));
    return v;
}

template <class W> DEVICE W *shared_memory() {
#ifdef PHALANX_FIBRES
    return reinterpret_cast<W *>(phalanx_fibres::block->shared_start);
#else
    extern __shared__ uint4 dynamic_shared[];
    return reinterpret_cast<W *>(dynamic_shared);
#endif
}

// Grid: a block for each 32 queries of each head.
template <int PACKS, class W>
DEVICE void attend(const W *q, const W *k, const W *v, W *output, W *log_sums, const Mask &mask, const Sizes &of, const Factors &factors,
                   const Kept &kept) {
    const int dim = of.dim, length = of.length, pitch = pitch_of(dim), thread = threadIdx.x & 7, own = threadIdx.x >> 3,
              tiles = (length + 31) / 32, first = blockIdx.x % tiles * 32, row = first + own, index = blockIdx.x / tiles,
              sample = index / of.heads, head = index % of.heads, key_head = head / (of.heads / of.key_heads);
    W *rows = shared_memory<W>(), *k_tile = rows + 32 * pitch, *v_tile = k_tile + 32 * pitch, *weights = v_tile + 32 * pitch;
    const W lowest = W(-3.4028234663852886e38);
    load_tile(q + Size(sample) * length * of.q_pitch + head * dim, of.q_pitch, rows, first, length, dim);
    const W *keys_at = k + Size(sample) * of.keys * of.k_pitch + key_head * dim,
            *values_at = v + Size(sample) * of.keys * of.v_pitch + key_head * dim;
    W sums[PACKS][4] = {}, largest = lowest, total = 0;
    int begin, end, first_key = 0, end_key = 0;
    mask.range_of(of, sample, first, min(first + 32, length), begin, end);
    if (row < length) mask.range(of, sample, row, first_key, end_key);
    const u64 state = row_of(kept, of, sample, head, row);
#pragma unroll 1
    for (int start = begin; start < end; start += 32) {
        load_tile(keys_at, of.k_pitch, k_tile, start, of.keys, dim);
        load_tile(values_at, of.v_pitch, v_tile, start, of.keys, dim);
        __syncthreads();
        W scores[4];
        dots(rows + own * pitch, k_tile + thread * pitch, dim, scores);
        W most = largest;
        bool visible[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int key = start + thread + 8 * i;
            visible[i] = key >= first_key && key < end_key;
            scores[i] *= W(factors.score());
            if (visible[i]) most = larger(most, scores[i]);
        }
        most = of_eight<Larger>(most);
        const W shrink = exp_of(largest - most);
        largest = most;
        W more = 0;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            W weight = visible[i] ? exp_of(scores[i] - most) : W(0);
            more += weight;
            if (!kept.all()) weight = kept(state, u64(start + thread + 8 * i)) ? weight * W(factors.kept()) : W(0);
            weights[own * 33 + thread + 8 * i] = weight;
        }
        total = total * shrink + of_eight<Add>(more);
#pragma unroll
        for (int i = 0; i < PACKS; ++i)
#pragma unroll
            for (int j = 0; j < 4; ++j) sums[i][j] *= shrink;
        // One warp writes and reads the weights of a row.
        __syncwarp();
        add_rows(weights + own * 33, v_tile, dim, thread, sums);
        __syncthreads();
    }
    if (row >= length) return;
    store_rows(output + ((Size(sample) * length + row) * of.heads + head) * dim, dim, thread, sums, total == 0 ? W(0) : W(1) / total);
    if (thread == 0) log_sums[Size(index) * length + row] = largest + log_of(total);
}

// Computes the gradient of queries (KEYS false: the block's rows are queries with their output's gradient, the others are keys
// and values), or of keys and values (KEYS true: reversed, over all heads of queries that share them). Grid: a block for each 32
// rows of each head.
template <bool KEYS, int PACKS, class W>
DEVICE void attend_backward(const W *q, const W *k, const W *v, const W *dy, const W *log_sums, const W *deltas, W *to, W *to_values,
                            const Mask &mask, const Sizes &of, const Factors &factors, const Kept &kept) {
    const int dim = of.dim, length = of.length, keys = of.keys, pitch = pitch_of(dim), thread = threadIdx.x & 7,
              own = threadIdx.x >> 3, own_rows = KEYS ? keys : length, other_rows = KEYS ? length : keys,
              tiles = (own_rows + 31) / 32, first = blockIdx.x % tiles * 32, index = blockIdx.x / tiles,
              group = of.heads / of.key_heads, own_heads = KEYS ? of.key_heads : of.heads, sample = index / own_heads,
              own_head = index % own_heads, key_head = KEYS ? own_head : own_head / group, y_pitch = of.heads * dim;
    W *left = shared_memory<W>(), *right = left + 32 * pitch, *other_left = right + 32 * pitch, *other_right = other_left + 32 * pitch,
      *weights = other_right + 32 * pitch, *slopes = weights + 32 * 33;
    const W *keys_at = k + Size(sample) * keys * of.k_pitch + key_head * dim,
            *values_at = v + Size(sample) * keys * of.v_pitch + key_head * dim;
    W sums[PACKS][4] = {}, value_sums[KEYS ? PACKS : 1][4] = {};
#pragma unroll 1
    for (int member = 0; member < (KEYS ? group : 1); ++member) {
        const int head = KEYS ? own_head * group + member : own_head;
        const W *queries_at = q + Size(sample) * length * of.q_pitch + head * dim,
                *grads_at = dy + Size(sample) * length * y_pitch + head * dim;
        if (member == 0) {
            load_tile(KEYS ? keys_at : queries_at, KEYS ? of.k_pitch : of.q_pitch, left, first, own_rows, dim);
            load_tile(KEYS ? values_at : grads_at, KEYS ? of.v_pitch : y_pitch, right, first, own_rows, dim);
        }
        int begin = 0, end = other_rows;
        if (!KEYS) mask.range_of(of, sample, first, min(first + 32, length), begin, end);
        // Queries before the tile's first key attend to none of its keys.
        else if (of.causal) begin = max(0, first - (keys - length)) / 32 * 32;
#pragma unroll 1
        for (int start = begin; start < end; start += 32) {
            load_tile(KEYS ? queries_at : keys_at, KEYS ? of.q_pitch : of.k_pitch, other_left, start, other_rows, dim);
            load_tile(KEYS ? grads_at : values_at, KEYS ? y_pitch : of.v_pitch, other_right, start, other_rows, dim);
            __syncthreads();
            W scores[4], grads[4];
            dots(left + own * pitch, other_left + thread * pitch, dim, scores);
            dots(right + own * pitch, other_right + thread * pitch, dim, grads);
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const int other = start + thread + 8 * i, query = KEYS ? other : first + own, key = KEYS ? first + own : other;
                W weight = 0, slope = 0;
                int first_key = 0, end_key = 0;
                if (query < length) mask.range(of, sample, query, first_key, end_key);
                if (key >= first_key && key < end_key) {
                    weight = exp_of(scores[i] * W(factors.score()) - log_sums[(Size(sample) * of.heads + head) * length + query]);
                    W grad = grads[i], value_weight = weight;
                    if (!kept.all()) {
                        const W factor = kept(row_of(kept, of, sample, head, query), u64(key)) ? W(factors.kept()) : W(0);
                        grad *= factor;
                        value_weight *= factor;
                    }
                    slope = weight * (grad - deltas[(Size(sample) * length + query) * of.heads + head]) * W(factors.score());
                    weight = value_weight;
                }
                if (KEYS) weights[own * 33 + thread + 8 * i] = weight;
                slopes[own * 33 + thread + 8 * i] = slope;
            }
            __syncwarp();
            add_rows(slopes + own * 33, other_left, dim, thread, sums);
            if (KEYS) add_rows(weights + own * 33, other_right, dim, thread, value_sums);
            __syncthreads();
        }
    }
    if (first + own >= own_rows) return;
    const Size row = Size(sample) * own_rows + first + own;
    store_rows(to + row * (KEYS ? of.k_pitch : of.q_pitch) + own_head * dim, dim, thread, sums, W(1));
    if (KEYS) store_rows(to_values + row * of.v_pitch + own_head * dim, dim, thread, value_sums, W(1));
}

// Sums output·dy over each row, with a warp for each.
template <class Y, class G, class W>
DEVICE void attention_deltas(const Y *output, const G *dy, W *deltas, Size rows, int dim) {
    const auto group = Group<false>::make();
    W *none = nullptr;
    for (Size row = Size(blockIdx.x) * group.groups + group.index; row < rows; row += Size(gridDim.x) * group.groups) {
        W sum = 0;
        for (int i = group.member; i < dim; i += 32) sum += widen(output[row * dim + i]) * widen(dy[row * dim + i]);
        sum = group.template reduce<Add>(sum, none);
        if (group.member == 0) deltas[row] = sum;
    }
}
KERNEL(attention_deltas_f32, 256, const float *output, const float *dy, float *deltas, Size rows, int dim) {
    attention_deltas(output, dy, deltas, rows, dim);
}
KERNEL(attention_deltas_f64, 256, const double *output, const double *dy, double *deltas, Size rows, int dim) {
    attention_deltas(output, dy, deltas, rows, dim);
}
KERNEL(attention_deltas_bf16, 256, const bf16 *output, const bf16 *dy, float *deltas, Size rows, int dim) {
    attention_deltas(output, dy, deltas, rows, dim);
}
KERNEL(attention_deltas_f16, 256, const f16 *output, const f16 *dy, float *deltas, Size rows, int dim) {
    attention_deltas(output, dy, deltas, rows, dim);
}

// A kernel for heads of up to DIM elements.
#define ATTENTION(S, W, DIM)                                                                                                  \
    KERNEL(attention_##S##_d##DIM, 256, const W *q, const W *k, const W *v, W *output, W *log_sums, const u32 *lengths,       \
           const u32 *starts, const u64 *step, Sizes sizes, Factors factors, Dropout dropout) {                               \
        attend<DIM / 32>(q, k, v, output, log_sums, Mask{lengths, starts}, sizes, factors, Kept(dropout, step));              \
    }                                                                                                                         \
    KERNEL(attention_queries_##S##_d##DIM, 256, const W *q, const W *k, const W *v, const W *dy, const W *log_sums,           \
           const W *deltas, W *dq, const u32 *lengths, const u32 *starts, const u64 *step, Sizes sizes, Factors factors,      \
           Dropout dropout) {                                                                                                 \
        attend_backward<false, DIM / 32>(q, k, v, dy, log_sums, deltas, dq, (W *)nullptr, Mask{lengths, starts}, sizes,       \
                                         factors, Kept(dropout, step));                                                       \
    }                                                                                                                         \
    KERNEL(attention_keys_##S##_d##DIM, 256, const W *q, const W *k, const W *v, const W *dy, const W *log_sums,              \
           const W *deltas, W *dk, W *dv, const u32 *lengths, const u32 *starts, const u64 *step, Sizes sizes,                \
           Factors factors, Dropout dropout) {                                                                                \
        attend_backward<true, DIM / 32>(q, k, v, dy, log_sums, deltas, dk, dv, Mask{lengths, starts}, sizes, factors,         \
                                        Kept(dropout, step));                                                                 \
    }
FOR_F32(ATTENTION(f32, float, 64))
FOR_F32(ATTENTION(f32, float, 128))
FOR_F32(ATTENTION(f32, float, 256))
FOR_F64(ATTENTION(f64, double, 128))
