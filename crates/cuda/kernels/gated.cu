// Gated linear units: value·gelu(gate) of rows with `width` values and then as many gates, and silu(gate)·value of two arrays.

template <class W> DEVICE W normal_share(W x) {
    return W(0.5) * (W(1) + erf_of(x * W(0.70710678118654752440)));
}

template <class X> DEVICE void geglu_loop(const X *x, X *y, Size count, Size width) {
    each<1>(count, false, [&](Size at, auto) {
        const X *value = x + at + at / width * width;
        Wide<X> v[1], gate[1];
        load(value, v);
        load(value + width, gate);
        v[0] = v[0] * gate[0] * normal_share(gate[0]);
        store(y + at, v);
    });
}

template <class X, class G> DEVICE void geglu_backward_loop(const X *x, const G *dy, G *dx, Size count, Size width) {
    each<1>(count, false, [&](Size at, auto) {
        const Size first = at + at / width * width;
        Wide<X> v[1], gate[1], grad[1], of_value[1], of_gate[1];
        load(x + first, v);
        load(x + first + width, gate);
        load(dy + at, grad);
        const Wide<X> share = normal_share(gate[0]);
        const Wide<X> density = Wide<X>(0.39894228040143267794) * exp_of(-gate[0] * gate[0] * Wide<X>(0.5));
        of_value[0] = grad[0] * gate[0] * share;
        of_gate[0] = grad[0] * v[0] * (share + gate[0] * density);
        store(dx + first, of_value);
        store(dx + first + width, of_gate);
    });
}

#define GEGLU(S, X)                                                               \
    KERNEL(geglu_##S, 256, const X *x, X *y, Size count, Size width) {            \
        geglu_loop(x, y, count, width);                                           \
    }
GEGLU(f32, float)
GEGLU(f64, double)
GEGLU(bf16, bf16)
GEGLU(f16, f16)

#define GEGLU_BACKWARD(S, X, G)                                                                         \
    KERNEL(geglu_backward_##S, 256, const X *x, const G *dy, G *dx, Size count, Size width) {           \
        geglu_backward_loop(x, dy, dx, count, width);                                                   \
    }
GEGLU_BACKWARD(f32_f32, float, float)
GEGLU_BACKWARD(f64_f64, double, double)
GEGLU_BACKWARD(bf16_f32, bf16, float)
GEGLU_BACKWARD(bf16_bf16, bf16, bf16)
GEGLU_BACKWARD(f16_f32, f16, float)
GEGLU_BACKWARD(f16_f16, f16, f16)

template <class X> DEVICE void swiglu_loop(const X *gate, const X *value, X *y, Size count) {
    constexpr int N = PackOf<X>::value;
    each<N>(count, aligned(gate, value, y), [&](Size at, auto n) {
        constexpr int M = decltype(n)::value;
        Wide<X> gates[M], values[M];
        load(gate + at, gates);
        load(value + at, values);
#pragma unroll
        for (int i = 0; i < M; ++i) values[i] *= gates[i] / (Wide<X>(1) + exp_of(-gates[i]));
        store(y + at, values);
    });
}

template <class X, class G>
DEVICE void swiglu_backward_loop(const X *gate, const X *value, const G *dy, G *dgate, G *dvalue, Size count) {
    typedef Wide<X> W;
    constexpr int N = PackOf<X, G>::value;
    each<N>(count, aligned(gate, value, dy, dgate, dvalue), [&](Size at, auto n) {
        constexpr int M = decltype(n)::value;
        W gates[M], values[M], grads[M], of_value[M];
        load(gate + at, gates);
        load(value + at, values);
        load(dy + at, grads);
#pragma unroll
        for (int i = 0; i < M; ++i) {
            const W share = W(1) / (W(1) + exp_of(-gates[i]));
            of_value[i] = grads[i] * gates[i] * share;
            grads[i] *= values[i] * share * (W(1) + gates[i] * (W(1) - share));
        }
        store(dgate + at, grads);
        store(dvalue + at, of_value);
    });
}

#define SWIGLU(S, X) \
    KERNEL(swiglu_##S, 256, const X *gate, const X *value, X *y, Size count) { swiglu_loop(gate, value, y, count); }
FOR_F32(SWIGLU(f32, float))
FOR_F64(SWIGLU(f64, double))
FOR_BF16(SWIGLU(bf16, bf16))
FOR_F16(SWIGLU(f16, f16))

#define SWIGLU_BACKWARD(S, X, G)                                                                                          \
    KERNEL(swiglu_backward_##S, 256, const X *gate, const X *value, const G *dy, G *dgate, G *dvalue, Size count) {       \
        swiglu_backward_loop(gate, value, dy, dgate, dvalue, count);                                                      \
    }
FOR_F32(SWIGLU_BACKWARD(f32_f32, float, float))
FOR_F64(SWIGLU_BACKWARD(f64_f64, double, double))
FOR_BF16(SWIGLU_BACKWARD(bf16_f32, bf16, float))
FOR_BF16(SWIGLU_BACKWARD(bf16_bf16, bf16, bf16))
FOR_F16(SWIGLU_BACKWARD(f16_f32, f16, float))
FOR_F16(SWIGLU_BACKWARD(f16_f16, f16, f16))
