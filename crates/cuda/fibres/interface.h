// The interface between a shared library of kernels and its callers: the arguments of a launch, and the description of a kernel.
#pragma once

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
    // Of each parameter: 0 for a value, 1 for a pointer that is only read, 2 for a pointer that may be written.
    const unsigned char *param_pointers;
};
