// Runs CUDA C on the processor, so that kernels can be tested where no GPU is.
//
// A kernel's source is compiled as C++17 with this header in front of it (`-include fibres.h`). A block's threads are fibres:
// each has a stack of its own and runs until it waits for others (`__syncthreads`, a shuffle), or ends. Blocks run one after
// the other. The result is that of a GPU for every kernel without races; and to find those that have some, threads and blocks
// start in an order that can be drawn anew (`phalanx_fibres_order`): what depends on it is a race.
//
// What a GPU leaves undefined ends the process with a message that names the kernel: a barrier that some threads never reach
// or reach at another line, a shuffle among lanes that do not exist or have returned, more threads than the kernel is bound to.
// Dynamic shared memory is filled with NaN before each block.
//
// Kernels register themselves by the macro KERNEL of the prelude. The shared library exports them as a table:
// `phalanx_fibres_kernels(&count)`. It is a tool of tests: no benchmark and no training uses it.
#pragma once
#define PHALANX_FIBRES 1

#include "words.h"
#include "interface.h"
#include "stacks.h"
#include "blocks.h"
#include "running.h"
#include "table.h"
#include "builtins.h"
