// The stand-in for the CUDA driver: initialisation, errors, and termination of the process.
#include <signal.h>
#include <unistd.h>

#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "world.h"

namespace software_gpu {

thread_local const char *running = nullptr;
thread_local Context *current = nullptr;

World &world() {
    static World *it = new World;
    return *it;
}

void fail(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    std::fprintf(stderr, "software GPU: ");
    std::vfprintf(stderr, format, arguments);
    std::fprintf(stderr, "\n");
    std::fflush(stderr);
    va_end(arguments);
    std::abort();
}

long setting(const char *name, long otherwise) {
    const char *value = std::getenv(name);
    return value && *value ? std::atol(value) : otherwise;
}

bool fails(const char *function) {
    static std::atomic<long> calls{0};
    const char *wanted = std::getenv("SOFTWARE_GPU_FAILS");
    const char *colon = wanted ? std::strchr(wanted, ':') : nullptr;
    if (!colon || std::string(wanted, colon) != function) return false;
    return ++calls == std::atol(colon + 1);
}

static void damaged(int, siginfo_t *info, void *) {
    char text[200];
    const int length = std::snprintf(
        text, sizeof text,
        running ? "software GPU: %s touched %p, which is not its memory (beyond an allocation, freed, or an address of the host)\n"
                : "software GPU: the %s touched %p (an address of the device cannot be used there)\n",
        running ? running : "host", info->si_addr);
    if (write(2, text, static_cast<size_t>(length)) < 0) _exit(3);
    signal(SIGABRT, SIG_DFL);
    std::abort();
}

} // namespace software_gpu

using namespace software_gpu;

static struct sigaction before;

API cuInit(unsigned) {
    static std::once_flag once;
    std::call_once(once, [] {
        struct sigaction action = {};
        action.sa_sigaction = damaged;
        action.sa_flags = SA_SIGINFO | SA_ONSTACK;
        sigaction(SIGSEGV, &action, &before);
        for (int i = 0; i < device_count(); ++i) world().contexts.emplace_back(new Context{i});
        world().used.resize(static_cast<size_t>(device_count()));
        world().reserved.resize(static_cast<size_t>(device_count()));
    });
    return device_count() > 0 ? SUCCESS : NO_DEVICE;
}
API cuDriverGetVersion(int *version) {
    *version = static_cast<int>(setting("SOFTWARE_GPU_DRIVER", 13000));
    return SUCCESS;
}
API cuGetErrorName(CUresult error, const char **text) {
    *text = error == OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY" : "CUDA_ERROR";
    return SUCCESS;
}
API cuGetErrorString(CUresult error, const char **text) {
    switch (error) {
    case SUCCESS: *text = "no error"; break;
    case INVALID_VALUE: *text = "invalid argument"; break;
    case OUT_OF_MEMORY: *text = "out of memory"; break;
    case INVALID_IMAGE: *text = "device kernel image is invalid"; break;
    case NOT_FOUND: *text = "named symbol not found"; break;
    case NOT_READY: *text = "device not ready"; break;
    case ILLEGAL_STATE: *text = "the operation cannot be performed in the present state"; break;
    case CAPTURE_UNSUPPORTED: *text = "operation not permitted when stream is capturing"; break;
    case CAPTURE_INVALIDATED: *text = "operation failed due to a previous error during capture"; break;
    case CAPTURE_MERGE: *text = "operation would result in a merge of separate capture sequences"; break;
    case CAPTURE_UNMATCHED: *text = "capture was not ended in the same stream as it began"; break;
    case CAPTURE_UNJOINED: *text = "capturing stream has unjoined work"; break;
    case CAPTURE_ISOLATION: *text = "dependency created on uncaptured work in another stream"; break;
    case CAPTURED_EVENT: *text = "operation not permitted on an event last recorded in a capturing stream"; break;
    case TOO_MANY_RESOURCES: *text = "too many resources requested for launch"; break;
    default: *text = "unknown error";
    }
    return SUCCESS;
}
