// The execution of a communicator's calls on its stream. Sums are in the order of ranks.
#include "communicator.h"

#include <cstring>

#include "arithmetic.h"

namespace software_gpu {

static std::mutex explaining;
static std::string explanation;

void explain(const std::string &text) {
    std::lock_guard<std::mutex> guard(explaining);
    explanation = text;
}
std::string last_explanation() {
    std::lock_guard<std::mutex> guard(explaining);
    return explanation;
}

const char *kind_name(int kind) {
    static const char *names[] = {"ncclAllReduce", "ncclReduceScatter", "ncclAllGather", "ncclBroadcast",
                                  "ncclReduce",    "ncclSend",          "ncclRecv"};
    return kind >= ALL_REDUCE && kind <= RECEIVE ? names[kind] : "something else";
}

std::string Signature::text() const {
    std::string text = std::string(kind_name(kind)) + " of " + std::to_string(count) + " " + type_name(type);
    if (op >= 0) text += ", " + reduction_name(op);
    if (root >= 0) text += ", root " + std::to_string(root);
    return text + " (call " + std::to_string(sequence) + ")";
}

size_t Call::bytes() const { return what.count * size_of(what.type); }

void Communicator::fault(Result result, const std::string &text) {
    std::lock_guard<std::mutex> guard(lock_);
    if (result_ != OK) return;
    result_ = result;
    explain(text);
}

Result Communicator::state() {
    std::lock_guard<std::mutex> guard(lock_);
    if (result_ != OK) return result_;
    return preparing > 0 ? IN_PROGRESS : OK;
}

bool Communicator::move(std::vector<Transfer> transfers) {
    return rings.move(std::move(transfers), [this] { return given_up.load(); });
}

// Compares a call with those of all other ranks.
bool Communicator::agree(const Signature &what) {
    std::vector<Signature> theirs(size_t(rings.ranks), what);
    Signature own = what;
    std::vector<Transfer> transfers;
    for (int peer = 0; peer < rings.ranks; ++peer) {
        if (peer == rings.rank) continue;
        transfers.push_back({peer, true, reinterpret_cast<char *>(&own), sizeof own});
        transfers.push_back({peer, false, reinterpret_cast<char *>(&theirs[size_t(peer)]), sizeof own});
    }
    if (!move(transfers)) return false;
    for (int peer = 0; peer < rings.ranks; ++peer) {
        if (theirs[size_t(peer)] == what) continue;
        fault(INVALID_USAGE, "ranks disagree: rank " + std::to_string(rings.rank) + " calls " + what.text() + ", rank " +
                                 std::to_string(peer) + " calls " + theirs[size_t(peer)].text());
        return false;
    }
    return true;
}

void Communicator::collective(const Call &call) {
    const Signature &what = call.what;
    if (!agree(what)) return;
    const int ranks = rings.ranks, own = rings.rank;
    const size_t size = size_of(what.type), bytes = call.bytes();
    char *from = call.from ? at<char>(call.from) : nullptr, *to = call.to ? at<char>(call.to) : nullptr;
    std::vector<Transfer> transfers;
    auto send = [&](int peer, char *memory, size_t count) { transfers.push_back({peer, true, memory, count}); };
    auto receive = [&](int peer, char *memory, size_t count) { transfers.push_back({peer, false, memory, count}); };
    auto others = [&](auto &&each) {
        for (int peer = 0; peer < ranks; ++peer)
            if (peer != own) each(peer);
    };
    // The elements of `whole` that a rank reduces.
    auto chunk = [&](int rank, size_t whole) {
        return std::make_pair(whole * size_t(rank) / size_t(ranks), whole * size_t(rank + 1) / size_t(ranks));
    };
    // Sends this rank's part to all ranks and receives theirs; each part begins at `place`.
    auto reduced = [&](size_t count, const char *mine, std::vector<char> &result) {
        std::vector<std::vector<char>> theirs(static_cast<size_t>(ranks));
        others([&](int peer) {
            theirs[size_t(peer)].resize(count * size);
            receive(peer, theirs[size_t(peer)].data(), count * size);
        });
        if (!move(transfers)) return false;
        transfers.clear();
        std::vector<const char *> parts;
        for (int rank = 0; rank < ranks; ++rank) parts.push_back(rank == own ? mine : theirs[size_t(rank)].data());
        result.resize(count * size);
        reduce(result.data(), parts, count, what.type, what.op);
        return true;
    };
    std::vector<char> result;
    switch (what.kind) {
    case ALL_REDUCE: {
        others([&](int peer) {
            const auto [start, end] = chunk(peer, what.count);
            send(peer, from + start * size, (end - start) * size);
        });
        const auto [start, end] = chunk(own, what.count);
        if (!reduced(end - start, from + start * size, result)) return;
        others([&](int peer) {
            const auto [begin, finish] = chunk(peer, what.count);
            send(peer, result.data(), result.size());
            receive(peer, to + begin * size, (finish - begin) * size);
        });
        if (!move(transfers)) return;
        std::memcpy(to + start * size, result.data(), result.size());
        break;
    }
    case REDUCE_SCATTER:
        others([&](int peer) { send(peer, from + size_t(peer) * bytes, bytes); });
        if (!reduced(what.count, from + size_t(own) * bytes, result)) return;
        std::memcpy(to, result.data(), bytes);
        break;
    case ALL_GATHER:
        others([&](int peer) {
            send(peer, from, bytes);
            receive(peer, to + size_t(peer) * bytes, bytes);
        });
        if (!move(transfers)) return;
        std::memmove(to + size_t(own) * bytes, from, bytes);
        break;
    case BROADCAST:
        if (own == what.root) others([&](int peer) { send(peer, from, bytes); });
        else receive(what.root, to, bytes);
        if (!move(transfers)) return;
        if (own == what.root) std::memmove(to, from, bytes);
        break;
    case REDUCE:
        if (own != what.root) {
            send(what.root, from, bytes);
            move(transfers);
        } else if (reduced(what.count, from, result)) {
            std::memcpy(to, result.data(), bytes);
        }
        break;
    }
}

// Messages of one group, all concurrent. Each follows its header.
void Communicator::messages(const std::vector<Call> &calls) {
    std::vector<Signature> said, heard(calls.size());
    for (const Call &call : calls) said.push_back({0, call.what.count, SEND, call.what.type, -1, -1});
    std::vector<Transfer> transfers;
    for (size_t i = 0; i < calls.size(); ++i) {
        const Call &call = calls[i];
        const bool sends = call.what.kind == SEND;
        Signature &head = sends ? said[i] : heard[i];
        auto fits = [this, &said, &heard, &call, i] {
            if (call.what.kind == SEND || heard[i] == said[i]) return true;
            fault(INVALID_USAGE, "ranks disagree: rank " + std::to_string(rings.rank) + " receives " + said[i].text() + ", rank " +
                                     std::to_string(call.peer) + " calls " + heard[i].text());
            return false;
        };
        transfers.push_back({call.peer, sends, reinterpret_cast<char *>(&head), sizeof head, fits});
        transfers.push_back({call.peer, sends, at<char>(sends ? call.from : call.to), call.bytes()});
    }
    move(transfers);
}

void Communicator::run(const std::vector<Call> &calls) {
    std::vector<Call> together;
    for (const Call &call : calls) {
        if (given_up || state() == INVALID_USAGE) break;
        if (call.is_message()) together.push_back(call);
        else collective(call);
    }
    if (!together.empty() && !given_up) messages(together);
    --running;
}

std::vector<Access> Communicator::accesses(const std::vector<Call> &calls) const {
    std::vector<Access> all;
    const auto ranks = size_t(rings.ranks);
    for (const Call &call : calls) {
        const size_t bytes = call.bytes();
        const size_t out = call.what.kind == REDUCE_SCATTER ? bytes * ranks : bytes;
        const size_t in = call.what.kind == ALL_GATHER ? bytes * ranks : bytes;
        if (!bytes) continue;
        const bool reads = call.from && (call.what.kind != BROADCAST || rings.rank == call.what.root);
        const bool writes = call.to && (call.what.kind != REDUCE || rings.rank == call.what.root);
        if (reads) all.push_back({reinterpret_cast<uint64_t>(call.from), out, false});
        if (writes) all.push_back({reinterpret_cast<uint64_t>(call.to), in, true});
    }
    return all;
}

} // namespace software_gpu
