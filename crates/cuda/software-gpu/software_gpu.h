// The software GPU: a tool of tests, made of stand-ins for NVIDIA's libraries. Their streams are queues that threads run, with
// drawn delays; kernels run as fibres; library calls are plain loops.
//
// This is what the stand-in of the driver gives to the others.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#define SOFTWARE_GPU_API extern "C" __attribute__((visibility("default")))

namespace software_gpu {

// What a piece of work does with device memory. Pointers are those of the device; a null pointer is no access.
struct Access {
    uint64_t pointer;
    // How many bytes from there are touched; 0 if that is not known.
    size_t bytes;
    bool write;
};

// Ends the process with a message that begins with "software GPU:".
[[noreturn]] __attribute__((visibility("default"), format(printf, 1, 2))) void fail(const char *format, ...);

// Whether this call of a function is to fail: `SOFTWARE_GPU_FAILS` is "function:n", for the n-th call of one function.
__attribute__((visibility("default"))) bool fails(const char *function);

// Puts work on a stream. What it touches is checked now: that it is device memory of the stream's device and alive, and that the
// stream has waited for whatever wrote it, or, to write, for whatever uses it. Work on a stream that captures runs whenever the
// graph does, so it may run several times.
__attribute__((visibility("default"))) void enqueue(void *stream, const char *what, const std::vector<Access> &accesses,
                                                    std::function<void()> work);

// The device of a stream.
__attribute__((visibility("default"))) int device_of(void *stream);

// Where elements at an address of the device lie in fact. Only work that was put on a stream may look there.
__attribute__((visibility("default"))) void *memory_at(uint64_t pointer);

// How many GPUs there are, how much memory each has and how much of it is taken, and how many pieces of work each has done.
__attribute__((visibility("default"))) int device_count();
__attribute__((visibility("default"))) size_t total_memory();
__attribute__((visibility("default"))) size_t used_memory(int device);
__attribute__((visibility("default"))) uint64_t work_done(int device);

template <class T>
T *at(const void *pointer) {
    return static_cast<T *>(memory_at(reinterpret_cast<uint64_t>(pointer)));
}

} // namespace software_gpu
