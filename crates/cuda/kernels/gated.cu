// Gated units: value·gelu(gate) of rows with `width` values and then as many gates.

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
