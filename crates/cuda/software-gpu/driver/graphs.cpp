// The stand-in for the CUDA driver: captures of streams, and graphs, which run their work in any order that its dependencies
// allow.
#include <algorithm>

#include "world.h"

namespace software_gpu {

// A piece of captured work, and its dependencies.
struct Node {
    const char *what;
    std::vector<Access> accesses;
    std::function<void()> work;
    std::set<size_t> after;
};

struct Capture {
    Stream *origin;
    std::vector<Node> nodes;
    // By stream of the capture: the dependencies of its next piece of work, and its time within the capture.
    std::map<Stream *, std::set<size_t>> ends;
    std::map<Stream *, Clock> clocks;
    // By allocation: its accesses within the capture.
    std::map<unsigned, Use> uses;
    bool spoiled = false;
    // The answer to the last query.
    std::vector<void *> answer;
};

// A captured graph. An executable one counts its running launches.
struct Graph {
    std::vector<Node> nodes;
};
struct Executable {
    // Launches use the graph as it was at that time.
    std::shared_ptr<const Graph> graph;
    std::shared_ptr<std::atomic<int>> running = std::make_shared<std::atomic<int>>(0);
    unsigned launches = 0;
};

void capture(Stream &stream, const char *what, const std::vector<Access> &accesses, std::function<void()> work) {
    Capture &capture = *stream.capture;
    Clock &clock = capture.clocks[&stream];
    const uint64_t time = clock.at(stream.number) + 1;
    clock.set(stream.number, time);
    for (const Access &access : accesses) {
        if (!access.pointer) continue;
        const Memory &memory = *check(stream, what, access);
        must_follow(clock, stream.number, what, memory, capture.uses[memory.number], access.write);
    }
    for (const Access &access : accesses)
        if (access.pointer) note(capture.uses[find(access.pointer)->number], stream.number, time, what, access.write);
    auto &ends = capture.ends[&stream];
    capture.nodes.push_back({what, accesses, std::move(work), ends});
    ends = {capture.nodes.size() - 1};
}

CUresult spoil(Stream &stream, CUresult error) {
    stream.capture->spoiled = true;
    return error;
}

void record_captured(Stream &stream, Event &event) {
    event = {event.timed, nullptr, stream.capture->clocks[&stream], stream.capture, stream.capture->ends[&stream]};
}

CUresult wait_captured(Stream &stream, Event &event) {
    // A capture that has ended.
    if (!event.capture->origin) return CAPTURED_EVENT;
    if (stream.capture && stream.capture != event.capture) return spoil(stream, CAPTURE_MERGE);
    stream.capture = event.capture;
    stream.capture->clocks[&stream].join(event.clock);
    stream.capture->ends[&stream].insert(event.ends.begin(), event.ends.end());
    return SUCCESS;
}

// Returns the transitive dependencies of nodes, and the nodes.
static std::set<size_t> reached(const std::vector<Node> &nodes, std::set<size_t> from) {
    for (size_t i = nodes.size(); i-- > 0;)
        if (from.count(i)) from.insert(nodes[i].after.begin(), nodes[i].after.end());
    return from;
}

// Runs every node after its dependencies, otherwise in a random order.
static void run(const Graph &graph, unsigned seed) {
    std::mt19937 random(seed);
    const char *before = running;
    std::vector<bool> done(graph.nodes.size());
    for (size_t count = 0; count < graph.nodes.size(); ++count) {
        std::vector<size_t> ready;
        for (size_t i = 0; i < graph.nodes.size(); ++i) {
            const auto &after = graph.nodes[i].after;
            if (!done[i] && std::all_of(after.begin(), after.end(), [&](size_t other) { return done[other]; })) ready.push_back(i);
        }
        const size_t next = ready[random() % ready.size()];
        running = graph.nodes[next].what;
        graph.nodes[next].work();
        done[next] = true;
    }
    running = before;
}

} // namespace software_gpu

using namespace software_gpu;

API cuStreamBeginCapture_v2(void *handle, int) {
    // The default streams cannot capture.
    if (reinterpret_cast<uintptr_t>(handle) <= 2) return CAPTURE_UNSUPPORTED;
    Stream &stream = stream_of(handle, "a capture");
    std::lock_guard<std::mutex> guard(world().lock);
    if (stream.capture) return ILLEGAL_STATE;
    stream.capture = std::make_shared<Capture>();
    stream.capture->origin = &stream;
    stream.capture->ends[&stream];
    return SUCCESS;
}
API cuStreamIsCapturing(void *handle, int *status) {
    Stream &stream = stream_of(handle, "a query");
    std::lock_guard<std::mutex> guard(world().lock);
    *status = !stream.capture ? 0 : stream.capture->spoiled ? 2 : 1;
    return SUCCESS;
}
API cuStreamEndCapture(void *handle, Graph **made) {
    Stream &stream = stream_of(handle, "the end of a capture");
    std::lock_guard<std::mutex> guard(world().lock);
    *made = nullptr;
    auto capture = stream.capture;
    if (!capture) return ILLEGAL_STATE;
    if (capture->origin != &stream) return spoil(stream, CAPTURE_UNMATCHED);
    const auto joined = reached(capture->nodes, capture->ends[&stream]);
    bool all = true;
    for (auto &[member, ends] : capture->ends) {
        for (size_t end : ends) all &= joined.count(end) > 0;
        member->capture = nullptr;
    }
    capture->origin = nullptr;
    if (capture->spoiled) return CAPTURE_INVALIDATED;
    if (!all) return CAPTURE_UNJOINED;
    *made = new Graph;
    (*made)->nodes = std::move(capture->nodes);
    return SUCCESS;
}
// Nodes are numbers, from 1 on.
API cuStreamGetCaptureInfo_v2(void *handle, int *status, uint64_t *id, void **graph, void *const **nodes, size_t *count) {
    Stream &stream = stream_of(handle, "a query");
    std::lock_guard<std::mutex> guard(world().lock);
    *status = !stream.capture ? 0 : stream.capture->spoiled ? 2 : 1;
    *id = 0;
    *graph = nullptr;
    *nodes = nullptr;
    *count = 0;
    if (*status != 1) return SUCCESS;
    auto &answer = stream.capture->answer;
    answer.clear();
    for (size_t end : stream.capture->ends[&stream]) answer.push_back(reinterpret_cast<void *>(end + 1));
    *nodes = answer.data();
    *count = answer.size();
    return SUCCESS;
}
struct KernelNodeParams {
    void *function;
    unsigned grid[3], block[3], shared;
    void **params;
    void **extra;
    void *kernel, *context;
};
API cuGraphExecKernelNodeSetParams_v2(Executable *executable, void *node, const KernelNodeParams *params) {
    const size_t index = reinterpret_cast<size_t>(node) - 1;
    if (index >= executable->graph->nodes.size()) return INVALID_VALUE;
    Call call;
    if (CUresult refused = call_of(params->function, params->grid, params->block, params->shared, params->params, &call)) return refused;
    auto changed = std::make_shared<Graph>(*executable->graph);
    Node &changing = changed->nodes[index];
    // The real driver accepts other kernels, too, but this crate never changes to one.
    if (std::string(changing.what) != call.what) fail("%s becomes %s in a graph", changing.what, call.what);
    changing.accesses = std::move(call.accesses);
    changing.work = std::move(call.work);
    executable->graph = std::move(changed);
    return SUCCESS;
}
API cuGraphInstantiateWithFlags(Executable **made, const Graph *graph, unsigned long long) {
    auto copy = std::make_shared<Graph>();
    copy->nodes = graph->nodes;
    *made = new Executable;
    (*made)->graph = copy;
    return SUCCESS;
}
API cuGraphDestroy(Graph *graph) { delete graph; return SUCCESS; }
API cuGraphExecDestroy(Executable *executable) {
    if (*executable->running > 0) fail("a graph was destroyed while it runs");
    delete executable;
    return SUCCESS;
}
API cuGraphLaunch(Executable *executable, void *handle) {
    Stream &stream = stream_of(handle, "a graph");
    auto graph = executable->graph;
    // To the rest of the GPU a graph is one piece of work, with the accesses of all its nodes.
    std::vector<Access> accesses;
    for (const Node &node : graph->nodes) accesses.insert(accesses.end(), node.accesses.begin(), node.accesses.end());
    {
        std::lock_guard<std::mutex> guard(world().lock);
        if (stream.capture) return spoil(stream, CAPTURE_UNSUPPORTED);
    }
    auto running = executable->running;
    ++*running;
    const unsigned seed = static_cast<unsigned>(setting("SOFTWARE_GPU_SEED", 1)) * 1000 + executable->launches++;
    enqueue(handle, "a graph", accesses, [graph, running, seed] {
        run(*graph, seed);
        --*running;
    });
    return SUCCESS;
}
