// Running of a grid: block after block, and a block's threads until all have returned.
#pragma once

#include "blocks.h"
#include "interface.h"

namespace phalanx_fibres {

// A permutation of 0..count: ascending, descending, or by a multiplier that is coprime to count.
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
    if (b.count == 0 || b.count > max_threads) fail("the block has no threads, or more than the kernel's bound");
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

} // namespace phalanx_fibres
