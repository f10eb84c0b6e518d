// Attention softmax(q·kᵀ·scale)·v in one pass over the keys (FlashAttention, Dao et al. 2022), and its gradients, for 16-bit
// operands on tensor cores, with sums in f32.
//
// A warp has 16 of a block's 64 rows and multiplies tiles of 16 x 16 by 16 x 8 (`mma.m16n8k16`). Scores stay in their registers:
// the layout of a product's result is that of the next product's left operand. Forward keeps the logarithm of each row's sum of
// exponentials. Backward has two passes, one for queries and one for keys and values.

// ---- tiles in shared memory: rows of DIM elements, padded with zeros, at a pitch that avoids bank conflicts

template <int DIM> struct Tile {
    static constexpr int PITCH = DIM + 8;
    u16 *rows;
    // The address of this lane's row for three operands: a left one of 16 rows, a right one whose 16 columns are rows here, and a
    // right one of 16 rows.
    __device__ __forceinline__ const u16 *left(int row, int column, int lane) const {
        return rows + (row + lane % 16) * PITCH + column + lane / 16 * 8;
    }
    __device__ __forceinline__ const u16 *right(int row, int column, int lane) const {
        return rows + (row + lane % 8 + lane / 16 * 8) * PITCH + column + lane / 8 % 2 * 8;
    }
    __device__ __forceinline__ const u16 *turned(int row, int column, int lane) const {
        return rows + (row + lane % 16) * PITCH + column + lane / 16 * 8;
    }
};

// Loads rows first..first + ROWS of a head, `apart` elements apart, into a tile. Missing rows are zeros. With `whole`, rows are whole
// packs of 16 bytes, and the copy is asynchronous.
template <int DIM, int ROWS, class T>
DEVICE void load_tile(const T *from, int apart, const Tile<DIM> &tile, int first, int rows, int dim, bool whole) {
    constexpr int PACKS = DIM / 8;
    for (int i = threadIdx.x; i < ROWS * PACKS; i += 128) {
        const int row = i / PACKS, column = i % PACKS * 8;
        u16 *to = tile.rows + row * Tile<DIM>::PITCH + column;
        const T *at = from + Size(first + row) * apart + column;
        const bool inside = first + row < rows;
        if (whole) {
            if (inside && column < dim) copy_ahead(to, at);
            else *reinterpret_cast<uint4 *>(to) = make_uint4(0, 0, 0, 0);
        } else {
#pragma unroll
            for (int j = 0; j < 8; ++j) to[j] = inside && column + j < dim ? at[j].bits : u16(0);
        }
    }
    commit_copies();
}

// Computes scores = rows of the left tile times rows of the right one: 16 x COLUMNS.
template <int DIM, int COLUMNS, class T>
DEVICE void products(float (&scores)[COLUMNS / 8][4], const Tile<DIM> &left, int row, const Tile<DIM> &right, int lane) {
#pragma unroll
    for (int n = 0; n < COLUMNS / 8; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) scores[n][i] = 0;
    // Not unrolled completely: operands that are read ahead would take the registers of the sums.
#pragma unroll 4
    for (int k = 0; k < DIM; k += 16) {
        u32 a[4];
        load_matrices(a, left.left(row, k, lane));
#pragma unroll
        for (int n = 0; n < COLUMNS; n += 16) {
            u32 b[4];
            load_matrices(b, right.right(n, k, lane));
            multiply<T>(scores[n / 8], a, b[0], b[1]);
            multiply<T>(scores[n / 8 + 1], a, b[2], b[3]);
        }
    }
}

// Computes sums += weights (16 x COLUMNS, in the registers of their product) times the tile's rows.
template <int DIM, int COLUMNS, class T>
DEVICE void add_rows(float (&sums)[DIM / 8][4], const float (&weights)[COLUMNS / 8][4], const Tile<DIM> &tile, int lane) {
#pragma unroll
    for (int k = 0; k < COLUMNS; k += 16) {
        const float(&low)[4] = weights[k / 8], (&high)[4] = weights[k / 8 + 1];
        const u32 a[4] = {packed<T>(low[0], low[1]), packed<T>(low[2], low[3]), packed<T>(high[0], high[1]), packed<T>(high[2], high[3])};
#pragma unroll
        for (int n = 0; n < DIM; n += 16) {
            u32 b[4];
            load_transposed(b, tile.turned(k, n, lane));
            multiply<T>(sums[n / 8], a, b[0], b[1]);
            multiply<T>(sums[n / 8 + 1], a, b[2], b[3]);
        }
    }
}

template <class T> DEVICE void put(T *to, float value) { *to = narrow<T>(value); }

// Stores the existing rows of a warp's 16, `apart` elements apart, each times its factor.
template <int DIM, class Y>
DEVICE void store_rows(Y *to, int apart, const float (&sums)[DIM / 8][4], int first, int rows, int dim, int lane,
                       const float (&factors)[2]) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const int row = first + lane / 4 + 8 * half;
        if (row >= rows) continue;
#pragma unroll
        for (int n = 0; n < DIM / 8; ++n)
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                const int column = n * 8 + lane % 4 * 2 + i;
                if (column < dim) put(to + Size(row) * apart + column, sums[n][2 * half + i] * factors[half]);
            }
    }
}

template <class Op> DEVICE float of_four(float v) {
    v = Op::of(v, __shfl_xor_sync(WHOLE_WARP, v, 1));
    return Op::of(v, __shfl_xor_sync(WHOLE_WARP, v, 2));
}

DEVICE u16 *shared_memory() {
#ifdef PHALANX_FIBRES
    return reinterpret_cast<u16 *>(phalanx_fibres::block->shared_start);
#else
    extern __shared__ uint4 dynamic_shared[];
    return reinterpret_cast<u16 *>(dynamic_shared);
#endif
}

#define LOG2_E 1.4426950408889634f
#define LN_2 0.6931471805599453f

// Grid: a block for each 64 queries of each head. Exponentials have base 2.
template <int DIM, int COLUMNS, class T>
DEVICE void attend(const T *q, const T *k, const T *v, T *output, float *log_sums, const Mask &mask, const Sizes &of,
                   const Factors &by, const Kept &kept) {
    const int lane = threadIdx.x & 31, row = threadIdx.x / 32 * 16, dim = of.dim, length = of.length, keys = of.keys,
              tiles = (length + 63) / 64, first = blockIdx.x % tiles * 64, index = blockIdx.x / tiles, sample = index / of.heads,
              head = index % of.heads, key_head = head / (of.heads / of.key_heads);
    q += Size(sample) * length * of.q_pitch + head * dim;
    k += Size(sample) * keys * of.k_pitch + key_head * dim;
    v += Size(sample) * keys * of.v_pitch + key_head * dim;
    const bool whole = dim % 8 == 0 && (of.q_pitch | of.k_pitch | of.v_pitch) % 8 == 0 && aligned(q, k, v);
    u16 *memory = shared_memory();
    const Tile<DIM> q_tile = {memory}, k_tile = {memory + 64 * Tile<DIM>::PITCH}, v_tile = {k_tile.rows + COLUMNS * Tile<DIM>::PITCH};
    const float factor = float(by.score()) * LOG2_E;
    int begin, seen, first_key[2] = {0, 0}, end_key[2] = {0, 0};
    mask.range_of(of, sample, first, min(first + 64, length), begin, seen);
    u64 states[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const int query = first + row + lane / 4 + 8 * half;
        if (query < length) mask.range(of, sample, query, first_key[half], end_key[half]);
        states[half] = row_of(kept, of, sample, head, query);
    }
    load_tile<DIM, 64>(q, of.q_pitch, q_tile, first, length, dim, whole);
    load_tile<DIM, COLUMNS>(k, of.k_pitch, k_tile, begin, keys, dim, whole);
    float sums[DIM / 8][4] = {}, largest[2] = {-3.4028234663852886e38f, -3.4028234663852886e38f}, totals[2] = {0, 0};
#pragma unroll 1
    for (int start = begin; start < seen; start += COLUMNS) {
        // Values load during the product of scores, and the next keys during the product with values.
        load_tile<DIM, COLUMNS>(v, of.v_pitch, v_tile, start, keys, dim, whole);
        wait_for_copies<1>();
        __syncthreads();
        float scores[COLUMNS / 8][4];
        products<DIM, COLUMNS, T>(scores, q_tile, row, k_tile, lane);
        float most[2] = {largest[0], largest[1]};
#pragma unroll
        for (int n = 0; n < COLUMNS / 8; ++n)
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const int key = start + n * 8 + lane % 4 * 2 + i % 2;
                scores[n][i] = key >= first_key[i / 2] && key < end_key[i / 2] ? scores[n][i] * factor : -INFINITE_F32;
                most[i / 2] = larger(most[i / 2], scores[n][i]);
            }
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            most[half] = of_four<Larger>(most[half]);
            const float shrink = exp2f(largest[half] - most[half]);
            largest[half] = most[half];
            totals[half] *= shrink;
#pragma unroll
            for (int n = 0; n < DIM / 8; ++n) {
                sums[n][2 * half] *= shrink;
                sums[n][2 * half + 1] *= shrink;
            }
        }
#pragma unroll
        for (int n = 0; n < COLUMNS / 8; ++n)
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                scores[n][i] = exp2f(scores[n][i] - largest[i / 2]);
                totals[i / 2] += scores[n][i];
            }
        if (!kept.all()) {
#pragma unroll
            for (int n = 0; n < COLUMNS / 8; ++n)
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    const bool keep = kept(states[i / 2], u64(start + n * 8 + lane % 4 * 2 + i % 2));
                    scores[n][i] = keep ? scores[n][i] * float(by.kept()) : 0.0f;
                }
        }
        __syncthreads();
        if (start + COLUMNS < seen) load_tile<DIM, COLUMNS>(k, of.k_pitch, k_tile, start + COLUMNS, keys, dim, whole);
        else commit_copies();
        wait_for_copies<1>();
        __syncthreads();
        add_rows<DIM, COLUMNS, T>(sums, scores, v_tile, lane);
        __syncthreads();
    }
    wait_for_copies<0>();
    float factors[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        totals[half] = of_four<Add>(totals[half]);
        factors[half] = totals[half] == 0.0f ? 0.0f : 1.0f / totals[half];
        const int query = first + row + lane / 4 + 8 * half;
        if (lane % 4 == 0 && query < length) log_sums[Size(index) * length + query] = largest[half] * LN_2 + logf(totals[half]);
    }
    const int apart = of.heads * dim;
    store_rows<DIM>(output + Size(sample) * length * apart + head * dim, apart, sums, first + row, length, dim, lane, factors);
}

// Computes the gradient of queries (KEYS false: the block's rows are queries with their output's gradient, the others are keys
// and values), or of keys and values (KEYS true: reversed, over all heads of queries that share them; PARTS selects one or both).
// Grid: a block for each 64 rows of each head.
enum Gradients { LEFT = 1, RIGHT = 2, BOTH = 3 };

template <bool KEYS, int PARTS, int DIM, int COLUMNS, class T>
DEVICE void attend_backward(const T *q, const T *k, const T *v, const T *dy, const float *all_log_sums, const float *all_deltas,
                            float *to, float *to_values, const Mask &mask, const Sizes &of, const Factors &by, const Kept &kept) {
    const int lane = threadIdx.x & 31, row = threadIdx.x / 32 * 16, dim = of.dim, length = of.length, keys = of.keys,
              own_rows = KEYS ? keys : length, other_rows = KEYS ? length : keys, tiles = (own_rows + 63) / 64,
              first = blockIdx.x % tiles * 64, index = blockIdx.x / tiles, group = of.heads / of.key_heads,
              own_heads = KEYS ? of.key_heads : of.heads, sample = index / own_heads, own_head = index % own_heads,
              key_head = KEYS ? own_head : own_head / group, y_pitch = of.heads * dim;
    const T *keys_at = k + Size(sample) * keys * of.k_pitch + key_head * dim,
            *values_at = v + Size(sample) * keys * of.v_pitch + key_head * dim;
    constexpr int PITCH = Tile<DIM>::PITCH;
    u16 *memory = shared_memory();
    const Tile<DIM> left = {memory}, right = {memory + 64 * PITCH}, other_left = {memory + 128 * PITCH},
                    other_right = {memory + (128 + COLUMNS) * PITCH};
    constexpr bool HAS_LEFT = PARTS & LEFT, HAS_RIGHT = KEYS && (PARTS & RIGHT);
    float sums[HAS_LEFT ? DIM / 8 : 1][4] = {}, value_sums[HAS_RIGHT ? DIM / 8 : 1][4] = {};
    const float factor = float(by.score()) * LOG2_E;
#pragma unroll 1
    for (int member = 0; member < (KEYS ? group : 1); ++member) {
        const int head = KEYS ? own_head * group + member : own_head;
        const T *queries_at = q + Size(sample) * length * of.q_pitch + head * dim,
                *grads_at = dy + Size(sample) * length * y_pitch + head * dim;
        const bool whole = dim % 8 == 0 && (of.q_pitch | of.k_pitch | of.v_pitch) % 8 == 0 &&
                           aligned(queries_at, grads_at, keys_at, values_at);
        const T *others_left = KEYS ? queries_at : keys_at, *others_right = KEYS ? grads_at : values_at;
        const int others_left_pitch = KEYS ? of.q_pitch : of.k_pitch, others_right_pitch = KEYS ? y_pitch : of.v_pitch;
        const float *log_sums = all_log_sums + (Size(sample) * of.heads + head) * length,
                    *deltas = all_deltas + Size(sample) * length * of.heads + head;
        if (member == 0) {
            load_tile<DIM, 64>(KEYS ? keys_at : queries_at, KEYS ? of.k_pitch : of.q_pitch, left, first, own_rows, dim, whole);
            load_tile<DIM, 64>(KEYS ? values_at : grads_at, KEYS ? of.v_pitch : y_pitch, right, first, own_rows, dim, whole);
        }
        int begin = 0, end = other_rows;
        if (!KEYS) mask.range_of(of, sample, first, min(first + 64, length), begin, end);
        else if (of.causal) begin = max(0, first - (keys - length));
#pragma unroll 1
        for (int start = begin; start < end; start += COLUMNS) {
            load_tile<DIM, COLUMNS>(others_left, others_left_pitch, other_left, start, other_rows, dim, whole);
            load_tile<DIM, COLUMNS>(others_right, others_right_pitch, other_right, start, other_rows, dim, whole);
            wait_for_copies<1>();
            __syncthreads();
            float weights[COLUMNS / 8][4];
            products<DIM, COLUMNS, T>(weights, left, row, other_left, lane);
#pragma unroll
            for (int n = 0; n < COLUMNS / 8; ++n)
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    const int other = start + n * 8 + lane % 4 * 2 + i % 2, own = first + row + lane / 4 + i / 2 * 8;
                    const int query = KEYS ? other : own, key = KEYS ? own : other;
                    int first_key = 0, end_key = 0;
                    if (query < length) mask.range(of, sample, query, first_key, end_key);
                    const bool visible = key >= first_key && key < end_key;
                    weights[n][i] = visible ? exp2f(weights[n][i] * factor - log_sums[query] * LOG2_E) : 0.0f;
                }
            wait_for_copies<0>();
            __syncthreads();
            // The factor of a weight by dropout.
            const auto factor_of = [&](int n, int i) {
                const int other = start + n * 8 + lane % 4 * 2 + i % 2, own = first + row + lane / 4 + i / 2 * 8;
                const int query = KEYS ? other : own, key = KEYS ? own : other;
                return kept(row_of(kept, of, sample, head, query), u64(key)) ? float(by.kept()) : 0.0f;
            };
            if constexpr (HAS_RIGHT) {
                if (kept.all()) {
                    add_rows<DIM, COLUMNS, T>(value_sums, weights, other_right, lane);
                } else {
                    float some[COLUMNS / 8][4];
#pragma unroll
                    for (int n = 0; n < COLUMNS / 8; ++n)
#pragma unroll
                        for (int i = 0; i < 4; ++i) some[n][i] = weights[n][i] * factor_of(n, i);
                    add_rows<DIM, COLUMNS, T>(value_sums, some, other_right, lane);
                }
            }
            if constexpr (HAS_LEFT) {
                float grads[COLUMNS / 8][4];
                products<DIM, COLUMNS, T>(grads, right, row, other_right, lane);
#pragma unroll
                for (int n = 0; n < COLUMNS / 8; ++n)
#pragma unroll
                    for (int i = 0; i < 4; ++i) {
                        const int other = start + n * 8 + lane % 4 * 2 + i % 2, own = first + row + lane / 4 + i / 2 * 8;
                        const int query = KEYS ? other : own;
                        const float delta = query < length ? deltas[query * of.heads] : 0.0f;
                        const float grad = kept.all() ? grads[n][i] : grads[n][i] * factor_of(n, i);
                        weights[n][i] *= (grad - delta) * float(by.score());
                    }
                add_rows<DIM, COLUMNS, T>(sums, weights, other_left, lane);
            }
            __syncthreads();
        }
    }
    wait_for_copies<0>();
    const float one[2] = {1.0f, 1.0f};
    const Size at = Size(sample) * own_rows;
    const int left_pitch = KEYS ? of.k_pitch : of.q_pitch;
    if constexpr (HAS_LEFT)
        store_rows<DIM>(to + at * left_pitch + own_head * dim, left_pitch, sums, first + row, own_rows, dim, lane, one);
    if constexpr (HAS_RIGHT)
        store_rows<DIM>(to_values + at * of.v_pitch + own_head * dim, of.v_pitch, value_sums, first + row, own_rows, dim, lane, one);
}

// Rows of the other side per step of backward: fewer for large heads, whose sums take more registers.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1000
#define ROWS_OF(DIM) (DIM >= 96 ? 16 : 32)
#else
#define ROWS_OF(DIM) 32
#endif

// Kernels for heads of up to DIM elements, with COLUMNS keys per step. SPLIT: separate blocks compute the gradients of keys and
// values, as the registers do not hold both sums.
#define MASK_AND_SIZES const u32 *lengths, const u32 *starts, const u64 *step, Sizes sizes, Factors factors, Dropout dropout
#define OF_MASK_AND_SIZES Mask{lengths, starts}, sizes, factors, Kept(dropout, step)
#define ATTENTION(S, T, DIM, COLUMNS)                                                                                         \
    KERNEL(attention_##S##_d##DIM, 128, const T *q, const T *k, const T *v, T *output, float *log_sums, MASK_AND_SIZES) {     \
        attend<DIM, COLUMNS>(q, k, v, output, log_sums, OF_MASK_AND_SIZES);                                                   \
    }                                                                                                                         \
    KERNEL(attention_queries_##S##_d##DIM, 128, const T *q, const T *k, const T *v, const T *dy, const float *log_sums,       \
           const float *deltas, float *dq, MASK_AND_SIZES) {                                                                  \
        attend_backward<false, LEFT, DIM, ROWS_OF(DIM)>(q, k, v, dy, log_sums, deltas, dq, nullptr, OF_MASK_AND_SIZES);       \
    }
#define ATTENTION_TOGETHER(S, T, DIM)                                                                                         \
    KERNEL(attention_keys_##S##_d##DIM, 128, const T *q, const T *k, const T *v, const T *dy, const float *log_sums,          \
           const float *deltas, float *dk, float *dv, MASK_AND_SIZES) {                                                       \
        attend_backward<true, BOTH, DIM, ROWS_OF(DIM)>(q, k, v, dy, log_sums, deltas, dk, dv, OF_MASK_AND_SIZES);             \
    }
#define ATTENTION_SPLIT(S, T, DIM)                                                                                            \
    KERNEL(attention_keys_##S##_d##DIM, 128, const T *q, const T *k, const T *v, const T *dy, const float *log_sums,          \
           const float *deltas, float *dk, float *dv, MASK_AND_SIZES) {                                                       \
        if (blockIdx.z == 0)                                                                                                  \
            attend_backward<true, LEFT, DIM, ROWS_OF(DIM)>(q, k, v, dy, log_sums, deltas, dk, dv, OF_MASK_AND_SIZES);         \
        else                                                                                                                  \
            attend_backward<true, RIGHT, DIM, ROWS_OF(DIM)>(q, k, v, dy, log_sums, deltas, dk, dv, OF_MASK_AND_SIZES);        \
    }
#define ATTENTIONS(S, T)            \
    ATTENTION(S, T, 32, 64)         \
    ATTENTION(S, T, 64, 64)         \
    ATTENTION(S, T, 96, 64)         \
    ATTENTION(S, T, 128, 64)        \
    ATTENTION(S, T, 192, 32)        \
    ATTENTION_TOGETHER(S, T, 32)    \
    ATTENTION_TOGETHER(S, T, 64)    \
    ATTENTION_TOGETHER(S, T, 96)    \
    ATTENTION_SPLIT(S, T, 128)      \
    ATTENTION_SPLIT(S, T, 192)
FOR_BF16(ATTENTIONS(bf16, bf16))
FOR_F16(ATTENTIONS(f16, f16))
