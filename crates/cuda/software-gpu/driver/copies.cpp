// The stand-in for the CUDA driver: fills and copies.
#include <cstring>

#include "world.h"

using namespace software_gpu;

API cuMemsetD8Async(uint64_t pointer, unsigned char value, size_t bytes, void *stream) {
    enqueue(stream, "a fill", {{pointer, bytes, true}}, [=] { std::memset(memory_at(pointer), value, bytes); });
    return SUCCESS;
}
API cuMemcpyHtoDAsync_v2(uint64_t to, const void *from, size_t bytes, void *stream) {
    if (reinterpret_cast<uint64_t>(from) & DEVICE_BIT) fail("a copy from the host was given an address of a device");
    const char *what = "a copy from the host";
    if (auto copies = pinned(from, bytes)) {
        ++*copies;
        enqueue(stream, what, {{to, bytes, true}}, [=] {
            std::memcpy(memory_at(to), from, bytes);
            --*copies;
        });
        return SUCCESS;
    }
    auto staged = std::make_shared<std::vector<char>>(static_cast<const char *>(from), static_cast<const char *>(from) + bytes);
    enqueue(stream, what, {{to, bytes, true}}, [=] { std::memcpy(memory_at(to), staged->data(), bytes); });
    return SUCCESS;
}
API cuMemcpyDtoHAsync_v2(void *to, uint64_t from, size_t bytes, void *handle) {
    if (reinterpret_cast<uint64_t>(to) & DEVICE_BIT) fail("a copy to the host was given an address of a device");
    const char *what = "a copy to the host";
    if (auto copies = pinned(to, bytes)) {
        ++*copies;
        enqueue(handle, what, {{from, bytes, false}}, [=] {
            std::memcpy(to, memory_at(from), bytes);
            --*copies;
        });
        return SUCCESS;
    }
    Stream &stream = stream_of(handle, what);
    {
        std::lock_guard<std::mutex> guard(world().lock);
        if (stream.capture) return spoil(stream, CAPTURE_UNSUPPORTED);
    }
    enqueue(handle, what, {{from, bytes, false}}, [=] { std::memcpy(to, memory_at(from), bytes); });
    wait_for(stream);
    return SUCCESS;
}
API cuMemcpyDtoDAsync_v2(uint64_t to, uint64_t from, size_t bytes, void *stream) {
    if (to < from + bytes && from < to + bytes) fail("a copy between overlapping ranges");
    enqueue(stream, "a copy", {{to, bytes, true}, {from, bytes, false}},
            [=] { std::memcpy(memory_at(to), memory_at(from), bytes); });
    return SUCCESS;
}
