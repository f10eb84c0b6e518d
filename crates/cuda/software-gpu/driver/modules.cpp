// The stand-in for the CUDA driver: modules, whose code is a shared library, and kernel launches.
#include <dlfcn.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>

#include "../module.h"
#include "world.h"

using namespace software_gpu;

struct Module {
    void *library;
    std::map<std::string, const PhalanxKernel *> kernels;
};

API cuModuleLoadData(void **made, const void *image) {
    const auto *bytes = static_cast<const char *>(image);
    if (std::memcmp(bytes, SOFTWARE_GPU_MAGIC, SOFTWARE_GPU_MAGIC_LENGTH)) return INVALID_IMAGE;
    uint64_t length;
    std::memcpy(&length, bytes + SOFTWARE_GPU_MAGIC_LENGTH, 8);
    // The file stays open: another file with its number would look like this one to the loader.
    const int file = memfd_create("kernels", MFD_CLOEXEC);
    const char *code = bytes + SOFTWARE_GPU_MAGIC_LENGTH + 8;
    for (uint64_t written = 0; written < length;) {
        const ssize_t count = write(file, code + written, length - written);
        if (count <= 0) return OUT_OF_MEMORY;
        written += static_cast<uint64_t>(count);
    }
    void *library = dlopen(("/proc/self/fd/" + std::to_string(file)).c_str(), RTLD_NOW | RTLD_LOCAL);
    if (!library) fail("compiled kernels cannot be loaded: %s", dlerror());
    auto table = reinterpret_cast<const PhalanxKernel *(*)(unsigned *)>(dlsym(library, "phalanx_fibres_kernels"));
    if (!table) fail("compiled kernels have no table");
    auto order = reinterpret_cast<void (*)(unsigned)>(dlsym(library, "phalanx_fibres_order"));
    if (order) order(static_cast<unsigned>(setting("SOFTWARE_GPU_ORDER", 0)));
    auto *module = new Module{library, {}};
    unsigned count = 0;
    const PhalanxKernel *kernels = table(&count);
    for (unsigned i = 0; i < count; ++i) module->kernels[kernels[i].name] = &kernels[i];
    *made = module;
    return SUCCESS;
}
// Code stays loaded, as the fibres of its threads end with those threads; but it may not run any more.
static std::mutex unloading;
static std::set<const PhalanxKernel *> unloaded;
API cuModuleUnload(void *handle) {
    auto *module = static_cast<Module *>(handle);
    std::lock_guard<std::mutex> guard(unloading);
    for (auto &[name, kernel] : module->kernels) unloaded.insert(kernel);
    delete module;
    return SUCCESS;
}
static void must_be_loaded(const PhalanxKernel &kernel) {
    std::lock_guard<std::mutex> guard(unloading);
    if (unloaded.count(&kernel)) fail("%s runs after its module was unloaded", kernel.name);
}
API cuModuleGetFunction(void **function, void *module, const char *name) {
    auto &kernels = static_cast<Module *>(module)->kernels;
    auto found = kernels.find(name);
    if (found == kernels.end()) return NOT_FOUND;
    *function = const_cast<PhalanxKernel *>(found->second);
    return SUCCESS;
}
API cuFuncGetParamInfo(void *function, size_t index, size_t *offset, size_t *size) {
    const auto &kernel = *static_cast<const PhalanxKernel *>(function);
    if (index >= kernel.param_count) return INVALID_VALUE;
    *offset = 0;
    for (size_t i = 0; i < index; ++i) *offset += kernel.param_sizes[i];
    *size = kernel.param_sizes[index];
    return SUCCESS;
}
API cuFuncSetAttribute(void *, int, int value) {
    return value <= setting("SOFTWARE_GPU_SHARED", 227 << 10) ? SUCCESS : INVALID_VALUE;
}
CUresult software_gpu::call_of(void *function, const unsigned grid[3], const unsigned block[3], unsigned shared, void **params,
                               Call *made) {
    const auto &kernel = *static_cast<const PhalanxKernel *>(function);
    const unsigned gx = grid[0], gy = grid[1], gz = grid[2], bx = block[0], by = block[1], bz = block[2];
    if (uint64_t(bx) * by * bz > kernel.max_threads) return TOO_MANY_RESOURCES;
    if (!gx || !gy || !gz || !bx || !by || !bz || gy > 65535 || gz > 65535 || gx > 0x7fffffff) return INVALID_VALUE;
    if (shared > setting("SOFTWARE_GPU_SHARED", 227 << 10)) return INVALID_VALUE;
    struct Arguments {
        std::vector<uint64_t> words;
        std::vector<void *> params;
    };
    auto arguments = std::make_shared<Arguments>();
    size_t words = 0;
    for (unsigned i = 0; i < kernel.param_count; ++i) words += (kernel.param_sizes[i] + 7) / 8;
    arguments->words.resize(words);
    made->what = kernel.name;
    words = 0;
    for (unsigned i = 0; i < kernel.param_count; ++i) {
        uint64_t *to = &arguments->words[words];
        std::memcpy(to, params[i], kernel.param_sizes[i]);
        if (kernel.param_pointers[i] && *to) {
            made->accesses.push_back({*to, 0, kernel.param_pointers[i] == 2});
            *to &= ~DEVICE_BIT;
        }
        arguments->params.push_back(to);
        words += (kernel.param_sizes[i] + 7) / 8;
    }
    made->work = [=, &kernel] {
        must_be_loaded(kernel);
        const PhalanxLaunch launch = {{gx, gy, gz}, {bx, by, bz}, shared, arguments->params.data()};
        kernel.run(&launch);
    };
    return SUCCESS;
}
API cuLaunchKernel(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                   unsigned shared, void *stream, void **params, void **) {
    const unsigned grid[3] = {gx, gy, gz}, block[3] = {bx, by, bz};
    Call call;
    if (CUresult refused = call_of(function, grid, block, shared, params, &call)) return refused;
    enqueue(stream, call.what, call.accesses, call.work);
    return SUCCESS;
}
