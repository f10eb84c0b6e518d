// The stand-in of NVML: libnvidia-ml.so.1. A GPU is busy if anything ran since it was last asked; every piece of work takes a joule.
#include <cstdio>
#include <cstring>

#include "software_gpu.h"

enum { SUCCESS = 0, NOT_FOUND = 6 };
#define API SOFTWARE_GPU_API int

API nvmlInit_v2() { return SUCCESS; }
API nvmlShutdown() { return SUCCESS; }
SOFTWARE_GPU_API const char *nvmlErrorString(int) { return "an error of the software GPU"; }
API nvmlSystemGetNVMLVersion(char *text, unsigned length) {
    std::snprintf(text, length, "13.580.1");
    return SUCCESS;
}
API nvmlDeviceGetHandleByUUID(const char *uuid, void **device) {
    unsigned last = 0;
    if (std::sscanf(uuid, "GPU-00000000-0000-0000-0000-%12x", &last) != 1) return NOT_FOUND;
    if (int(last) >= software_gpu::device_count()) return NOT_FOUND;
    *device = reinterpret_cast<void *>(uintptr_t(last) + 1);
    return SUCCESS;
}
static int index_of(void *device) { return int(reinterpret_cast<uintptr_t>(device)) - 1; }
API nvmlDeviceGetUtilizationRates(void *device, unsigned *rates) {
    static uint64_t before[64];
    const int index = index_of(device) & 63;
    const uint64_t now = software_gpu::work_done(index_of(device));
    rates[0] = now != before[index] ? 100 : 0;
    rates[1] = 0;
    before[index] = now;
    return SUCCESS;
}
struct Memory {
    unsigned version;
    unsigned long long total, reserved, free, used;
};
API nvmlDeviceGetMemoryInfo_v2(void *device, Memory *memory) {
    memory->total = software_gpu::total_memory();
    memory->used = software_gpu::used_memory(index_of(device));
    memory->reserved = 0;
    memory->free = memory->total - memory->used;
    return SUCCESS;
}
API nvmlDeviceGetPowerUsage(void *, unsigned *milliwatts) { *milliwatts = 123456; return SUCCESS; }
API nvmlDeviceGetTotalEnergyConsumption(void *device, unsigned long long *millijoules) {
    *millijoules = 1000 * software_gpu::work_done(index_of(device));
    return SUCCESS;
}
