// Depthwise convolution of [N, C, H, W]: each output channel reads one input channel. There are C·multiplier outputs. Windows are
// square.

struct Depthwise {
    int height, width, out_height, out_width, stride_y, stride_x, padding_y, padding_x, dilation_y, dilation_x, channels, multiplier;
};

// A thread computes four neighbours of an output row, which share their reads. The grid covers rows of four.
template <int K, class T> DEVICE void forward(const T *x, const T *w, T *y, const Depthwise &of, Size quads) {
    typedef Wide<T> W;
    const int across = (of.out_width + 3) / 4, outputs = of.channels * of.multiplier;
    each<1>(quads, false, [&](Size at, auto) {
        const Size line = at / across;
        const int first = int(at - line * across) * 4;
        const Size plane = line / of.out_height;
        const int row = int(line - plane * of.out_height), output = int(plane % outputs);
        const Size image = plane / outputs;
        const T *from = x + (image * of.channels + output / of.multiplier) * of.height * of.width;
        const T *taps = w + output * K * K;
        W sums[4] = {};
#pragma unroll
        for (int ky = 0; ky < K; ++ky) {
            const int down = row * of.stride_y - of.padding_y + ky * of.dilation_y;
            if (down < 0 || down >= of.height) continue;
            W weights[K];
#pragma unroll
            for (int kx = 0; kx < K; ++kx) weights[kx] = widen(taps[ky * K + kx]);
            const T *line_of = from + Size(down) * of.width;
            if (of.stride_x == 1 && of.dilation_x == 1) {
                W seen[K + 3];
#pragma unroll
                for (int i = 0; i < K + 3; ++i) {
                    const int column = first - of.padding_x + i;
                    seen[i] = column >= 0 && column < of.width ? widen(line_of[column]) : W(0);
                }
#pragma unroll
                for (int i = 0; i < 4; ++i)
#pragma unroll
                    for (int kx = 0; kx < K; ++kx) sums[i] += seen[i + kx] * weights[kx];
            } else {
#pragma unroll
                for (int i = 0; i < 4; ++i)
#pragma unroll
                    for (int kx = 0; kx < K; ++kx) {
                        const int column = (first + i) * of.stride_x - of.padding_x + kx * of.dilation_x;
                        if (column >= 0 && column < of.width) sums[i] += widen(line_of[column]) * weights[kx];
                    }
            }
        }
        T *to = y + line * of.out_width + first;
#pragma unroll
        for (int i = 0; i < 4; ++i)
            if (first + i < of.out_width) to[i] = narrow<T>(sums[i]);
    });
}

// Each element of the input gathers from the outputs that read it.
template <int K, class T> DEVICE void backward_input(const T *dy, const T *w, T *dx, const Depthwise &of, Size count) {
    typedef Wide<T> W;
    const int plane_size = of.height * of.width;
    each<1>(count, false, [&](Size at, auto) {
        const Size plane = at / plane_size;
        const int place = int(at - plane * plane_size), row = place / of.width, column = place % of.width;
        const int channel = int(plane % of.channels);
        W sum = 0;
        for (int m = 0; m < of.multiplier; ++m) {
            const T *taps = w + (channel * of.multiplier + m) * K * K;
            const T *from = dy + (plane * of.multiplier + m) * of.out_height * of.out_width;
#pragma unroll
            for (int ky = 0; ky < K; ++ky) {
                const int down = row + of.padding_y - ky * of.dilation_y, out_row = down / of.stride_y;
                if (down < 0 || out_row * of.stride_y != down || out_row >= of.out_height) continue;
#pragma unroll
                for (int kx = 0; kx < K; ++kx) {
                    const int across = column + of.padding_x - kx * of.dilation_x, out_column = across / of.stride_x;
                    if (across < 0 || out_column * of.stride_x != across || out_column >= of.out_width) continue;
                    sum += widen(from[out_row * of.out_width + out_column]) * widen(taps[ky * K + kx]);
                }
            }
        }
        dx[at] = narrow<T>(sum);
    });
}

// The gradient of the weights over chunks of images: parts [chunks, outputs, K·K]. A block for each output channel and chunk.
template <int K, class T>
DEVICE void backward_weight(const T *x, const T *dy, Wide<T> *parts, const Depthwise &of, int images, int per_chunk) {
    typedef Wide<T> W;
    __shared__ W shared[32];
    const int outputs = of.channels * of.multiplier, output = blockIdx.x, plane_size = of.out_height * of.out_width;
    const int begin = blockIdx.y * per_chunk, end = min(begin + per_chunk, images);
    W sums[K * K] = {};
#pragma unroll 1
    for (int i = threadIdx.x; i < (end - begin) * plane_size; i += blockDim.x) {
        const int image = begin + i / plane_size, place = i % plane_size, row = place / of.out_width, column = place % of.out_width;
        const W grad = widen(dy[(Size(image) * outputs + output) * plane_size + place]);
        const T *from = x + (Size(image) * of.channels + output / of.multiplier) * of.height * of.width;
#pragma unroll
        for (int ky = 0; ky < K; ++ky) {
            const int down = row * of.stride_y - of.padding_y + ky * of.dilation_y;
            if (down < 0 || down >= of.height) continue;
#pragma unroll
            for (int kx = 0; kx < K; ++kx) {
                const int across = column * of.stride_x - of.padding_x + kx * of.dilation_x;
                if (across >= 0 && across < of.width) sums[ky * K + kx] += grad * widen(from[Size(down) * of.width + across]);
            }
        }
    }
#pragma unroll
    for (int k = 0; k < K * K; ++k) {
        const W sum = block_reduce<Add>(sums[k], shared);
        if (threadIdx.x == 0) parts[(Size(blockIdx.y) * outputs + output) * K * K + k] = sum;
    }
}

#define DEPTHWISE(S, T, K)                                                                                                     \
    KERNEL(depthwise_##S##_k##K, 256, const T *x, const T *w, T *y, Depthwise of, Size quads) { forward<K>(x, w, y, of, quads); } \
    KERNEL(depthwise_input_##S##_k##K, 256, const T *dy, const T *w, T *dx, Depthwise of, Size count) {                        \
        backward_input<K>(dy, w, dx, of, count);                                                                               \
    }                                                                                                                          \
    KERNEL(depthwise_weight_##S##_k##K, 256, const T *x, const T *dy, Wide<T> *parts, Depthwise of, int images, int per_chunk) { \
        backward_weight<K>(x, dy, parts, of, images, per_chunk);                                                               \
    }
#define DEPTHWISES(S, T)  \
    DEPTHWISE(S, T, 3)    \
    DEPTHWISE(S, T, 5)
FOR_F32(DEPTHWISES(f32, float))
FOR_F64(DEPTHWISES(f64, double))
FOR_BF16(DEPTHWISES(bf16, bf16))
FOR_F16(DEPTHWISES(f16, f16))
