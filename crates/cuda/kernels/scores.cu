// Scaling and masking of attention scores before softmax, and dropout after it. Scores are [samples, heads, length, keys].

// Multiplies scores by a factor, in place. Hidden scores become −∞.
template <class T> DEVICE void scale_and_mask(T *scores, const Mask &mask, const Sizes &of, T factor, Size count) {
    const Size stride = Size(gridDim.x) * blockDim.x;
    for (Size at = Size(blockIdx.x) * blockDim.x + threadIdx.x; at < count; at += stride) {
        const Size row = at / of.keys;
        int first, end;
        mask.range(of, int(row / of.length / of.heads), int(row % of.length), first, end);
        const int key = int(at % of.keys);
        scores[at] = key >= first && key < end ? scores[at] * factor : T(-INFINITE_F32);
    }
}

KERNEL(scale_and_mask_f32, 256, float *scores, const u32 *lengths, const u32 *starts, Sizes sizes, double factor, Size count) {
    scale_and_mask(scores, Mask{lengths, starts}, sizes, float(factor), count);
}
KERNEL(scale_and_mask_f64, 256, double *scores, const u32 *lengths, const u32 *starts, Sizes sizes, double factor, Size count) {
    scale_and_mask(scores, Mask{lengths, starts}, sizes, factor, count);
}

// y = x times the factor of each weight by dropout.
template <class T>
DEVICE void drop_weights(const T *x, T *y, const Kept &kept, const Sizes &of, double factor, Size count) {
    const Size stride = Size(gridDim.x) * blockDim.x;
    for (Size at = Size(blockIdx.x) * blockDim.x + threadIdx.x; at < count; at += stride) {
        const Size row = at / of.keys, head = row / of.length;
        const u64 state = row_of(kept, of, int(head / of.heads), int(head % of.heads), int(row % of.length));
        const Wide<T> value = widen(x[at]);
        y[at] = narrow<T>(kept(state, u64(at % of.keys)) ? value * Wide<T>(factor) : Wide<T>(0));
    }
}

#define DROP_WEIGHTS(S, T)                                                                                                     \
    KERNEL(drop_weights_##S, 256, const T *x, T *y, const u64 *step, Sizes sizes, Dropout dropout, double factor, Size count) { \
        drop_weights(x, y, Kept(dropout, step), sizes, factor, count);                                                         \
    }
FOR_F32(DROP_WEIGHTS(f32, float))
FOR_F64(DROP_WEIGHTS(f64, double))
FOR_BF16(DROP_WEIGHTS(bf16, bf16))
FOR_F16(DROP_WEIGHTS(f16, f16))
