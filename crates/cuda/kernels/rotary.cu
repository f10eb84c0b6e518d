// Rotary position embeddings (Su et al. 2021), by halves.

// Cosines and sines of each position times each of `half` frequencies, times `scale`.
KERNEL(rotary_angles, 256, const u32 *positions, const double *frequencies, float *cos_of, float *sin_of, int half, double scale,
       Size count) {
    const Size stride = Size(gridDim.x) * blockDim.x;
    for (Size at = Size(blockIdx.x) * blockDim.x + threadIdx.x; at < count; at += stride) {
        const double angle = double(positions[at / half]) * frequencies[at % half];
        cos_of[at] = float(cos(angle) * scale);
        sin_of[at] = float(sin(angle) * scale);
    }
}

// Rotates pairs (i, i + half) of heads of 2·half elements; `heads` heads share the angles of a position. `sign` is -1 to rotate
// back.
template <class X>
DEVICE void rotary(const X *x, const float *cos_of, const float *sin_of, X *y, int heads, int half, double sign, Size count) {
    typedef Wide<X> W;
    const Size stride = Size(gridDim.x) * blockDim.x;
    for (Size at = Size(blockIdx.x) * blockDim.x + threadIdx.x; at < count; at += stride) {
        const Size head = at / half, pair = at % half, angle = head / heads * half + pair, first = head * 2 * half + pair;
        const W a = widen(x[first]), b = widen(x[first + half]);
        const W c = W(cos_of[angle]), s = W(sin_of[angle]) * W(sign);
        y[first] = narrow<X>(a * c - b * s);
        y[first + half] = narrow<X>(b * c + a * s);
    }
}

#define ROTARY(S, X)                                                                                                            \
    KERNEL(rotary_##S, 256, const X *x, const float *cos_of, const float *sin_of, X *y, int heads, int half, double sign,       \
           Size count) {                                                                                                        \
        rotary(x, cos_of, sin_of, y, heads, half, sign, count);                                                                 \
    }
FOR_F32(ROTARY(f32, float))
FOR_F64(ROTARY(f64, double))
FOR_BF16(ROTARY(bf16, bf16))
FOR_F16(ROTARY(f16, f16))
