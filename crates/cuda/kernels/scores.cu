// Scaling and masking of attention scores before softmax.

// Multiplies scores [matrices, length, keys] by a factor, in place. With `causal`, scores of later keys become −∞.
template <class T> DEVICE void scale_and_mask(T *scores, T factor, int length, int keys, int causal, Size count) {
    const Size stride = Size(gridDim.x) * blockDim.x;
    for (Size at = Size(blockIdx.x) * blockDim.x + threadIdx.x; at < count; at += stride) {
        const int key = int(at % keys), position = int(at / keys % length);
        scores[at] = causal && key > position ? T(-INFINITE_F32) : scores[at] * factor;
    }
}

KERNEL(scale_and_mask_f32, 256, float *scores, double factor, int length, int keys, int causal, Size count) {
    scale_and_mask(scores, float(factor), length, keys, causal, count);
}
KERNEL(scale_and_mask_f64, 256, double *scores, double factor, int length, int keys, int causal, Size count) {
    scale_and_mask(scores, factor, length, keys, causal, count);
}
