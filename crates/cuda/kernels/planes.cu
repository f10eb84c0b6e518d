// The passes of batch norm and group norm that write maps [N, C, P], by coefficients: set `plane % sets` for each plane.

// Packs are within one plane if its size allows it, or neighbouring planes if planes are single elements; otherwise elements are
// moved one by one.

template <bool ACROSS, int N, class... P> DEVICE bool packs_of(int size, int channels, const P *...maps) {
    return N > 1 && aligned(maps...) && (ACROSS ? channels % N == 0 : size % N == 0);
}

// For channels-last maps with sets for each image, `image` is the elements of an image, and `channels` the number of sets;
// otherwise it is 0.
DEVICE Size set_of(Size at, int size, Size sets, Size image, int channels) {
    if (image) return at / image * channels + at % channels;
    if (at < 0x7fffffff && sets < 0x7fffffff) return u32(at) / u32(size) % u32(sets);
    return at / size % sets;
}

// A row of coefficients for the elements of a pack.
template <bool ACROSS, int M, class W> DEVICE void spread(const W *row, Size set, W (&to)[M]) {
    if (!ACROSS) {
        const W value = row[set];
#pragma unroll
        for (int i = 0; i < M; ++i) to[i] = value;
    } else {
#pragma unroll
        for (int i = 0; i < M; ++i) to[i] = row[set + i];
    }
}

// y = act((x − mean)·factor + shift + residual).
template <bool ACROSS, int ACTIVATION, class X>
DEVICE void normalise(const X *x, const X *residual, const Coefficients<Wide<X>> &by, X *y, Size count, int size, Size image, int channels) {
    typedef Wide<X> W;
    constexpr int N = PackOf<X>::value;
    each<N>(count, packs_of<ACROSS, N>(size, channels, x, y, residual), [&](Size at, auto n) {
        constexpr int M = decltype(n)::value;
        const Size set = set_of(at, size, by.sets, image, channels);
        W values[M], means[M], factors[M], shifts[M], more[M];
        load(x + at, values);
        spread<ACROSS>(by.rows, set, means);
        spread<ACROSS>(by.rows + by.sets, set, factors);
        spread<ACROSS>(by.rows + 2 * by.sets, set, shifts);
        if (residual) load(residual + at, more);
#pragma unroll
        for (int i = 0; i < M; ++i) {
            W value = (values[i] - means[i]) * factors[i] + shifts[i];
            if (residual) value += more[i];
            values[i] = activate<ACTIVATION>(value);
        }
        store(y + at, values);
    });
}

// dx = factor·dy − constant − (x − mean)·slope, with dy masked by the activation. The masked dy is also written to `through`, if
// requested.
template <bool ACROSS, int ACTIVATION, class X, class G>
DEVICE void normalise_backward(const X *x, const X *output, const G *dy, const Coefficients<Wide<X>> &by, G *dx, G *through,
                               Size count, int size, Size image, int channels) {
    typedef Wide<X> W;
    constexpr int N = PackOf<X, G>::value;
    each<N>(count, packs_of<ACROSS, N>(size, channels, x, output, dy, dx, through), [&](Size at, auto n) {
        constexpr int M = decltype(n)::value;
        const Size set = set_of(at, size, by.sets, image, channels);
        W values[M], grads[M], means[M], factors[M], row[M];
        load(x + at, values);
        load(dy + at, grads);
        spread<ACROSS>(by.rows, set, means);
        spread<ACROSS>(by.rows + by.sets, set, factors);
#pragma unroll
        for (int i = 0; i < M; ++i) values[i] -= means[i];
        if (ACTIVATION != NO_ACTIVATION) {
            W seen[M];
            if (output) load(output + at, seen);
            else {
                spread<ACROSS>(by.rows + 2 * by.sets, set, row);
#pragma unroll
                for (int i = 0; i < M; ++i) seen[i] = values[i] * factors[i] + row[i];
            }
#pragma unroll
            for (int i = 0; i < M; ++i) grads[i] = masked<ACTIVATION>(seen[i], grads[i]);
        }
        if (through) store(through + at, grads);
        spread<ACROSS>(by.rows + 3 * by.sets, set, row);
#pragma unroll
        for (int i = 0; i < M; ++i) grads[i] = factors[i] * grads[i] - row[i];
        spread<ACROSS>(by.rows + 4 * by.sets, set, row);
#pragma unroll
        for (int i = 0; i < M; ++i) grads[i] -= values[i] * row[i];
        store(dx + at, grads);
    });
}

#define NORMALISE(S, X, W)                                                                                              \
    KERNEL(normalise_##S, 256, int activation, const X *x, const X *residual, const W *rows, Size sets, X *y, Size count, int size, \
           Size image, int channels) {                                                                                  \
        const Coefficients<W> by = {rows, sets};                                                                        \
        BY_ACTIVATION(activation, NORMALISE_AS)                                                                         \
    }
#define NORMALISE_AS(A)                                              \
    if (size == 1) normalise<true, A>(x, residual, by, y, count, size, image, channels); \
    else normalise<false, A>(x, residual, by, y, count, size, image, channels)
FOR_F32(NORMALISE(f32, float, float))
FOR_F64(NORMALISE(f64, double, double))
FOR_BF16(NORMALISE(bf16, bf16, float))
FOR_F16(NORMALISE(f16, f16, float))

#define NORMALISE_BACKWARD(S, X, G, W)                                                                                \
    KERNEL(normalise_backward_##S, 256, int activation, const X *x, const X *output, const G *dy, const W *rows, Size sets, \
           G *dx, G *through, Size count, int size, Size image, int channels) {                                       \
        const Coefficients<W> by = {rows, sets};                                                                      \
        BY_ACTIVATION(activation, NORMALISE_BACKWARD_AS)                                                              \
    }
#define NORMALISE_BACKWARD_AS(A)                                                                \
    if (size == 1) normalise_backward<true, A>(x, output, dy, by, dx, through, count, size, image, channels); \
    else normalise_backward<false, A>(x, output, dy, by, dx, through, count, size, image, channels)
FOR_F32(NORMALISE_BACKWARD(f32_f32, float, float, float))
FOR_F64(NORMALISE_BACKWARD(f64_f64, double, double, double))
FOR_BF16(NORMALISE_BACKWARD(bf16_f32, bf16, float, float))
FOR_BF16(NORMALISE_BACKWARD(bf16_bf16, bf16, bf16, float))
FOR_F16(NORMALISE_BACKWARD(f16_f32, f16, float, float))
FOR_F16(NORMALISE_BACKWARD(f16_f16, f16, f16, float))
