// Changes of shape: elements move without changing. A kernel for each unit size; the launcher merges contiguous elements into
// larger units.

// Sizes of the result's dimensions, the innermost last, and strides in the source (0: broadcast).
struct Strides {
    i64 size[6], from[6];
};

template <class Raw> DEVICE void gather(const Raw *from, Raw *to, const Strides &shape, Size count) {
    each<1>(count, false, [&](Size at, auto) {
        Size rest = at, source = 0;
#pragma unroll
        for (int d = 5; d >= 0; --d) {
            if (shape.size[d] == 1) continue;
            Size index;
            if (rest < 0x7fffffff && shape.size[d] < 0x7fffffff) {
                index = u32(rest) % u32(shape.size[d]);
                rest = u32(rest) / u32(shape.size[d]);
            } else {
                index = rest % shape.size[d];
                rest /= shape.size[d];
            }
            source += index * shape.from[d];
        }
        to[at] = from[source];
    });
}

// Copies rows of `width`, with pitches `from_pitch` and `to_pitch`.
template <class Raw>
DEVICE void copy_rows(const Raw *from, Raw *to, Size rows, Size width, Size from_pitch, Size to_pitch) {
    each<1>(rows * width, false, [&](Size at, auto) {
        Size row, column;
        if (at < 0x7fffffff) {
            row = u32(at) / u32(width);
            column = u32(at) % u32(width);
        } else {
            row = at / width;
            column = at % width;
        }
        to[row * to_pitch + column] = from[row * from_pitch + column];
    });
}

// Transposes `batch` matrices of rows x columns, by tiles of 32 x 32 in blocks of 32 x 8.
template <class Raw> DEVICE void transpose(const Raw *from, Raw *to, Size batch, Size rows, Size columns, Size tiles_across) {
    __shared__ Raw tile[32][33];
    const Size tiles_down = (rows + 31) / 32, tiles = batch * tiles_down * tiles_across;
    for (Size at = blockIdx.x; at < tiles; at += gridDim.x) {
        const Size across = at % tiles_across, down = at / tiles_across % tiles_down;
        const Size matrix = at / (tiles_across * tiles_down) * rows * columns;
        const Size column = across * 32 + threadIdx.x;
        for (int i = threadIdx.y; i < 32; i += 8) {
            const Size row = down * 32 + i;
            if (row < rows && column < columns) tile[i][threadIdx.x] = from[matrix + row * columns + column];
        }
        __syncthreads();
        const Size row = down * 32 + threadIdx.x;
        for (int i = threadIdx.y; i < 32; i += 8) {
            const Size column = across * 32 + i;
            if (row < rows && column < columns) to[matrix + column * rows + row] = tile[threadIdx.x][i];
        }
        __syncthreads();
    }
}

#define MOVES(S, Raw)                                                                                              \
    KERNEL(gather_##S, 256, const Raw *from, Raw *to, Strides shape, Size count) { gather(from, to, shape, count); } \
    KERNEL(copy_rows_##S, 256, const Raw *from, Raw *to, Size rows, Size width, Size from_pitch, Size to_pitch) {  \
        copy_rows(from, to, rows, width, from_pitch, to_pitch);                                                    \
    }
#define TRANSPOSES(S, Raw)                                                                                     \
    KERNEL(transpose_##S, 256, const Raw *from, Raw *to, Size batch, Size rows, Size columns, Size tiles_across) { \
        transpose(from, to, batch, rows, columns, tiles_across);                                               \
    }
MOVES(b1, u8)
MOVES(b2, u16)
MOVES(b4, u32)
MOVES(b8, uint2)
MOVES(b16, uint4)
TRANSPOSES(b1, u8)
TRANSPOSES(b2, u16)
TRANSPOSES(b4, u32)
TRANSPOSES(b8, uint2)
