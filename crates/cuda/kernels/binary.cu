// Binary operations with broadcasting.

enum Binary { ADD, SUB, MUL };

template <class W> DEVICE W combine(int op, W a, W b) { return op == ADD ? a + b : op == SUB ? a - b : a * b; }

// Sizes of up to six dimensions, the innermost last, and strides in each array (0: broadcast).
struct Broadcast {
    i64 size[6], a[6], b[6];
};

// Arrays of one shape, or of one element.
template <class A, class B, class Y>
DEVICE void binary_flat(int op, const A *a, int one_a, const B *b, int one_b, Y *y, Size count) {
    constexpr int N = PackOf<A, B, Y>::value;
    const Wide<A> first_a = widen(a[0]), first_b = widen(b[0]);
    const bool packed = (one_a || aligned(a)) && (one_b || aligned(b)) && aligned(y);
    each<N>(count, packed, [&](Size at, auto n) {
        constexpr int M = decltype(n)::value;
        Wide<A> left[M], right[M];
        if (one_a) {
#pragma unroll
            for (int i = 0; i < M; ++i) left[i] = first_a;
        } else load(a + at, left);
        if (one_b) {
#pragma unroll
            for (int i = 0; i < M; ++i) right[i] = first_b;
        } else load(b + at, right);
#pragma unroll
        for (int i = 0; i < M; ++i) left[i] = combine(op, left[i], right[i]);
        store(y + at, left);
    });
}

// Any broadcast. With `packed`, packs do not cross the innermost dimension and are aligned in each array.
template <class A, class B, class Y>
DEVICE void binary_broadcast(int op, const A *a, const B *b, Y *y, const Broadcast &shape, int packed, Size count) {
    constexpr int N = PackOf<A, B, Y>::value;
    each<N>(count, packed, [&](Size at, auto n) {
        constexpr int M = decltype(n)::value;
        Size rest = at, at_a = 0, at_b = 0;
#pragma unroll
        for (int d = 5; d >= 0; --d) {
            if (shape.size[d] == 1) continue;
            Size index;
            // A division of 32 bits is several times faster.
            if (rest < 0x7fffffff && shape.size[d] < 0x7fffffff) {
                index = u32(rest) % u32(shape.size[d]);
                rest = u32(rest) / u32(shape.size[d]);
            } else {
                index = rest % shape.size[d];
                rest /= shape.size[d];
            }
            at_a += index * shape.a[d];
            at_b += index * shape.b[d];
        }
        Wide<A> left[M], right[M];
        if (shape.a[5] == 0) {
            const Wide<A> v = widen(a[at_a]);
#pragma unroll
            for (int i = 0; i < M; ++i) left[i] = v;
        } else load(a + at_a, left);
        if (shape.b[5] == 0) {
            const Wide<A> v = widen(b[at_b]);
#pragma unroll
            for (int i = 0; i < M; ++i) right[i] = v;
        } else load(b + at_b, right);
#pragma unroll
        for (int i = 0; i < M; ++i) left[i] = combine(op, left[i], right[i]);
        store(y + at, left);
    });
}

#define BINARY(S, A, B, Y)                                                                                     \
    KERNEL(binary_flat_##S, 256, int op, const A *a, int one_a, const B *b, int one_b, Y *y, Size count) {     \
        binary_flat(op, a, one_a, b, one_b, y, count);                                                         \
    }                                                                                                          \
    KERNEL(binary_broadcast_##S, 256, int op, const A *a, const B *b, Y *y, Broadcast shape, int packed, Size count) { \
        binary_broadcast(op, a, b, y, shape, packed, count);                                                   \
    }
FOR_F32(BINARY(f32_f32_f32, float, float, float))
FOR_F64(BINARY(f64_f64_f64, double, double, double))
FOR_BF16(BINARY(bf16_bf16_bf16, bf16, bf16, bf16))
FOR_BF16(BINARY(bf16_f32_bf16, bf16, float, bf16))
FOR_BF16(BINARY(f32_bf16_bf16, float, bf16, bf16))
FOR_F16(BINARY(f16_f16_f16, f16, f16, f16))
FOR_F16(BINARY(f16_f32_f16, f16, float, f16))
FOR_F16(BINARY(f32_f16_f16, float, f16, f16))
// Gradients of products, which are not rounded again.
FOR_BF16(BINARY(bf16_bf16_f32, bf16, bf16, float))
FOR_BF16(BINARY(bf16_f32_f32, bf16, float, float))
FOR_BF16(BINARY(f32_bf16_f32, float, bf16, float))
FOR_F16(BINARY(f16_f16_f32, f16, f16, float))
FOR_F16(BINARY(f16_f32_f32, f16, float, float))
FOR_F16(BINARY(f32_f16_f32, float, f16, float))
