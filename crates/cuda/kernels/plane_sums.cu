// Statistics of maps [N, C, P] for batch norm and group norm: moments, and sums of gradients.
//
// They are computed for parts: each plane if planes are large, or each column of [N, C·P] over a chunk of the images if they are
// small. Channels-last maps are columns too (P = 1). Parts are f64: means and squared deviations; counts are known.

// ---- moments of planes: parts[plane] = mean, squared deviations; a warp or a block for each plane

template <bool BLOCK, class X> DEVICE void plane_moments(const X *x, double *parts, Size planes, int size) {
    typedef Wide<X> W;
    __shared__ double shared[32];
    constexpr int N = PackOf<X>::value;
    const auto group = Group<BLOCK>::make();
    const bool packed = aligned(x) && size % N == 0;
    for (Size plane = Size(blockIdx.x) * group.groups + group.index; plane < planes; plane += Size(gridDim.x) * group.groups) {
        const X *from = x + plane * size;
        W sum = 0;
        each_of_row<N>(size, packed, group.member, group.members, [&](int at, auto n) {
            constexpr int M = decltype(n)::value;
            W values[M];
            load(from + at, values);
            W some = values[0];
#pragma unroll
            for (int i = 1; i < M; ++i) some += values[i];
            sum += some;
        });
        const double mean = group.template reduce<Add>(double(sum), shared) / size;
        const W rounded = W(mean);
        W squares = 0;
        each_of_row<N>(size, packed, group.member, group.members, [&](int at, auto n) {
            constexpr int M = decltype(n)::value;
            W values[M];
            load(from + at, values);
            W some = (values[0] - rounded) * (values[0] - rounded);
#pragma unroll
            for (int i = 1; i < M; ++i) some += (values[i] - rounded) * (values[i] - rounded);
            squares += some;
        });
        const double off = mean - double(rounded);
        const double moment = group.template reduce<Add>(double(squares), shared) - size * off * off;
        if (group.member == 0) {
            parts[2 * plane] = mean;
            parts[2 * plane + 1] = moment > 0 ? moment : 0;
        }
    }
}

// ---- moments of columns of matrices [rows, columns] over chunks of rows: parts[matrix, chunk, column]. Blocks are 32 columns
// wide and 8 high; grid: tiles of columns, chunks, matrices.

DEVICE double column_total(double v, double (&shared)[8][33]) {
    shared[threadIdx.y][threadIdx.x] = v;
    __syncthreads();
    v = shared[0][threadIdx.x];
    for (int i = 1; i < 8; ++i) v += shared[i][threadIdx.x];
    __syncthreads();
    return v;
}

template <class X> DEVICE void column_moments(const X *x, double *parts, Size rows, Size columns, Size per_chunk) {
    typedef Wide<X> W;
    __shared__ double shared[8][33];
    const Size column = Size(blockIdx.x) * 32 + threadIdx.x;
    const Size first = Size(blockIdx.y) * per_chunk, end = min(first + per_chunk, rows);
    const bool inside = column < columns;
    x += blockIdx.z * rows * columns;
    W sum = 0;
    if (inside)
        for (Size row = first + threadIdx.y; row < end; row += 8) sum += widen(x[row * columns + column]);
    const double mean = column_total(double(sum), shared) / double(end - first);
    const W rounded = W(mean);
    W squares = 0;
    if (inside)
        for (Size row = first + threadIdx.y; row < end; row += 8) {
            const W off = widen(x[row * columns + column]) - rounded;
            squares += off * off;
        }
    const double off = mean - double(rounded);
    const double moment = column_total(double(squares), shared) - double(end - first) * off * off;
    if (inside && threadIdx.y == 0) {
        double *to = parts + 2 * ((Size(blockIdx.z) * gridDim.y + blockIdx.y) * columns + column);
        to[0] = mean;
        to[1] = moment > 0 ? moment : 0;
    }
}

// ---- moments of columns whose rows are whole packs: a thread has a pack of columns, and a block as many threads across as
// packs, up to 32. One pass: sums are of differences from the chunk's first row, which is a typical element.

// Returns each column's sum over the block's rows of threads, in every thread of the column.
template <int N> DEVICE void totals_of_columns(double (&values)[N], double *shared) {
    const int across = blockDim.x, columns = N * across, thread = threadIdx.y * across + threadIdx.x;
#pragma unroll
    for (int i = 0; i < N; ++i) shared[threadIdx.y * columns + i * across + threadIdx.x] = values[i];
    __syncthreads();
    double sum = 0;
    if (thread < columns)
        for (int row = 0; row < int(blockDim.y); ++row) sum += shared[row * columns + thread];
    __syncthreads();
    if (thread < columns) shared[thread] = sum;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < N; ++i) values[i] = shared[i * across + threadIdx.x];
    __syncthreads();
}

template <class X> DEVICE void column_moments_packs(const X *x, double *parts, Size rows, Size columns, Size per_chunk) {
    constexpr int N = PackOf<X>::value;
    __shared__ double shared[256 * N];
    const Size column = (Size(blockIdx.x) * blockDim.x + threadIdx.x) * N;
    const Size first = Size(blockIdx.y) * per_chunk, end = min(first + per_chunk, rows);
    const bool inside = column < columns;
    x += blockIdx.z * rows * columns + column;
    Wide<X> shift[N] = {}, sums[N] = {}, squares[N] = {}, values[N];
    if (inside) {
        load(x + first * columns, shift);
#pragma unroll 1
        for (Size row = first + threadIdx.y; row < end; row += blockDim.y) {
            load(x + row * columns, values);
#pragma unroll
            for (int i = 0; i < N; ++i) {
                const Wide<X> off = values[i] - shift[i];
                sums[i] += off;
                squares[i] += off * off;
            }
        }
    }
    double plain[N], square[N];
#pragma unroll
    for (int i = 0; i < N; ++i) {
        plain[i] = double(sums[i]);
        square[i] = double(squares[i]);
    }
    totals_of_columns(plain, shared);
    totals_of_columns(square, shared);
    if (!inside || threadIdx.y != 0) return;
    double *to = parts + 2 * ((Size(blockIdx.z) * gridDim.y + blockIdx.y) * columns + column);
    const double count = double(end - first);
#pragma unroll
    for (int i = 0; i < N; ++i) {
        const double off = plain[i] / count, moment = square[i] - plain[i] * off;
        to[2 * i] = double(shift[i]) + off;
        to[2 * i + 1] = moment > 0 ? moment : 0;
    }
}

#define MOMENTS(S, X)                                                                                                       \
    KERNEL(plane_moments_warp_##S, 256, const X *x, double *parts, Size planes, int size) { plane_moments<false>(x, parts, planes, size); } \
    KERNEL(plane_moments_block_##S, 256, const X *x, double *parts, Size planes, int size) { plane_moments<true>(x, parts, planes, size); } \
    KERNEL(column_moments_##S, 256, const X *x, double *parts, Size rows, Size columns, Size per_chunk) {                   \
        column_moments(x, parts, rows, columns, per_chunk);                                                                 \
    }                                                                                                                       \
    KERNEL(column_moments_packs_##S, 256, const X *x, double *parts, Size rows, Size columns, Size per_chunk) {             \
        column_moments_packs(x, parts, rows, columns, per_chunk);                                                           \
    }
FOR_F32(MOMENTS(f32, float))
FOR_F64(MOMENTS(f64, double))
FOR_BF16(MOMENTS(bf16, bf16))
FOR_F16(MOMENTS(f16, f16))

// ---- sums of gradients: parts = sum of dy, sum of dy·(x − mean), with dy zero where the activation's derivative is zero. That
// follows from the output, or else from the argument (x − mean)·factor + shift.

template <bool BLOCK, int ACTIVATION, class X, class G>
DEVICE void plane_gradients(const X *x, const X *output, const G *dy, const Coefficients<Wide<X>> &by, double *parts, Size planes, int size) {
    typedef Wide<X> W;
    __shared__ double shared[32];
    constexpr int N = PackOf<X, G>::value;
    const auto group = Group<BLOCK>::make();
    const bool packed = aligned(x, dy, output) && size % N == 0;
    for (Size plane = Size(blockIdx.x) * group.groups + group.index; plane < planes; plane += Size(gridDim.x) * group.groups) {
        const Size set = plane % by.sets, start = plane * size;
        const W mean = by.mean(set), factor = by.factor(set), shift = by.shift(set);
        W plain = 0, product = 0;
        each_of_row<N>(size, packed, group.member, group.members, [&](int at, auto n) {
            constexpr int M = decltype(n)::value;
            W values[M], grads[M], seen[M];
            load(x + start + at, values);
            load(dy + start + at, grads);
            if (ACTIVATION != NO_ACTIVATION && output) load(output + start + at, seen);
#pragma unroll
            for (int i = 0; i < M; ++i) {
                const W argument = output ? seen[i] : (values[i] - mean) * factor + shift;
                const W grad = masked<ACTIVATION>(argument, grads[i]);
                plain += grad;
                product += grad * (values[i] - mean);
            }
        });
        const double sum = group.template reduce<Add>(double(plain), shared);
        const double along = group.template reduce<Add>(double(product), shared);
        if (group.member == 0) {
            parts[2 * plane] = sum;
            parts[2 * plane + 1] = along;
        }
    }
}

template <int ACTIVATION, class X, class G>
DEVICE void column_gradients(const X *x, const X *output, const G *dy, const Coefficients<Wide<X>> &by, double *parts, Size rows,
                             Size columns, int size, Size per_chunk) {
    typedef Wide<X> W;
    __shared__ double shared[8][33];
    const Size column = Size(blockIdx.x) * 32 + threadIdx.x;
    const Size first = Size(blockIdx.y) * per_chunk, end = min(first + per_chunk, rows);
    W plain = 0, product = 0;
    if (column < columns) {
        const Size set = (blockIdx.z * columns + column) / size % by.sets;
        const W mean = by.mean(set), factor = by.factor(set), shift = by.shift(set);
        for (Size row = first + threadIdx.y; row < end; row += 8) {
            const Size at = (blockIdx.z * rows + row) * columns + column;
            const W value = widen(x[at]);
            const W argument = output ? widen(output[at]) : (value - mean) * factor + shift;
            const W grad = masked<ACTIVATION>(argument, widen(dy[at]));
            plain += grad;
            product += grad * (value - mean);
        }
    }
    const double sum = column_total(double(plain), shared), along = column_total(double(product), shared);
    if (column < columns && threadIdx.y == 0) {
        double *to = parts + 2 * ((Size(blockIdx.z) * gridDim.y + blockIdx.y) * columns + column);
        to[0] = sum;
        to[1] = along;
    }
}

template <int ACTIVATION, class X, class G>
DEVICE void column_gradients_packs(const X *x, const X *output, const G *dy, const Coefficients<Wide<X>> &by, double *parts, Size rows,
                                   Size columns, int size, Size per_chunk, double *shared) {
    typedef Wide<X> W;
    constexpr int N = PackOf<X, G>::value;
    const Size column = (Size(blockIdx.x) * blockDim.x + threadIdx.x) * N;
    const Size first = Size(blockIdx.y) * per_chunk, end = min(first + per_chunk, rows);
    const bool inside = column < columns;
    const Size start = blockIdx.z * rows * columns + column;
    W plain[N] = {}, product[N] = {};
    if (inside) {
        W means[N], factors[N], shifts[N], values[N], grads[N], seen[N];
#pragma unroll
        for (int i = 0; i < N; ++i) {
            const Size set = (blockIdx.z * columns + column + i) / size % by.sets;
            means[i] = by.mean(set);
            factors[i] = by.factor(set);
            shifts[i] = by.shift(set);
        }
#pragma unroll 1
        for (Size row = first + threadIdx.y; row < end; row += blockDim.y) {
            load(x + start + row * columns, values);
            load(dy + start + row * columns, grads);
            if (ACTIVATION != NO_ACTIVATION && output) load(output + start + row * columns, seen);
#pragma unroll
            for (int i = 0; i < N; ++i) {
                values[i] -= means[i];
                const W argument = ACTIVATION != NO_ACTIVATION && output ? seen[i] : values[i] * factors[i] + shifts[i];
                const W grad = masked<ACTIVATION>(argument, grads[i]);
                plain[i] += grad;
                product[i] += grad * values[i];
            }
        }
    }
    double sums[N], along[N];
#pragma unroll
    for (int i = 0; i < N; ++i) {
        sums[i] = double(plain[i]);
        along[i] = double(product[i]);
    }
    totals_of_columns(sums, shared);
    totals_of_columns(along, shared);
    if (!inside || threadIdx.y != 0) return;
    double *to = parts + 2 * ((Size(blockIdx.z) * gridDim.y + blockIdx.y) * columns + column);
#pragma unroll
    for (int i = 0; i < N; ++i) {
        to[2 * i] = sums[i];
        to[2 * i + 1] = along[i];
    }
}

#define GRADIENTS(S, X, G, W)                                                                                                  \
    KERNEL(plane_gradients_warp_##S, 256, int activation, const X *x, const X *output, const G *dy, const W *rows, Size sets,  \
           double *parts, Size planes, int size) {                                                                             \
        const Coefficients<W> by = {rows, sets};                                                                               \
        BY_ACTIVATION(activation, PLANE_GRADIENTS_WARP)                                                                        \
    }                                                                                                                          \
    KERNEL(plane_gradients_block_##S, 256, int activation, const X *x, const X *output, const G *dy, const W *rows, Size sets, \
           double *parts, Size planes, int size) {                                                                             \
        const Coefficients<W> by = {rows, sets};                                                                               \
        BY_ACTIVATION(activation, PLANE_GRADIENTS_BLOCK)                                                                       \
    }                                                                                                                          \
    KERNEL(column_gradients_##S, 256, int activation, const X *x, const X *output, const G *dy, const W *rows, Size sets,      \
           double *parts, Size images, Size columns, int size, Size per_chunk) {                                               \
        const Coefficients<W> by = {rows, sets};                                                                               \
        BY_ACTIVATION(activation, COLUMN_GRADIENTS)                                                                            \
    }                                                                                                                          \
    KERNEL(column_gradients_packs_##S, 256, int activation, const X *x, const X *output, const G *dy, const W *rows, Size sets, \
           double *parts, Size images, Size columns, int size, Size per_chunk) {                                               \
        __shared__ double shared[256 * PackOf<X, G>::value];                                                                   \
        const Coefficients<W> by = {rows, sets};                                                                               \
        BY_ACTIVATION(activation, COLUMN_GRADIENTS_PACKS)                                                                      \
    }
#define PLANE_GRADIENTS_WARP(A) plane_gradients<false, A>(x, output, dy, by, parts, planes, size)
#define PLANE_GRADIENTS_BLOCK(A) plane_gradients<true, A>(x, output, dy, by, parts, planes, size)
#define COLUMN_GRADIENTS_PACKS(A) column_gradients_packs<A>(x, output, dy, by, parts, images, columns, size, per_chunk, shared)
#define COLUMN_GRADIENTS(A) column_gradients<A>(x, output, dy, by, parts, images, columns, size, per_chunk)
FOR_F32(GRADIENTS(f32_f32, float, float, float))
FOR_F64(GRADIENTS(f64_f64, double, double, double))
FOR_BF16(GRADIENTS(bf16_f32, bf16, float, float))
FOR_BF16(GRADIENTS(bf16_bf16, bf16, bf16, float))
FOR_F16(GRADIENTS(f16_f32, f16, float, float))
FOR_F16(GRADIENTS(f16_f16, f16, f16, float))
