// The connections between ranks, threads of one process or processes of one machine: anonymous memory that the process with the
// unique id shares with the others, with a ring of bytes from each rank to each.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace software_gpu {

constexpr int MAX_RANKS = 16;

// Bytes from one rank to another: `head` counts the written ones, `tail` the read ones.
struct Ring {
    static constexpr size_t ROOM = 128 << 10;
    std::atomic<uint64_t> head, tail;
    char bytes[ROOM];
};

// The memory that all ranks of a communicator map.
struct Shared {
    // Identifies the memory of its maker: once it is closed, its name may be reused.
    uint64_t number;
    // The number of ranks, the ranks that have joined, and the GPU of each.
    std::atomic<int> ranks, attached;
    std::atomic<int> present[MAX_RANKS], gpu[MAX_RANKS];
    Ring rings[MAX_RANKS][MAX_RANKS];
};

// Bytes on their way to or from a rank. Those between the same two ranks move one after the other.
struct Transfer {
    int peer;
    bool sends;
    char *memory;
    size_t bytes;
    // Called after they have moved; no more bytes move if it returns false.
    std::function<bool()> fits = {};
    size_t moved = 0;
};

// This rank's end of all rings.
class Rings {
  public:
    ~Rings();

    // Creates memory for ranks to join, and returns its name.
    static std::string make();
    // Maps the memory of a name. Returns an error text if that fails.
    std::string attach(const std::string &name, int rank, int ranks, int gpu);
    // Returns true if all ranks have joined. Then reports a GPU that is used twice.
    bool complete(std::string &problem);

    // Moves all bytes. Returns false if `stop` does so before the end, or lengths differ.
    bool move(std::vector<Transfer> transfers, const std::function<bool()> &stop);

    int rank = 0, ranks = 0;

  private:
    bool advance(Transfer &transfer);
    Shared *shared_ = nullptr;
    std::string name_;
};

} // namespace software_gpu
