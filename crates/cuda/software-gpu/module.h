// What compiled kernels are: the stand-in of NVRTC makes it, that of the driver loads it. After the marker come the length, as 8
// bytes, and a shared library with a table of kernels (`fibres/table.h` fills it).
#pragma once

#include "../fibres/interface.h"

#define SOFTWARE_GPU_MAGIC "SOFTWARE GPU 001"
#define SOFTWARE_GPU_MAGIC_LENGTH 16
