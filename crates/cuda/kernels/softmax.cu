// Softmax of rows, and its gradient. A warp for each row, or the whole block for wide ones.

// The maximum of a row, and the sum of e^(x − maximum), in one pass.
template <int N, class X, class G>
DEVICE void row_statistics(const X *x, int width, bool packed, const G &group, Wide<X> *shared, Wide<X> &largest, Wide<X> &sum) {
    typedef Wide<X> W;
    // Finite, so that rows with −∞ have no difference of infinities.
    const W lowest = W(-3.4028234663852886e38);
    W own = lowest, total = 0;
    each_of_row<N>(width, packed, group.member, group.members, [&](int at, auto n) {
        constexpr int M = decltype(n)::value;
        W values[M];
        load(x + at, values);
        W most = own;
#pragma unroll
        for (int i = 0; i < M; ++i) most = larger(most, values[i]);
        total *= exp_of(own - most);
        own = most;
#pragma unroll
        for (int i = 0; i < M; ++i) total += exp_of(values[i] - own);
    });
    largest = group.template reduce<Larger>(own, shared);
    sum = group.template reduce<Add>(total * exp_of(own - largest), shared);
}

template <bool BLOCK, class X, class Y> DEVICE void softmax(const X *x, Y *y, Size rows, int width) {
    typedef Wide<X> W;
    __shared__ W shared[32];
    constexpr int N = PackOf<X, Y>::value;
    const auto group = Group<BLOCK>::make();
    const bool packed = aligned(x, y) && width % N == 0;
    for (Size row = Size(blockIdx.x) * group.groups + group.index; row < rows; row += Size(gridDim.x) * group.groups) {
        const X *from = x + row * width;
        W largest, sum;
        row_statistics<N>(from, width, packed, group, shared, largest, sum);
        // A row of −∞ alone becomes 0.
        const W factor = sum == 0 ? W(0) : W(1) / sum;
        each_of_row<N>(width, packed, group.member, group.members, [&](int at, auto n) {
            constexpr int M = decltype(n)::value;
            W values[M];
            load(from + at, values);
#pragma unroll
            for (int i = 0; i < M; ++i) values[i] = exp_of(values[i] - largest) * factor;
            store(y + row * width + at, values);
        });
    }
}

// dx = y·(dy − <y, dy>) over each row.
template <bool BLOCK, class Y, class G> DEVICE void softmax_backward(const Y *y, const G *dy, G *dx, Size rows, int width) {
    typedef Wide<Y> W;
    __shared__ W shared[32];
    constexpr int N = PackOf<Y, G>::value;
    const auto group = Group<BLOCK>::make();
    const bool packed = aligned(y, dy, dx) && width % N == 0;
    for (Size row = Size(blockIdx.x) * group.groups + group.index; row < rows; row += Size(gridDim.x) * group.groups) {
        W along = 0;
        each_of_row<N>(width, packed, group.member, group.members, [&](int at, auto n) {
            constexpr int M = decltype(n)::value;
            W values[M], grads[M];
            load(y + row * width + at, values);
            load(dy + row * width + at, grads);
#pragma unroll
            for (int i = 0; i < M; ++i) along += values[i] * grads[i];
        });
        along = group.template reduce<Add>(along, shared);
        each_of_row<N>(width, packed, group.member, group.members, [&](int at, auto n) {
            constexpr int M = decltype(n)::value;
            W values[M], grads[M];
            load(y + row * width + at, values);
            load(dy + row * width + at, grads);
#pragma unroll
            for (int i = 0; i < M; ++i) grads[i] = values[i] * (grads[i] - along);
            store(dx + row * width + at, grads);
        });
    }
}

#define SOFTMAX(S, X, Y)                                                                                        \
    KERNEL(softmax_warp_##S, 256, const X *x, Y *y, Size rows, int width) { softmax<false>(x, y, rows, width); } \
    KERNEL(softmax_block_##S, 256, const X *x, Y *y, Size rows, int width) { softmax<true>(x, y, rows, width); }
FOR_F32(SOFTMAX(f32_f32, float, float))
FOR_F64(SOFTMAX(f64_f64, double, double))
FOR_BF16(SOFTMAX(f32_bf16, float, bf16))
FOR_F16(SOFTMAX(f32_f16, float, f16))
FOR_BF16(SOFTMAX(bf16_bf16, bf16, bf16))
FOR_BF16(SOFTMAX(bf16_f32, bf16, float))
FOR_F16(SOFTMAX(f16_f16, f16, f16))
FOR_F16(SOFTMAX(f16_f32, f16, float))

#define SOFTMAX_BACKWARD(S, Y, G)                                                                           \
    KERNEL(softmax_backward_warp_##S, 256, const Y *y, const G *dy, G *dx, Size rows, int width) {          \
        softmax_backward<false>(y, dy, dx, rows, width);                                                    \
    }                                                                                                       \
    KERNEL(softmax_backward_block_##S, 256, const Y *y, const G *dy, G *dx, Size rows, int width) {         \
        softmax_backward<true>(y, dy, dx, rows, width);                                                     \
    }
FOR_F32(SOFTMAX_BACKWARD(f32_f32, float, float))
FOR_F64(SOFTMAX_BACKWARD(f64_f64, double, double))
FOR_BF16(SOFTMAX_BACKWARD(bf16_f32, bf16, float))
FOR_BF16(SOFTMAX_BACKWARD(bf16_bf16, bf16, bf16))
FOR_F16(SOFTMAX_BACKWARD(f16_f32, f16, float))
FOR_F16(SOFTMAX_BACKWARD(f16_f16, f16, f16))
