// Common code of passes over maps [N, C, P]: the fused activation, and coefficients, one set for each plane or each channel.

// phalanx_kernels::Activation as passed by the launcher.
enum Activation { NO_ACTIVATION, RELU, RELU6 };

template <int ACTIVATION, class W> DEVICE W activate(W v) {
    if (ACTIVATION == RELU) return larger(v, W(0));
    if (ACTIVATION == RELU6) return smaller(larger(v, W(0)), W(6));
    return v;
}

// Returns the gradient before the activation, whose argument or value was v.
template <int ACTIVATION, class W> DEVICE W masked(W v, W dy) {
    if (ACTIVATION == RELU) return v > W(0) ? dy : W(0);
    if (ACTIVATION == RELU6) return v > W(0) && v < W(6) ? dy : W(0);
    return dy;
}

template <class W> struct Coefficients {
    // Five rows of `sets` values: mean, factor and shift of the argument, and for backward the gradient's constant and slope.
    const W *rows;
    Size sets;
    __device__ __forceinline__ W mean(Size set) const { return rows[set]; }
    __device__ __forceinline__ W factor(Size set) const { return rows[sets + set]; }
    __device__ __forceinline__ W shift(Size set) const { return rows[2 * sets + set]; }
    __device__ __forceinline__ W constant(Size set) const { return rows[3 * sets + set]; }
    __device__ __forceinline__ W slope(Size set) const { return rows[4 * sets + set]; }
};

#define BY_ACTIVATION(activation, CALL)    \
    switch (activation) {                  \
    case RELU: CALL(RELU); break;          \
    case RELU6: CALL(RELU6); break;        \
    default: CALL(NO_ACTIVATION); break;   \
    }
