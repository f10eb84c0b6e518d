// A communicator of the stand-in for NCCL: one rank's calls, and their execution on a stream.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "../software_gpu.h"
#include "rings.h"

namespace software_gpu {

enum Result { OK = 0, SYSTEM_ERROR = 2, INVALID_ARGUMENT = 4, INVALID_USAGE = 5, IN_PROGRESS = 7 };

enum Kind { ALL_REDUCE, REDUCE_SCATTER, ALL_GATHER, BROADCAST, REDUCE, SEND, RECEIVE };

// The description of a call, which all ranks of a collective compare.
struct Signature {
    uint64_t sequence;
    uint64_t count;
    int kind, type, op, root;
    std::string text() const;
    bool operator==(const Signature &other) const {
        return sequence == other.sequence && count == other.count && kind == other.kind && type == other.type &&
               op == other.op && root == other.root;
    }
};

struct Call {
    Signature what;
    const void *from;
    void *to;
    // Of a message.
    int peer;
    size_t bytes() const;
    bool is_message() const { return what.kind == SEND || what.kind == RECEIVE; }
};

struct Communicator {
    Rings rings;
    int gpu = -1;
    bool blocking = true;
    std::atomic<bool> given_up{false};
    // Calls that are not on the stream yet, and calls that are and are not done.
    std::atomic<int> preparing{0}, running{0};
    uint64_t sequence = 0;
    void *stream = nullptr;

    // The first error.
    void fault(Result result, const std::string &text);
    Result state();

    // Runs a group of calls on the stream.
    void run(const std::vector<Call> &calls);
    // The accesses of this rank's part of the calls.
    std::vector<Access> accesses(const std::vector<Call> &calls) const;

  private:
    bool move(std::vector<Transfer> transfers);
    bool agree(const Signature &what);
    void collective(const Call &call);
    void messages(const std::vector<Call> &calls);

    std::mutex lock_;
    Result result_ = OK;
};

// The text of the last error.
void explain(const std::string &text);
std::string last_explanation();

const char *kind_name(int kind);

} // namespace software_gpu
