// Parts of all optimizer steps: bias corrections, scalars on the device, and the 16-bit copy of new weights.

// base to the power of n by squaring, in the order of Rust's `powi`.
DEVICE double power(double base, Size n) {
    double result = 1.0;
    while (true) {
        if (n & 1) result *= base;
        n >>= 1;
        if (n == 0) return result;
        base *= base;
    }
}

// The scalars on the device, if given: a graph has the rest by value.
template <class T> DEVICE T chosen(const T &by, const T *at) {
    T numbers = by;
    if (at) numbers = *at;
    return numbers;
}

// The type of the weights' copy.
enum Low { NO_LOW, LOW_BF16, LOW_F16 };

template <int M, class W> DEVICE void store_low(void *low, int kind, Size at, const W (&weights)[M]) {
    if (kind == NO_LOW) return;
    float values[M];
#pragma unroll
    for (int i = 0; i < M; ++i) values[i] = float(weights[i]);
    if (kind == LOW_BF16) store(static_cast<bf16 *>(low) + at, values);
    else store(static_cast<f16 *>(low) + at, values);
}
