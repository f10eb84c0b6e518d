// Elementwise functions of one argument, and their derivatives.

// GELU by tanh is x·σ(2√(2/π)·(x + 0.044715x³)).
constexpr double GELU_TANH_LINEAR = 1.5957691216057307712, GELU_TANH_CUBIC = 0.071354816272600254;

enum Unary {
    RELU,
    RELU_SQUARED,
    RELU6,
    LEAKY_RELU,
    SIGMOID,
    TANH,
    SILU,
    GELU,
    GELU_TANH,
    QUICK_GELU,
    EXP,
    CLAMP,
    NEGATE,
    AFFINE
};

template <class W> DEVICE W sigmoid(W x) { return W(1) / (W(1) + exp_of(-x)); }

// `p` and `q` are the function's parameters: a slope, bounds, or a factor and an addend.
template <int OP, class W> DEVICE W apply(W x, W p, W q) {
    switch (OP) {
    case RELU: return larger(x, W(0));
    case RELU_SQUARED: return larger(x, W(0)) * larger(x, W(0));
    case RELU6: return smaller(larger(x, W(0)), W(6));
    case LEAKY_RELU: return x > W(0) ? x : x * p;
    case SIGMOID: return sigmoid(x);
    case TANH: return tanh_of(x);
    case SILU: return x * sigmoid(x);
    case GELU: return W(0.5) * x * (W(1) + erf_of(x * W(0.70710678118654752440)));
    case GELU_TANH: return x * sigmoid(x * (W(GELU_TANH_LINEAR) + W(GELU_TANH_CUBIC) * x * x));
    case QUICK_GELU: return x * sigmoid(x * W(1.702));
    case EXP: return exp_of(x);
    case CLAMP: return smaller(larger(x, p), q);
    case NEGATE: return -x;
    default: return x * p + q;
    }
}

template <int OP, class X, class Y> DEVICE void unary_loop(const X *x, Y *y, Wide<X> p, Wide<X> q, Size count) {
    constexpr int N = PackOf<X, Y>::value;
    each<N>(count, aligned(x, y), [&](Size at, auto n) {
        constexpr int M = decltype(n)::value;
        Wide<X> values[M];
        load(x + at, values);
#pragma unroll
        for (int i = 0; i < M; ++i) values[i] = apply<OP>(values[i], p, q);
        store(y + at, values);
    });
}

// A kernel for each function, as those with the error function need many registers.
#define EACH_UNARY(KERNEL_OF, ...)                     \
    KERNEL_OF(relu, RELU, __VA_ARGS__)                 \
    KERNEL_OF(relu_squared, RELU_SQUARED, __VA_ARGS__) \
    KERNEL_OF(relu6, RELU6, __VA_ARGS__)               \
    KERNEL_OF(leaky_relu, LEAKY_RELU, __VA_ARGS__)     \
    KERNEL_OF(sigmoid, SIGMOID, __VA_ARGS__)           \
    KERNEL_OF(tanh, TANH, __VA_ARGS__)                 \
    KERNEL_OF(silu, SILU, __VA_ARGS__)                 \
    KERNEL_OF(gelu, GELU, __VA_ARGS__)                 \
    KERNEL_OF(gelu_tanh, GELU_TANH, __VA_ARGS__)       \
    KERNEL_OF(quick_gelu, QUICK_GELU, __VA_ARGS__)     \
    KERNEL_OF(exp, EXP, __VA_ARGS__)                   \
    KERNEL_OF(clamp, CLAMP, __VA_ARGS__)               \
    KERNEL_OF(neg, NEGATE, __VA_ARGS__)                \
    KERNEL_OF(affine, AFFINE, __VA_ARGS__)

#define UNARY(name, OP, S, T)                                                                       \
    KERNEL(name##_##S, 256, const T *x, T *y, double p, double q, Size count) {                     \
        unary_loop<OP>(x, y, Wide<T>(p), Wide<T>(q), count);                                        \
    }
FOR_F32(EACH_UNARY(UNARY, f32, float))
FOR_F64(EACH_UNARY(UNARY, f64, double))
FOR_BF16(EACH_UNARY(UNARY, bf16, bf16))
FOR_F16(EACH_UNARY(UNARY, f16, f16))

// ---- derivatives: f'(x)·dy, where y is f(x)

template <int OP, class W> DEVICE W derivative(W x, W y, W dy, W p, W q) {
    switch (OP) {
    case RELU: return y > W(0) ? dy : W(0);
    case RELU_SQUARED: return W(2) * larger(x, W(0)) * dy;
    case RELU6: return y > W(0) && y < W(6) ? dy : W(0);
    case LEAKY_RELU: return (x > W(0) ? W(1) : p) * dy;
    case SIGMOID: return dy * y * (W(1) - y);
    case TANH: return dy * (W(1) - y * y);
    case EXP: return dy * y;
    case CLAMP: return x >= p && x <= q ? dy : W(0);
    case SILU: {
        W s = sigmoid(x);
        return (s + x * s * (W(1) - s)) * dy;
    }
    case GELU_TANH: {
        W squares = W(GELU_TANH_CUBIC) * x * x;
        W s = sigmoid(x * (W(GELU_TANH_LINEAR) + squares));
        return (s + x * s * (W(1) - s) * (W(GELU_TANH_LINEAR) + W(3) * squares)) * dy;
    }
    case QUICK_GELU: {
        W s = sigmoid(x * W(1.702));
        return (s + W(1.702) * x * s * (W(1) - s)) * dy;
    }
    case GELU: {
        W cumulated = W(0.5) * (W(1) + erf_of(x * W(0.70710678118654752440)));
        return (cumulated + x * W(0.39894228040143267794) * exp_of(-x * x * W(0.5))) * dy;
    }
    case NEGATE: return -dy;
    default: return p * dy;
    }
}

// The arguments that a derivative reads: others are not loaded.
template <int OP> struct Reads {
    static constexpr bool y = OP == RELU || OP == RELU6 || OP == SIGMOID || OP == TANH || OP == EXP;
    static constexpr bool x = !y && OP != NEGATE && OP != AFFINE;
};

template <int OP, class X, class G>
DEVICE void unary_backward_loop(const X *x, const X *y, const G *dy, G *dx, Wide<X> p, Wide<X> q, Size count) {
    // The error function takes many registers; eight at once would exceed them.
    constexpr int N = OP == GELU && PackOf<X, G>::value > 4 ? 4 : PackOf<X, G>::value;
    const X *seen = Reads<OP>::y ? y : x;
    each<N>(count, aligned(seen, dy, dx), [&](Size at, auto n) {
        constexpr int M = decltype(n)::value;
        Wide<X> values[M] = {}, grads[M];
        if (Reads<OP>::x || Reads<OP>::y) load(seen + at, values);
        load(dy + at, grads);
#pragma unroll
        for (int i = 0; i < M; ++i) grads[i] = derivative<OP>(values[i], values[i], grads[i], p, q);
        store(dx + at, grads);
    });
}

#define UNARY_BACKWARD(name, OP, S, X, G)                                                                              \
    KERNEL(name##_backward_##S, 256, const X *x, const X *y, const G *dy, G *dx, double p, double q, Size count) {     \
        unary_backward_loop<OP>(x, y, dy, dx, Wide<X>(p), Wide<X>(q), count);                                          \
    }
FOR_F32(EACH_UNARY(UNARY_BACKWARD, f32_f32, float, float))
FOR_F64(EACH_UNARY(UNARY_BACKWARD, f64_f64, double, double))
FOR_BF16(EACH_UNARY(UNARY_BACKWARD, bf16_f32, bf16, float))
FOR_BF16(EACH_UNARY(UNARY_BACKWARD, bf16_bf16, bf16, bf16))
FOR_F16(EACH_UNARY(UNARY_BACKWARD, f16_f32, f16, float))
FOR_F16(EACH_UNARY(UNARY_BACKWARD, f16_f16, f16, f16))
