// Embeddings: rows of a table by index, and the gradient of the table.

KERNEL(progression, 256, u32 start, u32 step, u32 *to, Size count) {
    each<1>(count, false, [&](Size at, auto) { to[at] = start + step * u32(at); });
}

// Row ids[i] of the table, or NaN if ids[i] is not below `rows`: the host does not wait for errors here.
template <class X, class Y>
DEVICE void embedding(const X *table, const u32 *ids, Y *y, u32 rows, int width, Size count) {
    constexpr int N = PackOf<X, Y>::value;
    each<N>(count * width, aligned(table, y) && width % N == 0, [&](Size at, auto n) {
        constexpr int M = decltype(n)::value;
        const Size position = at / width;
        const u32 id = ids[position];
        Wide<X> values[M];
        if (id < rows) load(table + Size(id) * width + (at - position * width), values);
        else {
#pragma unroll
            for (int i = 0; i < M; ++i) values[i] = Wide<X>(NAN_F32);
        }
        store(y + at, values);
    });
}

#define EMBEDDING(S, X, Y)                                                                                        \
    KERNEL(embedding_##S, 256, const X *table, const u32 *ids, Y *y, u32 rows, int width, Size count) {           \
        embedding(table, ids, y, rows, width, count);                                                             \
    }
FOR_F32(EMBEDDING(f32_f32, float, float))
FOR_F64(EMBEDDING(f64_f64, double, double))
FOR_BF16(EMBEDDING(f32_bf16, float, bf16))
FOR_F16(EMBEDDING(f32_f16, float, f16))
FOR_BF16(EMBEDDING(bf16_bf16, bf16, bf16))
FOR_F16(EMBEDDING(f16_f16, f16, f16))
FOR_BF16(EMBEDDING(bf16_f32, bf16, float))
FOR_F16(EMBEDDING(f16_f32, f16, float))

// ---- gradients: a block for each row of the table and some of its columns walks through the positions with its id, in order.
// Their first and last positions are found before, so that rare ids cost little and absent ones only their zeros.

// first: the lowest position of each id, initially the maximum; last: the highest position + 1, initially 0.
KERNEL(embedding_positions, 256, const u32 *ids, u32 *first, u32 *last, u32 rows, Size count) {
    each<1>(count, false, [&](Size at, auto) {
        const u32 id = ids[at];
        if (id >= rows) return;
        atomicMin(&first[id], u32(at));
        atomicMax(&last[id], u32(at + 1));
    });
}

template <class G, class Y>
DEVICE void embedding_backward(const G *dy, const u32 *ids, const u32 *first, const u32 *last, Y *table, u32 rows, int width) {
    __shared__ u32 found[256];
    __shared__ u32 counts[8];
    const int column = blockIdx.y * blockDim.x + threadIdx.x, lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    for (u32 row = blockIdx.x; row < rows; row += gridDim.x) {
        Wide<Y> sum = 0;
        const u32 end = last[row];
        for (u32 start = first[row]; start < end; start += 256) {
            // The positions among the next 256, in order.
            const bool own = start + threadIdx.x < end && ids[start + threadIdx.x] == row;
            const u32 votes = __ballot_sync(WHOLE_WARP, own);
            if (lane == 0) counts[warp] = __popc(votes);
            __syncthreads();
            u32 before = 0, total = 0;
            for (int i = 0; i < 8; ++i) {
                before += i < warp ? counts[i] : 0;
                total += counts[i];
            }
            if (own) found[before + __popc(votes & ((1u << lane) - 1))] = start + threadIdx.x;
            __syncthreads();
            if (column < width)
                for (u32 i = 0; i < total; ++i) sum += widen(dy[Size(found[i]) * width + column]);
            __syncthreads();
        }
        if (column < width) table[Size(row) * width + column] = narrow<Y>(sum);
    }
}

#define EMBEDDING_BACKWARD(S, G, Y)                                                                                          \
    KERNEL(embedding_backward_##S, 256, const G *dy, const u32 *ids, const u32 *first, const u32 *last, Y *table, u32 rows,  \
           int width) {                                                                                                      \
        embedding_backward(dy, ids, first, last, table, rows, width);                                                        \
    }
FOR_F32(EMBEDDING_BACKWARD(f32_f32, float, float))
FOR_F64(EMBEDDING_BACKWARD(f64_f64, double, double))
FOR_BF16(EMBEDDING_BACKWARD(bf16_f32, bf16, float))
FOR_F16(EMBEDDING_BACKWARD(f16_f32, f16, float))
