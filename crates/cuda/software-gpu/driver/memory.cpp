// The stand-in for the CUDA driver: device memory, and page-locked host memory.
#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "world.h"

using namespace software_gpu;

// The bytes of an allocation that are filled with NaN; the rest of a larger one, which no test reads uninitialised, is zeros.
constexpr size_t FILLED = 16 << 20;

static CUresult take(uint64_t *pointer, size_t bytes, Stream *stream) {
    std::lock_guard<std::mutex> guard(world().lock);
    const auto device = static_cast<size_t>(current->device);
    if (world().used[device] + bytes > total_memory()) return OUT_OF_MEMORY;
    // The memory ends as near to the end of its last page as an alignment of 256 bytes allows.
    const size_t room = (bytes + 255) / 256 * 256, pages = (room + PAGE - 1) / PAGE * PAGE;
    void *wanted = reinterpret_cast<void *>(world().next);
    void *mapped = mmap(wanted, pages + PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapped == MAP_FAILED || mprotect(mapped, pages, PROT_READ | PROT_WRITE)) return OUT_OF_MEMORY;
    world().next += pages + PAGE;
    auto memory = std::make_unique<Memory>();
    memory->pages = static_cast<char *>(mapped);
    memory->mapped = pages + PAGE;
    memory->bytes = bytes;
    memory->base = (reinterpret_cast<uint64_t>(mapped) + pages - room) | DEVICE_BIT;
    memory->device = current->device;
    memory->number = ++world().memory_count;
    std::memset(memory->pages, 0xff, pages < FILLED ? pages : FILLED);
    if (stream) {
        if (stream->capture) fail("an allocation on a stream that captures: graphs of the software GPU have no memory of their own");
        memory->use.time_of_write = tick(*stream);
        memory->use.stream_of_write = stream->number;
    }
    world().used[device] += bytes;
    world().reserved[device] = std::max(world().reserved[device], world().used[device]);
    *pointer = memory->base;
    const uint64_t base = memory->base;
    world().memories.emplace(base, std::move(memory));
    return SUCCESS;
}

// Returns true if memory of a device was freed whose stream has not reached that yet.
static bool frees_are_due(int device) {
    std::lock_guard<std::mutex> guard(world().lock);
    for (const auto &entry : world().memories)
        if (entry.second->device == device && entry.second->freed) return true;
    return false;
}

// A real pool reuses memory that was freed earlier in a stream, so that a host may be thousands of allocations ahead. Here each
// allocation has its own pages, whose number is limited per process, so the host waits for some to be freed.
static CUresult allocate(uint64_t *pointer, size_t bytes, Stream *stream) {
    if (!current) return INVALID_CONTEXT;
    for (;;) {
        const CUresult result = take(pointer, bytes, stream);
        if (result != OUT_OF_MEMORY || !stream || !frees_are_due(current->device)) return result;
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
}

// The bytes between the end of an allocation and its page were all ones.
static void release(uint64_t base) {
    std::lock_guard<std::mutex> guard(world().lock);
    auto found = world().memories.find(base);
    Memory &memory = *found->second;
    const char *end = static_cast<char *>(memory_at(memory.base)) + memory.bytes;
    if (memory.mapped - PAGE <= FILLED)
        for (const char *byte = end; byte < memory.pages + memory.mapped - PAGE; ++byte)
            if (*byte != '\xff') fail("a write beyond the end of allocation %u of %zu bytes", memory.number, memory.bytes);
    munmap(memory.pages, memory.mapped);
    world().used[static_cast<size_t>(memory.device)] -= memory.bytes;
    world().memories.erase(found);
}

API cuMemAllocAsync(uint64_t *pointer, size_t bytes, void *stream) {
    return allocate(pointer, bytes, &stream_of(stream, "an allocation"));
}
API cuMemFreeAsync(uint64_t pointer, void *handle) {
    Stream &stream = stream_of(handle, "freeing");
    std::lock_guard<std::mutex> guard(world().lock);
    if (stream.capture) fail("freeing on a stream that captures: every launch would free again");
    tick(stream);
    Memory *memory = check(stream, "freeing", {pointer, 0, true});
    if (memory->base != pointer) fail("freeing %#lx, which is inside of an allocation", pointer);
    must_follow(stream.clock, stream.number, "freeing", *memory, memory->use, true);
    memory->freed = true;
    stream.put({"freeing", [pointer] { release(pointer); }});
    return SUCCESS;
}
API cuMemGetInfo_v2(size_t *free, size_t *total) {
    if (!current) return INVALID_CONTEXT;
    std::lock_guard<std::mutex> guard(world().lock);
    *total = total_memory();
    *free = *total - world().used[static_cast<size_t>(current->device)];
    return SUCCESS;
}
API cuDeviceGetDefaultMemPool(void **pool, int device) {
    *pool = world().contexts[static_cast<size_t>(device)].get();
    return SUCCESS;
}
API cuMemPoolSetAttribute(void *, int attribute, void *value) {
    if (attribute != 4) fail("the attribute %d of a memory pool cannot be set", attribute);
    world().threshold = *static_cast<uint64_t *>(value);
    return SUCCESS;
}
API cuMemPoolGetAttribute(void *pool, int attribute, void *value) {
    std::lock_guard<std::mutex> guard(world().lock);
    const auto device = static_cast<size_t>(static_cast<Context *>(pool)->device);
    auto &to = *static_cast<uint64_t *>(value);
    if (attribute == 4) to = world().threshold;
    else if (attribute == 5) to = world().reserved[device];
    else fail("the attribute %d of a memory pool is not known", attribute);
    return SUCCESS;
}
API cuMemPoolTrimTo(void *pool, size_t keep) {
    std::lock_guard<std::mutex> guard(world().lock);
    const auto device = static_cast<size_t>(static_cast<Context *>(pool)->device);
    world().reserved[device] = std::min(world().reserved[device], std::max(keep, world().used[device]));
    return SUCCESS;
}
API cuMemHostAlloc(void **memory, size_t bytes, unsigned) {
    *memory = std::aligned_alloc(PAGE, (bytes + PAGE - 1) / PAGE * PAGE);
    std::lock_guard<std::mutex> guard(world().lock);
    world().pinned[reinterpret_cast<uint64_t>(*memory)].bytes = bytes;
    return *memory ? SUCCESS : OUT_OF_MEMORY;
}
API cuMemFreeHost(void *memory) {
    std::lock_guard<std::mutex> guard(world().lock);
    auto found = world().pinned.find(reinterpret_cast<uint64_t>(memory));
    if (found == world().pinned.end()) fail("freeing memory that is not page-locked");
    if (*found->second.copies > 0) fail("freeing page-locked memory that a copy still uses");
    world().pinned.erase(found);
    std::free(memory);
    return SUCCESS;
}

std::shared_ptr<std::atomic<int>> software_gpu::pinned(const void *memory, size_t bytes) {
    std::lock_guard<std::mutex> guard(world().lock);
    const auto start = reinterpret_cast<uint64_t>(memory);
    auto after = world().pinned.upper_bound(start);
    if (after == world().pinned.begin()) return nullptr;
    const auto &[base, found] = *std::prev(after);
    return start + bytes <= base + found.bytes ? found.copies : nullptr;
}
