// What the rooms of the stand-in of the CUDA driver share: streams, memory, events, contexts, and the world that has them.
//
// Addresses of the device are those of the host with a bit that makes them invalid there, so that neither can be used as the
// other. Each allocation ends at a page that cannot be touched; addresses are never given out twice; new memory is full of NaN.
// Streams carry vector clocks: each allocation knows the time on each stream at which it was last written and read, and work
// that is issued without having waited for that ends the process.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "../software_gpu.h"

typedef int CUresult;
enum { SUCCESS = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NO_DEVICE = 100, INVALID_DEVICE = 101, INVALID_IMAGE = 200,
       INVALID_CONTEXT = 201, INVALID_HANDLE = 400, ILLEGAL_STATE = 401, NOT_FOUND = 500, NOT_READY = 600, TOO_MANY_RESOURCES = 701,
       CAPTURE_UNSUPPORTED = 900, CAPTURE_INVALIDATED = 901, CAPTURE_MERGE = 902, CAPTURE_UNMATCHED = 903, CAPTURE_UNJOINED = 904,
       CAPTURE_ISOLATION = 905, CAPTURED_EVENT = 907 };

#define API SOFTWARE_GPU_API CUresult

namespace software_gpu {

constexpr uint64_t DEVICE_BIT = uint64_t(1) << 62;
constexpr size_t PAGE = 4096;

// What this thread runs for a stream, if anything; messages name it.
extern thread_local const char *running;

// A number from the environment.
long setting(const char *name, long otherwise);

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

// When an allocation was last written and read, and by whom.
struct Use {
    size_t stream_of_write = 0;
    uint64_t time_of_write = 0;
    std::string writer = "the allocation";
    Clock reads;
};

struct Memory {
    uint64_t base;
    size_t bytes, mapped;
    char *pages;
    int device;
    unsigned number;
    Use use;
    bool freed = false;
};

// Page-locked memory of the host, and how many copies use it.
struct Pinned {
    size_t bytes;
    std::shared_ptr<std::atomic<int>> copies = std::make_shared<std::atomic<int>>(0);
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
    // When it did.
    std::chrono::steady_clock::time_point at;
    void set() {
        std::lock_guard<std::mutex> guard(lock);
        done = true;
        at = std::chrono::steady_clock::now();
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

struct Capture;

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
    // What it is given is captured there, if it takes part in a capture.
    std::shared_ptr<Capture> capture;

    // What its thread does: one task after the other, until it is closed and nothing is left.
    void run();
    void put(Task task);
};

struct Event {
    // Whether it tells its time.
    bool timed = false;
    std::shared_ptr<Mark> mark;
    Clock clock;
    // Of an event that was recorded in a capture: that, and the pieces of work that it stands for.
    std::shared_ptr<Capture> capture;
    std::set<size_t> ends;
};

struct Context {
    int device;
    int users = 0;
};

struct World {
    std::mutex lock;
    std::map<uint64_t, std::unique_ptr<Memory>> memories;
    std::map<uint64_t, Pinned> pinned;
    std::vector<Stream *> streams;
    size_t stream_count = 0;
    unsigned memory_count = 0;
    uint64_t next = uint64_t(1) << 44;
    std::vector<std::unique_ptr<Context>> contexts;
    // By device: bytes that are allocated, and that the pool has of the system.
    std::vector<size_t> used, reserved;
    // What the host knows to be done.
    Clock host;
    uint64_t threshold = 0;
};

World &world();

// The context that this thread's calls are for.
extern thread_local Context *current;

// ---- the order of work (order.cpp)

// With the world's lock held: the memory that an address is in, or just behind.
Memory *find(uint64_t pointer);
// With the world's lock held: the memory that work on a stream touches, which must be alive and the device's.
Memory *check(const Stream &stream, const char *what, const Access &access);
// Ends the process unless a stream that is at `clock` has waited for whatever uses the memory.
void must_follow(const Clock &clock, size_t stream, const char *what, const Memory &memory, const Use &use, bool write);
// Notes that work which a stream was given at `time` uses memory.
void note(Use &use, size_t stream, uint64_t time, const char *what, bool write);
// With the world's lock held: a new time on the stream, after what the host knows.
uint64_t tick(Stream &stream);

// ---- streams (streams.cpp)

// The stream of a handle, which must be one that was made.
Stream &stream_of(void *stream, const char *what);
// Lets the host wait for all that a stream was given.
void wait_for(Stream &stream);

// ---- kernels (modules.cpp)

// A kernel with its arguments.
struct Call {
    const char *what;
    std::vector<Access> accesses;
    std::function<void()> work;
};
// What a launch of a kernel would run, which copies the arguments; or why it is refused.
CUresult call_of(void *function, const unsigned grid[3], const unsigned block[3], unsigned shared, void **params, Call *made);

// ---- captures (graphs.cpp)

// With the world's lock held: makes work part of the capture that a stream takes part in.
void capture(Stream &stream, const char *what, const std::vector<Access> &accesses, std::function<void()> work);
// With the world's lock held: a stream that captures was asked for what it cannot do: its capture has no graph.
CUresult spoil(Stream &stream, CUresult error);
// With the world's lock held: notes in an event where a stream that captures is, and lets one wait for such an event.
void record_captured(Stream &stream, Event &event);
CUresult wait_captured(Stream &stream, Event &event);

// ---- memory (memory.cpp)

// The copies that use page-locked memory; none if it is not that.
std::shared_ptr<std::atomic<int>> pinned(const void *memory, size_t bytes);

} // namespace software_gpu
