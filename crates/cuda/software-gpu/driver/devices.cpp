// The stand-in for the CUDA driver: devices and their contexts.
#include <cstdio>
#include <cstring>

#include "world.h"

namespace software_gpu {

int device_count() { return static_cast<int>(setting("SOFTWARE_GPU_COUNT", 1)); }
size_t total_memory() { return static_cast<size_t>(setting("SOFTWARE_GPU_MEMORY", 4L << 30)); }
size_t used_memory(int device) {
    std::lock_guard<std::mutex> guard(world().lock);
    const auto at = static_cast<size_t>(device);
    return at < world().used.size() ? world().used[at] : 0;
}

} // namespace software_gpu

using namespace software_gpu;

API cuDeviceGetCount(int *count) { *count = device_count(); return SUCCESS; }
API cuDeviceGet(int *device, int ordinal) {
    if (ordinal < 0 || ordinal >= device_count()) return INVALID_DEVICE;
    *device = ordinal;
    return SUCCESS;
}
API cuDeviceGetName(char *name, int length, int device) {
    std::snprintf(name, static_cast<size_t>(length), "software GPU %d (a test tool)", device);
    return SUCCESS;
}
API cuDeviceGetUuid_v2(char *uuid, int device) {
    std::memset(uuid, 0, 16);
    uuid[15] = static_cast<char>(device);
    return SUCCESS;
}
API cuDeviceGetUuid(char *uuid, int device) { return cuDeviceGetUuid_v2(uuid, device); }
API cuDeviceTotalMem_v2(size_t *bytes, int) { *bytes = total_memory(); return SUCCESS; }
API cuDeviceGetAttribute(int *value, int attribute, int device) {
    switch (attribute) {
    case 1: *value = 1024; break;            // threads of a block
    case 8: *value = 48 << 10; break;        // shared memory of a block
    case 10: *value = 32; break;             // a warp
    case 16: *value = 4; break;              // multiprocessors
    // The bus, the device, and the domain: a number that no real machine has.
    case 33: *value = device + 1; break;
    case 34: *value = 0; break;
    case 50: *value = 0xfff0; break;
    // compute capability
    case 75: *value = static_cast<int>(setting("SOFTWARE_GPU_CAPABILITY", 90) / 10); break;
    case 76: *value = static_cast<int>(setting("SOFTWARE_GPU_CAPABILITY", 90) % 10); break;
    // maximum shared memory of a block
    case 97: *value = static_cast<int>(setting("SOFTWARE_GPU_SHARED", 227 << 10)); break;
    case 115: *value = 1; break;             // memory pools
    default: fail("the attribute %d of a device is not known", attribute);
    }
    return SUCCESS;
}
// Pairs of GPUs have links.
API cuDeviceCanAccessPeer(int *can, int one, int other) { *can = (one ^ 1) == other; return SUCCESS; }
API cuDevicePrimaryCtxRetain(void **context, int device) {
    std::lock_guard<std::mutex> guard(world().lock);
    Context *found = world().contexts[static_cast<size_t>(device)].get();
    ++found->users;
    *context = found;
    return SUCCESS;
}
API cuDevicePrimaryCtxRelease_v2(int device) {
    std::lock_guard<std::mutex> guard(world().lock);
    Context &context = *world().contexts[static_cast<size_t>(device)];
    if (--context.users < 0) fail("a context was released more often than retained");
    if (context.users == 0) {
        for (auto &memory : world().memories)
            if (memory.second->device == device && !memory.second->freed)
                fail("allocation %u of %zu bytes, which %s wrote last, was never freed", memory.second->number,
                     memory.second->bytes, memory.second->use.writer.c_str());
    }
    return SUCCESS;
}
API cuCtxGetCurrent(void **context) { *context = current; return SUCCESS; }
API cuCtxSetCurrent(void *context) { current = static_cast<Context *>(context); return SUCCESS; }
API cuCtxGetDevice(int *device) {
    if (!current) return INVALID_CONTEXT;
    *device = current->device;
    return SUCCESS;
}
API cuCtxGetStreamPriorityRange(int *least, int *greatest) { *least = 0; *greatest = -5; return SUCCESS; }
API cuCtxSynchronize() {
    if (!current) return INVALID_CONTEXT;
    std::vector<Stream *> streams;
    {
        std::lock_guard<std::mutex> guard(world().lock);
        for (Stream *stream : world().streams)
            if (stream->device == current->device) streams.push_back(stream);
        for (Stream *stream : streams)
            if (stream->capture) return spoil(*stream, CAPTURE_UNSUPPORTED);
    }
    for (Stream *stream : streams) wait_for(*stream);
    return SUCCESS;
}
