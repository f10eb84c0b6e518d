// LAMB: steps with a factor of the learning rate for each parameter tensor, from the norms of its weights and of its direction.
//
// The direction is computed twice: for its norm, of which ranks add up their parts, and in the step. So a step that is given up
// between has changed nothing, and no memory holds the directions of all parameters.

// The scalars of a step. The launcher has included the bias corrections of step `number` in the inverses.
struct Lamb {
    double inverse1, inverse2, eps, keep1, take1, keep2, take2, decay, rate, number;
};

// The scalars with the corrections of a step before which `left_out` were skipped.
DEVICE Lamb corrected(Lamb by, const double *left_out) {
    if (!left_out) return by;
    __shared__ double corrections[2];
    if (threadIdx.x == 0) {
        const Size number = Size(by.number - *left_out);
        corrections[0] = 1.0 / (1.0 - power(by.keep1, number));
        corrections[1] = 1.0 / sqrt_of(1.0 - power(by.keep2, number));
    }
    __syncthreads();
    by.inverse1 = corrections[0];
    by.inverse2 = corrections[1];
    return by;
}

template <class W> struct LambScalars {
    W inverse1, inverse2, eps, keep1, take1, keep2, take2, decay;

    DEVICE LambScalars of(const Lamb &by) {
        return {W(by.inverse1), W(by.inverse2), W(by.eps), W(by.keep1), W(by.take1), W(by.keep2), W(by.take2), W(by.decay)};
    }

    // Replaces the moments of an element by the new ones, and returns its direction.
    __device__ __forceinline__ W advance(W weight, W grad, W &first, W &second) const {
        first = keep1 * first + take1 * grad;
        second = keep2 * second + take2 * grad * grad;
        return first * inverse1 / (sqrt_of(second) * inverse2 + eps) + decay * weight;
    }
};

// direction <- m̂ / (√v̂ + eps) + decay·w, with the moments of the next step, which are not stored.
template <class W, class G>
DEVICE void lamb_direction(const Lamb &all, const W *weights, const G *grads, const W *first, const W *second, const double *factor,
                           W *direction, Size count) {
    constexpr int N = PackOf<W, W>::value;
    const LambScalars<W> by = LambScalars<W>::of(all);
    const W scale = factor ? W(*factor) : W(1);
    each<N>(count, aligned(weights, grads, first, second, direction), [&](Size at, auto n) {
        constexpr int M = decltype(n)::value;
        W w[M], g[M], m[M], v[M];
        load(weights + at, w);
        load(grads + at, g);
        load(first + at, m);
        load(second + at, v);
#pragma unroll
        for (int i = 0; i < M; ++i) w[i] = by.advance(w[i], g[i] * scale, m[i], v[i]);
        store(direction + at, w);
    });
}

// w <- w − rate·ratio·direction. The ratio is √(of_weights / of_direction), or 1 without these sums of squares, or if one is 0 or
// NaN.
template <class W, class G>
DEVICE void lamb(const Lamb &all, W *weights, const G *grads, W *first, W *second, const double *of_weights,
                 const double *of_direction, const double *factor, void *low, int low_kind, Size count) {
    constexpr int N = PackOf<W, W>::value;
    const LambScalars<W> by = LambScalars<W>::of(all);
    double ratio = 1.0;
    if (of_weights && *of_weights > 0 && *of_direction > 0) ratio = sqrt_of(*of_weights) / sqrt_of(*of_direction);
    const W scale = factor ? W(*factor) : W(1), step = W(all.rate * ratio);
    each<N>(count, aligned(weights, grads, first, second, low), [&](Size at, auto n) {
        constexpr int M = decltype(n)::value;
        W w[M], g[M], m[M], v[M];
        load(weights + at, w);
        load(grads + at, g);
        load(first + at, m);
        load(second + at, v);
#pragma unroll
        for (int i = 0; i < M; ++i) w[i] -= step * by.advance(w[i], g[i] * scale, m[i], v[i]);
        store(weights + at, w);
        store(first + at, m);
        store(second + at, v);
        store_low(low, low_kind, at, w);
    });
}

#define LAMB(S, W, G)                                                                                                           \
    KERNEL(lamb_direction_##S, 256, Lamb by, const Lamb *at, const W *weights, const G *grads, const W *first, const W *second, \
           const double *factor, const double *left_out, W *direction, Size count) {                                            \
        lamb_direction(corrected(chosen(by, at), left_out), weights, grads, first, second, factor, direction, count);           \
    }                                                                                                                           \
    KERNEL(lamb_##S, 256, Lamb by, const Lamb *at, W *weights, const G *grads, W *first, W *second, const double *of_weights,   \
           const double *of_direction, const double *factor, const u32 *skip, const double *left_out, void *low, int low_kind,  \
           Size count) {                                                                                                        \
        if (skip && *skip) return;                                                                                              \
        lamb(corrected(chosen(by, at), left_out), weights, grads, first, second, of_weights, of_direction, factor, low,          \
             low_kind, count);                                                                                                  \
    }
FOR_F32(LAMB(f32_f32, float, float))
FOR_F64(LAMB(f64_f64, double, double))
FOR_BF16(LAMB(f32_bf16, float, bf16))
FOR_F16(LAMB(f32_f16, float, f16))
