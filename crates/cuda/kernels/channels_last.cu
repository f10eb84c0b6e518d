// Pooling, up-sampling and depthwise convolution of channels-last maps, [N, H, W, C]. Packs are neighbouring channels.

// phalanx_kernels::Pool2dShape without the batch.
struct Pool {
    int height, width, out_height, out_width, kernel_y, kernel_x, stride_y, stride_x, padding_y, padding_x, channels;
};

// The position of an element: its channel, column, row and image.
struct Position {
    int channel, column, row;
    Size image;
};
DEVICE Position place_of(Size at, int channels, int width, int height) {
    const Size pixel = at / channels, line = pixel / width, image = line / height;
    return {int(at - pixel * channels), int(pixel - line * width), int(line - image * height), image};
}
DEVICE Size at_of(const Position &place, int row, int column, int height, int width, int channels) {
    return ((place.image * height + row) * width + column) * channels + place.channel;
}

template <int M> DEVICE void load_words(const u32 *from, u32 (&to)[M]) {
#pragma unroll
    for (int i = 0; i < M; i += Piece<u32, M>::count) {
        typename Piece<u32, M>::Bits bits;
        bits.raw = *reinterpret_cast<const typename Piece<u32, M>::Raw *>(from + i);
#pragma unroll
        for (int j = 0; j < Piece<u32, M>::count; ++j) to[i + j] = bits.at[j];
    }
}
template <int M> DEVICE void store_words(u32 *to, const u32 (&from)[M]) {
#pragma unroll
    for (int i = 0; i < M; i += Piece<u32, M>::count) {
        typename Piece<u32, M>::Bits bits;
#pragma unroll
        for (int j = 0; j < Piece<u32, M>::count; ++j) bits.at[j] = from[i + j];
        *reinterpret_cast<typename Piece<u32, M>::Raw *>(to + i) = bits.raw;
    }
}

// The maximum of each window, and its position in the plane. NaN is the largest; the first of equal elements wins.
template <class X> DEVICE void max_pool2d(const X *x, X *y, u32 *positions, const Pool &of, Size count) {
    constexpr int N = PackOf<X>::value;
    each<N>(count, aligned(x, y, positions) && of.channels % N == 0, [&](Size at, auto n) {
        constexpr int M = decltype(n)::value;
        const Position place = place_of(at, of.channels, of.out_width, of.out_height);
        const int top = place.row * of.stride_y - of.padding_y, left = place.column * of.stride_x - of.padding_x;
        const int first_row = max(top, 0), first_column = max(left, 0);
        Wide<X> best[M], values[M];
        u32 best_at[M];
        load(x + at_of(place, first_row, first_column, of.height, of.width, of.channels), best);
#pragma unroll
        for (int i = 0; i < M; ++i) best_at[i] = u32(first_row * of.width + first_column);
        for (int row = first_row; row < min(top + of.kernel_y, of.height); ++row)
            for (int column = first_column; column < min(left + of.kernel_x, of.width); ++column) {
                load(x + at_of(place, row, column, of.height, of.width, of.channels), values);
#pragma unroll
                for (int i = 0; i < M; ++i) {
                    const bool better = values[i] > best[i] || (values[i] != values[i] && best[i] == best[i]);
                    best[i] = better ? values[i] : best[i];
                    best_at[i] = better ? u32(row * of.width + column) : best_at[i];
                }
            }
        store(y + at, best);
        store_words(positions + at, best_at);
    });
}

// The outputs whose windows contain an element of the input, first to end.
struct Outputs {
    int top, bottom, left, right;
};
DEVICE Outputs outputs_over(const Pool &of, const Position &place) {
    const int y = place.row + of.padding_y, x = place.column + of.padding_x;
    return {y < of.kernel_y ? 0 : (y - of.kernel_y) / of.stride_y + 1, min(y / of.stride_y + 1, of.out_height),
            x < of.kernel_x ? 0 : (x - of.kernel_x) / of.stride_x + 1, min(x / of.stride_x + 1, of.out_width)};
}

template <class G> DEVICE void max_pool2d_backward(const G *dy, const u32 *positions, G *dx, const Pool &of, Size count) {
    constexpr int N = PackOf<G>::value;
    each<N>(count, aligned(dy, positions, dx) && of.channels % N == 0, [&](Size at, auto n) {
        constexpr int M = decltype(n)::value;
        const Position place = place_of(at, of.channels, of.width, of.height);
        const Outputs outputs = outputs_over(of, place);
        const u32 own = u32(place.row * of.width + place.column);
        Wide<G> sums[M] = {}, grads[M];
        u32 from[M];
        for (int row = outputs.top; row < outputs.bottom; ++row)
            for (int column = outputs.left; column < outputs.right; ++column) {
                const Size output = at_of(place, row, column, of.out_height, of.out_width, of.channels);
                load_words(positions + output, from);
                load(dy + output, grads);
#pragma unroll
                for (int i = 0; i < M; ++i) sums[i] += from[i] == own ? grads[i] : Wide<G>(0);
            }
        store(dx + at, sums);
    });
}

template <class W> DEVICE W weight_of(const Pool &of, int count_padding, int row, int column) {
    const int top = row * of.stride_y - of.padding_y, left = column * of.stride_x - of.padding_x;
    const int rows = min(top + of.kernel_y, of.height) - max(top, 0), columns = min(left + of.kernel_x, of.width) - max(left, 0);
    return W(1) / W(count_padding ? of.kernel_y * of.kernel_x : max(rows * columns, 1));
}

template <class X> DEVICE void avg_pool2d(const X *x, X *y, const Pool &of, int count_padding, Size count) {
    constexpr int N = PackOf<X>::value;
    each<N>(count, aligned(x, y) && of.channels % N == 0, [&](Size at, auto n) {
        constexpr int M = decltype(n)::value;
        const Position place = place_of(at, of.channels, of.out_width, of.out_height);
        const int top = place.row * of.stride_y - of.padding_y, left = place.column * of.stride_x - of.padding_x;
        Wide<X> sums[M] = {}, values[M];
        for (int row = max(top, 0); row < min(top + of.kernel_y, of.height); ++row)
            for (int column = max(left, 0); column < min(left + of.kernel_x, of.width); ++column) {
                load(x + at_of(place, row, column, of.height, of.width, of.channels), values);
#pragma unroll
                for (int i = 0; i < M; ++i) sums[i] += values[i];
            }
        const Wide<X> weight = weight_of<Wide<X>>(of, count_padding, place.row, place.column);
#pragma unroll
        for (int i = 0; i < M; ++i) sums[i] *= weight;
        store(y + at, sums);
    });
}

template <class G> DEVICE void avg_pool2d_backward(const G *dy, G *dx, const Pool &of, int count_padding, Size count) {
    constexpr int N = PackOf<G>::value;
    each<N>(count, aligned(dy, dx) && of.channels % N == 0, [&](Size at, auto n) {
        constexpr int M = decltype(n)::value;
        const Position place = place_of(at, of.channels, of.width, of.height);
        const Outputs outputs = outputs_over(of, place);
        Wide<G> sums[M] = {}, grads[M];
        for (int row = outputs.top; row < outputs.bottom; ++row)
            for (int column = outputs.left; column < outputs.right; ++column) {
                load(dy + at_of(place, row, column, of.out_height, of.out_width, of.channels), grads);
                const Wide<G> weight = weight_of<Wide<G>>(of, count_padding, row, column);
#pragma unroll
                for (int i = 0; i < M; ++i) sums[i] += grads[i] * weight;
            }
        store(dx + at, sums);
    });
}

// Sizes are those of the larger map in forward, and of the smaller one in backward.
template <class X> DEVICE void upsample_nearest2d(const X *x, X *y, int factor, int height, int width, int channels, Size count) {
    constexpr int N = PackOf<X>::value;
    each<N>(count, aligned(x, y) && channels % N == 0, [&](Size at, auto n) {
        const Position place = place_of(at, channels, width, height);
        Wide<X> values[decltype(n)::value];
        load(x + at_of(place, place.row / factor, place.column / factor, height / factor, width / factor, channels), values);
        store(y + at, values);
    });
}

template <class G> DEVICE void upsample_nearest2d_backward(const G *dy, G *dx, int factor, int height, int width, int channels, Size count) {
    constexpr int N = PackOf<G>::value;
    each<N>(count, aligned(dy, dx) && channels % N == 0, [&](Size at, auto n) {
        constexpr int M = decltype(n)::value;
        const Position place = place_of(at, channels, width, height);
        Wide<G> sums[M] = {}, grads[M];
        for (int i = 0; i < factor; ++i)
            for (int j = 0; j < factor; ++j) {
                const int row = place.row * factor + i, column = place.column * factor + j;
                load(dy + at_of(place, row, column, height * factor, width * factor, channels), grads);
#pragma unroll
                for (int k = 0; k < M; ++k) sums[k] += grads[k];
            }
        store(dx + at, sums);
    });
}

// ---- depthwise convolution of one output channel per input channel, with weights [taps, C]

struct Depthwise {
    int height, width, out_height, out_width, kernel_y, kernel_x, stride_y, stride_x, padding_y, padding_x, dilation_y, dilation_x, channels;
};

template <class T> DEVICE void depthwise(const T *x, const T *w, T *y, const Depthwise &of, Size count) {
    constexpr int N = PackOf<T>::value;
    each<N>(count, aligned(x, w, y) && of.channels % N == 0, [&](Size at, auto n) {
        constexpr int M = decltype(n)::value;
        const Position place = place_of(at, of.channels, of.out_width, of.out_height);
        Wide<T> sums[M] = {}, values[M], weights[M];
        for (int ky = 0; ky < of.kernel_y; ++ky) {
            const int row = place.row * of.stride_y - of.padding_y + ky * of.dilation_y;
            if (row < 0 || row >= of.height) continue;
            for (int kx = 0; kx < of.kernel_x; ++kx) {
                const int column = place.column * of.stride_x - of.padding_x + kx * of.dilation_x;
                if (column < 0 || column >= of.width) continue;
                load(x + at_of(place, row, column, of.height, of.width, of.channels), values);
                load(w + Size(ky * of.kernel_x + kx) * of.channels + place.channel, weights);
#pragma unroll
                for (int i = 0; i < M; ++i) sums[i] += values[i] * weights[i];
            }
        }
        store(y + at, sums);
    });
}

template <class T> DEVICE void depthwise_input(const T *dy, const T *w, T *dx, const Depthwise &of, Size count) {
    constexpr int N = PackOf<T>::value;
    each<N>(count, aligned(dy, w, dx) && of.channels % N == 0, [&](Size at, auto n) {
        constexpr int M = decltype(n)::value;
        const Position place = place_of(at, of.channels, of.width, of.height);
        Wide<T> sums[M] = {}, grads[M], weights[M];
        for (int ky = 0; ky < of.kernel_y; ++ky) {
            const int down = place.row + of.padding_y - ky * of.dilation_y, row = down / of.stride_y;
            if (down < 0 || row * of.stride_y != down || row >= of.out_height) continue;
            for (int kx = 0; kx < of.kernel_x; ++kx) {
                const int across = place.column + of.padding_x - kx * of.dilation_x, column = across / of.stride_x;
                if (across < 0 || column * of.stride_x != across || column >= of.out_width) continue;
                load(dy + at_of(place, row, column, of.out_height, of.out_width, of.channels), grads);
                load(w + Size(ky * of.kernel_x + kx) * of.channels + place.channel, weights);
#pragma unroll
                for (int i = 0; i < M; ++i) sums[i] += grads[i] * weights[i];
            }
        }
        store(dx + at, sums);
    });
}

// The gradient of the weights: parts [chunks of pixels, taps, C]. Blocks are 32 channels wide and 8 pixels high; grid: tiles of
// channels, chunks, taps.
template <class T>
DEVICE void depthwise_weight(const T *x, const T *dy, Wide<T> *parts, const Depthwise &of, Size pixels, Size per_chunk) {
    typedef Wide<T> W;
    __shared__ W shared[8][33];
    const int channel = blockIdx.x * 32 + threadIdx.x, tap = blockIdx.z;
    const int ky = tap / of.kernel_x, kx = tap % of.kernel_x;
    const Size first = Size(blockIdx.y) * per_chunk, end = min(first + per_chunk, pixels);
    W sum = 0;
    if (channel < of.channels)
#pragma unroll 1
        for (Size pixel = first + threadIdx.y; pixel < end; pixel += 8) {
            const Position place = place_of(pixel, 1, of.out_width, of.out_height);
            const int row = place.row * of.stride_y - of.padding_y + ky * of.dilation_y;
            const int column = place.column * of.stride_x - of.padding_x + kx * of.dilation_x;
            if (row < 0 || row >= of.height || column < 0 || column >= of.width) continue;
            const Size from = ((place.image * of.height + row) * of.width + column) * of.channels + channel;
            sum += widen(dy[pixel * of.channels + channel]) * widen(x[from]);
        }
    shared[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.y == 0 && channel < of.channels) {
        for (int i = 1; i < 8; ++i) sum += shared[i][threadIdx.x];
        parts[(Size(blockIdx.y) * gridDim.z + tap) * of.channels + channel] = sum;
    }
}

#define CHANNELS_LAST(S, T)                                                                                                    \
    KERNEL(last_max_pool2d_##S, 256, const T *x, T *y, u32 *positions, Pool of, Size count) {                                  \
        max_pool2d(x, y, positions, of, count);                                                                                \
    }                                                                                                                          \
    KERNEL(last_max_pool2d_backward_##S, 256, const T *dy, const u32 *positions, T *dx, Pool of, Size count) {                 \
        max_pool2d_backward(dy, positions, dx, of, count);                                                                     \
    }                                                                                                                          \
    KERNEL(last_avg_pool2d_##S, 256, const T *x, T *y, Pool of, int count_padding, Size count) {                               \
        avg_pool2d(x, y, of, count_padding, count);                                                                            \
    }                                                                                                                          \
    KERNEL(last_avg_pool2d_backward_##S, 256, const T *dy, T *dx, Pool of, int count_padding, Size count) {                    \
        avg_pool2d_backward(dy, dx, of, count_padding, count);                                                                 \
    }                                                                                                                          \
    KERNEL(last_upsample_nearest2d_##S, 256, const T *x, T *y, int factor, int height, int width, int channels, Size count) {  \
        upsample_nearest2d(x, y, factor, height, width, channels, count);                                                      \
    }                                                                                                                          \
    KERNEL(last_upsample_nearest2d_backward_##S, 256, const T *dy, T *dx, int factor, int height, int width, int channels,     \
           Size count) {                                                                                                       \
        upsample_nearest2d_backward(dy, dx, factor, height, width, channels, count);                                           \
    }                                                                                                                          \
    KERNEL(last_depthwise_##S, 256, const T *x, const T *w, T *y, Depthwise of, Size count) { depthwise(x, w, y, of, count); } \
    KERNEL(last_depthwise_input_##S, 256, const T *dy, const T *w, T *dx, Depthwise of, Size count) {                          \
        depthwise_input(dy, w, dx, of, count);                                                                                 \
    }                                                                                                                          \
    KERNEL(last_depthwise_weight_##S, 256, const T *x, const T *dy, Wide<T> *parts, Depthwise of, Size pixels, Size per_chunk) { \
        depthwise_weight(x, dy, parts, of, pixels, per_chunk);                                                                 \
    }
FOR_F32(CHANNELS_LAST(f32, float))
FOR_F64(CHANNELS_LAST(f64, double))
FOR_BF16(CHANNELS_LAST(bf16, bf16))
FOR_F16(CHANNELS_LAST(f16, f16))
