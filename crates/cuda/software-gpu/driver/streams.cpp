// The stand-in for the CUDA driver: streams, which are queues that threads run with random delays, and events.
#include <unistd.h>

#include <atomic>

#include "world.h"

namespace software_gpu {

// The pieces of work that each GPU has done.
static std::atomic<uint64_t> done[64];

uint64_t work_done(int device) { return done[device & 63]; }

void Stream::run() {
    const long longest = setting("SOFTWARE_GPU_DELAY", 200);
    for (;;) {
        Task task;
        {
            std::unique_lock<std::mutex> guard(lock);
            changed.wait(guard, [&] { return closing || !queue.empty(); });
            if (queue.empty()) return;
            task = std::move(queue.front());
            queue.pop_front();
        }
        if (longest > 0 && random() % 8 == 0) usleep(static_cast<useconds_t>(random() % longest));
        running = task.what;
        task.work();
        ++done[device & 63];
        running = nullptr;
    }
}

void Stream::put(Task task) {
    std::lock_guard<std::mutex> guard(lock);
    queue.push_back(std::move(task));
    changed.notify_one();
}

Stream &stream_of(void *stream, const char *what) {
    if (!stream || stream == reinterpret_cast<void *>(1) || stream == reinterpret_cast<void *>(2))
        fail("%s on the default stream: create a stream for work", what);
    return *static_cast<Stream *>(stream);
}

int device_of(void *stream) { return stream_of(stream, "a library call").device; }

void wait_for(Stream &stream) {
    auto mark = std::make_shared<Mark>();
    Clock reached;
    {
        std::lock_guard<std::mutex> guard(world().lock);
        reached = stream.clock;
        stream.put({"a synchronisation", [mark] { mark->set(); }});
    }
    mark->wait();
    std::lock_guard<std::mutex> guard(world().lock);
    world().host.join(reached);
}

} // namespace software_gpu

using namespace software_gpu;

API cuStreamCreateWithPriority(void **made, unsigned, int) {
    if (!current) return INVALID_CONTEXT;
    std::lock_guard<std::mutex> guard(world().lock);
    auto *stream = new Stream;
    stream->number = ++world().stream_count;
    stream->device = current->device;
    stream->random.seed(static_cast<unsigned>(setting("SOFTWARE_GPU_SEED", 1) * 1000 + static_cast<long>(stream->number)));
    stream->thread = std::thread([stream] { stream->run(); });
    world().streams.push_back(stream);
    *made = stream;
    return SUCCESS;
}
API cuStreamCreate(void **made, unsigned flags) { return cuStreamCreateWithPriority(made, flags, 0); }
API cuStreamSynchronize(void *handle) {
    Stream &stream = stream_of(handle, "a synchronisation");
    {
        std::lock_guard<std::mutex> guard(world().lock);
        if (stream.capture) return spoil(stream, CAPTURE_UNSUPPORTED);
    }
    wait_for(stream);
    return SUCCESS;
}
API cuStreamDestroy_v2(void *handle) {
    Stream &stream = stream_of(handle, "the end of a stream");
    {
        std::lock_guard<std::mutex> guard(world().lock);
        if (stream.capture) fail("the end of a stream that captures");
        auto &streams = world().streams;
        for (size_t i = 0; i < streams.size(); ++i)
            if (streams[i] == &stream) streams.erase(streams.begin() + static_cast<long>(i));
    }
    {
        std::lock_guard<std::mutex> guard(stream.lock);
        stream.closing = true;
        stream.changed.notify_one();
    }
    stream.thread.join();
    // Its work is done; streams that had not waited for it were wrong before.
    delete &stream;
    return SUCCESS;
}
API cuEventCreate(void **event, unsigned flags) {
    constexpr unsigned DISABLE_TIMING = 2;
    *event = new Event;
    static_cast<Event *>(*event)->timed = !(flags & DISABLE_TIMING);
    return SUCCESS;
}
API cuEventDestroy_v2(void *event) { delete static_cast<Event *>(event); return SUCCESS; }
API cuEventRecord(void *handle, void *on) {
    Stream &stream = stream_of(on, "an event");
    auto &event = *static_cast<Event *>(handle);
    if (fails("cuEventRecord")) return INVALID_VALUE;
    std::lock_guard<std::mutex> guard(world().lock);
    if (stream.capture) {
        record_captured(stream, event);
        return SUCCESS;
    }
    auto mark = std::make_shared<Mark>();
    event = {event.timed, mark, stream.clock, nullptr, {}};
    stream.put({"an event", [mark] { mark->set(); }});
    return SUCCESS;
}
API cuStreamWaitEvent(void *on, void *handle, unsigned) {
    Stream &stream = stream_of(on, "a wait");
    auto &event = *static_cast<Event *>(handle);
    std::lock_guard<std::mutex> guard(world().lock);
    if (event.capture) return wait_captured(stream, event);
    auto mark = event.mark;
    if (!mark) return SUCCESS;
    if (stream.capture) return spoil(stream, CAPTURE_ISOLATION);
    stream.clock.join(event.clock);
    stream.put({"a wait", [mark] { mark->wait(); }});
    return SUCCESS;
}
API cuEventSynchronize(void *handle) {
    auto &event = *static_cast<Event *>(handle);
    if (event.capture) return CAPTURED_EVENT;
    if (!event.mark) return SUCCESS;
    event.mark->wait();
    std::lock_guard<std::mutex> guard(world().lock);
    world().host.join(event.clock);
    return SUCCESS;
}
API cuEventQuery(void *handle) {
    auto &event = *static_cast<Event *>(handle);
    if (event.capture) return CAPTURED_EVENT;
    if (event.mark && !event.mark->is_set()) return NOT_READY;
    std::lock_guard<std::mutex> guard(world().lock);
    world().host.join(event.clock);
    return SUCCESS;
}
API cuEventElapsedTime_v2(float *milliseconds, void *from, void *to) {
    auto &first = *static_cast<Event *>(from), &last = *static_cast<Event *>(to);
    if (first.capture || last.capture) return CAPTURED_EVENT;
    if (!first.timed || !last.timed || !first.mark || !last.mark) return INVALID_HANDLE;
    if (!first.mark->is_set() || !last.mark->is_set()) return NOT_READY;
    *milliseconds = std::chrono::duration<float, std::milli>(last.mark->at - first.mark->at).count();
    return SUCCESS;
}
