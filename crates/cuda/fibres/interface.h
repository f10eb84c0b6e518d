// What a launch is given, and what a kernel says of itself: between a shared library of kernels and whoever runs them.
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
    // Of each parameter: 0 if it is no pointer, 1 if what it points to is only read, 2 if it may be written.
    const unsigned char *param_pointers;
};
