// What compiled kernels are: the stand-in of NVRTC makes it, that of the driver loads it. After the marker come the length, as 8
// bytes, and a shared library with a table of kernels (`fibres.h` fills it).
#pragma once

#define SOFTWARE_GPU_MAGIC "SOFTWARE GPU 001"
#define SOFTWARE_GPU_MAGIC_LENGTH 16

// As in `fibres.h`.
struct PhalanxLaunch {
    unsigned grid[3];
    unsigned block[3];
    unsigned shared_bytes;
    void **params;
};
struct PhalanxKernel {
    const char *name;
    void (*run)(const PhalanxLaunch *launch);
    unsigned max_threads;
    unsigned param_count;
    const unsigned *param_sizes;
    // 0: no pointer; 1: to what is read; 2: to what may be written.
    const unsigned char *param_pointers;
};
