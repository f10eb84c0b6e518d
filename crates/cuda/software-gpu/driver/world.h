// Common state of the stand-in for the CUDA driver: streams, memory, events, contexts, and the world that holds them.
//
// A device address is a host address with a bit that makes it invalid there, so that neither can be used as the other. Each
// allocation ends at an inaccessible page. Addresses are never reused. New memory is full of NaN. Streams carry vector clocks:
// each allocation records the time on each stream of its last write and read. Work that was issued without waiting for these ends
// the process.
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

// The work that this thread runs for a stream; messages name it.
extern thread_local const char *running;

// Returns a number from the environment.
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

// The times and the names of an allocation's last write and reads.
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

// Page-locked host memory, and the number of copies that use it.
struct Pinned {
    size_t bytes;
    std::shared_ptr<std::atomic<int>> copies = std::make_shared<std::atomic<int>>(0);
};

// The action of a stream.
struct Task {
    const char *what;
    std::function<void()> work;
};

// A flag that is set once, when a stream reaches it.
struct Mark {
    std::mutex lock;
    std::condition_variable changed;
    bool done = false;
    // The time at which it was set.
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
    // The capture that it takes part in, which receives its work.
    std::shared_ptr<Capture> capture;

    // Its thread runs one task after the other, until the stream is closed and empty.
    void run();
    void put(Task task);
};

struct Event {
    // True if it records times.
    bool timed = false;
    std::shared_ptr<Mark> mark;
    Clock clock;
    // Of an event that was recorded in a capture: the capture, and its nodes.
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
    // By device: allocated bytes, and bytes that the pool has reserved.
    std::vector<size_t> used, reserved;
    // The times that the host knows to be done.
    Clock host;
    uint64_t threshold = 0;
};

World &world();

// The context of this thread's calls.
extern thread_local Context *current;

// ---- the order of work (order.cpp)

// With the world's lock held: returns the memory that contains an address, or ends at it.
Memory *find(uint64_t pointer);
// With the world's lock held: returns the memory of an access, which must be alive and on the device.
Memory *check(const Stream &stream, const char *what, const Access &access);
// Ends the process unless a stream at `clock` has waited for all conflicting accesses to the memory.
void must_follow(const Clock &clock, size_t stream, const char *what, const Memory &memory, const Use &use, bool write);
// Records an access of work that a stream got at `time`.
void note(Use &use, size_t stream, uint64_t time, const char *what, bool write);
// With the world's lock held: returns a new time on the stream, after all that the host knows.
uint64_t tick(Stream &stream);

// ---- streams (streams.cpp)

// Returns the stream of a handle, which must be valid.
Stream &stream_of(void *stream, const char *what);
// Makes the host wait for all work of a stream.
void wait_for(Stream &stream);

// ---- kernels (modules.cpp)

// A kernel with its arguments.
struct Call {
    const char *what;
    std::vector<Access> accesses;
    std::function<void()> work;
};
// Returns the call of a launch, with copied arguments, or the error.
CUresult call_of(void *function, const unsigned grid[3], const unsigned block[3], unsigned shared, void **params, Call *made);

// ---- captures (graphs.cpp)

// With the world's lock held: adds work to the capture of a stream.
void capture(Stream &stream, const char *what, const std::vector<Access> &accesses, std::function<void()> work);
// With the world's lock held: invalidates the capture of a stream after an operation that cannot be captured.
CUresult spoil(Stream &stream, CUresult error);
// With the world's lock held: records the position of a stream that captures in an event, and makes a stream wait for such an
// event.
void record_captured(Stream &stream, Event &event);
CUresult wait_captured(Stream &stream, Event &event);

// ---- memory (memory.cpp)

// Returns the number of copies that use page-locked memory. None for other memory.
std::shared_ptr<std::atomic<int>> pinned(const void *memory, size_t bytes);

} // namespace software_gpu
