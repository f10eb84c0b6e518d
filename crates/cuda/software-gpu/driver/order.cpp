// The stand-in for the CUDA driver: the order of accesses to memory, checked for all issued work.
#include "world.h"

namespace software_gpu {

Memory *find(uint64_t pointer) {
    auto &memories = world().memories;
    auto after = memories.upper_bound(pointer);
    if (after == memories.begin()) return nullptr;
    Memory *memory = std::prev(after)->second.get();
    return pointer <= memory->base + memory->bytes ? memory : nullptr;
}

Memory *check(const Stream &stream, const char *what, const Access &access) {
    if (!(access.pointer & DEVICE_BIT)) fail("%s was given %#lx, which is not an address of a device", what, access.pointer);
    Memory *memory = find(access.pointer);
    if (!memory) fail("%s was given %#lx, which is not allocated (freed, or never allocated)", what, access.pointer);
    if (memory->freed) fail("%s uses allocation %u after it was freed", what, memory->number);
    if (memory->device != stream.device)
        fail("%s on GPU %d was given memory of GPU %d", what, stream.device, memory->device);
    if (access.pointer + access.bytes > memory->base + memory->bytes)
        fail("%s accesses %zu bytes at %zu of allocation %u, which has %zu", what, access.bytes,
             size_t(access.pointer - memory->base), memory->number, memory->bytes);
    return memory;
}

void must_follow(const Clock &clock, size_t stream, const char *what, const Memory &memory, const Use &use, bool write) {
    if (clock.at(use.stream_of_write) < use.time_of_write)
        fail("missing wait: %s on stream %zu %s allocation %u, which %s wrote on stream %zu", what, stream,
             write ? "changes" : "reads", memory.number, use.writer.c_str(), use.stream_of_write);
    if (!write) return;
    for (size_t other = 0; other < use.reads.times.size(); ++other)
        if (clock.at(other) < use.reads.times[other])
            fail("missing wait: %s on stream %zu writes allocation %u, which stream %zu may still read", what, stream,
                 memory.number, other);
}

void note(Use &use, size_t stream, uint64_t time, const char *what, bool write) {
    if (!write) {
        use.reads.set(stream, time);
        return;
    }
    use.stream_of_write = stream;
    use.time_of_write = time;
    use.writer = what;
    use.reads = Clock();
}

uint64_t tick(Stream &stream) {
    stream.clock.join(world().host);
    const uint64_t time = stream.clock.at(stream.number) + 1;
    stream.clock.set(stream.number, time);
    return time;
}

void enqueue(void *handle, const char *what, const std::vector<Access> &accesses, std::function<void()> work) {
    Stream &stream = stream_of(handle, what);
    std::lock_guard<std::mutex> guard(world().lock);
    if (stream.capture) return capture(stream, what, accesses, std::move(work));
    const uint64_t time = tick(stream);
    for (const Access &access : accesses) {
        if (!access.pointer) continue;
        const Memory &memory = *check(stream, what, access);
        must_follow(stream.clock, stream.number, what, memory, memory.use, access.write);
    }
    for (const Access &access : accesses)
        if (access.pointer) note(find(access.pointer)->use, stream.number, time, what, access.write);
    stream.put({what, std::move(work)});
}

void *memory_at(uint64_t pointer) { return reinterpret_cast<void *>(pointer & ~DEVICE_BIT); }

} // namespace software_gpu
