// A block with its warps and threads, and their synchronisation.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <type_traits>
#include <vector>

#include "stacks.h"
#include "words.h"

namespace phalanx_fibres {

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
    // The votes of a block.
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

// Not inlined, so that no thread-local value is cached across a switch.
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
    // Two sets of slots in turn: a lane can be one shuffle ahead of another, but not two.
    auto *slots = warp.slots[self->parity];
    self->parity ^= 1;
    std::memcpy(&slots[self->lane], &value, sizeof(T));
    sync_warp(mask, line);
    if (!(mask >> from & 1)) fail("a shuffle reads a lane outside of its mask", line);
    std::memcpy(&value, &slots[from], sizeof(T));
    return value;
}

// Returns the value of each lane of the mask, for reductions.
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

} // namespace phalanx_fibres
