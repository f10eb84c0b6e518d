// The low-rank codec of gradients: matrices as products P·Qᵀ of thin factors (PowerSGD, Vogels et al. 2019).
//
// A launch takes up to 16 matrices by value; they are the blocks' third index. All are row-major: M of rows×columns within the
// gradients, P of rows×rank and Q of columns×rank within arrays of all matrices' factors. Sums have an order that depends on
// sizes alone, so that all ranks and all runs have the same bits.

struct Thin {
    // The first elements of M, of its residual or scratch memory, of P and of Q.
    Size start, offset, p, q;
    Size rows, columns, rank;
    Size unused;
};
struct Thins {
    Thin at[16];
};

// Columns of P and Q per pass: M is read once for this many.
constexpr int AT_ONCE = 4;

// ---- P = (M + E)·Q, where E is the residual; M becomes the sum

template <bool BLOCK> DEVICE void project(const Thins &thins, float *values, const float *residual, const float *q, float *p) {
    __shared__ float shared[32];
    const Thin thin = thins.at[blockIdx.z];
    const auto group = Group<BLOCK>::make();
    for (Size row = Size(blockIdx.x) * group.groups + group.index; row < thin.rows; row += Size(gridDim.x) * group.groups) {
        float *own = values + thin.start + row * thin.columns;
        const float *more = residual + thin.offset + row * thin.columns;
        for (Size first = 0; first < thin.rank; first += AT_ONCE) {
            float sums[AT_ONCE] = {};
            for (Size column = group.member; column < thin.columns; column += group.members) {
                float value = own[column];
                if (first == 0) {
                    value = __fadd_rn(value, more[column]);
                    own[column] = value;
                }
                const float *factors = q + thin.q + column * thin.rank + first;
#pragma unroll
                for (int i = 0; i < AT_ONCE; ++i)
                    if (first + i < thin.rank) sums[i] += value * factors[i];
            }
#pragma unroll
            for (int i = 0; i < AT_ONCE; ++i) {
                const float sum = group.template reduce<Add>(sums[i], shared);
                if (group.member == 0 && first + i < thin.rank) p[thin.p + row * thin.rank + first + i] = sum;
            }
        }
    }
}

// ---- Q = Mᵀ·P: sums over tiles of rows, which are then added in order

// Rows of a tile, and columns of a block.
constexpr int TILE_ROWS = 128, TILE_COLUMNS = 32;

DEVICE void project_back(const Thins &thins, const float *values, const float *p, float *sums_of_tiles) {
    __shared__ float shared[8][AT_ONCE][TILE_COLUMNS];
    const Thin thin = thins.at[blockIdx.z];
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    for (Size tile = blockIdx.y; tile * TILE_ROWS < thin.rows; tile += gridDim.y)
        for (Size start = Size(blockIdx.x) * TILE_COLUMNS; start < thin.columns; start += Size(gridDim.x) * TILE_COLUMNS) {
            const Size column = start + lane, end = min(thin.rows, (tile + 1) * TILE_ROWS);
            for (Size first = 0; first < thin.rank; first += AT_ONCE) {
                float sums[AT_ONCE] = {};
                if (column < thin.columns)
                    for (Size row = tile * TILE_ROWS + warp; row < end; row += 8) {
                        const float value = values[thin.start + row * thin.columns + column];
                        const float *factors = p + thin.p + row * thin.rank + first;
#pragma unroll
                        for (int i = 0; i < AT_ONCE; ++i)
                            if (first + i < thin.rank) sums[i] += value * factors[i];
                    }
#pragma unroll
                for (int i = 0; i < AT_ONCE; ++i) shared[warp][i][lane] = sums[i];
                __syncthreads();
                if (warp < AT_ONCE && column < thin.columns && first + warp < thin.rank) {
                    float sum = shared[0][warp][lane];
                    for (int other = 1; other < 8; ++other) sum += shared[other][warp][lane];
                    sums_of_tiles[thin.offset + (tile * thin.columns + column) * thin.rank + first + warp] = sum;
                }
                __syncthreads();
            }
        }
}

DEVICE void add_tiles(const Thins &thins, const float *sums_of_tiles, float *q) {
    const Thin thin = thins.at[blockIdx.z];
    const Size count = thin.columns * thin.rank, tiles = (thin.rows + TILE_ROWS - 1) / TILE_ROWS;
    each<1>(count, false, [&](Size at, auto) {
        const float *own = sums_of_tiles + thin.offset + at;
        float sum = own[0];
        for (Size tile = 1; tile < tiles; ++tile) sum += own[tile * count];
        q[thin.q + at] = sum;
    });
}

// ---- makes the columns of P orthonormal, from left to right, by modified Gram-Schmidt; a block for each matrix

// Returns the sum over rows of the products of two columns.
DEVICE double dot(const float *p, const Thin &thin, Size a, Size b, double *shared) {
    double sum = 0.0;
    for (Size row = threadIdx.x; row < thin.rows; row += blockDim.x)
        sum += double(p[row * thin.rank + a]) * double(p[row * thin.rank + b]);
    return block_reduce<Add>(sum, shared);
}

DEVICE void orthogonalise(const Thins &thins, float *all) {
    __shared__ double shared[32];
    const Thin thin = thins.at[blockIdx.z];
    float *p = all + thin.p;
    // A thread reads and writes its own rows alone.
    for (Size own = 0; own < thin.rank; ++own) {
        const float norm = __fadd_rn(float(sqrt(dot(p, thin, own, own, shared))), 1e-8f);
        for (Size row = threadIdx.x; row < thin.rows; row += blockDim.x)
            p[row * thin.rank + own] = __fdiv_rn(p[row * thin.rank + own], norm);
        for (Size other = own + 1; other < thin.rank; ++other) {
            const float along = float(dot(p, thin, own, other, shared));
            for (Size row = threadIdx.x; row < thin.rows; row += blockDim.x) {
                float *at = p + row * thin.rank;
                at[other] = __fadd_rn(at[other], -__fmul_rn(along, at[own]));
            }
        }
    }
}

// ---- M becomes ranks·P·Qᵀ, and the residual M − P·Qᵀ is kept; if the flag is set, M becomes NaN, and the residual is unchanged

DEVICE void expand(const Thins &thins, float *values, float *residual, const float *p, const float *q, const u32 *invalid, float ranks) {
    const Thin thin = thins.at[blockIdx.z];
    const bool sound = !*invalid;
    const auto group = Group<false>::make();
    for (Size row = Size(blockIdx.x) * group.groups + group.index; row < thin.rows; row += Size(gridDim.x) * group.groups) {
        const float *factors = p + thin.p + row * thin.rank;
        for (Size column = group.member; column < thin.columns; column += group.members) {
            const float *others = q + thin.q + column * thin.rank;
            float product = __fmul_rn(factors[0], others[0]);
            for (Size i = 1; i < thin.rank; ++i) product = __fadd_rn(product, __fmul_rn(factors[i], others[i]));
            const Size at = row * thin.columns + column;
            float *value = values + thin.start + at;
            if (sound) residual[thin.offset + at] = __fadd_rn(*value, -product);
            *value = sound ? __fmul_rn(product, ranks) : NAN_F32;
        }
    }
}

FOR_F32(KERNEL(project_warp_f32, 256, Thins thins, float *values, const float *residual, const float *q, float *p) {
    project<false>(thins, values, residual, q, p);
})
FOR_F32(KERNEL(project_block_f32, 256, Thins thins, float *values, const float *residual, const float *q, float *p) {
    project<true>(thins, values, residual, q, p);
})
FOR_F32(KERNEL(project_back_f32, 256, Thins thins, const float *values, const float *p, float *sums_of_tiles) {
    project_back(thins, values, p, sums_of_tiles);
})
FOR_F32(KERNEL(add_tiles_f32, 256, Thins thins, const float *sums_of_tiles, float *q) { add_tiles(thins, sums_of_tiles, q); })
FOR_F32(KERNEL(orthogonalise_f32, 1024, Thins thins, float *p) { orthogonalise(thins, p); })
FOR_F32(KERNEL(expand_f32, 256, Thins thins, float *values, float *residual, const float *p, const float *q, const u32 *invalid,
               float ranks) {
    expand(thins, values, residual, p, q, invalid, ranks);
})

// ---- arrays that are sent uncompressed

struct Run {
    Size from, to, len;
};
struct Runs {
    Run at[16];
};

// Copies runs of elements to another array, or adds them. An element that is not finite sets the flag.
DEVICE void move_runs(const Runs &runs, const float *from, float *to, int add, u32 *invalid) {
    const Run run = runs.at[blockIdx.z];
    bool sound = true;
    each<1>(run.len, false, [&](Size at, auto) {
        const float value = from[run.from + at];
        float *place = to + run.to + at;
        sound = sound && value - value == 0;
        *place = add ? __fadd_rn(*place, value) : value;
    });
    if (!sound && invalid) atomicOr(invalid, 1u);
}

// values ← factor·values. A result that is not finite sets the flag.
DEVICE void scale(float *values, float factor, u32 *invalid, Size count) {
    bool sound = true;
    each<1>(count, false, [&](Size at, auto) {
        const float value = __fmul_rn(values[at], factor);
        sound = sound && value - value == 0;
        values[at] = value;
    });
    if (!sound) atomicOr(invalid, 1u);
}

FOR_F32(KERNEL(move_runs_f32, 256, Runs runs, const float *from, float *to, int add, u32 *invalid) {
    move_runs(runs, from, to, add, invalid);
})
FOR_F32(KERNEL(scale_f32, 256, float *values, float factor, u32 *invalid, Size count) { scale(values, factor, invalid, count); })
