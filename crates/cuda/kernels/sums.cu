// Sums over all elements, and over one dimension. Where several blocks share a sum, each writes a part, and a second pass adds
// the parts in order.

// ---- all elements: parts in f64, one for each block

template <class X> DEVICE void sum_parts(const X *x, double *parts, Size count) {
    __shared__ double shared[32];
    constexpr int N = PackOf<X>::value;
    double total = 0.0;
    each<N>(count, aligned(x), [&](Size at, auto n) {
        constexpr int M = decltype(n)::value;
        Wide<X> values[M];
        load(x + at, values);
        Wide<X> sum = values[0];
#pragma unroll
        for (int i = 1; i < M; ++i) sum += values[i];
        total += double(sum);
    });
    total = block_reduce<Add>(total, shared);
    if (threadIdx.x == 0) parts[blockIdx.x] = total;
}

#define SUM_PARTS(S, X) \
    KERNEL(sum_parts_##S, 256, const X *x, double *parts, Size count) { sum_parts(x, parts, count); }
FOR_F32(SUM_PARTS(f32, float))
FOR_F64(SUM_PARTS(f64, double))
FOR_BF16(SUM_PARTS(bf16, bf16))
FOR_F16(SUM_PARTS(f16, f16))

// Sums the parts, times a factor; one block.
template <class Y> DEVICE void sum_of_parts(const double *parts, Size count, double factor, Y *y) {
    __shared__ double shared[32];
    double total = 0.0;
    for (Size i = threadIdx.x; i < count; i += blockDim.x) total += parts[i];
    total = block_reduce<Add>(total, shared);
    if (threadIdx.x == 0) *y = Y(total * factor);
}
KERNEL(sum_of_parts_f32, 256, const double *parts, Size count, double factor, float *y) {
    sum_of_parts(parts, count, factor, y);
}
KERNEL(sum_of_parts_f64, 256, const double *parts, Size count, double factor, double *y) {
    sum_of_parts(parts, count, factor, y);
}

// ---- rows: y[r] = sum of row r, a warp or a block for each

template <bool BLOCK, class X, class Y> DEVICE void sum_rows(const X *x, Y *y, Size rows, int width) {
    __shared__ Wide<X> shared[32];
    constexpr int N = PackOf<X>::value;
    const auto group = Group<BLOCK>::make();
    const bool packed = aligned(x) && width % N == 0;
    for (Size row = Size(blockIdx.x) * group.groups + group.index; row < rows; row += Size(gridDim.x) * group.groups) {
        const X *from = x + row * width;
        Wide<X> sum = 0;
        each_of_row<N>(width, packed, group.member, group.members, [&](int at, auto n) {
            constexpr int M = decltype(n)::value;
            Wide<X> values[M];
            load(from + at, values);
            Wide<X> some = values[0];
#pragma unroll
            for (int i = 1; i < M; ++i) some += values[i];
            sum += some;
        });
        sum = group.template reduce<Add>(sum, shared);
        if (group.member == 0) y[row] = narrow<Y>(sum);
    }
}

// ---- columns: of [outer, length, inner], the sums over chunks of the length: y is [outer, chunks, inner]. Blocks are 32
// columns wide and 8 high; grid: tiles of columns, chunks, outer.

template <class X, class Y>
DEVICE void sum_columns(const X *x, Y *y, Size outer, Size length, Size inner, Size per_chunk) {
    __shared__ Wide<X> shared[8][33];
    const Size column = Size(blockIdx.x) * 32 + threadIdx.x, chunks = gridDim.y;
    const Size first = Size(blockIdx.y) * per_chunk, end = min(first + per_chunk, length);
    for (Size slice = blockIdx.z; slice < outer; slice += gridDim.z) {
        Wide<X> sum = 0;
        if (column < inner)
            for (Size row = first + threadIdx.y; row < end; row += 8) sum += widen(x[(slice * length + row) * inner + column]);
        shared[threadIdx.y][threadIdx.x] = sum;
        __syncthreads();
        if (threadIdx.y == 0 && column < inner) {
            for (int i = 1; i < 8; ++i) sum += shared[i][threadIdx.x];
            y[(slice * chunks + blockIdx.y) * inner + column] = narrow<Y>(sum);
        }
        __syncthreads();
    }
}

#define SUMS(S, X, Y)                                                                                            \
    KERNEL(sum_rows_warp_##S, 256, const X *x, Y *y, Size rows, int width) { sum_rows<false>(x, y, rows, width); } \
    KERNEL(sum_rows_block_##S, 256, const X *x, Y *y, Size rows, int width) { sum_rows<true>(x, y, rows, width); } \
    KERNEL(sum_columns_##S, 256, const X *x, Y *y, Size outer, Size length, Size inner, Size per_chunk) {        \
        sum_columns(x, y, outer, length, inner, per_chunk);                                                      \
    }
FOR_F32(SUMS(f32_f32, float, float))
FOR_F64(SUMS(f64_f64, double, double))
FOR_BF16(SUMS(bf16_f32, bf16, float))
FOR_BF16(SUMS(bf16_bf16, bf16, bf16))
FOR_F16(SUMS(f16_f32, f16, float))
FOR_F16(SUMS(f16_f16, f16, f16))
FOR_BF16(SUMS(f32_bf16, float, bf16))
FOR_F16(SUMS(f32_f16, float, f16))
