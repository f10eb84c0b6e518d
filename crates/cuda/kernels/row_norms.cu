// Layer, root mean square and L2 normalisation of rows. A warp for each row, or the whole block for wide ones.

template <bool BLOCK, class X>
DEVICE void layer_norm(const X *x, const Wide<X> *gamma, const Wide<X> *beta, X *y, Wide<X> *mean, Wide<X> *inv_std, Size rows,
                       int width, double eps) {
    typedef Wide<X> W;
    __shared__ W shared[32];
    constexpr int N = PackOf<X>::value;
    const auto group = Group<BLOCK>::make();
    const bool packed = aligned(x, y, gamma, beta) && width % N == 0;
    const W share = W(1) / W(width);
    for (Size row = Size(blockIdx.x) * group.groups + group.index; row < rows; row += Size(gridDim.x) * group.groups) {
        const X *from = x + row * width;
        W sum = 0;
        each_of_row<N>(width, packed, group.member, group.members, [&](int at, auto n) {
            constexpr int M = decltype(n)::value;
            W values[M];
            load(from + at, values);
#pragma unroll
            for (int i = 0; i < M; ++i) sum += values[i];
        });
        const W middle = group.template reduce<Add>(sum, shared) * share;
        W squares = 0;
        each_of_row<N>(width, packed, group.member, group.members, [&](int at, auto n) {
            constexpr int M = decltype(n)::value;
            W values[M];
            load(from + at, values);
#pragma unroll
            for (int i = 0; i < M; ++i) squares += (values[i] - middle) * (values[i] - middle);
        });
        const W inverse = W(1) / sqrt_of(group.template reduce<Add>(squares, shared) * share + W(eps));
        each_of_row<N>(width, packed, group.member, group.members, [&](int at, auto n) {
            constexpr int M = decltype(n)::value;
            W values[M], factors[M], shifts[M];
            load(from + at, values);
            load(gamma + at, factors);
            load(beta + at, shifts);
#pragma unroll
            for (int i = 0; i < M; ++i) values[i] = (values[i] - middle) * inverse * factors[i] + shifts[i];
            store(y + row * width + at, values);
        });
        if (group.member == 0) {
            mean[row] = middle;
            inv_std[row] = inverse;
        }
    }
}

// Adds the gradient that the input has already, if there is one.
template <int M, class G, class W> DEVICE void add_before(const G *before, Size at, W (&grads)[M]) {
    if (!before) return;
    W others[M];
    load(before + at, others);
#pragma unroll
    for (int i = 0; i < M; ++i) grads[i] += others[i];
}

template <bool BLOCK, class X, class G>
DEVICE void layer_norm_backward(const X *x, const G *dy, const Wide<X> *gamma, const Wide<X> *mean, const Wide<X> *inv_std, const G *before,
                                G *dx, Size rows, int width) {
    typedef Wide<X> W;
    __shared__ W shared[32];
    constexpr int N = PackOf<X, G>::value;
    const auto group = Group<BLOCK>::make();
    const bool packed = aligned(x, dy, dx, gamma) && (!before || aligned(before)) && width % N == 0;
    const W share = W(1) / W(width);
    for (Size row = Size(blockIdx.x) * group.groups + group.index; row < rows; row += Size(gridDim.x) * group.groups) {
        const W middle = mean[row], inverse = inv_std[row];
        W plain = 0, product = 0;
        each_of_row<N>(width, packed, group.member, group.members, [&](int at, auto n) {
            constexpr int M = decltype(n)::value;
            W values[M], grads[M], factors[M];
            load(x + row * width + at, values);
            load(dy + row * width + at, grads);
            load(gamma + at, factors);
#pragma unroll
            for (int i = 0; i < M; ++i) {
                const W grad = grads[i] * factors[i];
                plain += grad;
                product += grad * (values[i] - middle);
            }
        });
        const W mean_grad = group.template reduce<Add>(plain, shared) * share;
        const W slope = group.template reduce<Add>(product, shared) * share * inverse * inverse;
        each_of_row<N>(width, packed, group.member, group.members, [&](int at, auto n) {
            constexpr int M = decltype(n)::value;
            W values[M], grads[M], factors[M];
            load(x + row * width + at, values);
            load(dy + row * width + at, grads);
            load(gamma + at, factors);
#pragma unroll
            for (int i = 0; i < M; ++i)
                grads[i] = inverse * (grads[i] * factors[i] - mean_grad - (values[i] - middle) * slope);
            add_before<M>(before, row * width + at, grads);
            store(dx + row * width + at, grads);
        });
    }
}

// The gradients of weight and bias over chunks of rows: parts [2, chunks, width]. Blocks are 32 columns wide and 8 high; grid:
// tiles of columns, chunks.
template <class X, class G>
DEVICE void layer_norm_affine(const X *x, const G *dy, const Wide<X> *mean, const Wide<X> *inv_std, Wide<X> *parts, Size rows,
                              int width, Size per_chunk) {
    typedef Wide<X> W;
    __shared__ W shared[2][8][33];
    const Size column = Size(blockIdx.x) * 32 + threadIdx.x, chunks = gridDim.y;
    const Size first = Size(blockIdx.y) * per_chunk, end = min(first + per_chunk, rows);
    W weight = 0, bias = 0;
    if (column < width)
        for (Size row = first + threadIdx.y; row < end; row += 8) {
            const W grad = widen(dy[row * width + column]);
            weight += grad * (widen(x[row * width + column]) - mean[row]) * inv_std[row];
            bias += grad;
        }
    shared[0][threadIdx.y][threadIdx.x] = weight;
    shared[1][threadIdx.y][threadIdx.x] = bias;
    __syncthreads();
    if (threadIdx.y < 2 && column < width) {
        W sum = shared[threadIdx.y][0][threadIdx.x];
        for (int i = 1; i < 8; ++i) sum += shared[threadIdx.y][i][threadIdx.x];
        parts[(threadIdx.y * chunks + blockIdx.y) * width + column] = sum;
    }
}

#define LAYER_NORM(S, X, W)                                                                                             \
    KERNEL(layer_norm_warp_##S, 256, const X *x, const W *gamma, const W *beta, X *y, W *mean, W *inv_std, Size rows, int width, \
           double eps) {                                                                                                \
        layer_norm<false>(x, gamma, beta, y, mean, inv_std, rows, width, eps);                                          \
    }                                                                                                                   \
    KERNEL(layer_norm_block_##S, 256, const X *x, const W *gamma, const W *beta, X *y, W *mean, W *inv_std, Size rows, int width, \
           double eps) {                                                                                                \
        layer_norm<true>(x, gamma, beta, y, mean, inv_std, rows, width, eps);                                           \
    }
FOR_F32(LAYER_NORM(f32, float, float))
FOR_F64(LAYER_NORM(f64, double, double))
FOR_BF16(LAYER_NORM(bf16, bf16, float))
FOR_F16(LAYER_NORM(f16, f16, float))

#define LAYER_NORM_BACKWARD(S, X, G, W)                                                                                    \
    KERNEL(layer_norm_backward_warp_##S, 256, const X *x, const G *dy, const W *gamma, const W *mean, const W *inv_std,    \
           const G *before, G *dx, Size rows, int width) {                                                                 \
        layer_norm_backward<false>(x, dy, gamma, mean, inv_std, before, dx, rows, width);                                          \
    }                                                                                                                      \
    KERNEL(layer_norm_backward_block_##S, 256, const X *x, const G *dy, const W *gamma, const W *mean, const W *inv_std,    \
           const G *before, G *dx, Size rows, int width) {                                                                 \
        layer_norm_backward<true>(x, dy, gamma, mean, inv_std, before, dx, rows, width);                                           \
    }                                                                                                                      \
    KERNEL(layer_norm_affine_##S, 256, const X *x, const G *dy, const W *mean, const W *inv_std, W *parts, Size rows, int width, \
           Size per_chunk) {                                                                                               \
        layer_norm_affine(x, dy, mean, inv_std, parts, rows, width, per_chunk);                                            \
    }
FOR_F32(LAYER_NORM_BACKWARD(f32_f32, float, float, float))
FOR_F64(LAYER_NORM_BACKWARD(f64_f64, double, double, double))
FOR_BF16(LAYER_NORM_BACKWARD(bf16_f32, bf16, float, float))
FOR_BF16(LAYER_NORM_BACKWARD(bf16_bf16, bf16, bf16, float))
FOR_F16(LAYER_NORM_BACKWARD(f16_f32, f16, float, float))
FOR_F16(LAYER_NORM_BACKWARD(f16_f16, f16, f16, float))

// ---- root mean square normalisation

template <bool BLOCK, class X>
DEVICE void rms_norm(const X *x, const Wide<X> *gamma, X *y, Wide<X> *inv_rms, Size rows, int width, double eps) {
    typedef Wide<X> W;
    __shared__ W shared[32];
    constexpr int N = PackOf<X>::value;
    const auto group = Group<BLOCK>::make();
    const bool packed = aligned(x, y, gamma) && width % N == 0;
    for (Size row = Size(blockIdx.x) * group.groups + group.index; row < rows; row += Size(gridDim.x) * group.groups) {
        const X *from = x + row * width;
        W squares = 0;
        each_of_row<N>(width, packed, group.member, group.members, [&](int at, auto n) {
            constexpr int M = decltype(n)::value;
            W values[M];
            load(from + at, values);
#pragma unroll
            for (int i = 0; i < M; ++i) squares += values[i] * values[i];
        });
        const W inverse = W(1) / sqrt_of(group.template reduce<Add>(squares, shared) / W(width) + W(eps));
        each_of_row<N>(width, packed, group.member, group.members, [&](int at, auto n) {
            constexpr int M = decltype(n)::value;
            W values[M], factors[M];
            load(from + at, values);
            load(gamma + at, factors);
#pragma unroll
            for (int i = 0; i < M; ++i) values[i] *= inverse * factors[i];
            store(y + row * width + at, values);
        });
        if (group.member == 0) inv_rms[row] = inverse;
    }
}

template <bool BLOCK, class X, class G>
DEVICE void rms_norm_backward(const X *x, const G *dy, const Wide<X> *gamma, const Wide<X> *inv_rms, const G *before, G *dx,
                              Size rows, int width) {
    typedef Wide<X> W;
    __shared__ W shared[32];
    constexpr int N = PackOf<X, G>::value;
    const auto group = Group<BLOCK>::make();
    const bool packed = aligned(x, dy, dx, gamma) && (!before || aligned(before)) && width % N == 0;
    for (Size row = Size(blockIdx.x) * group.groups + group.index; row < rows; row += Size(gridDim.x) * group.groups) {
        const W inverse = inv_rms[row];
        W product = 0;
        each_of_row<N>(width, packed, group.member, group.members, [&](int at, auto n) {
            constexpr int M = decltype(n)::value;
            W values[M], grads[M], factors[M];
            load(x + row * width + at, values);
            load(dy + row * width + at, grads);
            load(gamma + at, factors);
#pragma unroll
            for (int i = 0; i < M; ++i) product += grads[i] * factors[i] * values[i];
        });
        const W slope = group.template reduce<Add>(product, shared) / W(width) * inverse * inverse;
        each_of_row<N>(width, packed, group.member, group.members, [&](int at, auto n) {
            constexpr int M = decltype(n)::value;
            W values[M], grads[M], factors[M];
            load(x + row * width + at, values);
            load(dy + row * width + at, grads);
            load(gamma + at, factors);
#pragma unroll
            for (int i = 0; i < M; ++i) grads[i] = inverse * (grads[i] * factors[i] - values[i] * slope);
            add_before<M>(before, row * width + at, grads);
            store(dx + row * width + at, grads);
        });
    }
}

// The gradient of the weight over chunks of rows: parts [chunks, width]. Blocks are 32 columns wide and 8 high; grid: tiles of
// columns, chunks.
template <class X, class G>
DEVICE void rms_norm_weight(const X *x, const G *dy, const Wide<X> *inv_rms, Wide<X> *parts, Size rows, int width, Size per_chunk) {
    typedef Wide<X> W;
    __shared__ W shared[8][33];
    const Size column = Size(blockIdx.x) * 32 + threadIdx.x;
    const Size first = Size(blockIdx.y) * per_chunk, end = min(first + per_chunk, rows);
    W weight = 0;
    if (column < width)
        for (Size row = first + threadIdx.y; row < end; row += 8)
            weight += widen(dy[row * width + column]) * widen(x[row * width + column]) * inv_rms[row];
    shared[threadIdx.y][threadIdx.x] = weight;
    __syncthreads();
    if (threadIdx.y == 0 && column < width) {
        for (int i = 1; i < 8; ++i) weight += shared[i][threadIdx.x];
        parts[Size(blockIdx.y) * width + column] = weight;
    }
}

#define RMS_NORM(S, X, W)                                                                                                         \
    KERNEL(rms_norm_warp_##S, 256, const X *x, const W *gamma, X *y, W *inv_rms, Size rows, int width, double eps) {               \
        rms_norm<false>(x, gamma, y, inv_rms, rows, width, eps);                                                                   \
    }                                                                                                                              \
    KERNEL(rms_norm_block_##S, 256, const X *x, const W *gamma, X *y, W *inv_rms, Size rows, int width, double eps) {              \
        rms_norm<true>(x, gamma, y, inv_rms, rows, width, eps);                                                                    \
    }
FOR_F32(RMS_NORM(f32, float, float))
FOR_F64(RMS_NORM(f64, double, double))
FOR_BF16(RMS_NORM(bf16, bf16, float))
FOR_F16(RMS_NORM(f16, f16, float))

#define RMS_NORM_BACKWARD(S, X, G, W)                                                                                              \
    KERNEL(rms_norm_backward_warp_##S, 256, const X *x, const G *dy, const W *gamma, const W *inv_rms, const G *before, G *dx, \
           Size rows, int width) {                                                                                                 \
        rms_norm_backward<false>(x, dy, gamma, inv_rms, before, dx, rows, width);                                                          \
    }                                                                                                                              \
    KERNEL(rms_norm_backward_block_##S, 256, const X *x, const G *dy, const W *gamma, const W *inv_rms, const G *before, G *dx, \
           Size rows, int width) {                                                                                                 \
        rms_norm_backward<true>(x, dy, gamma, inv_rms, before, dx, rows, width);                                                           \
    }                                                                                                                              \
    KERNEL(rms_norm_weight_##S, 256, const X *x, const G *dy, const W *inv_rms, W *parts, Size rows, int width, Size per_chunk) {  \
        rms_norm_weight(x, dy, inv_rms, parts, rows, width, per_chunk);                                                            \
    }
FOR_F32(RMS_NORM_BACKWARD(f32_f32, float, float, float))
FOR_F64(RMS_NORM_BACKWARD(f64_f64, double, double, double))
FOR_BF16(RMS_NORM_BACKWARD(bf16_f32, bf16, float, float))
FOR_BF16(RMS_NORM_BACKWARD(bf16_bf16, bf16, bf16, float))
FOR_F16(RMS_NORM_BACKWARD(f16_f32, f16, float, float))
FOR_F16(RMS_NORM_BACKWARD(f16_f16, f16, f16, float))

// ---- L2 normalisation; norms in f64, as on the CPU

template <class X> DEVICE void l2_normalise(const X *x, X *y, double *inverses, Size rows, int width) {
    const auto group = Group<false>::make();
    double *none = nullptr;
    for (Size row = Size(blockIdx.x) * group.groups + group.index; row < rows; row += Size(gridDim.x) * group.groups) {
        double squares = 0;
        for (int i = group.member; i < width; i += 32) {
            const double value = double(widen(x[row * width + i]));
            squares += value * value;
        }
        const double length = sqrt(group.template reduce<Add>(squares, none));
        const double factor = length > 0 ? 1.0 / length : 0.0;
        for (int i = group.member; i < width; i += 32)
            y[row * width + i] = narrow<X>(Wide<X>(double(widen(x[row * width + i])) * factor));
        if (group.member == 0) inverses[row] = factor;
    }
}

// dx = (dy − y·<y, dy>)/|x|: the component along the row has no effect on its direction.
template <class X, class G>
DEVICE void l2_normalise_backward(const X *y, const G *dy, const double *inverses, G *dx, Size rows, int width) {
    const auto group = Group<false>::make();
    double *none = nullptr;
    for (Size row = Size(blockIdx.x) * group.groups + group.index; row < rows; row += Size(gridDim.x) * group.groups) {
        double along = 0;
        for (int i = group.member; i < width; i += 32)
            along += double(widen(y[row * width + i])) * double(widen(dy[row * width + i]));
        along = group.template reduce<Add>(along, none);
        const double factor = inverses[row];
        for (int i = group.member; i < width; i += 32) {
            const double grad = (double(widen(dy[row * width + i])) - double(widen(y[row * width + i])) * along) * factor;
            dx[row * width + i] = narrow<G>(Wide<G>(grad));
        }
    }
}

#define L2_NORMALISE(S, X) \
    KERNEL(l2_normalise_##S, 256, const X *x, X *y, double *inverses, Size rows, int width) { l2_normalise(x, y, inverses, rows, width); }
FOR_F32(L2_NORMALISE(f32, float))
FOR_F64(L2_NORMALISE(f64, double))
FOR_BF16(L2_NORMALISE(bf16, bf16))
FOR_F16(L2_NORMALISE(f16, f16))
#define L2_NORMALISE_BACKWARD(S, X, G)                                                                                   \
    KERNEL(l2_normalise_backward_##S, 256, const X *y, const G *dy, const double *inverses, G *dx, Size rows, int width) { \
        l2_normalise_backward(y, dy, inverses, dx, rows, width);                                                         \
    }
FOR_F32(L2_NORMALISE_BACKWARD(f32_f32, float, float))
FOR_F64(L2_NORMALISE_BACKWARD(f64_f64, double, double))
FOR_BF16(L2_NORMALISE_BACKWARD(bf16_f32, bf16, float))
FOR_BF16(L2_NORMALISE_BACKWARD(bf16_bf16, bf16, bf16))
FOR_F16(L2_NORMALISE_BACKWARD(f16_f32, f16, float))
FOR_F16(L2_NORMALISE_BACKWARD(f16_f16, f16, f16))
