// The format of compiled kernels: the stand-in for NVRTC writes it, the one for the driver loads it. After the marker come the
// length, 8 bytes, and a shared library with a table of kernels (`fibres/table.h`).
#pragma once

#include "../fibres/interface.h"

#define SOFTWARE_GPU_MAGIC "SOFTWARE GPU 001"
#define SOFTWARE_GPU_MAGIC_LENGTH 16
