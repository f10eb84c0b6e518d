// Pooling and nearest up-sampling of planes. Backward gathers: each element of the input reads the windows that contain it, so
// that the order of sums is fixed.

// phalanx_kernels::Pool2dShape without batch and channels.
struct Pool {
    int height, width, out_height, out_width, kernel_y, kernel_x, stride_y, stride_x, padding_y, padding_x;
};

// The part of a window inside of the plane.
struct Window {
    int top, bottom, left, right;
};
DEVICE Window window_of(const Pool &pool, int row, int column) {
    const int top = row * pool.stride_y - pool.padding_y, left = column * pool.stride_x - pool.padding_x;
    return {max(top, 0), min(top + pool.kernel_y, pool.height), max(left, 0), min(left + pool.kernel_x, pool.width)};
}

// The outputs whose windows contain an element of the input.
DEVICE Window windows_over(const Pool &pool, int row, int column) {
    const int y = row + pool.padding_y, x = column + pool.padding_x;
    const int top = y < pool.kernel_y ? 0 : (y - pool.kernel_y) / pool.stride_y + 1;
    const int left = x < pool.kernel_x ? 0 : (x - pool.kernel_x) / pool.stride_x + 1;
    return {top, min(y / pool.stride_y + 1, pool.out_height), left, min(x / pool.stride_x + 1, pool.out_width)};
}

// The maximum of each window, and its position in the plane. NaN is the largest; the first of equal elements wins.
template <class X> DEVICE void max_pool2d(const X *x, X *y, u32 *positions, const Pool &pool, Size count) {
    const int out_plane = pool.out_height * pool.out_width;
    each<1>(count, false, [&](Size at, auto) {
        const Size plane = at / out_plane;
        const int place = int(at - plane * out_plane);
        const Window window = window_of(pool, place / pool.out_width, place % pool.out_width);
        const X *from = x + plane * pool.height * pool.width;
        int best_at = window.top * pool.width + window.left;
        auto best = widen(from[best_at]);
        for (int row = window.top; row < window.bottom; ++row)
            for (int column = window.left; column < window.right; ++column) {
                const auto value = widen(from[row * pool.width + column]);
                if (value > best || (value != value && best == best)) {
                    best = value;
                    best_at = row * pool.width + column;
                }
            }
        y[at] = from[best_at];
        positions[at] = u32(best_at);
    });
}

template <class G>
DEVICE void max_pool2d_backward(const G *dy, const u32 *positions, G *dx, const Pool &pool, Size count) {
    const int plane_size = pool.height * pool.width;
    each<1>(count, false, [&](Size at, auto) {
        const Size plane = at / plane_size;
        const int place = int(at - plane * plane_size);
        const Window windows = windows_over(pool, place / pool.width, place % pool.width);
        const Size first = plane * pool.out_height * pool.out_width;
        Wide<G> sum = 0;
        for (int row = windows.top; row < windows.bottom; ++row)
            for (int column = windows.left; column < windows.right; ++column) {
                const Size from = first + row * pool.out_width + column;
                if (positions[from] == u32(place)) sum += widen(dy[from]);
            }
        dx[at] = narrow<G>(sum);
    });
}

// The factor of a window's sum.
template <class W> DEVICE W weight_of(const Pool &pool, int count_padding, const Window &window) {
    const int inside = (window.bottom - window.top) * (window.right - window.left);
    return W(1) / W(count_padding ? pool.kernel_y * pool.kernel_x : max(inside, 1));
}

template <class X> DEVICE void avg_pool2d(const X *x, X *y, const Pool &pool, int count_padding, Size count) {
    typedef Wide<X> W;
    const int out_plane = pool.out_height * pool.out_width;
    each<1>(count, false, [&](Size at, auto) {
        const Size plane = at / out_plane;
        const int place = int(at - plane * out_plane);
        const Window window = window_of(pool, place / pool.out_width, place % pool.out_width);
        const X *from = x + plane * pool.height * pool.width;
        W sum = 0;
        for (int row = window.top; row < window.bottom; ++row) {
            W along = 0;
            for (int column = window.left; column < window.right; ++column) along += widen(from[row * pool.width + column]);
            sum += along;
        }
        y[at] = narrow<X>(sum * weight_of<W>(pool, count_padding, window));
    });
}

// One window per plane, a warp for each: the global average at the end of a network.
template <class X> DEVICE void avg_pool2d_whole(const X *x, X *y, Size planes, int size) {
    typedef Wide<X> W;
    const auto group = Group<false>::make();
    W *none = nullptr;
    for (Size plane = Size(blockIdx.x) * group.groups + group.index; plane < planes; plane += Size(gridDim.x) * group.groups) {
        W sum = 0;
        for (int i = group.member; i < size; i += 32) sum += widen(x[plane * size + i]);
        sum = group.template reduce<Add>(sum, none);
        if (group.member == 0) y[plane] = narrow<X>(sum * (W(1) / W(size)));
    }
}

template <class G> DEVICE void avg_pool2d_backward(const G *dy, G *dx, const Pool &pool, int count_padding, Size count) {
    typedef Wide<G> W;
    const int plane_size = pool.height * pool.width;
    each<1>(count, false, [&](Size at, auto) {
        const Size plane = at / plane_size;
        const int place = int(at - plane * plane_size);
        const Window windows = windows_over(pool, place / pool.width, place % pool.width);
        const Size first = plane * pool.out_height * pool.out_width;
        W sum = 0;
        for (int row = windows.top; row < windows.bottom; ++row)
            for (int column = windows.left; column < windows.right; ++column) {
                const W weight = weight_of<W>(pool, count_padding, window_of(pool, row, column));
                sum += widen(dy[first + row * pool.out_width + column]) * weight;
            }
        dx[at] = narrow<G>(sum);
    });
}

// Repeats each element `factor` times in both directions; count and width are the output's.
template <class X> DEVICE void upsample_nearest2d(const X *x, X *y, int factor, int width, int height, Size count) {
    constexpr int N = 16 / sizeof(X);
    const int from_width = width / factor;
    each<N>(count, aligned(y) && width % N == 0, [&](Size at, auto n) {
        constexpr int M = decltype(n)::value;
        const Size row = at / width;
        const int column = int(at - row * width);
        const Size plane = row / height;
        const X *from = x + (plane * (height / factor) + (row - plane * height) / factor) * from_width;
        Wide<X> values[M];
#pragma unroll
        for (int i = 0; i < M; ++i) values[i] = widen(from[(column + i) / factor]);
        store(y + at, values);
    });
}

// Sums over the repetitions of each element; count and width are the input's.
template <class G> DEVICE void upsample_nearest2d_backward(const G *dy, G *dx, int factor, int width, Size count) {
    const Size out_width = Size(width) * factor;
    each<1>(count, false, [&](Size at, auto) {
        const Size row = at / width;
        const G *from = dy + row * factor * out_width + (at - row * width) * factor;
        Wide<G> sum = 0;
        for (int i = 0; i < factor; ++i)
            for (int j = 0; j < factor; ++j) sum += widen(from[i * out_width + j]);
        dx[at] = narrow<G>(sum);
    });
}

#define POOLING(S, T)                                                                                                       \
    KERNEL(max_pool2d_##S, 256, const T *x, T *y, u32 *positions, Pool pool, Size count) { max_pool2d(x, y, positions, pool, count); } \
    KERNEL(max_pool2d_backward_##S, 256, const T *dy, const u32 *positions, T *dx, Pool pool, Size count) {                 \
        max_pool2d_backward(dy, positions, dx, pool, count);                                                                \
    }                                                                                                                       \
    KERNEL(avg_pool2d_##S, 256, const T *x, T *y, Pool pool, int count_padding, Size count) {                               \
        avg_pool2d(x, y, pool, count_padding, count);                                                                       \
    }                                                                                                                       \
    KERNEL(avg_pool2d_whole_##S, 256, const T *x, T *y, Size planes, int size) { avg_pool2d_whole(x, y, planes, size); }    \
    KERNEL(avg_pool2d_backward_##S, 256, const T *dy, T *dx, Pool pool, int count_padding, Size count) {                    \
        avg_pool2d_backward(dy, dx, pool, count_padding, count);                                                            \
    }                                                                                                                       \
    KERNEL(upsample_nearest2d_##S, 256, const T *x, T *y, int factor, int width, int height, Size count) {                  \
        upsample_nearest2d(x, y, factor, width, height, count);                                                             \
    }                                                                                                                       \
    KERNEL(upsample_nearest2d_backward_##S, 256, const T *dy, T *dx, int factor, int width, Size count) {                   \
        upsample_nearest2d_backward(dy, dx, factor, width, count);                                                          \
    }
FOR_F32(POOLING(f32, float))
FOR_F64(POOLING(f64, double))
FOR_BF16(POOLING(bf16, bf16))
FOR_F16(POOLING(f16, f16))
