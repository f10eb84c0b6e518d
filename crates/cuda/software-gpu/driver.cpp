// The stand-in of the CUDA driver: libcuda.so.1.
//
// Addresses of the device are those of the host with a bit that makes them invalid there, so that neither can be used as the
// other. Each allocation ends at a page that cannot be touched; addresses are never given out twice; new memory is full of NaN.
// Streams carry vector clocks: each allocation knows the time on each stream at which it was last written and read, and work
// that is issued without having waited for that ends the process.
#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>

#include "module.h"
#include "software_gpu.h"

namespace software_gpu {

constexpr uint64_t DEVICE_BIT = uint64_t(1) << 62;
constexpr size_t PAGE = 4096;
// How much of an allocation is filled with NaN; the rest of a larger one, which no test reads unwritten, is zeros.
constexpr size_t FILLED = 16 << 20;

static thread_local const char *running = nullptr;

// Pieces of work that each GPU has done.
static std::atomic<uint64_t> done[64];

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

static long setting(const char *name, long otherwise) {
    const char *value = std::getenv(name);
    return value && *value ? std::atol(value) : otherwise;
}

// A time on each stream, by the stream's number.
struct Clock {
    std::vector<uint64_t> times;
    uint64_t at(size_t stream) const { return stream < times.size() ? times[stream] : 0; }
    void set(size_t stream, uint64_t time) {
        if (stream >= times.size()) times.resize(stream + 1);
        times[stream] = time;
    }
    void join(const Clock &other) {
        if (other.times.size() > times.size()) times.resize(other.times.size());
        for (size_t i = 0; i < other.times.size(); ++i)
            if (other.times[i] > times[i]) times[i] = other.times[i];
    }
};

struct Memory {
    uint64_t base;
    size_t bytes, mapped;
    char *pages;
    int device;
    unsigned number;
    size_t stream_of_write = 0;
    uint64_t time_of_write = 0;
    std::string writer;
    Clock reads;
    bool freed = false;
};

// What a stream does when it comes to it.
struct Task {
    const char *what;
    std::function<void()> work;
};

// Something that becomes true once, when a stream comes to it.
struct Mark {
    std::mutex lock;
    std::condition_variable changed;
    bool done = false;
    void set() {
        std::lock_guard<std::mutex> guard(lock);
        done = true;
        changed.notify_all();
    }
    void wait() {
        std::unique_lock<std::mutex> guard(lock);
        changed.wait(guard, [&] { return done; });
    }
    bool is_set() {
        std::lock_guard<std::mutex> guard(lock);
        return done;
    }
};

struct Stream {
    size_t number;
    int device;
    Clock clock;
    std::mutex lock;
    std::condition_variable changed;
    std::deque<Task> queue;
    bool closing = false;
    std::thread thread;
    std::mt19937 random;

    void run() {
        const long longest = setting("SOFTWARE_GPU_DELAY", 200);
        for (;;) {
            Task task;
            {
                std::unique_lock<std::mutex> guard(lock);
                changed.wait(guard, [&] { return closing || !queue.empty(); });
                if (queue.empty()) return;
                task = std::move(queue.front());
                queue.pop_front();
            }
            if (longest > 0 && random() % 8 == 0) usleep(static_cast<useconds_t>(random() % longest));
            running = task.what;
            task.work();
            ++done[device & 63];
            running = nullptr;
        }
    }
    void put(Task task) {
        std::lock_guard<std::mutex> guard(lock);
        queue.push_back(std::move(task));
        changed.notify_one();
    }
};

struct Event {
    std::shared_ptr<Mark> mark;
    Clock clock;
};

struct Context {
    int device;
    int users = 0;
};

struct World {
    std::mutex lock;
    std::map<uint64_t, std::unique_ptr<Memory>> memories;
    std::map<uint64_t, size_t> pinned;
    std::vector<Stream *> streams;
    size_t stream_count = 0;
    unsigned memory_count = 0;
    uint64_t next = uint64_t(1) << 44;
    std::vector<std::unique_ptr<Context>> contexts;
    std::vector<size_t> used;
    // What the host knows to be done.
    Clock host;
    uint64_t threshold = 0;
};

static World &world() {
    static World *it = new World;
    return *it;
}
static thread_local Context *current = nullptr;

int device_count() { return static_cast<int>(setting("SOFTWARE_GPU_COUNT", 1)); }
size_t total_memory() { return static_cast<size_t>(setting("SOFTWARE_GPU_MEMORY", 4L << 30)); }
size_t used_memory(int device) {
    std::lock_guard<std::mutex> guard(world().lock);
    const auto at = static_cast<size_t>(device);
    return at < world().used.size() ? world().used[at] : 0;
}
uint64_t work_done(int device) { return done[device & 63]; }

static void damaged(int, siginfo_t *info, void *) {
    char text[200];
    const int length = std::snprintf(
        text, sizeof text,
        running ? "software GPU: %s touched %p, which is not its memory (beyond an allocation, freed, or an address of the other side)\n"
                : "software GPU: the %s touched %p (an address of the device cannot be used there)\n",
        running ? running : "host", info->si_addr);
    if (write(2, text, static_cast<size_t>(length)) < 0) _exit(3);
    signal(SIGABRT, SIG_DFL);
    std::abort();
}

// With the world's lock held. The memory that an address is in, or just behind.
static Memory *find(uint64_t pointer) {
    auto &memories = world().memories;
    auto after = memories.upper_bound(pointer);
    if (after == memories.begin()) return nullptr;
    Memory *memory = std::prev(after)->second.get();
    return pointer <= memory->base + memory->bytes ? memory : nullptr;
}

static Memory *check(const Stream &stream, const char *what, const Access &access) {
    if (!(access.pointer & DEVICE_BIT)) fail("%s was given %#lx, which is no address of a device", what, access.pointer);
    Memory *memory = find(access.pointer);
    if (!memory) fail("%s was given %#lx, where no memory is (freed, or never allocated)", what, access.pointer);
    if (memory->freed) fail("%s uses allocation %u after it was freed", what, memory->number);
    if (memory->device != stream.device)
        fail("%s on GPU %d was given memory of GPU %d", what, stream.device, memory->device);
    if (access.pointer + access.bytes > memory->base + memory->bytes)
        fail("%s touches %zu bytes at %zu of allocation %u, which has %zu", what, access.bytes,
             size_t(access.pointer - memory->base), memory->number, memory->bytes);
    return memory;
}

static void must_follow(const Stream &stream, const char *what, const Memory &memory, bool write) {
    if (stream.clock.at(memory.stream_of_write) < memory.time_of_write)
        fail("missing wait: %s on stream %zu %s allocation %u, which %s wrote on stream %zu", what, stream.number,
             write ? "changes" : "reads", memory.number, memory.writer.c_str(), memory.stream_of_write);
    if (!write) return;
    for (size_t other = 0; other < memory.reads.times.size(); ++other)
        if (stream.clock.at(other) < memory.reads.times[other])
            fail("missing wait: %s on stream %zu changes allocation %u, which stream %zu may still read", what, stream.number,
                 memory.number, other);
}

// With the world's lock held: a new time on the stream, after what the host knows.
static uint64_t tick(Stream &stream) {
    stream.clock.join(world().host);
    const uint64_t time = stream.clock.at(stream.number) + 1;
    stream.clock.set(stream.number, time);
    return time;
}

static Stream &stream_of(void *stream, const char *what) {
    if (!stream || stream == reinterpret_cast<void *>(1) || stream == reinterpret_cast<void *>(2))
        fail("%s on the default stream: work belongs to a stream that was made", what);
    return *static_cast<Stream *>(stream);
}

void enqueue(void *handle, const char *what, const std::vector<Access> &accesses, std::function<void()> work) {
    Stream &stream = stream_of(handle, what);
    std::lock_guard<std::mutex> guard(world().lock);
    const uint64_t time = tick(stream);
    for (const Access &access : accesses) {
        if (!access.pointer) continue;
        must_follow(stream, what, *check(stream, what, access), access.write);
    }
    for (const Access &access : accesses) {
        if (!access.pointer) continue;
        Memory &memory = *find(access.pointer);
        if (access.write) {
            memory.stream_of_write = stream.number;
            memory.time_of_write = time;
            memory.writer = what;
            memory.reads = Clock();
        } else {
            memory.reads.set(stream.number, time);
        }
    }
    stream.put({what, std::move(work)});
}

void *memory_at(uint64_t pointer) { return reinterpret_cast<void *>(pointer & ~DEVICE_BIT); }

static void wait_for(Stream &stream) {
    auto mark = std::make_shared<Mark>();
    Clock reached;
    {
        std::lock_guard<std::mutex> guard(world().lock);
        reached = stream.clock;
        stream.put({"a synchronisation", [mark] { mark->set(); }});
    }
    mark->wait();
    std::lock_guard<std::mutex> guard(world().lock);
    world().host.join(reached);
}

} // namespace software_gpu

using namespace software_gpu;

typedef int CUresult;
enum { SUCCESS = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NO_DEVICE = 100, INVALID_DEVICE = 101, INVALID_IMAGE = 200,
       INVALID_CONTEXT = 201, NOT_FOUND = 500, NOT_READY = 600, TOO_MANY_RESOURCES = 701 };

#define API SOFTWARE_GPU_API CUresult

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
    });
    return device_count() > 0 ? SUCCESS : NO_DEVICE;
}
API cuDriverGetVersion(int *version) { *version = 13000; return SUCCESS; }
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
    case TOO_MANY_RESOURCES: *text = "too many resources requested for launch"; break;
    default: *text = "unknown error";
    }
    return SUCCESS;
}

// ---- devices and contexts

API cuDeviceGetCount(int *count) { *count = device_count(); return SUCCESS; }
API cuDeviceGet(int *device, int ordinal) {
    if (ordinal < 0 || ordinal >= device_count()) return INVALID_DEVICE;
    *device = ordinal;
    return SUCCESS;
}
API cuDeviceGetName(char *name, int length, int device) {
    std::snprintf(name, static_cast<size_t>(length), "software GPU %d (a tool of tests)", device);
    return SUCCESS;
}
API cuDeviceGetUuid_v2(char *uuid, int device) {
    std::memset(uuid, 0, 16);
    uuid[15] = static_cast<char>(device);
    return SUCCESS;
}
API cuDeviceGetUuid(char *uuid, int device) { return cuDeviceGetUuid_v2(uuid, device); }
API cuDeviceTotalMem_v2(size_t *bytes, int) { *bytes = total_memory(); return SUCCESS; }
API cuDeviceGetAttribute(int *value, int attribute, int) {
    switch (attribute) {
    case 1: *value = 1024; break;            // threads of a block
    case 8: *value = 48 << 10; break;        // shared memory of a block
    case 10: *value = 32; break;             // a warp
    case 16: *value = 4; break;              // multiprocessors
    case 75: *value = 9; break;              // compute capability
    case 76: *value = 0; break;
    case 97: *value = 227 << 10; break;      // shared memory of a block that asks for it
    case 115: *value = 1; break;             // memory pools
    default: fail("the attribute %d of a device is not known", attribute);
    }
    return SUCCESS;
}
API cuDeviceCanAccessPeer(int *can, int, int) { *can = 0; return SUCCESS; }
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
                     memory.second->bytes, memory.second->writer.c_str());
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
    }
    for (Stream *stream : streams) wait_for(*stream);
    return SUCCESS;
}

// ---- streams and events

API cuStreamCreateWithPriority(void **made, unsigned, int) {
    if (!current) return INVALID_CONTEXT;
    std::lock_guard<std::mutex> guard(world().lock);
    auto *stream = new Stream;
    stream->number = ++world().stream_count;
    stream->device = current->device;
    stream->random.seed(static_cast<unsigned>(setting("SOFTWARE_GPU_SEED", 1) * 1000 + static_cast<long>(stream->number)));
    stream->thread = std::thread([stream] { stream->run(); });
    world().streams.push_back(stream);
    *made = stream;
    return SUCCESS;
}
API cuStreamCreate(void **made, unsigned flags) { return cuStreamCreateWithPriority(made, flags, 0); }
API cuStreamSynchronize(void *stream) { wait_for(stream_of(stream, "a synchronisation")); return SUCCESS; }
API cuStreamDestroy_v2(void *handle) {
    Stream &stream = stream_of(handle, "the end of a stream");
    {
        std::lock_guard<std::mutex> guard(world().lock);
        auto &streams = world().streams;
        for (size_t i = 0; i < streams.size(); ++i)
            if (streams[i] == &stream) streams.erase(streams.begin() + static_cast<long>(i));
    }
    {
        std::lock_guard<std::mutex> guard(stream.lock);
        stream.closing = true;
        stream.changed.notify_one();
    }
    stream.thread.join();
    // What it did is done; others that have not waited for it were wrong before.
    delete &stream;
    return SUCCESS;
}
API cuEventCreate(void **event, unsigned) { *event = new Event; return SUCCESS; }
API cuEventDestroy_v2(void *event) { delete static_cast<Event *>(event); return SUCCESS; }
API cuEventRecord(void *handle, void *on) {
    Stream &stream = stream_of(on, "an event");
    auto &event = *static_cast<Event *>(handle);
    std::lock_guard<std::mutex> guard(world().lock);
    auto mark = std::make_shared<Mark>();
    event.mark = mark;
    event.clock = stream.clock;
    stream.put({"an event", [mark] { mark->set(); }});
    return SUCCESS;
}
API cuStreamWaitEvent(void *on, void *handle, unsigned) {
    Stream &stream = stream_of(on, "a wait");
    auto &event = *static_cast<Event *>(handle);
    std::lock_guard<std::mutex> guard(world().lock);
    auto mark = event.mark;
    if (!mark) return SUCCESS;
    stream.clock.join(event.clock);
    stream.put({"a wait", [mark] { mark->wait(); }});
    return SUCCESS;
}
API cuEventSynchronize(void *handle) {
    auto &event = *static_cast<Event *>(handle);
    if (!event.mark) return SUCCESS;
    event.mark->wait();
    std::lock_guard<std::mutex> guard(world().lock);
    world().host.join(event.clock);
    return SUCCESS;
}
API cuEventQuery(void *handle) {
    auto &event = *static_cast<Event *>(handle);
    if (event.mark && !event.mark->is_set()) return NOT_READY;
    std::lock_guard<std::mutex> guard(world().lock);
    world().host.join(event.clock);
    return SUCCESS;
}

// ---- memory

static CUresult allocate(uint64_t *pointer, size_t bytes, Stream *stream) {
    if (!current) return INVALID_CONTEXT;
    std::lock_guard<std::mutex> guard(world().lock);
    const auto device = static_cast<size_t>(current->device);
    if (world().used[device] + bytes > total_memory()) return OUT_OF_MEMORY;
    // The memory ends where its last page does, as near as an alignment of 256 bytes allows.
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
    memory->writer = "the allocation";
    std::memset(memory->pages, 0xff, pages < FILLED ? pages : FILLED);
    if (stream) {
        memory->time_of_write = tick(*stream);
        memory->stream_of_write = stream->number;
    }
    world().used[device] += bytes;
    *pointer = memory->base;
    const uint64_t base = memory->base;
    world().memories.emplace(base, std::move(memory));
    return SUCCESS;
}

// What lies between the end of an allocation and its page was full of ones.
static void release(uint64_t base) {
    std::lock_guard<std::mutex> guard(world().lock);
    auto found = world().memories.find(base);
    Memory &memory = *found->second;
    const char *end = static_cast<char *>(memory_at(memory.base)) + memory.bytes;
    if (memory.mapped - PAGE <= FILLED)
        for (const char *byte = end; byte < memory.pages + memory.mapped - PAGE; ++byte)
            if (*byte != '\xff') fail("somebody wrote behind the end of allocation %u of %zu bytes", memory.number, memory.bytes);
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
    tick(stream);
    Memory *memory = check(stream, "freeing", {pointer, 0, true});
    if (memory->base != pointer) fail("freeing %#lx, which is inside of an allocation", pointer);
    must_follow(stream, "freeing", *memory, true);
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
    if (attribute != 4) fail("the attribute %d of a memory pool is not known", attribute);
    world().threshold = *static_cast<uint64_t *>(value);
    return SUCCESS;
}
API cuMemPoolGetAttribute(void *, int attribute, void *value) {
    if (attribute != 4) fail("the attribute %d of a memory pool is not known", attribute);
    *static_cast<uint64_t *>(value) = world().threshold;
    return SUCCESS;
}
API cuMemHostAlloc(void **memory, size_t bytes, unsigned) {
    *memory = std::aligned_alloc(PAGE, (bytes + PAGE - 1) / PAGE * PAGE);
    std::lock_guard<std::mutex> guard(world().lock);
    world().pinned[reinterpret_cast<uint64_t>(*memory)] = bytes;
    return *memory ? SUCCESS : OUT_OF_MEMORY;
}
API cuMemFreeHost(void *memory) {
    std::lock_guard<std::mutex> guard(world().lock);
    if (!world().pinned.erase(reinterpret_cast<uint64_t>(memory))) fail("freeing page-locked memory that is none");
    std::free(memory);
    return SUCCESS;
}

static bool is_pinned(const void *memory, size_t bytes) {
    std::lock_guard<std::mutex> guard(world().lock);
    const auto start = reinterpret_cast<uint64_t>(memory);
    auto after = world().pinned.upper_bound(start);
    return after != world().pinned.begin() && start + bytes <= std::prev(after)->first + std::prev(after)->second;
}

API cuMemsetD8Async(uint64_t pointer, unsigned char value, size_t bytes, void *stream) {
    enqueue(stream, "a fill", {{pointer, bytes, true}}, [=] { std::memset(memory_at(pointer), value, bytes); });
    return SUCCESS;
}
API cuMemcpyHtoDAsync_v2(uint64_t to, const void *from, size_t bytes, void *stream) {
    if (reinterpret_cast<uint64_t>(from) & DEVICE_BIT) fail("a copy from the host was given an address of a device");
    const char *what = "a copy from the host";
    if (is_pinned(from, bytes)) {
        enqueue(stream, what, {{to, bytes, true}}, [=] { std::memcpy(memory_at(to), from, bytes); });
        return SUCCESS;
    }
    auto staged = std::make_shared<std::vector<char>>(static_cast<const char *>(from), static_cast<const char *>(from) + bytes);
    enqueue(stream, what, {{to, bytes, true}}, [=] { std::memcpy(memory_at(to), staged->data(), bytes); });
    return SUCCESS;
}
API cuMemcpyDtoHAsync_v2(void *to, uint64_t from, size_t bytes, void *stream) {
    if (reinterpret_cast<uint64_t>(to) & DEVICE_BIT) fail("a copy to the host was given an address of a device");
    enqueue(stream, "a copy to the host", {{from, bytes, false}}, [=] { std::memcpy(to, memory_at(from), bytes); });
    if (!is_pinned(to, bytes)) wait_for(stream_of(stream, "a copy to the host"));
    return SUCCESS;
}
API cuMemcpyDtoDAsync_v2(uint64_t to, uint64_t from, size_t bytes, void *stream) {
    if (to < from + bytes && from < to + bytes) fail("a copy between places that overlap");
    enqueue(stream, "a copy", {{to, bytes, true}, {from, bytes, false}},
            [=] { std::memcpy(memory_at(to), memory_at(from), bytes); });
    return SUCCESS;
}

// ---- modules and launches

struct Module {
    void *library;
    std::map<std::string, const PhalanxKernel *> kernels;
};

API cuModuleLoadData(void **made, const void *image) {
    const auto *bytes = static_cast<const char *>(image);
    if (std::memcmp(bytes, SOFTWARE_GPU_MAGIC, SOFTWARE_GPU_MAGIC_LENGTH)) return INVALID_IMAGE;
    uint64_t length;
    std::memcpy(&length, bytes + SOFTWARE_GPU_MAGIC_LENGTH, 8);
    // The file stays open, so that no other gets its number, by which the loader would take it for this one.
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
// Code stays loaded: fibres of threads that run it end with their threads.
API cuModuleUnload(void *module) { delete static_cast<Module *>(module); return SUCCESS; }
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
API cuFuncSetAttribute(void *, int, int) { return SUCCESS; }
API cuLaunchKernel(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                   unsigned shared, void *stream, void **params, void **) {
    const auto &kernel = *static_cast<const PhalanxKernel *>(function);
    if (uint64_t(bx) * by * bz > kernel.max_threads) return TOO_MANY_RESOURCES;
    if (!gx || !gy || !gz || !bx || !by || !bz || gy > 65535 || gz > 65535 || gx > 0x7fffffff) return INVALID_VALUE;
    struct Arguments {
        std::vector<uint64_t> words;
        std::vector<void *> params;
    };
    auto arguments = std::make_shared<Arguments>();
    size_t words = 0;
    for (unsigned i = 0; i < kernel.param_count; ++i) words += (kernel.param_sizes[i] + 7) / 8;
    arguments->words.resize(words);
    std::vector<Access> accesses;
    words = 0;
    for (unsigned i = 0; i < kernel.param_count; ++i) {
        uint64_t *to = &arguments->words[words];
        std::memcpy(to, params[i], kernel.param_sizes[i]);
        if (kernel.param_pointers[i] && *to) {
            accesses.push_back({*to, 0, kernel.param_pointers[i] == 2});
            *to &= ~DEVICE_BIT;
        }
        arguments->params.push_back(to);
        words += (kernel.param_sizes[i] + 7) / 8;
    }
    enqueue(stream, kernel.name, accesses, [=, &kernel] {
        const PhalanxLaunch launch = {{gx, gy, gz}, {bx, by, bz}, shared, arguments->params.data()};
        kernel.run(&launch);
    });
    return SUCCESS;
}
