// The stand-in for NCCL: libnccl.so.2. Operations run when their stream reaches them, between ranks that are threads or
// processes.
//
// As with NCCL, a non-blocking communicator is busy for a while after each call; no other call is allowed then. A rank that never
// arrives is not detected here: the others wait until they are aborted.
#include <unistd.h>

#include <climits>
#include <cstring>
#include <map>
#include <random>
#include <thread>

#include "arithmetic.h"
#include "communicator.h"

using namespace software_gpu;

#define API SOFTWARE_GPU_API int

extern "C" int cuCtxGetDevice(int *device);

struct UniqueId {
    char text[128];
};
// The fields that are read here.
struct Config {
    size_t size;
    unsigned magic, version;
    int blocking;
};
constexpr unsigned CONFIG_MAGIC = 0xcafebeef;

typedef std::shared_ptr<software_gpu::Communicator> Handle;

static std::mutex all_lock;
static std::map<void *, Handle> all;

static thread_local int depth = 0;
static thread_local std::vector<std::pair<Handle, std::pair<void *, Call>>> grouped;

static Handle find(void *comm, const char *what) {
    std::lock_guard<std::mutex> guard(all_lock);
    auto found = all.find(comm);
    if (found == all.end()) fail("%s was given an invalid or destroyed communicator", what);
    return found->second;
}

static Handle take(void *comm, const char *what) {
    Handle handle = find(comm, what);
    std::lock_guard<std::mutex> guard(all_lock);
    all.erase(comm);
    return handle;
}

static int refuse(Result result, const std::string &text) {
    explain(text);
    return result;
}

// The delay of NCCL's own thread before a call is on its stream.
static void dawdle() {
    static thread_local std::minstd_rand random(static_cast<unsigned>(getpid()));
    usleep(static_cast<useconds_t>(random() % 200));
}

API ncclGetVersion(int *version) { *version = 22703; return OK; }

SOFTWARE_GPU_API const char *ncclGetErrorString(int result) {
    switch (result) {
    case OK: return "no error";
    case SYSTEM_ERROR: return "unhandled system error";
    case INVALID_ARGUMENT: return "invalid argument";
    case INVALID_USAGE: return "invalid usage";
    case IN_PROGRESS: return "NCCL operation in progress";
    default: return "unknown result code";
    }
}

SOFTWARE_GPU_API const char *ncclGetLastError(void *) {
    static thread_local std::string text;
    text = last_explanation();
    return text.c_str();
}

API ncclGetUniqueId(UniqueId *id) {
    std::memset(id, 0, sizeof *id);
    const std::string name = Rings::make();
    if (name.empty()) return refuse(SYSTEM_ERROR, "no shared memory for the ranks");
    std::memcpy(id->text, name.data(), name.size());
    return OK;
}

// ---- communicators

static void meet(const Handle &handle) {
    std::string problem;
    while (!handle->given_up && !handle->rings.complete(problem)) usleep(100);
    if (!problem.empty()) handle->fault(INVALID_USAGE, problem);
    --handle->preparing;
}

API ncclCommInitRankConfig(void **made, int ranks, UniqueId id, int rank, Config *config) {
    *made = nullptr;
    auto handle = std::make_shared<software_gpu::Communicator>();
    if (config) {
        if (config->magic != CONFIG_MAGIC || config->size < sizeof(Config))
            return refuse(INVALID_ARGUMENT, "the configuration was not initialised");
        handle->blocking = config->blocking != 0;
    }
    if (cuCtxGetDevice(&handle->gpu)) fail("ncclCommInitRank was called by a thread without a context");
    id.text[sizeof id.text - 1] = 0;
    const std::string problem = handle->rings.attach(id.text, rank, ranks, handle->gpu);
    if (!problem.empty()) return refuse(INVALID_ARGUMENT, problem);
    {
        std::lock_guard<std::mutex> guard(all_lock);
        all[handle.get()] = handle;
    }
    *made = handle.get();
    ++handle->preparing;
    if (handle->blocking) {
        meet(handle);
        return handle->state();
    }
    std::thread(meet, handle).detach();
    return IN_PROGRESS;
}
API ncclCommInitRank(void **made, int ranks, UniqueId id, int rank) {
    return ncclCommInitRankConfig(made, ranks, id, rank, nullptr);
}
API ncclCommGetAsyncError(void *comm, int *state) {
    *state = find(comm, "ncclCommGetAsyncError")->state();
    return OK;
}
API ncclCommCount(void *comm, int *count) { *count = find(comm, "ncclCommCount")->rings.ranks; return OK; }
API ncclCommUserRank(void *comm, int *rank) { *rank = find(comm, "ncclCommUserRank")->rings.rank; return OK; }
API ncclCommCuDevice(void *comm, int *device) { *device = find(comm, "ncclCommCuDevice")->gpu; return OK; }
API ncclCommFinalize(void *comm) {
    Handle handle = find(comm, "ncclCommFinalize");
    if (handle->running || handle->preparing) fail("ncclCommFinalize with pending operations");
    return OK;
}
API ncclCommDestroy(void *comm) {
    Handle handle = take(comm, "ncclCommDestroy");
    if (handle->running || handle->preparing) fail("ncclCommDestroy with pending operations");
    return OK;
}
API ncclCommAbort(void *comm) {
    if (!comm) return INVALID_ARGUMENT;
    Handle handle = take(comm, "ncclCommAbort");
    handle->given_up = true;
    // Work in preparation reaches the stream, and ends at once.
    while (handle->preparing) usleep(50);
    return OK;
}

// ---- calls

static int launch(const Handle &handle, void *stream, const std::vector<Call> &calls) {
    if (handle->stream && handle->stream != stream) fail("a communicator's calls are on two streams");
    handle->stream = stream;
    const char *what = calls.size() > 1 ? "ncclGroup" : kind_name(calls[0].what.kind);
    for (const Call &call : calls)
        if (!call.is_message()) what = kind_name(call.what.kind);
    ++handle->running;
    ++handle->preparing;
    auto put = [handle, stream, calls, what] {
        if (!handle->blocking) dawdle();
        enqueue(stream, what, handle->accesses(calls), [handle, calls] { handle->run(calls); });
        --handle->preparing;
    };
    if (handle->blocking) {
        put();
        return OK;
    }
    std::thread(put).detach();
    return IN_PROGRESS;
}

API ncclGroupStart() { ++depth; return OK; }
API ncclGroupEnd() {
    if (depth < 1) return refuse(INVALID_USAGE, "ncclGroupEnd without ncclGroupStart");
    if (--depth) return OK;
    // Calls of one communicator run in order.
    std::vector<Handle> order;
    std::map<void *, std::pair<void *, std::vector<Call>>> of;
    for (auto &[handle, call] : grouped) {
        auto &[stream, calls] = of[handle.get()];
        if (calls.empty()) order.push_back(handle);
        else if (stream != call.first) fail("calls of one communicator in a group are on two streams");
        stream = call.first;
        calls.push_back(call.second);
    }
    grouped.clear();
    int result = OK;
    for (const Handle &handle : order)
        if (const int each = launch(handle, of[handle.get()].first, of[handle.get()].second)) result = each;
    return result;
}

static int issue(void *comm, void *stream, Call call) {
    const char *name = kind_name(call.what.kind);
    Handle handle = find(comm, name);
    const Signature &what = call.what;
    if (handle->preparing) fail("%s was called while the communicator is busy with an earlier call", name);
    if (const int state = handle->state()) return state;
    if (device_of(stream) != handle->gpu)
        fail("%s of a communicator of GPU %d is on a stream of GPU %d", name, handle->gpu, device_of(stream));
    const int ranks = handle->rings.ranks;
    if (what.type < 0 || what.type >= TYPES) return refuse(INVALID_ARGUMENT, std::string(name) + ": no such type of elements");
    if (what.op >= REDUCTIONS) return refuse(INVALID_ARGUMENT, std::string(name) + ": no such reduction");
    if (what.root >= ranks) return refuse(INVALID_ARGUMENT, std::string(name) + ": no such root");
    if (call.is_message() && (call.peer < 0 || call.peer >= ranks))
        return refuse(INVALID_ARGUMENT, std::string(name) + ": no such rank");
    const bool is_root = handle->rings.rank == what.root;
    const bool needs_from = what.kind != RECEIVE && (what.kind != BROADCAST || is_root);
    const bool needs_to = what.kind != SEND && (what.kind != REDUCE || is_root);
    if (what.count && ((needs_from && !call.from) || (needs_to && !call.to)))
        return refuse(INVALID_ARGUMENT, std::string(name) + ": a buffer is a null pointer");
    for (const void *pointer : {needs_from ? call.from : nullptr, needs_to ? static_cast<const void *>(call.to) : nullptr})
        if (reinterpret_cast<uint64_t>(pointer) % size_of(what.type))
            return refuse(INVALID_ARGUMENT, std::string(name) + ": a buffer is not aligned for its type");
    if (!call.is_message()) call.what.sequence = ++handle->sequence;
    if (depth) {
        grouped.push_back({handle, {stream, call}});
        return OK;
    }
    return launch(handle, stream, {call});
}

API ncclAllReduce(const void *from, void *to, size_t count, int type, int op, void *comm, void *stream) {
    return issue(comm, stream, {{0, count, ALL_REDUCE, type, op, -1}, from, to, -1});
}
API ncclReduceScatter(const void *from, void *to, size_t count, int type, int op, void *comm, void *stream) {
    return issue(comm, stream, {{0, count, REDUCE_SCATTER, type, op, -1}, from, to, -1});
}
API ncclAllGather(const void *from, void *to, size_t count, int type, void *comm, void *stream) {
    return issue(comm, stream, {{0, count, ALL_GATHER, type, -1, -1}, from, to, -1});
}
API ncclBroadcast(const void *from, void *to, size_t count, int type, int root, void *comm, void *stream) {
    return issue(comm, stream, {{0, count, BROADCAST, type, -1, root}, from, to, -1});
}
API ncclReduce(const void *from, void *to, size_t count, int type, int op, int root, void *comm, void *stream) {
    return issue(comm, stream, {{0, count, REDUCE, type, op, root}, from, to, -1});
}
API ncclSend(const void *from, size_t count, int type, int peer, void *comm, void *stream) {
    return issue(comm, stream, {{0, count, SEND, type, -1, -1}, from, nullptr, peer});
}
API ncclRecv(void *to, size_t count, int type, int peer, void *comm, void *stream) {
    return issue(comm, stream, {{0, count, RECEIVE, type, -1, -1}, nullptr, to, peer});
}
