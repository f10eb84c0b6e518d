// Runs CUDA C on the processor, so that kernels can be tested where no GPU is.
//
// A kernel's source is compiled as C++17 with this header in front of it (`-include fibres.h`). A block's threads are fibres:
// each has a stack of its own and runs until it waits for others (`__syncthreads`, a shuffle), or ends. Blocks run one after
// the other. The result is that of a GPU for every kernel without races; and to find those that have some, threads and blocks
// start in an order that can be drawn anew (`phalanx_fibres_order`): what depends on it is a race.
//
// What a GPU leaves undefined ends the process with a message that names the kernel: a barrier that some threads never reach
// or reach at another line, a shuffle among lanes that do not exist or have returned, more threads than the kernel is bound to.
// Dynamic shared memory is filled with NaN before each block.
//
// Kernels register themselves by the macro KERNEL of the prelude. The shared library exports them as a table:
// `phalanx_fibres_kernels(&count)`. It is a tool of tests: no benchmark and no training uses it.
#pragma once
#define PHALANX_FIBRES 1

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <type_traits>
#include <utility>
#include <vector>
#if !defined(__x86_64__) && !defined(__aarch64__)
#include <ucontext.h>
#endif

#define __global__
#define __device__
#define __host__
#define __constant__ static const
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __shared__ static thread_local
#define __align__(bytes) alignas(bytes)

struct uint3 {
    unsigned x, y, z;
};
struct dim3 {
    unsigned x, y, z;
};
struct alignas(8) uint2 {
    unsigned x, y;
};
struct alignas(16) uint4 {
    unsigned x, y, z, w;
};
struct alignas(8) float2 {
    float x, y;
};
struct alignas(16) float4 {
    float x, y, z, w;
};
static inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
static inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
static inline float2 make_float2(float x, float y) { return {x, y}; }
static inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }

// What a launch is given, and what a kernel says of itself: the interface of the shared library.
struct PhalanxLaunch {
    unsigned grid[3];
    unsigned block[3];
    unsigned shared_bytes;
    void **params;
};
struct PhalanxKernel {
    const char *name;
    void (*run)(const PhalanxLaunch *launch);
    unsigned max_threads;
    unsigned param_count;
    const unsigned *param_sizes;
    // Of each parameter: 0 if it is no pointer, 1 if what it points to is only read, 2 if it may be written.
    const unsigned char *param_pointers;
};

namespace phalanx_fibres {

// ---- a stack that can be left and entered again

constexpr size_t STACK = 128 << 10;
struct Fibre;
static void fibre_main();

#if defined(__x86_64__)
extern "C" __attribute__((visibility("hidden"))) void phalanx_fibre_switch(void **save, void *load);
asm(R"(
.text
.hidden phalanx_fibre_switch
.globl phalanx_fibre_switch
.type phalanx_fibre_switch, @function
phalanx_fibre_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
.size phalanx_fibre_switch, .-phalanx_fibre_switch
)");
struct Stack {
    void *pointer = nullptr;
    void prepare(char *memory) {
        // A return address below an aligned one, as after a call.
        auto **top = reinterpret_cast<void **>(memory + STACK);
        *--top = nullptr;
        *--top = reinterpret_cast<void *>(&fibre_main);
        for (int i = 0; i < 6; ++i) *--top = nullptr;
        pointer = top;
    }
    static void change(Stack &from, Stack &to) { phalanx_fibre_switch(&from.pointer, to.pointer); }
};
#elif defined(__aarch64__)
extern "C" __attribute__((visibility("hidden"))) void phalanx_fibre_switch(void **save, void *load);
asm(R"(
.text
.hidden phalanx_fibre_switch
.globl phalanx_fibre_switch
.type phalanx_fibre_switch, %function
phalanx_fibre_switch:
    sub sp, sp, #160
    stp x19, x20, [sp, #0]
    stp x21, x22, [sp, #16]
    stp x23, x24, [sp, #32]
    stp x25, x26, [sp, #48]
    stp x27, x28, [sp, #64]
    stp x29, x30, [sp, #80]
    stp d8, d9, [sp, #96]
    stp d10, d11, [sp, #112]
    stp d12, d13, [sp, #128]
    stp d14, d15, [sp, #144]
    mov x9, sp
    str x9, [x0]
    mov sp, x1
    ldp x19, x20, [sp, #0]
    ldp x21, x22, [sp, #16]
    ldp x23, x24, [sp, #32]
    ldp x25, x26, [sp, #48]
    ldp x27, x28, [sp, #64]
    ldp x29, x30, [sp, #80]
    ldp d8, d9, [sp, #96]
    ldp d10, d11, [sp, #112]
    ldp d12, d13, [sp, #128]
    ldp d14, d15, [sp, #144]
    add sp, sp, #160
    ret
.size phalanx_fibre_switch, .-phalanx_fibre_switch
)");
struct Stack {
    void *pointer = nullptr;
    void prepare(char *memory) {
        auto *frame = reinterpret_cast<void **>(memory + STACK) - 20;
        for (int i = 0; i < 20; ++i) frame[i] = nullptr;
        frame[11] = reinterpret_cast<void *>(&fibre_main);
        pointer = frame;
    }
    static void change(Stack &from, Stack &to) { phalanx_fibre_switch(&from.pointer, to.pointer); }
};
#else
struct Stack {
    ucontext_t context;
    void prepare(char *memory) {
        getcontext(&context);
        context.uc_stack.ss_sp = memory;
        context.uc_stack.ss_size = STACK;
        context.uc_link = nullptr;
        makecontext(&context, reinterpret_cast<void (*)()>(&fibre_main), 0);
    }
    static void change(Stack &from, Stack &to) { swapcontext(&from.context, &to.context); }
};
#endif

// ---- a block and its threads

enum State : unsigned char { READY, AT_BLOCK_BARRIER, AT_WARP_BARRIER, RETURNED };

struct Fibre {
    Stack stack;
    char *memory = nullptr;
};

struct Thread {
    uint3 index;
    unsigned lane, warp;
    State state;
    int line;
    // Where a block's vote collects.
    unsigned lanes;
    unsigned char parity;
    Fibre *fibre;
};

struct Warp {
    unsigned existing, arrived;
    uint64_t slots[2][32];
};

struct Block {
    const char *kernel = "";
    uint3 index{};
    dim3 grid{}, size{};
    unsigned count = 0, returned = 0, waiting = 0;
    int vote[2] = {0, 0};
    std::vector<Thread> threads;
    std::vector<Warp> warps;
    std::vector<Fibre *> idle;
    std::vector<unsigned char> shared;
    unsigned char *shared_start = nullptr;
    Thread *current = nullptr;
    Stack scheduler;
    void (*body)(void **) = nullptr;
    void **params = nullptr;
    ~Block() {
        for (auto *fibre : idle) {
            std::free(fibre->memory);
            delete fibre;
        }
    }
};

static thread_local Block *block = nullptr;
static unsigned order = 0;

[[noreturn]] static void fail(const char *what, int line = 0) {
    std::fprintf(stderr, "software GPU: kernel %s, block (%u, %u, %u), thread (%u, %u, %u)", block->kernel, block->index.x,
                 block->index.y, block->index.z, block->current ? block->current->index.x : 0,
                 block->current ? block->current->index.y : 0, block->current ? block->current->index.z : 0);
    if (line) std::fprintf(stderr, ", line %d", line);
    std::fprintf(stderr, ": %s\n", what);
    std::fflush(stderr);
    std::abort();
}

// Not inlined, so that nothing of thread-local storage is kept across a switch.
static __attribute__((noinline)) void leave() {
    Thread *self = block->current;
    Stack::change(self->fibre->stack, block->scheduler);
}

static void fibre_main() {
    for (;;) {
        block->body(block->params);
        Thread *self = block->current;
        self->state = RETURNED;
        ++block->returned;
        leave();
    }
}

static __attribute__((noinline)) void sync_block(int line) {
    Thread *self = block->current;
    if (block->returned) fail("a barrier after a thread of the block has returned", line);
    self->state = AT_BLOCK_BARRIER;
    self->line = line;
    if (++block->waiting < block->count) {
        leave();
        return;
    }
    for (auto &thread : block->threads) {
        if (thread.line != line) {
            std::fprintf(stderr, "software GPU: another thread waits at line %d\n", thread.line);
            fail("threads of a block wait at different barriers", line);
        }
        thread.state = READY;
    }
    block->waiting = 0;
}

static __attribute__((noinline)) void sync_warp(unsigned mask, int line) {
    Thread *self = block->current;
    Warp &warp = block->warps[self->warp];
    if (!(mask >> self->lane & 1)) fail("a lane that is not in its own mask", line);
    if ((mask & ~warp.existing) != 0) fail("a warp's mask has lanes that do not exist or have returned", line);
    self->state = AT_WARP_BARRIER;
    self->line = line;
    self->lanes = mask;
    warp.arrived |= 1u << self->lane;
    if ((warp.arrived & mask) != mask) {
        leave();
        return;
    }
    Thread *lanes = &block->threads[self->warp * 32];
    for (unsigned lane = 0; lane < 32; ++lane) {
        if (!(mask >> lane & 1)) continue;
        if (lanes[lane].lanes != mask) fail("lanes of a warp wait with different masks", line);
        lanes[lane].state = READY;
    }
    warp.arrived &= ~mask;
}

template <class T>
static T exchange(unsigned mask, T value, unsigned from, int line) {
    static_assert(sizeof(T) <= 8 && std::is_trivially_copyable<T>::value, "shuffles move at most 8 bytes");
    Thread *self = block->current;
    Warp &warp = block->warps[self->warp];
    // Two sets of slots in turn: a lane can be one shuffle ahead of another, and never two.
    auto *slots = warp.slots[self->parity];
    self->parity ^= 1;
    std::memcpy(&slots[self->lane], &value, sizeof(T));
    sync_warp(mask, line);
    if (!(mask >> from & 1)) fail("a shuffle reads a lane that takes no part", line);
    std::memcpy(&value, &slots[from], sizeof(T));
    return value;
}

// The value of each lane of the mask, for functions of all of them.
template <class T, class F>
static void gather(unsigned mask, T value, int line, F f) {
    Thread *self = block->current;
    Warp &warp = block->warps[self->warp];
    auto *slots = warp.slots[self->parity];
    self->parity ^= 1;
    std::memcpy(&slots[self->lane], &value, sizeof(T));
    sync_warp(mask, line);
    for (unsigned lane = 0; lane < 32; ++lane) {
        if (!(mask >> lane & 1)) continue;
        T other;
        std::memcpy(&other, &slots[lane], sizeof(T));
        f(lane, other);
    }
}

// A permutation of 0..count: as they are, backwards, or by a multiplier that has no common factor with count.
struct Order {
    unsigned count, step, first;
    explicit Order(unsigned count) : count(count), step(1), first(0) {
        if (order == 0 || count < 2) return;
        step = count - 1;
        first = count - 1;
        if (order == 1) return;
        auto common = [](unsigned a, unsigned b) {
            while (b) {
                unsigned rest = a % b;
                a = b;
                b = rest;
            }
            return a;
        };
        step = 1 + order * 2654435761u % (count - 1);
        while (common(step, count) != 1) ++step;
        first = order * 40503u % count;
    }
    unsigned at(unsigned i) const { return static_cast<unsigned>((first + uint64_t(i) * step) % count); }
};

static void run_block() {
    Block &b = *block;
    std::memset(b.shared_start, 0xff, b.shared.size() - static_cast<size_t>(b.shared_start - b.shared.data()));
    b.returned = b.waiting = 0;
    for (unsigned i = 0; i < b.count; ++i) {
        Thread &thread = b.threads[i];
        thread.index = {i % b.size.x, i / b.size.x % b.size.y, i / (b.size.x * b.size.y)};
        thread.lane = i % 32;
        thread.warp = i / 32;
        thread.state = READY;
        thread.line = 0;
        thread.parity = 0;
        thread.fibre = nullptr;
    }
    for (unsigned w = 0; w < b.warps.size(); ++w) {
        unsigned lanes = b.count - w * 32 < 32 ? b.count - w * 32 : 32;
        b.warps[w].existing = lanes == 32 ? ~0u : (1u << lanes) - 1;
        b.warps[w].arrived = 0;
    }
    const Order threads(b.count);
    while (b.returned < b.count) {
        bool moved = false;
        for (unsigned i = 0; i < b.count; ++i) {
            Thread &thread = b.threads[threads.at(i)];
            if (thread.state != READY) continue;
            moved = true;
            if (!thread.fibre) {
                if (b.idle.empty()) {
                    auto *fibre = new Fibre;
                    fibre->memory = static_cast<char *>(std::aligned_alloc(4096, STACK));
                    fibre->stack.prepare(fibre->memory);
                    b.idle.push_back(fibre);
                }
                thread.fibre = b.idle.back();
                b.idle.pop_back();
            }
            b.current = &thread;
            Stack::change(b.scheduler, thread.fibre->stack);
            if (thread.state == RETURNED) {
                b.warps[thread.warp].existing &= ~(1u << thread.lane);
                b.idle.push_back(thread.fibre);
            }
        }
        if (!moved) fail("threads wait for others that have returned or wait elsewhere");
    }
}

static void launch(const PhalanxLaunch *what, const char *kernel, unsigned max_threads, void (*body)(void **)) {
    static thread_local Block own;
    block = &own;
    Block &b = own;
    b.kernel = kernel;
    b.current = nullptr;
    b.grid = {what->grid[0], what->grid[1], what->grid[2]};
    b.size = {what->block[0], what->block[1], what->block[2]};
    b.count = b.size.x * b.size.y * b.size.z;
    if (b.count == 0 || b.count > max_threads) fail("the block has no threads, or more than the kernel is bound to");
    if (!b.grid.x || !b.grid.y || !b.grid.z || b.grid.y > 65535 || b.grid.z > 65535) fail("the grid's size is impossible");
    if (what->shared_bytes > (227u << 10)) fail("more shared memory than a block can have");
    b.threads.resize(b.count);
    b.warps.resize((b.count + 31) / 32);
    b.shared.resize(what->shared_bytes + 128);
    b.shared_start = b.shared.data() + (128 - reinterpret_cast<uintptr_t>(b.shared.data()) % 128) % 128;
    b.body = body;
    b.params = what->params;
    const Order columns(b.grid.x);
    for (unsigned z = 0; z < b.grid.z; ++z)
        for (unsigned y = 0; y < b.grid.y; ++y)
            for (unsigned x = 0; x < b.grid.x; ++x) {
                b.index = {columns.at(x), y, z};
                run_block();
            }
    b.current = nullptr;
}

// ---- the table of kernels

static std::vector<PhalanxKernel> &table() {
    static std::vector<PhalanxKernel> kernels;
    return kernels;
}

template <class A>
constexpr unsigned char pointer() {
    return !std::is_pointer<A>::value ? 0 : std::is_const<typename std::remove_pointer<A>::type>::value ? 1 : 2;
}

template <class F>
struct Signature;
template <class... A>
struct Signature<void (*)(A...)> {
    static constexpr unsigned COUNT = sizeof...(A);
    static inline const unsigned SIZES[COUNT ? COUNT : 1] = {sizeof(A)...};
    static inline const unsigned char POINTERS[COUNT ? COUNT : 1] = {pointer<A>()...};
    template <size_t... I>
    static void call(void (*kernel)(A...), void **params, std::index_sequence<I...>) {
        kernel(*static_cast<A *>(params[I])...);
    }
    static void call(void (*kernel)(A...), void **params) { call(kernel, params, std::index_sequence_for<A...>()); }
};

struct Registered {
    template <class F>
    Registered(const char *name, void (*run)(const PhalanxLaunch *), unsigned max_threads, F) {
        table().push_back({name, run, max_threads, Signature<F>::COUNT, Signature<F>::SIZES, Signature<F>::POINTERS});
    }
};

} // namespace phalanx_fibres

// Declares a kernel, enters it in the table, and begins its definition.
#define KERNEL(name, threads, ...)                                                                            \
    static void name(__VA_ARGS__);                                                                            \
    static void name##_body(void **params) { phalanx_fibres::Signature<decltype(&name)>::call(&name, params); } \
    static void name##_run(const PhalanxLaunch *launch) {                                                     \
        phalanx_fibres::launch(launch, #name, threads, &name##_body);                                         \
    }                                                                                                         \
    static const phalanx_fibres::Registered name##_registered(#name, &name##_run, threads, &name);            \
    static void name(__VA_ARGS__)

extern "C" __attribute__((visibility("default"))) const PhalanxKernel *phalanx_fibres_kernels(unsigned *count) {
    *count = static_cast<unsigned>(phalanx_fibres::table().size());
    return phalanx_fibres::table().data();
}
// 0: threads and blocks start in order; 1: backwards; others: in orders drawn from the number.
extern "C" __attribute__((visibility("default"))) void phalanx_fibres_order(unsigned seed) {
    phalanx_fibres::order = seed;
}

// ---- what CUDA C has and C++ lacks

#define threadIdx (phalanx_fibres::block->current->index)
#define blockIdx (phalanx_fibres::block->index)
#define blockDim (phalanx_fibres::block->size)
#define gridDim (phalanx_fibres::block->grid)
#define warpSize 32
#define __syncthreads() phalanx_fibres::sync_block(__LINE__)
#define __syncwarp(...) phalanx_fibres::sync_warp(phalanx_fibres::mask_of(__VA_ARGS__), __LINE__)
#define __shfl_sync(mask, value, from) \
    phalanx_fibres::exchange((mask), (value), (from) & 31, __LINE__)
#define __shfl_xor_sync(mask, value, bits) \
    phalanx_fibres::exchange((mask), (value), (phalanx_fibres::block->current->lane ^ (bits)) & 31, __LINE__)
#define __shfl_down_sync(mask, value, by)                                                                     \
    phalanx_fibres::exchange((mask), (value), phalanx_fibres::block->current->lane + (by) > 31                \
                                                  ? phalanx_fibres::block->current->lane                      \
                                                  : phalanx_fibres::block->current->lane + (by), __LINE__)
#define __shfl_up_sync(mask, value, by)                                                                       \
    phalanx_fibres::exchange((mask), (value), phalanx_fibres::block->current->lane < unsigned(by)             \
                                                  ? phalanx_fibres::block->current->lane                      \
                                                  : phalanx_fibres::block->current->lane - (by), __LINE__)
#define __ballot_sync(mask, predicate) phalanx_fibres::ballot((mask), (predicate), __LINE__)
#define __any_sync(mask, predicate) (phalanx_fibres::ballot((mask), (predicate), __LINE__) != 0)
#define __all_sync(mask, predicate) (phalanx_fibres::ballot((mask), !(predicate), __LINE__) == 0)
#define __syncthreads_or(predicate) phalanx_fibres::block_vote((predicate), __LINE__)

namespace phalanx_fibres {
static inline unsigned mask_of(unsigned mask = ~0u) { return mask; }
static inline unsigned ballot(unsigned mask, bool predicate, int line) {
    unsigned bits = 0;
    gather(mask, predicate, line, [&](unsigned lane, bool yes) { bits |= unsigned(yes) << lane; });
    return bits;
}
static inline int block_vote(int predicate, int line) {
    sync_block(line);
    block->vote[0] = 0;
    sync_block(line);
    if (predicate) block->vote[0] = 1;
    sync_block(line);
    return block->vote[0];
}
} // namespace phalanx_fibres

// One thread of the processor runs a block, but blocks of several launches may run at once.
template <class T>
static inline T atomicAdd(T *at, T value) { return __atomic_fetch_add(at, value, __ATOMIC_RELAXED); }
template <class T>
static inline T atomicOr(T *at, T value) { return __atomic_fetch_or(at, value, __ATOMIC_RELAXED); }
template <class T>
static inline T atomicMin(T *at, T value) {
    T old = __atomic_load_n(at, __ATOMIC_RELAXED);
    while (value < old && !__atomic_compare_exchange_n(at, &old, value, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {}
    return old;
}
template <class T>
static inline T atomicMax(T *at, T value) {
    T old = __atomic_load_n(at, __ATOMIC_RELAXED);
    while (value > old && !__atomic_compare_exchange_n(at, &old, value, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {}
    return old;
}
static inline void __threadfence() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }

template <class To, class From>
static inline To phalanx_bits(From from) {
    static_assert(sizeof(To) == sizeof(From), "bits of one size");
    To to;
    std::memcpy(&to, &from, sizeof(To));
    return to;
}
static inline float __uint_as_float(unsigned v) { return phalanx_bits<float>(v); }
static inline unsigned __float_as_uint(float v) { return phalanx_bits<unsigned>(v); }
static inline float __int_as_float(int v) { return phalanx_bits<float>(v); }
static inline int __float_as_int(float v) { return phalanx_bits<int>(v); }
static inline double __longlong_as_double(long long v) { return phalanx_bits<double>(v); }
static inline long long __double_as_longlong(double v) { return phalanx_bits<long long>(v); }
static inline float rsqrtf(float v) { return 1.0f / std::sqrt(v); }
static inline double rsqrt(double v) { return 1.0 / std::sqrt(v); }
static inline float __frcp_rn(float v) { return 1.0f / v; }
static inline float __fmul_rn(float a, float b) { return a * b; }
static inline float __fadd_rn(float a, float b) { return a + b; }
static inline double __dmul_rn(double a, double b) { return a * b; }
static inline double __dadd_rn(double a, double b) { return a + b; }
static inline float __fdividef(float a, float b) { return a / b; }
#define __expf expf
#define __logf logf
static inline void sincospif(float v, float *sin, float *cos) {
    *sin = static_cast<float>(std::sin(3.14159265358979323846 * double(v)));
    *cos = static_cast<float>(std::cos(3.14159265358979323846 * double(v)));
}
static inline void sincospi(double v, double *sin, double *cos) {
    *sin = std::sin(3.14159265358979323846 * v);
    *cos = std::cos(3.14159265358979323846 * v);
}
static inline int __popc(unsigned v) { return __builtin_popcount(v); }
static inline int __ffs(int v) { return __builtin_ffs(v); }
static inline int __clz(int v) { return v == 0 ? 32 : __builtin_clz(static_cast<unsigned>(v)); }
static inline unsigned __umulhi(unsigned a, unsigned b) { return static_cast<unsigned>((uint64_t(a) * b) >> 32); }
template <class T>
static inline T __ldg(const T *at) { return *at; }
template <class T>
static inline T min(T a, T b) { return b < a ? b : a; }
template <class T>
static inline T max(T a, T b) { return a < b ? b : a; }
