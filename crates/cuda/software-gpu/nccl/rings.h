// How ranks reach each other, be they threads of one process or processes of one machine: memory without a name in any folder,
// which the process that made the unique id shows to the others, with a ring of bytes from each rank to each.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace software_gpu {

constexpr int MAX_RANKS = 16;

// Bytes from one rank to another: as many were written as `head` says and read as `tail` does.
struct Ring {
    static constexpr size_t ROOM = 128 << 10;
    std::atomic<uint64_t> head, tail;
    char bytes[ROOM];
};

// What all ranks of a communicator map.
struct Shared {
    // Which memory of its maker's this is: once it is closed another one may get its name.
    uint64_t number;
    // How many ranks there are to be, which have come, and the GPU of each.
    std::atomic<int> ranks, attached;
    std::atomic<int> present[MAX_RANKS], gpu[MAX_RANKS];
    Ring rings[MAX_RANKS][MAX_RANKS];
};

// A number of bytes on its way to a rank or from one. Those between the same two move one after the other.
struct Transfer {
    int peer;
    bool sends;
    char *memory;
    size_t bytes;
    // Asked when they have moved; nothing more moves if it says no.
    std::function<bool()> fits = {};
    size_t moved = 0;
};

// This rank's end of all rings.
class Rings {
  public:
    ~Rings();

    // Makes memory for ranks that are to meet, and tells how others find it.
    static std::string make();
    // Maps the memory of a name; says what is wrong if that cannot be done.
    std::string attach(const std::string &name, int rank, int ranks, int gpu);
    // Whether all have come. Then says whose GPU is another's too.
    bool complete(std::string &problem);

    // Moves everything; false if `stop` says so before it is done, or something does not fit.
    bool move(std::vector<Transfer> transfers, const std::function<bool()> &stop);

    int rank = 0, ranks = 0;

  private:
    bool advance(Transfer &transfer);
    Shared *shared_ = nullptr;
    std::string name_;
};

} // namespace software_gpu
