// Losses as parts of a sum in f64, which `sum_of_parts` (sums.cu) adds; and derivatives times the scalar's gradient, which is an
// array.

// ---- cross-entropy of rows with labels, in place of which their gradient is written; a warp for each row, or the whole block

struct CrossEntropyLoss {
    double smoothing, z_loss, soft_cap, factor;
};

// A logit below its bound, if it has one.
template <class W> DEVICE W capped(W x, W cap) { return cap > W(0) ? cap * tanh_of(x / cap) : x; }

// Of the logits of a row: the largest, the sum of the exponentials relative to it, and the sum.
template <class W> struct RowSums {
    W largest, exponentials, plain;
};

template <bool BLOCK, class W>
DEVICE RowSums<W> row_sums(const Group<BLOCK> &group, const W *x, int count, W cap, W *shared) {
    W largest = W(-3.4028234663852886e38), sum = 0, plain = 0;
#pragma unroll 1
    for (int i = group.member; i < count; i += group.members) {
        const W value = capped(x[i], cap);
        plain += value;
        const W most = larger(largest, value);
        sum = sum * exp_of(largest - most) + exp_of(value - most);
        largest = most;
    }
    const W own = largest;
    largest = group.template reduce<Larger>(own, shared);
    sum = group.template reduce<Add>(sum * exp_of(own - largest), shared);
    plain = group.template reduce<Add>(plain, shared);
    return {largest, sum, plain};
}

template <bool BLOCK, class W>
DEVICE void cross_entropy(W *logits, const u32 *labels, const float *weights, CrossEntropyLoss of, double *losses, Size rows,
                          int width, int classes) {
    __shared__ W shared[32];
    const W cap = W(of.soft_cap);
    const auto group = Group<BLOCK>::make();
    for (Size row = Size(blockIdx.x) * group.groups + group.index; row < rows; row += Size(gridDim.x) * group.groups) {
        W *x = logits + row * width;
        const double scale = of.factor * (weights ? double(weights[row]) : 1.0);
        const u32 label = labels[row];
        const auto sums = row_sums<BLOCK>(group, x, classes, cap, shared);
        const double log_sum = double(log_of(sums.exponentials)) + double(sums.largest);
        if (group.member == 0) {
            // The host does not wait for errors here: an invalid label makes the loss NaN.
            const double chosen = label < u32(classes) ? double(capped(x[label], cap)) : double(NAN_F32);
            const double mean = double(sums.plain) / classes;
            const double loss = log_sum - (1.0 - of.smoothing) * chosen - of.smoothing * mean + of.z_loss * log_sum * log_sum;
            losses[row] = scale == 0.0 ? 0.0 : scale * loss;
        }
        // The logit of the label is read before it is overwritten.
        group.sync();
        const W softmax = W(scale * (1.0 + 2.0 * of.z_loss * log_sum)) / sums.exponentials;
        const W uniform = W(scale * of.smoothing / classes), target = W(scale * (1.0 - of.smoothing));
#pragma unroll 1
        for (int i = group.member; i < width; i += group.members) {
            const W value = capped(x[i], cap);
            W slope = exp_of(value - sums.largest) * softmax - uniform - (u32(i) == label ? target : W(0));
            if (cap > W(0)) slope *= W(1) - (value / cap) * (value / cap);
            x[i] = i < classes && scale != 0.0 ? slope : W(0);
        }
    }
}

#define CROSS_ENTROPY(S, W)                                                                                                    \
    KERNEL(cross_entropy_warp_##S, 256, W *logits, const u32 *labels, const float *weights, double smoothing, double z_loss,   \
           double soft_cap, double factor, double *losses, Size rows, int width, int classes) {                                \
        const CrossEntropyLoss of = {smoothing, z_loss, soft_cap, factor};                                                     \
        cross_entropy<false>(logits, labels, weights, of, losses, rows, width, classes);                                       \
    }                                                                                                                          \
    KERNEL(cross_entropy_block_##S, 256, W *logits, const u32 *labels, const float *weights, double smoothing, double z_loss,  \
           double soft_cap, double factor, double *losses, Size rows, int width, int classes) {                                \
        const CrossEntropyLoss of = {smoothing, z_loss, soft_cap, factor};                                                     \
        cross_entropy<true>(logits, labels, weights, of, losses, rows, width, classes);                                        \
    }
FOR_F32(CROSS_ENTROPY(f32, float))
FOR_F64(CROSS_ENTROPY(f64, double))

// ---- cross-entropy of rows whose columns are on several ranks: what a row's loss follows from, then its gradient

// The place of the first of the largest elements of a row; infinite if these are all -inf or no numbers.
template <bool BLOCK, class W>
DEVICE double first_of_largest(const Group<BLOCK> &group, const W *x, int count, W *shared) {
    const W lowest = W(-3.4028234663852886e38);
    W largest = lowest, place = lowest;
#pragma unroll 1
    for (int i = group.member; i < count; i += group.members) largest = larger(largest, x[i]);
    largest = group.template reduce<Larger>(largest, shared);
#pragma unroll 1
    for (int i = group.member; i < count && place == lowest; i += group.members)
        if (x[i] == largest) place = W(-i);
    place = group.template reduce<Larger>(place, shared);
    return place == lowest ? double(INFINITE_F32) : -double(place);
}

// Of `own` columns from class `first` on: the largest logit, the sum of the exponentials relative to it, the logit of the label or 0,
// the sum, and the class of the first of the largest ones.
template <bool BLOCK, class W>
DEVICE void cross_entropy_parts(const W *logits, const u32 *labels, double soft_cap, double *parts, Size rows, int width, int own,
                                int first) {
    __shared__ W shared[32];
    const W cap = W(soft_cap);
    const auto group = Group<BLOCK>::make();
    for (Size row = Size(blockIdx.x) * group.groups + group.index; row < rows; row += Size(gridDim.x) * group.groups) {
        const W *x = logits + row * width;
        const auto sums = row_sums<BLOCK>(group, x, own, cap, shared);
        const double best = first_of_largest<BLOCK>(group, x, own, shared);
        if (group.member == 0) {
            const u32 label = labels[row] - u32(first);
            double *to = parts + 5 * row;
            to[0] = double(sums.largest);
            to[1] = double(sums.exponentials);
            to[2] = label < u32(own) ? double(capped(x[label], cap)) : 0.0;
            to[3] = double(sums.plain);
            to[4] = best + first;
        }
    }
}

template <bool BLOCK, class W>
DEVICE void cross_entropy_slopes(W *logits, const u32 *labels, const float *weights, CrossEntropyLoss of, const double *log_sums,
                                 Size rows, int width, int own, int first, int classes) {
    const W cap = W(of.soft_cap);
    const auto group = Group<BLOCK>::make();
    for (Size row = Size(blockIdx.x) * group.groups + group.index; row < rows; row += Size(gridDim.x) * group.groups) {
        W *x = logits + row * width;
        const double scale = of.factor * (weights ? double(weights[row]) : 1.0);
        const u32 label = labels[row] - u32(first);
        const W log_sum = W(log_sums[row]), softmax = W(scale * (1.0 + 2.0 * of.z_loss * log_sums[row]));
        const W uniform = W(scale * of.smoothing / classes), target = W(scale * (1.0 - of.smoothing));
#pragma unroll 1
        for (int i = group.member; i < width; i += group.members) {
            const W value = capped(x[i], cap);
            W slope = exp_of(value - log_sum) * softmax - uniform - (u32(i) == label ? target : W(0));
            if (cap > W(0)) slope *= W(1) - (value / cap) * (value / cap);
            x[i] = i < own && scale != 0.0 ? slope : W(0);
        }
    }
}

#define CUT_CROSS_ENTROPY(S, W, NAME, BLOCK)                                                                                   \
    KERNEL(cross_entropy_parts_##NAME##_##S, 256, const W *logits, const u32 *labels, double soft_cap, double *parts,          \
           Size rows, int width, int own, int first) {                                                                         \
        cross_entropy_parts<BLOCK>(logits, labels, soft_cap, parts, rows, width, own, first);                                  \
    }                                                                                                                          \
    KERNEL(cross_entropy_slopes_##NAME##_##S, 256, W *logits, const u32 *labels, const float *weights, double smoothing,       \
           double z_loss, double soft_cap, double factor, const double *log_sums, Size rows, int width, int own, int first,    \
           int classes) {                                                                                                      \
        const CrossEntropyLoss of = {smoothing, z_loss, soft_cap, factor};                                                     \
        cross_entropy_slopes<BLOCK>(logits, labels, weights, of, log_sums, rows, width, own, first, classes);                  \
    }
FOR_F32(CUT_CROSS_ENTROPY(f32, float, warp, false))
FOR_F32(CUT_CROSS_ENTROPY(f32, float, block, true))
FOR_F64(CUT_CROSS_ENTROPY(f64, double, warp, false))
FOR_F64(CUT_CROSS_ENTROPY(f64, double, block, true))

// ---- losses over pairs of elements

enum Pairs { L1, SMOOTH_L1, MSE, BCE, KL };

// The loss of a pair. For KL, x is the mean and t the log-variance.
template <class W> DEVICE W loss_of(int kind, W x, W t, W beta) {
    const W off = x - t;
    switch (kind) {
    case L1: return abs_of(off);
    case SMOOTH_L1: return abs_of(off) < beta ? W(0.5) * off * off / beta : abs_of(off) - W(0.5) * beta;
    case MSE: return off * off;
    case BCE: return larger(x, W(0)) - x * t + log1p_of(exp_of(-abs_of(x)));
    default: return W(0.5) * (x * x + exp_of(t) - W(1) - t);
    }
}

// The derivative by x.
template <class W> DEVICE W slope_of(int kind, W x, W t, W beta) {
    const W off = x - t;
    switch (kind) {
    case L1: return off > W(0) ? W(1) : off < W(0) ? W(-1) : W(0);
    case SMOOTH_L1: return smaller(larger(off / beta, W(-1)), W(1));
    case MSE: return W(2) * off;
    case BCE: {
        // Written so that e^x does not overflow.
        const W e = exp_of(-abs_of(x));
        return (x >= W(0) ? W(1) / (W(1) + e) : e / (W(1) + e)) - t;
    }
    default: return x;
    }
}

template <class X, class T>
DEVICE void pair_loss_parts(int kind, double beta, const X *x, const T *t, double *parts, Size count) {
    typedef Wide<X> W;
    __shared__ double shared[32];
    constexpr int N = PackOf<X, T>::value;
    double total = 0;
    each<N>(count, aligned(x, t), [&](Size at, auto n) {
        constexpr int M = decltype(n)::value;
        W values[M], targets[M];
        load(x + at, values);
        load(t + at, targets);
        W some = 0;
#pragma unroll
        for (int i = 0; i < M; ++i) some += loss_of(kind, values[i], targets[i], W(beta));
        total += double(some);
    });
    total = block_reduce<Add>(total, shared);
    if (threadIdx.x == 0) parts[blockIdx.x] = total;
}

// dx = derivative·factor·grad; for KL also dt, the gradient of the log-variance.
template <class X, class T>
DEVICE void pair_loss_backward(int kind, double beta, const X *x, const T *t, double factor, const Wide<X> *grad, Wide<X> *dx,
                               Wide<X> *dt, Size count) {
    typedef Wide<X> W;
    constexpr int N = PackOf<X, T>::value;
    const W scale = W(factor * double(*grad));
    each<N>(count, aligned(x, t, dx, dt), [&](Size at, auto n) {
        constexpr int M = decltype(n)::value;
        W values[M], targets[M];
        load(x + at, values);
        load(t + at, targets);
#pragma unroll
        for (int i = 0; i < M; ++i) values[i] = slope_of(kind, values[i], targets[i], W(beta)) * scale;
        store(dx + at, values);
        if (kind != KL) return;
#pragma unroll
        for (int i = 0; i < M; ++i) targets[i] = W(0.5) * (exp_of(targets[i]) - W(1)) * scale;
        store(dt + at, targets);
    });
}

#define PAIR_LOSS(S, X, T, W)                                                                                              \
    KERNEL(pair_loss_parts_##S, 256, int kind, double beta, const X *x, const T *t, double *parts, Size count) {           \
        pair_loss_parts(kind, beta, x, t, parts, count);                                                                   \
    }                                                                                                                      \
    KERNEL(pair_loss_backward_##S, 256, int kind, double beta, const X *x, const T *t, double factor, const W *grad, W *dx, \
           W *dt, Size count) {                                                                                            \
        pair_loss_backward(kind, beta, x, t, factor, grad, dx, dt, count);                                                 \
    }
FOR_F32(PAIR_LOSS(f32_f32, float, float, float))
FOR_F64(PAIR_LOSS(f64_f64, double, double, double))
FOR_BF16(PAIR_LOSS(bf16_bf16, bf16, bf16, float))
FOR_BF16(PAIR_LOSS(bf16_f32, bf16, float, float))
FOR_BF16(PAIR_LOSS(f32_bf16, float, bf16, float))
FOR_F16(PAIR_LOSS(f16_f16, f16, f16, float))
FOR_F16(PAIR_LOSS(f16_f32, f16, float, float))
FOR_F16(PAIR_LOSS(f32_f16, float, f16, float))
