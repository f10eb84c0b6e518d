// Runs CUDA C on the CPU, to test kernels without a GPU.
//
// A kernel's source is compiled as C++17 after this header (`-include fibres.h`). A block's threads are fibres: each has its own
// stack and runs until it waits for others (`__syncthreads`, a shuffle), or ends. Blocks run one after the other. The result is
// that of a GPU for every kernel without races. To find races, threads and blocks start in an order that `phalanx_fibres_order`
// sets: a result that depends on it is a race.
//
// Undefined behaviour on a GPU ends the process with a message that names the kernel: a barrier that some threads do not reach or
// reach at another line, a shuffle among lanes that do not exist or have returned, more threads than the kernel's bound. Dynamic
// shared memory is filled with NaN before each block.
//
// The prelude's macro KERNEL registers kernels. The shared library exports them as a table: `phalanx_fibres_kernels(&count)`. It
// is a test tool: no benchmark and no training uses it.
#pragma once
#define PHALANX_FIBRES 1

#include "words.h"
#include "interface.h"
#include "stacks.h"
#include "blocks.h"
#include "running.h"
#include "table.h"
#include "builtins.h"
