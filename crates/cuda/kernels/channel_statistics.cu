// Statistics, coefficients and weight gradients of batch norm and group norm, from the moments and sums of parts (`planes.cu`).
// The arrays have a few values per channel; statistics and sums are f64.
//
// Statistics are [1 + 2·C]: the elements of a channel, means, sums of squared deviations. Sums of a gradient are [2·C]: the sums
// of dy and of dy·x̂. Coefficients are [5, sets], see `Coefficients`.

// The parts of channel c: part i is at first + i / inner * stride + i % inner. It has `count` elements, or `last` in the last
// chunk.
struct Parts {
    i64 chunks, inner, stride, count, last;
    __device__ __forceinline__ i64 number() const { return chunks * inner; }
    __device__ __forceinline__ i64 at(i64 channel, i64 i) const { return i / inner * stride + channel * inner + i % inner; }
    __device__ __forceinline__ double elements(i64 i) const { return double(i / inner + 1 == chunks ? last : count); }
};

// Writes the coefficients of forward, which backward keeps: mean, factor, shift.
template <class W>
DEVICE void forward_coefficients(W *rows, Size sets, Size set, double mean, double variance, double eps, W gamma, W beta) {
    rows[set] = W(mean);
    rows[sets + set] = W(1.0 / sqrt(variance + eps)) * gamma;
    rows[2 * sets + set] = beta;
}

// A warp for each channel: statistics from the moments of its parts, and coefficients if requested.
template <class W>
DEVICE void batch_norm_finish(const double *parts, const Parts &lie, Size channels, double *statistics, const W *gamma,
                              const W *beta, double eps, W *rows) {
    const Size channel = (Size(blockIdx.x) * blockDim.x + threadIdx.x) >> 5;
    if (channel >= channels) return;
    const int lane = threadIdx.x & 31;
    double sum = 0, elements = 0;
    for (i64 i = lane; i < lie.number(); i += 32) {
        sum += parts[2 * lie.at(channel, i)] * lie.elements(i);
        elements += lie.elements(i);
    }
    elements = warp_reduce<Add>(elements);
    const double mean = warp_reduce<Add>(sum) / elements;
    double moment = 0;
    for (i64 i = lane; i < lie.number(); i += 32) {
        const double off = parts[2 * lie.at(channel, i)] - mean;
        moment += parts[2 * lie.at(channel, i) + 1] + off * off * lie.elements(i);
    }
    moment = warp_reduce<Add>(moment);
    if (lane != 0) return;
    if (channel == 0) statistics[0] = elements;
    statistics[1 + channel] = mean;
    statistics[1 + channels + channel] = moment;
    if (rows) forward_coefficients(rows, channels, channel, mean, moment / elements, eps, gamma[channel], beta[channel]);
}

// A warp for each channel: the sums of the gradient from those of its parts, with x̂ = (x − mean)·inv_std.
DEVICE void gradient_sums(const double *parts, const Parts &lie, Size channels, const double *statistics, double eps, double *sums) {
    const Size channel = (Size(blockIdx.x) * blockDim.x + threadIdx.x) >> 5;
    if (channel >= channels) return;
    const int lane = threadIdx.x & 31;
    double plain = 0, along = 0;
    for (i64 i = lane; i < lie.number(); i += 32) {
        plain += parts[2 * lie.at(channel, i)];
        along += parts[2 * lie.at(channel, i) + 1];
    }
    plain = warp_reduce<Add>(plain);
    along = warp_reduce<Add>(along);
    if (lane != 0) return;
    sums[channel] = plain;
    sums[channels + channel] = along / sqrt(statistics[1 + channels + channel] / statistics[0] + eps);
}

KERNEL(batch_norm_gradient_sums, 256, const double *parts, Parts lie, Size channels, const double *statistics, double eps,
       double *sums) {
    gradient_sums(parts, lie, channels, statistics, eps, sums);
}

// ---- statistics, sums over ranks, and running averages; a thread for each channel

// The elements, their sums and the sums of their squares.
KERNEL(batch_norm_sums, 256, const double *statistics, Size channels, double *sums) {
    const Size c = Size(blockIdx.x) * blockDim.x + threadIdx.x;
    if (c >= channels) return;
    const double count = statistics[0], mean = statistics[1 + c];
    if (c == 0) sums[0] = count;
    sums[1 + c] = mean * count;
    sums[1 + channels + c] = statistics[1 + channels + c] + mean * mean * count;
}

KERNEL(batch_norm_statistics, 256, const double *sums, Size channels, double *statistics) {
    const Size c = Size(blockIdx.x) * blockDim.x + threadIdx.x;
    if (c >= channels) return;
    const double count = sums[0], mean = sums[1 + c] / count;
    if (c == 0) statistics[0] = count;
    statistics[1 + c] = mean;
    statistics[1 + channels + c] = fmax(sums[1 + channels + c] - mean * mean * count, 0.0);
}

#define BATCH_NORM(S, W)                                                                                                  \
    KERNEL(batch_norm_finish_##S, 256, const double *parts, Parts lie, Size channels, double *statistics, const W *gamma, \
           const W *beta, double eps, W *rows) {                                                                          \
        batch_norm_finish(parts, lie, channels, statistics, gamma, beta, eps, rows);                                      \
    }                                                                                                                     \
    /* Coefficients of forward from given statistics. */                                                                  \
    KERNEL(batch_norm_coefficients_##S, 256, const double *statistics, Size channels, const W *gamma, const W *beta, double eps, \
           W *rows) {                                                                                                     \
        const Size c = Size(blockIdx.x) * blockDim.x + threadIdx.x;                                                       \
        if (c >= channels) return;                                                                                        \
        forward_coefficients(rows, channels, c, statistics[1 + c], statistics[1 + channels + c] / statistics[0], eps,     \
                             gamma[c], beta[c]);                                                                          \
    }                                                                                                                     \
    /* The two rows more that backward takes; without sums, the statistics were fixed. */                                 \
    KERNEL(batch_norm_backward_coefficients_##S, 256, const double *statistics, const double *sums, Size channels, double eps, \
           W *rows) {                                                                                                     \
        const Size c = Size(blockIdx.x) * blockDim.x + threadIdx.x;                                                       \
        if (c >= channels) return;                                                                                        \
        const double count = statistics[0], factor = double(rows[channels + c]);                                          \
        const double inv_std = 1.0 / sqrt(statistics[1 + channels + c] / count + eps);                                    \
        rows[3 * channels + c] = sums ? W(factor * sums[c] / count) : W(0);                                               \
        rows[4 * channels + c] = sums ? W(factor * inv_std * sums[channels + c] / count) : W(0);                          \
    }                                                                                                                     \
    KERNEL(batch_norm_fixed_##S, 256, const W *mean, const W *variance, double count, Size channels, double *statistics) { \
        const Size c = Size(blockIdx.x) * blockDim.x + threadIdx.x;                                                       \
        if (c >= channels) return;                                                                                        \
        if (c == 0) statistics[0] = count;                                                                                \
        statistics[1 + c] = double(mean[c]);                                                                              \
        statistics[1 + channels + c] = double(variance[c]) * count;                                                       \
    }                                                                                                                     \
    KERNEL(batch_norm_running_##S, 256, const double *statistics, double momentum, Size channels, W *mean, W *variance) { \
        const Size c = Size(blockIdx.x) * blockDim.x + threadIdx.x;                                                       \
        if (c >= channels) return;                                                                                        \
        const double unbiased = statistics[1 + channels + c] / (statistics[0] - 1.0);                                     \
        mean[c] = W((1.0 - momentum) * double(mean[c]) + momentum * statistics[1 + c]);                                   \
        variance[c] = W((1.0 - momentum) * double(variance[c]) + momentum * unbiased);                                    \
    }                                                                                                                     \
    KERNEL(batch_norm_affine_gradients_##S, 256, const double *sums, Size channels, W *dgamma, W *dbeta) {                \
        const Size c = Size(blockIdx.x) * blockDim.x + threadIdx.x;                                                       \
        if (c >= channels) return;                                                                                        \
        dgamma[c] = W(sums[channels + c]);                                                                                \
        dbeta[c] = W(sums[c]);                                                                                            \
    }
FOR_F32(BATCH_NORM(f32, float))
FOR_F64(BATCH_NORM(f64, double))

// ---- planes of channels-last maps, whose parts are chunks of pixels: combines parts [images, chunks, channels] to whole planes
// [images, channels]; a thread for each

KERNEL(plane_moments_of_chunks, 256, const double *parts, Size chunks, Size channels, Size per_chunk, Size last, double *to, Size planes) {
    const Size plane = Size(blockIdx.x) * blockDim.x + threadIdx.x;
    if (plane >= planes) return;
    const double *from = parts + 2 * (plane / channels * chunks * channels + plane % channels);
    double sum = 0, moment = 0;
    for (Size i = 0; i < chunks; ++i) sum += from[2 * i * channels] * double(i + 1 == chunks ? last : per_chunk);
    const double mean = sum / double((chunks - 1) * per_chunk + last);
    for (Size i = 0; i < chunks; ++i) {
        const double off = from[2 * i * channels] - mean;
        moment += from[2 * i * channels + 1] + off * off * double(i + 1 == chunks ? last : per_chunk);
    }
    to[2 * plane] = mean;
    to[2 * plane + 1] = moment;
}

KERNEL(plane_sums_of_chunks, 256, const double *parts, Size chunks, Size channels, double *to, Size planes) {
    const Size plane = Size(blockIdx.x) * blockDim.x + threadIdx.x;
    if (plane >= planes) return;
    const double *from = parts + 2 * (plane / channels * chunks * channels + plane % channels);
    double plain = 0, along = 0;
    for (Size i = 0; i < chunks; ++i) {
        plain += from[2 * i * channels];
        along += from[2 * i * channels + 1];
    }
    to[2 * plane] = plain;
    to[2 * plane + 1] = along;
}

// ---- group norm: a warp for each group of a sample; `size` elements per plane

// Converts moments of planes to means, inverse deviations and coefficients of each plane.
template <class W>
DEVICE void group_norm_finish(const double *parts, Size groups_of_all, int groups, int channels, int size, double eps,
                              const W *gamma, const W *beta, W *mean, W *inv_std, W *rows) {
    const Size group = (Size(blockIdx.x) * blockDim.x + threadIdx.x) >> 5;
    if (group >= groups_of_all) return;
    const int lane = threadIdx.x & 31, inside = channels / groups;
    const Size first = group * inside, sets = groups_of_all * inside;
    double sum = 0;
    for (int i = lane; i < inside; i += 32) sum += parts[2 * (first + i)];
    const double middle = warp_reduce<Add>(sum) / inside;
    double moment = 0;
    for (int i = lane; i < inside; i += 32) {
        const double off = parts[2 * (first + i)] - middle;
        moment += parts[2 * (first + i) + 1] + off * off * size;
    }
    const double variance = warp_reduce<Add>(moment) / (double(inside) * size);
    if (lane == 0) {
        mean[group] = W(middle);
        inv_std[group] = W(1.0 / sqrt(variance + eps));
    }
    for (int i = lane; i < inside; i += 32) {
        const int channel = int(group % groups) * inside + i;
        forward_coefficients(rows, sets, first + i, middle, variance, eps, gamma[channel], beta[channel]);
    }
}

// Computes mean and factor of each plane from the statistics of forward, for the sums of the gradient.
template <class W>
DEVICE void group_norm_coefficients(const W *mean, const W *inv_std, const W *gamma, Size planes, int groups, int channels, W *rows) {
    const Size plane = Size(blockIdx.x) * blockDim.x + threadIdx.x;
    if (plane >= planes) return;
    const Size group = plane / (channels / groups);
    rows[plane] = mean[group];
    rows[planes + plane] = inv_std[group] * gamma[plane % channels];
    rows[2 * planes + plane] = W(0);
}

// Computes the coefficients of backward, which the planes of a group share.
template <class W>
DEVICE void group_norm_backward_coefficients(const double *parts, Size groups_of_all, int groups, int channels, int size,
                                             const W *gamma, const W *inv_std, W *rows) {
    const Size group = (Size(blockIdx.x) * blockDim.x + threadIdx.x) >> 5;
    if (group >= groups_of_all) return;
    const int lane = threadIdx.x & 31, inside = channels / groups;
    const Size first = group * inside, sets = groups_of_all * inside;
    double plain = 0, along = 0;
    for (int i = lane; i < inside; i += 32) {
        const double weight = double(gamma[int(group % groups) * inside + i]);
        plain += weight * parts[2 * (first + i)];
        along += weight * parts[2 * (first + i) + 1];
    }
    const double inverse = double(inv_std[group]), share = 1.0 / (double(inside) * size);
    plain = warp_reduce<Add>(plain) * share * inverse;
    along = warp_reduce<Add>(along) * share * inverse * inverse * inverse;
    for (int i = lane; i < inside; i += 32) {
        rows[3 * sets + first + i] = W(plain);
        rows[4 * sets + first + i] = W(along);
    }
}

// Computes the gradients of weight and bias: a warp for each channel, over the samples.
template <class W>
DEVICE void group_norm_affine(const double *parts, Size batch, int groups, int channels, const W *inv_std, W *dgamma, W *dbeta) {
    const Size channel = (Size(blockIdx.x) * blockDim.x + threadIdx.x) >> 5;
    if (channel >= channels) return;
    const int lane = threadIdx.x & 31, inside = channels / groups;
    double plain = 0, along = 0;
    for (Size sample = lane; sample < batch; sample += 32) {
        const Size plane = sample * channels + channel;
        plain += parts[2 * plane];
        along += parts[2 * plane + 1] * double(inv_std[sample * groups + channel / inside]);
    }
    plain = warp_reduce<Add>(plain);
    along = warp_reduce<Add>(along);
    if (lane == 0) {
        dgamma[channel] = W(along);
        dbeta[channel] = W(plain);
    }
}

#define GROUP_NORM(S, W)                                                                                                      \
    KERNEL(group_norm_finish_##S, 256, const double *parts, Size groups_of_all, int groups, int channels, int size, double eps, \
           const W *gamma, const W *beta, W *mean, W *inv_std, W *rows) {                                                     \
        group_norm_finish(parts, groups_of_all, groups, channels, size, eps, gamma, beta, mean, inv_std, rows);               \
    }                                                                                                                         \
    KERNEL(group_norm_coefficients_##S, 256, const W *mean, const W *inv_std, const W *gamma, Size planes, int groups,        \
           int channels, W *rows) {                                                                                           \
        group_norm_coefficients(mean, inv_std, gamma, planes, groups, channels, rows);                                        \
    }                                                                                                                         \
    KERNEL(group_norm_backward_coefficients_##S, 256, const double *parts, Size groups_of_all, int groups, int channels, int size, \
           const W *gamma, const W *inv_std, W *rows) {                                                                       \
        group_norm_backward_coefficients(parts, groups_of_all, groups, channels, size, gamma, inv_std, rows);                 \
    }                                                                                                                         \
    KERNEL(group_norm_affine_##S, 256, const double *parts, Size batch, int groups, int channels, const W *inv_std, W *dgamma, \
           W *dbeta) {                                                                                                        \
        group_norm_affine(parts, batch, groups, channels, inv_std, dgamma, dbeta);                                            \
    }
FOR_F32(GROUP_NORM(f32, float))
FOR_F64(GROUP_NORM(f64, double))
