// The stand-in for NVRTC: libnvrtc.so. It compiles CUDA C by the C++ compiler, with the header of fibres in front.
#include <dlfcn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "module.h"
#include "software_gpu.h"

struct Program {
    std::string source, name, log;
    std::vector<char> code;
};

enum { SUCCESS = 0, INVALID_INPUT = 3, INVALID_PROGRAM = 4, INVALID_OPTION = 5, COMPILATION = 6 };
#define API SOFTWARE_GPU_API int

static std::string read(const std::string &path) {
    std::ifstream file(path, std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(file), {});
}

// The header of fibres, in the folder of this library: the library holds no path, so that the folder may be moved.
static std::string fibres() {
    static const char here = 0;
    Dl_info found;
    if (!dladdr(&here, &found) || !found.dli_fname) return "fibres/fibres.h";
    const std::string file = found.dli_fname;
    const size_t end = file.rfind('/');
    return (end == std::string::npos ? "." : file.substr(0, end)) + "/fibres/fibres.h";
}

API nvrtcVersion(int *major, int *minor) { *major = 13; *minor = 0; return SUCCESS; }
// The architectures of its version, or those up to a limit.
static std::vector<int> architectures() {
    const char *newest = std::getenv("SOFTWARE_GPU_NVRTC_NEWEST");
    std::vector<int> known;
    for (int one : {75, 80, 86, 87, 88, 89, 90, 100, 103, 110, 120, 121})
        if (!newest || !*newest || one <= std::atoi(newest)) known.push_back(one);
    return known;
}
API nvrtcGetNumSupportedArchs(int *count) { *count = int(architectures().size()); return SUCCESS; }
API nvrtcGetSupportedArchs(int *to) {
    for (int one : architectures()) *to++ = one;
    return SUCCESS;
}
API nvrtcCreateProgram(Program **made, const char *source, const char *name, int headers, const char *const *,
                       const char *const *) {
    if (headers) return INVALID_INPUT;
    *made = new Program{source, name ? name : "kernels", "", {}};
    return SUCCESS;
}
API nvrtcDestroyProgram(Program **program) {
    delete *program;
    return SUCCESS;
}
API nvrtcCompileProgram(Program *program, int count, const char *const *options) {
    for (int i = 0; i < count; ++i) {
        const std::string option = options[i];
        if (option.rfind("--gpu-architecture=sm_", 0) && option != "--std=c++17" && option != "--device-as-default-execution-space") {
            program->log = "unknown option: " + option;
            return INVALID_OPTION;
        }
    }
    static std::atomic<unsigned> number{0};
    const char *folder = std::getenv("TMPDIR");
    const std::string stem = std::string(folder && *folder ? folder : "/tmp") + "/software-gpu-" + std::to_string(getpid()) +
                             "-" + std::to_string(number++);
    const std::string source = stem + ".cu", made = stem + ".so", log = stem + ".log";
    std::ofstream(source, std::ios::binary) << program->source;
    const char *chosen = std::getenv("CXX");
    const std::string compiler = chosen && *chosen ? chosen : "c++";
    const std::string command = compiler +
                                " -std=c++17 -O2 -fno-strict-aliasing -shared -fPIC -fvisibility=hidden -fno-gnu-unique -w -x c++ -include '" +
                                fibres() + "' '" + source + "' -o '" + made + "' > '" + log + "' 2>&1";
    const int status = std::system(command.c_str());
    program->log = read(log);
    const std::string code = read(made);
    std::remove(source.c_str());
    std::remove(made.c_str());
    std::remove(log.c_str());
    if (status != 0 || code.empty()) return COMPILATION;
    const uint64_t length = code.size();
    program->code.assign(SOFTWARE_GPU_MAGIC, SOFTWARE_GPU_MAGIC + SOFTWARE_GPU_MAGIC_LENGTH);
    const char *bytes = reinterpret_cast<const char *>(&length);
    program->code.insert(program->code.end(), bytes, bytes + 8);
    program->code.insert(program->code.end(), code.begin(), code.end());
    return SUCCESS;
}
API nvrtcGetProgramLogSize(Program *program, size_t *size) { *size = program->log.size() + 1; return SUCCESS; }
API nvrtcGetProgramLog(Program *program, char *log) {
    std::memcpy(log, program->log.c_str(), program->log.size() + 1);
    return SUCCESS;
}
API nvrtcGetCUBINSize(Program *program, size_t *size) {
    *size = program->code.size();
    return program->code.empty() ? INVALID_PROGRAM : SUCCESS;
}
API nvrtcGetCUBIN(Program *program, char *code) {
    std::memcpy(code, program->code.data(), program->code.size());
    return program->code.empty() ? INVALID_PROGRAM : SUCCESS;
}
