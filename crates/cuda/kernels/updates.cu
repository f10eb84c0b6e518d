// Optimizer steps over a whole bucket in one pass, gradient clipping and loss scaling.
//
// A step multiplies the gradient by a factor on the device (clipping, loss scaling), does nothing if a flag on the device is set,
// and writes a 16-bit copy of the new weights if requested. The host does not know how many steps were skipped. Bias corrections
// therefore subtract the number that the device has counted.

// The last two are 1 or 0.
struct Sgd {
    double lr, momentum, decay, nesterov, first;
};

// w <- w − lr·d with d = g + decay·w, through the momentum buffer with momentum.
template <class W, class G>
DEVICE void sgd(const Sgd &by, W *weights, const G *grads, W *buffer, const double *factor, const u32 *skip, void *low, int low_kind,
                Size count) {
    if (skip && *skip) return;
    constexpr int N = PackOf<W, W>::value;
    const W lr = W(by.lr), momentum = W(by.momentum), decay = W(by.decay), scale = factor ? W(*factor) : W(1);
    each<N>(count, aligned(weights, grads, buffer, low), [&](Size at, auto n) {
        constexpr int M = decltype(n)::value;
        W w[M], g[M], b[M];
        load(weights + at, w);
        load(grads + at, g);
        if (buffer && by.first == 0) load(buffer + at, b);
#pragma unroll
        for (int i = 0; i < M; ++i) {
            W d = g[i] * scale + decay * w[i];
            if (buffer) {
                b[i] = by.first != 0 ? d : momentum * b[i] + d;
                d = by.nesterov != 0 ? d + momentum * b[i] : b[i];
            }
            w[i] -= lr * d;
        }
        store(weights + at, w);
        if (buffer) store(buffer + at, b);
        store_low(low, low_kind, at, w);
    });
}

// The scalars of an Adam step. The launcher has included the corrections of step `number` in `step`, of rate `rate`, and in
// `inverse2`.
struct Adam {
    double step, inverse2, eps, keep1, take1, keep2, take2, shrink, decay, rate, number;
};

// The scalars with the corrections of a step before which `left_out` were skipped.
DEVICE Adam corrected(Adam by, const double *left_out) {
    if (!left_out) return by;
    __shared__ double corrections[2];
    if (threadIdx.x == 0) {
        const Size number = Size(by.number - *left_out);
        corrections[0] = by.rate / (1.0 - power(by.keep1, number));
        corrections[1] = 1.0 / sqrt_of(1.0 - power(by.keep2, number));
    }
    __syncthreads();
    by.step = corrections[0];
    by.inverse2 = corrections[1];
    return by;
}

template <class W, class G>
DEVICE void adam(const Adam &by, W *weights, const G *grads, W *first, W *second, const double *factor, void *low, int low_kind,
                 Size count) {
    constexpr int N = PackOf<W, W>::value;
    const W scale = factor ? W(*factor) : W(1), step = W(by.step), inverse2 = W(by.inverse2), eps = W(by.eps), keep1 = W(by.keep1),
            take1 = W(by.take1), keep2 = W(by.keep2), take2 = W(by.take2), shrink = W(by.shrink), decay = W(by.decay);
    each<N>(count, aligned(weights, grads, first, second, low), [&](Size at, auto n) {
        constexpr int M = decltype(n)::value;
        W w[M], g[M], m[M], v[M];
        load(weights + at, w);
        load(grads + at, g);
        load(first + at, m);
        load(second + at, v);
#pragma unroll
        for (int i = 0; i < M; ++i) {
            const W grad = g[i] * scale + decay * w[i];
            m[i] = keep1 * m[i] + take1 * grad;
            v[i] = keep2 * v[i] + take2 * grad * grad;
            w[i] = w[i] * shrink - step * m[i] / (sqrt_of(v[i]) * inverse2 + eps);
        }
        store(weights + at, w);
        store(first + at, m);
        store(second + at, v);
        store_low(low, low_kind, at, w);
    });
}

// The scalars of a step of Lion.
struct Lion {
    double lr, keep1, take1, keep2, take2, shrink;
};

// w <- shrink·w − lr·sign(keep1·m + take1·g), then m <- keep2·m + take2·g. The sign of 0 is 0, and of NaN NaN.
template <class W, class G>
DEVICE void lion(const Lion &by, W *weights, const G *grads, W *moment, const double *factor, void *low, int low_kind, Size count) {
    constexpr int N = PackOf<W, W>::value;
    const W scale = factor ? W(*factor) : W(1), lr = W(by.lr), keep1 = W(by.keep1), take1 = W(by.take1), keep2 = W(by.keep2),
            take2 = W(by.take2), shrink = W(by.shrink);
    each<N>(count, aligned(weights, grads, moment, low), [&](Size at, auto n) {
        constexpr int M = decltype(n)::value;
        W w[M], g[M], m[M];
        load(weights + at, w);
        load(grads + at, g);
        load(moment + at, m);
#pragma unroll
        for (int i = 0; i < M; ++i) {
            const W grad = g[i] * scale, mixed = keep1 * m[i] + take1 * grad;
            w[i] = w[i] * shrink - lr * (mixed > W(0) ? W(1) : mixed < W(0) ? W(-1) : mixed);
            m[i] = keep2 * m[i] + take2 * grad;
        }
        store(weights + at, w);
        store(moment + at, m);
        store_low(low, low_kind, at, w);
    });
}

#define STEPS(S, W, G)                                                                                                        \
    KERNEL(sgd_##S, 256, Sgd by, const Sgd *at, W *weights, const G *grads, W *buffer, const double *factor, const u32 *skip, \
           void *low, int low_kind, Size count) {                                                                             \
        sgd(chosen(by, at), weights, grads, buffer, factor, skip, low, low_kind, count);                                       \
    }                                                                                                                         \
    KERNEL(adam_##S, 256, Adam by, const Adam *at, W *weights, const G *grads, W *first, W *second, const double *factor,     \
           const u32 *skip, const double *left_out, void *low, int low_kind, Size count) {                                    \
        if (skip && *skip) return;                                                                                            \
        adam(corrected(chosen(by, at), left_out), weights, grads, first, second, factor, low, low_kind, count);                \
    }                                                                                                                         \
    KERNEL(lion_##S, 256, Lion by, const Lion *at, W *weights, const G *grads, W *moment, const double *factor,               \
           const u32 *skip, void *low, int low_kind, Size count) {                                                            \
        if (skip && *skip) return;                                                                                            \
        lion(chosen(by, at), weights, grads, moment, factor, low, low_kind, count);                                            \
    }
FOR_F32(STEPS(f32_f32, float, float))
FOR_F64(STEPS(f64_f64, double, double))
FOR_BF16(STEPS(f32_bf16, float, bf16))
FOR_F16(STEPS(f32_f16, float, f16))

// The weights of the average and of the parameters in update `number`, from 0, with `most` as the largest weight of the average.
struct Ema {
    double keep, take, most, number;
};

// The weights of an update before which `left_out` were skipped. The first update that is not skipped begins the average.
DEVICE Ema begun(Ema by, const double *left_out) {
    if (!left_out) return by;
    const double n = by.number - *left_out, start = (1.0 + n) / (10.0 + n);
    by.keep = n == 0 ? 0.0 : start < by.most ? start : by.most;
    by.take = 1.0 - by.keep;
    return by;
}

// average <- keep·average + take·weights. If keep is 0, the average is not read, as it may be NaN.
template <class W> DEVICE void ema(W *average, const W *weights, const Ema &by, Size count) {
    constexpr int N = PackOf<W>::value;
    const W keep = W(by.keep), take = W(by.take);
    each<N>(count, aligned(average, weights), [&](Size at, auto n) {
        constexpr int M = decltype(n)::value;
        W a[M], w[M];
        load(average + at, a);
        load(weights + at, w);
#pragma unroll
        for (int i = 0; i < M; ++i) a[i] = keep == 0 ? w[i] : keep * a[i] + take * w[i];
        store(average + at, a);
    });
}
#define EMA(S, W)                                                                                                  \
    KERNEL(ema_##S, 256, Ema by, const Ema *at, W *average, const W *weights, const u32 *skip, const double *left_out, \
           Size count) {                                                                                           \
        if (skip && *skip) return;                                                                                 \
        ema(average, weights, begun(chosen(by, at), left_out), count);                                              \
    }
FOR_F32(EMA(f32, float))
FOR_F64(EMA(f64, double))

// to <- factor·to with a factor on the device. Nothing is written if it is 1.
template <class T> DEVICE void scale_by(T *to, const double *factor, Size count) {
    typedef Wide<T> W;
    const W scale = W(*factor);
    if (*factor == 1.0) return;
    constexpr int N = PackOf<T>::value;
    each<N>(count, aligned(to), [&](Size at, auto n) {
        constexpr int M = decltype(n)::value;
        W values[M];
        load(to + at, values);
#pragma unroll
        for (int i = 0; i < M; ++i) values[i] *= scale;
        store(to + at, values);
    });
}

// Sums the squares of all elements in f64: a part for each block.
template <class X> DEVICE void square_parts(const X *x, double *parts, Size count) {
    __shared__ double shared[32];
    constexpr int N = PackOf<X>::value;
    double total = 0;
    each<N>(count, aligned(x), [&](Size at, auto n) {
        constexpr int M = decltype(n)::value;
        Wide<X> values[M];
        load(x + at, values);
#pragma unroll
        for (int i = 0; i < M; ++i) total += double(values[i]) * double(values[i]);
    });
    total = block_reduce<Add>(total, shared);
    if (threadIdx.x == 0) parts[blockIdx.x] = total;
}

#define OVER_GRADIENTS(S, T)                                                                                     \
    KERNEL(scale_by_##S, 256, T *to, const double *factor, Size count) { scale_by(to, factor, count); }          \
    KERNEL(square_parts_##S, 256, const T *x, double *parts, Size count) { square_parts(x, parts, count); }
FOR_F32(OVER_GRADIENTS(f32, float))
FOR_F64(OVER_GRADIENTS(f64, double))
FOR_BF16(OVER_GRADIENTS(bf16, bf16))
FOR_F16(OVER_GRADIENTS(f16, f16))

// The factor that clips gradients to max_norm: 1 if the norm is smaller, or not finite. The epsilon is PyTorch's.
DEVICE double clip(double norm, double max_norm) {
    return is_finite(norm) && norm > max_norm ? max_norm / (norm + 1e-6) : 1.0;
}
KERNEL(clip_factor, 1, const double *sum_of_squares, double max_norm, double *factor) {
    *factor = clip(sqrt(*sum_of_squares), max_norm);
}

// 1 if a number is not finite, else 0. Ranks agree on the flag by its maximum.
KERNEL(not_finite, 1, const double *number, double *flag) {
    *flag = is_finite(*number) ? 0.0 : 1.0;
}

// A step of loss scaling on the device, from the sum of squares of scaled gradients and the overflow flag of all ranks. It sets
// the skip flag, or the factor of the gradients: 1/scale times the clipping factor (no clipping if max_norm is 0). `state` is the
// scale, the good steps since it changed, the consecutive skipped steps, and all skipped steps. The scale halves after a skipped
// step, and doubles after `interval` good ones, unless `interval` is 0. `report` is read by the host later: the scale of this
// step, 1 if it was skipped, the norm of unscaled gradients, and the state after it.
KERNEL(loss_scale_step, 1, const double *sum_of_squares, const double *overflow, double max_norm, double interval, double *state,
       double *factor, u32 *skip, double *report) {
    const double scale = state[0], norm = sqrt(*sum_of_squares) / scale;
    const bool left_out = *overflow != 0;
    if (left_out) {
        if (interval > 0) state[0] = scale * 0.5;
        state[1] = 0.0;
        state[2] += 1.0;
        state[3] += 1.0;
    } else {
        state[1] += 1.0;
        state[2] = 0.0;
        if (interval > 0 && state[1] >= interval) {
            state[0] = scale * 2.0;
            state[1] = 0.0;
        }
    }
    *skip = left_out;
    *factor = left_out ? 0.0 : (max_norm > 0 ? clip(norm, max_norm) : 1.0) / scale;
    report[0] = scale;
    report[1] = left_out;
    report[2] = norm;
    for (int i = 0; i < 4; ++i) report[3 + i] = state[i];
}
