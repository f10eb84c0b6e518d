// Products of small 16-bit matrices by a warp on tensor cores, and asynchronous copies to shared memory. With fibres, plain loops
// use the same layout of operands.

#ifdef PHALANX_FIBRES
struct Fragments {
    u32 a[4], b[2];
};
// D = A·B + D in the layout of the PTX manual: lane 4·g + t has rows g and g + 8 of A and D, and column g of B.
template <class T> DEVICE void multiply(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    u64 pairs[3][32];
    const u64 own[3] = {a[0] | u64(a[1]) << 32, a[2] | u64(a[3]) << 32, b0 | u64(b1) << 32};
    for (int i = 0; i < 3; ++i)
        phalanx_fibres::gather(WHOLE_WARP, own[i], __LINE__, [&](unsigned lane, u64 value) { pairs[i][lane] = value; });
    auto half_of = [](u64 pair, int word, int half) { return widen(T{u16(pair >> (32 * word + 16 * half))}); };
    const int lane = threadIdx.x & 31, g = lane / 4, t = lane % 4;
    for (int i = 0; i < 4; ++i) {
        const int row = g, upper = i / 2, column = 2 * t + i % 2;
        float sum = 0;
        for (int k = 0; k < 16; ++k)
            sum += half_of(pairs[k / 8][row * 4 + k % 8 / 2], upper, k % 2) * half_of(pairs[2][column * 4 + k % 8 / 2], k / 8, k % 2);
        d[i] += sum;
    }
}
// Loads four matrices of 8 x 8. Each group of eight lanes gives the addresses of a matrix' rows.
DEVICE void load_matrices(u32 (&to)[4], const u16 *row) {
    const int lane = threadIdx.x & 31;
    for (int i = 0; i < 4; ++i) {
        const u16 *from = __shfl_sync(WHOLE_WARP, row, i * 8 + lane / 4);
        to[i] = from[lane % 4 * 2] | u32(from[lane % 4 * 2 + 1]) << 16;
    }
}
// Loads the matrices transposed.
DEVICE void load_transposed(u32 (&to)[4], const u16 *row) {
    const int lane = threadIdx.x & 31;
    for (int i = 0; i < 4; ++i) {
        const u16 *upper = __shfl_sync(WHOLE_WARP, row, i * 8 + lane % 4 * 2), *lower = __shfl_sync(WHOLE_WARP, row, i * 8 + lane % 4 * 2 + 1);
        to[i] = upper[lane / 4] | u32(lower[lane / 4]) << 16;
    }
}
DEVICE void copy_ahead(u16 *to, const void *from) { *reinterpret_cast<uint4 *>(to) = *static_cast<const uint4 *>(from); }
DEVICE void commit_copies() {}
template <int LEFT> DEVICE void wait_for_copies() {}
#else
DEVICE u32 shared_address(const void *at) {
    u32 address;
    asm("{ .reg .u64 wide; cvta.to.shared.u64 wide, %1; cvt.u32.u64 %0, wide; }" : "=r"(address) : "l"(at));
    return address;
}
template <class T> DEVICE void multiply(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1);
template <> __device__ __forceinline__ void multiply<bf16>(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
template <> __device__ __forceinline__ void multiply<f16>(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
DEVICE void load_matrices(u32 (&to)[4], const u16 *row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(shared_address(row)) : "memory");
}
DEVICE void load_transposed(u32 (&to)[4], const u16 *row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(shared_address(row)) : "memory");
}
DEVICE void copy_ahead(u16 *to, const void *from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(to)), "l"(from) : "memory");
}
DEVICE void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int LEFT> DEVICE void wait_for_copies() { asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory"); }
#endif

template <class T> DEVICE u32 packed(float low, float high) {
    return narrow<T>(low).bits | u32(narrow<T>(high).bits) << 16;
}
