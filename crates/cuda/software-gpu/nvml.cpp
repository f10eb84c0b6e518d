// The stand-in for NVML: libnvidia-ml.so.1. A GPU is busy if any work ran since the last query; every piece of work takes a
// joule.
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

// ---- connections: pairs of GPUs have two NVLinks each; others are connected through host bridges of one NUMA node

struct PciInfo {
    char legacy[16];
    unsigned domain, bus, device, id, subsystem;
    char bus_id[32];
};
static void place(int index, PciInfo *info) {
    std::memset(info, 0, sizeof *info);
    info->bus = unsigned(index) + 1;
    std::snprintf(info->legacy, sizeof info->legacy, "0000:%02X:00.0", info->bus);
    std::snprintf(info->bus_id, sizeof info->bus_id, "00000000:%02X:00.0", info->bus);
}
enum { INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3 };
API nvmlDeviceGetCount_v2(unsigned *count) { *count = unsigned(software_gpu::device_count()); return SUCCESS; }
API nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) {
    if (int(index) >= software_gpu::device_count()) return INVALID_ARGUMENT;
    *device = reinterpret_cast<void *>(uintptr_t(index) + 1);
    return SUCCESS;
}
API nvmlDeviceGetPciInfo_v3(void *device, PciInfo *info) { place(index_of(device), info); return SUCCESS; }
API nvmlDeviceGetNvLinkState(void *device, unsigned link, unsigned *active) {
    if (software_gpu::device_count() < 2) return NOT_SUPPORTED;
    if (link >= 4) return INVALID_ARGUMENT;
    *active = link < 2 && (index_of(device) ^ 1) < software_gpu::device_count();
    return SUCCESS;
}
API nvmlDeviceGetNvLinkRemotePciInfo_v2(void *device, unsigned link, PciInfo *info) {
    if (link >= 2) return INVALID_ARGUMENT;
    place(index_of(device) ^ 1, info);
    return SUCCESS;
}
API nvmlDeviceGetTopologyCommonAncestor(void *one, void *other, unsigned *level) {
    *level = (index_of(one) ^ 1) == index_of(other) ? 10 : 40;
    return SUCCESS;
}
