// Errors of the driver's stand-in while a stream captures, as of the real driver, through the C interface.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <initializer_list>

extern "C" {
int cuInit(unsigned);
int cuDevicePrimaryCtxRetain(void **, int);
int cuCtxSetCurrent(void *);
int cuCtxSynchronize();
int cuStreamCreate(void **, unsigned);
int cuStreamDestroy_v2(void *);
int cuStreamSynchronize(void *);
int cuStreamBeginCapture_v2(void *, int);
int cuStreamEndCapture(void *, void **);
int cuStreamIsCapturing(void *, int *);
int cuStreamWaitEvent(void *, void *, unsigned);
int cuEventCreate(void **, unsigned);
int cuEventRecord(void *, void *);
int cuEventSynchronize(void *);
int cuEventQuery(void *);
int cuMemAllocAsync(uint64_t *, size_t, void *);
int cuMemFreeAsync(uint64_t, void *);
int cuMemsetD8Async(uint64_t, unsigned char, size_t, void *);
int cuMemcpyDtoHAsync_v2(void *, uint64_t, size_t, void *);
int cuGraphInstantiateWithFlags(void **, void *, unsigned long long);
int cuGraphLaunch(void *, void *);
int cuGraphDestroy(void *);
int cuGraphExecDestroy(void *);
}

enum { OK = 0, ILLEGAL_STATE = 401, UNSUPPORTED = 900, INVALIDATED = 901, MERGE = 902, UNMATCHED = 903, UNJOINED = 904, ISOLATION = 905,
       CAPTURED = 907 };

static void expect_at(int line, int found, int right) {
    if (found == right) return;
    std::printf("line %d: %d, not %d\n", line, found, right);
    std::exit(1);
}
#define expect(call, right) expect_at(__LINE__, (call), (right))

int main(int, char **arguments) {
    void *context, *a, *b, *c, *event, *other, *graph, *executable;
    expect(cuInit(0), OK);
    expect(cuDevicePrimaryCtxRetain(&context, 0), OK);
    expect(cuCtxSetCurrent(context), OK);
    for (void **stream : {&a, &b, &c}) expect(cuStreamCreate(stream, 0), OK);
    for (void **made : {&event, &other}) expect(cuEventCreate(made, 0), OK);
    uint64_t memory;
    char byte;
    int status;
    expect(cuMemAllocAsync(&memory, 64, a), OK);
    const char *wanted = arguments[1];
    const auto is = [&](const char *name) { return !std::strcmp(wanted, name); };
    if (is("answers")) {
        expect(cuStreamBeginCapture_v2(nullptr, 0), UNSUPPORTED);
        expect(cuStreamEndCapture(a, &graph), ILLEGAL_STATE);
        // Waiting for a stream that captures invalidates the capture, and leaves the stream usable.
        for (int way = 0; way < 3; ++way) {
            expect(cuStreamBeginCapture_v2(a, 0), OK);
            expect(cuStreamBeginCapture_v2(a, 0), ILLEGAL_STATE);
            if (way == 0) expect(cuStreamSynchronize(a), UNSUPPORTED);
            if (way == 1) expect(cuCtxSynchronize(), UNSUPPORTED);
            if (way == 2) expect(cuMemcpyDtoHAsync_v2(&byte, memory, 1, a), UNSUPPORTED);
            expect((cuStreamIsCapturing(a, &status), status), 2);
            expect(cuStreamEndCapture(a, &graph), INVALIDATED);
            expect((cuStreamIsCapturing(a, &status), status), 0);
            expect(cuStreamSynchronize(a), OK);
        }
        // The host cannot wait for events of a capture; after the capture, streams cannot either.
        expect(cuStreamBeginCapture_v2(a, 0), OK);
        expect(cuEventRecord(event, a), OK);
        expect(cuEventSynchronize(event), CAPTURED);
        expect(cuEventQuery(event), CAPTURED);
        expect(cuStreamEndCapture(a, &graph), OK);
        expect(cuGraphDestroy(graph), OK);
        expect(cuStreamWaitEvent(b, event, 0), CAPTURED);
        // A capture cannot depend on uncaptured work, and two captures cannot merge.
        expect(cuEventRecord(other, b), OK);
        expect(cuStreamBeginCapture_v2(a, 0), OK);
        expect(cuStreamWaitEvent(a, other, 0), ISOLATION);
        expect(cuStreamEndCapture(a, &graph), INVALIDATED);
        expect(cuStreamBeginCapture_v2(a, 0), OK);
        expect(cuStreamBeginCapture_v2(b, 0), OK);
        expect(cuEventRecord(event, a), OK);
        expect(cuStreamWaitEvent(b, event, 0), MERGE);
        expect(cuStreamEndCapture(b, &graph), INVALIDATED);
        expect(cuStreamEndCapture(a, &graph), OK);
        expect(cuGraphDestroy(graph), OK);
        // Forked streams must join, and the first stream must end the capture.
        expect(cuStreamBeginCapture_v2(a, 0), OK);
        expect(cuEventRecord(event, a), OK);
        expect(cuStreamWaitEvent(b, event, 0), OK);
        expect(cuMemsetD8Async(memory, 1, 8, b), OK);
        expect(cuStreamEndCapture(b, &graph), UNMATCHED);
        expect(cuStreamEndCapture(a, &graph), INVALIDATED);
        expect(cuStreamBeginCapture_v2(a, 0), OK);
        expect(cuEventRecord(event, a), OK);
        expect(cuStreamWaitEvent(b, event, 0), OK);
        expect(cuMemsetD8Async(memory, 1, 8, b), OK);
        expect(cuStreamEndCapture(a, &graph), UNJOINED);
        expect(cuStreamSynchronize(b), OK);
        std::puts("all is refused");
        return 0;
    }
    expect(cuStreamBeginCapture_v2(a, 0), OK);
    if (is("allocation")) return cuMemAllocAsync(&memory, 64, a);
    if (is("freeing")) return cuMemFreeAsync(memory, a);
    if (is("default stream")) return cuMemsetD8Async(memory, 1, 8, nullptr);
    if (is("destroyed stream")) return cuStreamDestroy_v2(a);
    expect(cuMemsetD8Async(memory, 1, 64, a), OK);
    expect(cuStreamEndCapture(a, &graph), OK);
    expect(cuGraphInstantiateWithFlags(&executable, graph, 0), OK);
    expect(cuGraphDestroy(graph), OK);
    if (is("freed since")) {
        expect(cuMemFreeAsync(memory, a), OK);
        return cuGraphLaunch(executable, a);
    }
    if (is("not waited for")) return cuGraphLaunch(executable, b);
    if (is("while it runs")) {
        for (int i = 0; i < 100; ++i) expect(cuMemsetD8Async(memory, 1, 64, a), OK);
        expect(cuGraphLaunch(executable, a), OK);
        return cuGraphExecDestroy(executable);
    }
    std::printf("there is no case %s\n", wanted);
    return 1;
}
