// The software GPU: a test tool of stand-ins for NVIDIA's libraries. Streams are queues that threads run with random delays.
// Kernels run as fibres, and library calls are plain loops.
//
// This is the interface of the driver's stand-in for the others.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#define SOFTWARE_GPU_API extern "C" __attribute__((visibility("default")))

namespace software_gpu {

// An access of a piece of work to device memory. A null pointer is no access.
struct Access {
    uint64_t pointer;
    // The bytes accessed from there; 0 if unknown.
    size_t bytes;
    bool write;
};

// Ends the process with a message that begins with "software GPU:".
[[noreturn]] __attribute__((visibility("default"), format(printf, 1, 2))) void fail(const char *format, ...);

// Returns true if this call of a function is to fail: `SOFTWARE_GPU_FAILS` is "function:n", for the n-th call of the function.
__attribute__((visibility("default"))) bool fails(const char *function);

// Puts work on a stream, and checks its accesses: the memory must be alive and on the stream's device. The stream must have
// waited for the last write, and before a write for all reads. Work on a stream that captures runs whenever the graph runs,
// possibly several times.
__attribute__((visibility("default"))) void enqueue(void *stream, const char *what, const std::vector<Access> &accesses,
                                                    std::function<void()> work);

// Returns the device of a stream.
__attribute__((visibility("default"))) int device_of(void *stream);

// Returns the host address of device memory. Only work on a stream may access it.
__attribute__((visibility("default"))) void *memory_at(uint64_t pointer);

// The number of GPUs, the memory of each in total and in use, and the pieces of work that each has done.
__attribute__((visibility("default"))) int device_count();
__attribute__((visibility("default"))) size_t total_memory();
__attribute__((visibility("default"))) size_t used_memory(int device);
__attribute__((visibility("default"))) uint64_t work_done(int device);

template <class T>
T *at(const void *pointer) {
    return static_cast<T *>(memory_at(reinterpret_cast<uint64_t>(pointer)));
}

} // namespace software_gpu
