// Attention softmax(q·kᵀ·scale)·v in one pass over the keys (FlashAttention, Dao et al. 2022), and its gradients, in f32 and f64.
//
// Matrices are [batch·heads, length, dim]. A block has 32 rows with eight threads each, and walks over the other side in tiles of
// 32. Forward keeps the logarithm of each row's sum of exponentials, from which backward recomputes the weights. Backward has two
// passes, one for queries and one for keys and values, so that blocks share no sums.

// The pitch of tile rows: whole packs of four, and one more pack, so that rows begin in different banks.
DEVICE int pitch_of(int dim) { return (dim + 3) / 4 * 4 + 4; }

// Loads rows first..first + 32 of a matrix into a tile. Missing rows are zeros.
template <class W> DEVICE void load_tile(const W *from, W *tile, int first, int rows, int dim) {
    const int pitch = pitch_of(dim), width = pitch - 4;
#pragma unroll 1
    for (int i = threadIdx.x; i < 32 * width; i += 256) {
        const int row = i / width, column = i % width;
        const bool inside = first + row < rows && column < dim;
        tile[row * pitch + column] = inside ? from[Size(first + row) * dim + column] : W(0);
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

// Grid: a block for each 32 queries of each matrix.
template <int PACKS, class W>
DEVICE void attend(const W *q, const W *k, const W *v, W *output, W *log_sums, int length, int keys, int dim, double scale, int causal) {
    const int pitch = pitch_of(dim), thread = threadIdx.x & 7, own = threadIdx.x >> 3, tiles = (length + 31) / 32;
    const int first = blockIdx.x % tiles * 32;
    W *rows = shared_memory<W>(), *k_tile = rows + 32 * pitch, *v_tile = k_tile + 32 * pitch, *weights = v_tile + 32 * pitch;
    const Size head = blockIdx.x / tiles;
    const W lowest = W(-3.4028234663852886e38);
    load_tile(q + head * length * dim, rows, first, length, dim);
    W sums[PACKS][4] = {}, largest = lowest, total = 0;
    const int seen = causal ? min(keys, first + 32) : keys;
#pragma unroll 1
    for (int start = 0; start < seen; start += 32) {
        load_tile(k + head * keys * dim, k_tile, start, keys, dim);
        load_tile(v + head * keys * dim, v_tile, start, keys, dim);
        __syncthreads();
        W scores[4];
        dots(rows + own * pitch, k_tile + thread * pitch, dim, scores);
        W most = largest;
        bool visible[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int key = start + thread + 8 * i;
            visible[i] = key < keys && !(causal && key > first + own);
            scores[i] *= W(scale);
            if (visible[i]) most = larger(most, scores[i]);
        }
        most = of_eight<Larger>(most);
        const W shrink = exp_of(largest - most);
        largest = most;
        W more = 0;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const W weight = visible[i] ? exp_of(scores[i] - most) : W(0);
            weights[own * 33 + thread + 8 * i] = weight;
            more += weight;
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
    if (first + own >= length) return;
    const Size row = head * length + first + own;
    store_rows(output + row * dim, dim, thread, sums, W(1) / total);
    if (thread == 0) log_sums[row] = largest + log_of(total);
}

// Computes the gradient of queries (KEYS false: the block's rows are queries with their output's gradient, the others are keys
// and values), or of keys and values (KEYS true: reversed). Grid: a block for each 32 rows of each matrix.
template <bool KEYS, int PACKS, class W>
DEVICE void attend_backward(const W *q, const W *k, const W *v, const W *dy, const W *log_sums, const W *deltas, W *to, W *to_values,
                            int length, int keys, int dim, double scale, int causal) {
    const int pitch = pitch_of(dim), thread = threadIdx.x & 7, own = threadIdx.x >> 3, own_rows = KEYS ? keys : length,
              other_rows = KEYS ? length : keys, tiles = (own_rows + 31) / 32, first = blockIdx.x % tiles * 32;
    W *left = shared_memory<W>(), *right = left + 32 * pitch, *other_left = right + 32 * pitch, *other_right = other_left + 32 * pitch,
      *weights = other_right + 32 * pitch, *slopes = weights + 32 * 33;
    const Size head = blockIdx.x / tiles, queries_at = head * length * dim, keys_at = head * keys * dim;
    load_tile(KEYS ? k + keys_at : q + queries_at, left, first, own_rows, dim);
    load_tile(KEYS ? v + keys_at : dy + queries_at, right, first, own_rows, dim);
    W sums[PACKS][4] = {}, value_sums[KEYS ? PACKS : 1][4] = {};
    // Queries before the tile's first key attend to none of its keys. No query attends to keys after the last query.
    const int begin = KEYS && causal ? first / 32 * 32 : 0, end = !KEYS && causal ? min(keys, first + 32) : other_rows;
#pragma unroll 1
    for (int start = begin; start < end; start += 32) {
        load_tile(KEYS ? q + queries_at : k + keys_at, other_left, start, other_rows, dim);
        load_tile(KEYS ? dy + queries_at : v + keys_at, other_right, start, other_rows, dim);
        __syncthreads();
        W scores[4], grads[4];
        dots(left + own * pitch, other_left + thread * pitch, dim, scores);
        dots(right + own * pitch, other_right + thread * pitch, dim, grads);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int other = start + thread + 8 * i, query = KEYS ? other : first + own, key = KEYS ? first + own : other;
            W weight = 0, slope = 0;
            if (query < length && key < keys && !(causal && key > query)) {
                const Size row = head * length + query;
                weight = exp_of(scores[i] * W(scale) - log_sums[row]);
                slope = weight * (grads[i] - deltas[row]) * W(scale);
            }
            if (KEYS) weights[own * 33 + thread + 8 * i] = weight;
            slopes[own * 33 + thread + 8 * i] = slope;
        }
        __syncwarp();
        add_rows(slopes + own * 33, other_left, dim, thread, sums);
        if (KEYS) add_rows(weights + own * 33, other_right, dim, thread, value_sums);
        __syncthreads();
    }
    if (first + own >= own_rows) return;
    const Size row = (head * own_rows + first + own) * dim;
    store_rows(to + row, dim, thread, sums, W(1));
    if (KEYS) store_rows(to_values + row, dim, thread, value_sums, W(1));
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
    KERNEL(attention_##S##_d##DIM, 256, const W *q, const W *k, const W *v, W *output, W *log_sums, int length, int keys,     \
           int dim, double scale, int causal) {                                                                               \
        attend<DIM / 32>(q, k, v, output, log_sums, length, keys, dim, scale, causal);                                        \
    }                                                                                                                         \
    KERNEL(attention_queries_##S##_d##DIM, 256, const W *q, const W *k, const W *v, const W *dy, const W *log_sums,           \
           const W *deltas, W *dq, int length, int keys, int dim, double scale, int causal) {                                 \
        attend_backward<false, DIM / 32>(q, k, v, dy, log_sums, deltas, dq, (W *)nullptr, length, keys, dim, scale, causal);  \
    }                                                                                                                         \
    KERNEL(attention_keys_##S##_d##DIM, 256, const W *q, const W *k, const W *v, const W *dy, const W *log_sums,              \
           const W *deltas, W *dk, W *dv, int length, int keys, int dim, double scale, int causal) {                          \
        attend_backward<true, DIM / 32>(q, k, v, dy, log_sums, deltas, dk, dv, length, keys, dim, scale, causal);             \
    }
FOR_F32(ATTENTION(f32, float, 64))
FOR_F32(ATTENTION(f32, float, 128))
FOR_F32(ATTENTION(f32, float, 256))
FOR_F64(ATTENTION(f64, double, 128))
