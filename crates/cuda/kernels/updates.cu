// Steps of optimizers over a whole flat unit in one pass, and what is done with gradients before.
//
// A step takes the gradient times a factor that lies on the device (clipping, loss scaling), leaves everything as it is where a
// flag on the device says so, and writes the new weights a second time in 16 bits, if they are wanted.

// What the new weights are written as besides.
enum Low { NO_LOW, LOW_BF16, LOW_F16 };

template <int M, class W> DEVICE void store_low(void *low, int kind, Size at, const W (&weights)[M]) {
    if (kind == NO_LOW) return;
    float values[M];
#pragma unroll
    for (int i = 0; i < M; ++i) values[i] = float(weights[i]);
    if (kind == LOW_BF16) store(static_cast<bf16 *>(low) + at, values);
    else store(static_cast<f16 *>(low) + at, values);
}

// The last two are 1 or 0.
struct Sgd {
    double lr, momentum, decay, nesterov, first;
};

// w <- w − lr·d with d = g + decay·w, through the momentum buffer if there is momentum.
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

// What a step of Adam multiplies by; the launcher has worked the corrections in.
struct Adam {
    double step, inverse2, eps, keep1, take1, keep2, take2, shrink, decay;
};

template <class W, class G>
DEVICE void adam(const Adam &by, W *weights, const G *grads, W *first, W *second, const double *factor, const u32 *skip, void *low,
                 int low_kind, Size count) {
    if (skip && *skip) return;
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

// The numbers that lie on the device, if they do: a graph has the others by value.
template <class T> DEVICE T chosen(const T &by, const T *at) {
    T numbers = by;
    if (at) numbers = *at;
    return numbers;
}

#define STEPS(S, W, G)                                                                                                        \
    KERNEL(sgd_##S, 256, Sgd by, const Sgd *at, W *weights, const G *grads, W *buffer, const double *factor, const u32 *skip, \
           void *low, int low_kind, Size count) {                                                                             \
        sgd(chosen(by, at), weights, grads, buffer, factor, skip, low, low_kind, count);                                       \
    }                                                                                                                         \
    KERNEL(adam_##S, 256, Adam by, const Adam *at, W *weights, const G *grads, W *first, W *second, const double *factor,     \
           const u32 *skip, void *low, int low_kind, Size count) {                                                            \
        adam(chosen(by, at), weights, grads, first, second, factor, skip, low, low_kind, count);                               \
    }
FOR_F32(STEPS(f32_f32, float, float))
FOR_F64(STEPS(f64_f64, double, double))
FOR_BF16(STEPS(f32_bf16, float, bf16))
FOR_F16(STEPS(f32_f16, float, f16))

// What an average keeps of itself and takes of the weights.
struct Ema {
    double keep, take;
};

// average <- keep·average + take·weights.
template <class W> DEVICE void ema(W *average, const W *weights, const Ema &by, Size count) {
    constexpr int N = PackOf<W>::value;
    const W keep = W(by.keep), take = W(by.take);
    each<N>(count, aligned(average, weights), [&](Size at, auto n) {
        constexpr int M = decltype(n)::value;
        W a[M], w[M];
        load(average + at, a);
        load(weights + at, w);
#pragma unroll
        for (int i = 0; i < M; ++i) a[i] = keep * a[i] + take * w[i];
        store(average + at, a);
    });
}
#define EMA(S, W)                                                                                        \
    KERNEL(ema_##S, 256, Ema by, const Ema *at, W *average, const W *weights, Size count) {              \
        ema(average, weights, chosen(by, at), count);                                                     \
    }
FOR_F32(EMA(f32, float))
FOR_F64(EMA(f64, double))

// to <- factor·to with a factor on the device; nothing is written if it is 1.
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

// The sums of the squares of all elements, squared and added in f64: a part for each block.
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

// What gradients are multiplied by so that their norm is at most max_norm; 1 if they need not be, or the norm is not finite.
// The small number is PyTorch's, so that both clip alike.
DEVICE double clip(double norm, double max_norm) {
    return is_finite(norm) && norm > max_norm ? max_norm / (norm + 1e-6) : 1.0;
}
KERNEL(clip_factor, 1, const double *sum_of_squares, double max_norm, double *factor) {
    *factor = clip(sqrt(*sum_of_squares), max_norm);
}

// Loss scaling without the host: from the sum of squares of scaled gradients, whether the step is left out, and else what
// gradients are multiplied by, 1/scale and clipping (no clipping if max_norm is 0) in one. `state` is the scale, the good steps
// since it changed, and the steps in a row that were left out; the scale halves after a step that is left out, and doubles
// after `interval` good ones, unless `interval` is 0.
KERNEL(loss_scale_step, 1, const double *sum_of_squares, double max_norm, double interval, double *state, double *factor, u32 *skip) {
    const double scale = state[0], norm = sqrt(*sum_of_squares) / scale;
    if (!is_finite(norm)) {
        *skip = 1;
        *factor = 0.0;
        if (interval > 0) state[0] = scale * 0.5;
        state[1] = 0.0;
        state[2] += 1.0;
        return;
    }
    *skip = 0;
    *factor = (max_norm > 0 ? clip(norm, max_norm) : 1.0) / scale;
    state[2] = 0.0;
    state[1] += 1.0;
    if (interval > 0 && state[1] >= interval) {
        state[0] = scale * 2.0;
        state[1] = 0.0;
    }
}
