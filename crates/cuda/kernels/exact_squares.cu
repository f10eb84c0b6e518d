// Exact sums of squares of f32, as in phalanx-kernels. Integer sums do not depend on the order, the grid or the partition of
// elements, so atomics may add them.
//
// A square is an integer of 48 bits times a power of two. Limb k of a long fixed-point number counts 2^(32·k - 298).

constexpr int LIMBS = 20;
// The limbs, and the numbers of infinite and of NaN elements.
constexpr int TOTALS = LIMBS + 2;
constexpr int LOWEST = -298;

// Adds the squares to totals, whose limbs hold up to 2^31 of them before carries. Neighbouring gradients have similar magnitudes,
// so a thread keeps sums for one limb and the two above it until another limb is needed.
KERNEL(exact_squares_f32, 256, const float *x, u64 *totals, Size count) {
    __shared__ u64 own[TOTALS];
    for (int i = threadIdx.x; i < TOTALS; i += blockDim.x) own[i] = 0;
    __syncthreads();
    int limb = 0;
    u64 low = 0, middle = 0, high = 0;
    auto leave = [&] {
        if (low) atomicAdd(&own[limb], low);
        if (middle) atomicAdd(&own[limb + 1], middle);
        if (high) atomicAdd(&own[limb + 2], high);
        low = middle = high = 0;
    };
    auto add = [&](float value) {
        const u32 bits = __float_as_uint(value), exponent = bits >> 23 & 255, fraction = bits & 0x7fffff;
        if (exponent == 255) {
            atomicAdd(&own[fraction ? LIMBS + 1 : LIMBS], u64(1));
            return;
        }
        // value = mantissa · 2^(power - 149).
        const u64 mantissa = exponent ? fraction | 1u << 23 : fraction;
        const int at = 2 * (exponent ? int(exponent) - 1 : 0), shift = at & 31;
        const u64 square = mantissa * mantissa;
        if (!square) return;
        if (at >> 5 != limb) {
            leave();
            limb = at >> 5;
        }
        const u64 shifted = square << shift;
        low += shifted & 0xffffffff;
        middle += shifted >> 32;
        high += shift ? square >> (64 - shift) : 0;
    };
    each<4>(count, aligned(x), [&](Size at, auto n) {
        constexpr int M = decltype(n)::value;
        float values[M];
        load(x + at, values);
#pragma unroll
        for (int i = 0; i < M; ++i) add(values[i]);
    });
    leave();
    __syncthreads();
    for (int i = threadIdx.x; i < TOTALS; i += blockDim.x)
        if (own[i]) atomicAdd(&totals[i], own[i]);
}

// Converts totals to whole numbers in f64, with limbs below 2^32: those of several parts add exactly.
KERNEL(exact_digits, 1, const u64 *totals, double *digits) {
    u64 over = 0;
    for (int i = 0; i < LIMBS; ++i) {
        const u64 sum = totals[i] + over;
        digits[i] = double(sum & 0xffffffff);
        over = sum >> 32;
    }
    digits[LIMBS] = double(totals[LIMBS]);
    digits[LIMBS + 1] = double(totals[LIMBS + 1]);
}

DEVICE double power_of_two(int exponent) { return __longlong_as_double(i64(exponent + 1023) << 52); }

// Converts digits, or sums of digits over parts, to f64, rounded down to 53 bits.
KERNEL(exact_value, 1, const double *digits, double *value) {
    if (digits[LIMBS + 1] > 0 || digits[LIMBS] > 0) {
        *value = digits[LIMBS + 1] > 0 ? __longlong_as_double(0x7ff8000000000000) : __longlong_as_double(0x7ff0000000000000);
        return;
    }
    // Two zero limbs below, so that there are three for the highest.
    u64 limbs[LIMBS + 2] = {0, 0}, over = 0;
    int top = 0;
    for (int i = 0; i < LIMBS; ++i) {
        const u64 sum = u64(digits[i]) + over;
        limbs[i + 2] = sum & 0xffffffff;
        over = sum >> 32;
        if (limbs[i + 2]) top = i + 2;
    }
    if (!top) {
        *value = 0;
        return;
    }
    u64 bits = limbs[top] << 32 | limbs[top - 1];
    // 33 to 64 bits, the lowest of which counts this.
    int exponent = LOWEST + 32 * (top - 3), width = 64;
    while (!(bits >> (width - 1))) --width;
    if (width >= 53) {
        bits >>= width - 53;
        exponent += width - 53;
    } else {
        bits = bits << (53 - width) | limbs[top - 2] >> (width - 21);
        exponent -= 53 - width;
    }
    *value = double(i64(bits)) * power_of_two(exponent);
}
