// Rings of bytes between ranks.
#include "rings.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <map>
#include <mutex>

namespace software_gpu {

// Memory that this process has made and that some ranks have not mapped yet, by name. It is in no folder, so that killed
// processes leave nothing.
static std::mutex lock;
static std::map<std::string, int> made;

std::string Rings::make() {
    const int file = memfd_create("software-gpu-nccl", MFD_CLOEXEC);
    if (file < 0 || ftruncate(file, sizeof(Shared))) return "";
    static unsigned count = 0;
    std::lock_guard<std::mutex> guard(lock);
    // With a counter, as file numbers are reused.
    char name[64];
    std::snprintf(name, sizeof name, "/proc/%d/fd/%d#%u", int(getpid()), file, ++count);
    made[name] = file;
    return name;
}

std::string Rings::attach(const std::string &name, int own, int count, int gpu) {
    rank = own;
    ranks = count;
    name_ = name;
    if (count < 1 || count > MAX_RANKS || own < 0 || own >= count)
        return "rank " + std::to_string(own) + " of " + std::to_string(count) + "; the maximum is 16 ranks";
    const int file = open(name.substr(0, name.find('#')).c_str(), O_RDWR | O_CLOEXEC);
    if (file < 0) return "the process that made the unique id has ended (" + name + ": " + std::strerror(errno) + ")";
    void *memory = mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    if (memory == MAP_FAILED) return std::string("the memory of the ranks cannot be mapped: ") + std::strerror(errno);
    shared_ = static_cast<Shared *>(memory);
    int expected = 0;
    if (!shared_->ranks.compare_exchange_strong(expected, count) && expected != count)
        return "another rank expects " + std::to_string(expected) + " ranks, this one " + std::to_string(count);
    if (shared_->present[own].exchange(1)) return "rank " + std::to_string(own) + " has joined already";
    shared_->gpu[own] = gpu;
    ++shared_->attached;
    return "";
}

bool Rings::complete(std::string &problem) {
    if (shared_->attached < ranks) return false;
    {
        // All ranks have mapped it: it is closed.
        std::lock_guard<std::mutex> guard(lock);
        auto own = made.find(name_);
        if (own != made.end()) {
            close(own->second);
            made.erase(own);
        }
    }
    for (int one = 0; one < ranks; ++one)
        for (int other = 0; other < one; ++other)
            if (shared_->gpu[one] == shared_->gpu[other])
                problem = "Duplicate GPU detected: rank " + std::to_string(other) + " and rank " + std::to_string(one) +
                          " both on GPU " + std::to_string(shared_->gpu[one]);
    return true;
}

Rings::~Rings() {
    if (shared_) munmap(shared_, sizeof(Shared));
}

// Moves bytes as far as space and data allow. Returns true if any moved.
bool Rings::advance(Transfer &transfer) {
    const int from = transfer.sends ? rank : transfer.peer, to = transfer.sends ? transfer.peer : rank;
    Ring &ring = shared_->rings[from][to];
    const uint64_t head = ring.head.load(std::memory_order_acquire), tail = ring.tail.load(std::memory_order_acquire);
    const uint64_t at = transfer.sends ? head : tail;
    const size_t there = size_t(transfer.sends ? Ring::ROOM - (head - tail) : head - tail);
    const size_t place = size_t(at % Ring::ROOM);
    const size_t count = std::min({there, transfer.bytes - transfer.moved, Ring::ROOM - place});
    if (!count) return false;
    char *memory = transfer.memory + transfer.moved;
    if (transfer.sends) {
        std::memcpy(ring.bytes + place, memory, count);
        ring.head.store(head + count, std::memory_order_release);
    } else {
        std::memcpy(memory, ring.bytes + place, count);
        ring.tail.store(tail + count, std::memory_order_release);
    }
    transfer.moved += count;
    return true;
}

bool Rings::move(std::vector<Transfer> transfers, const std::function<bool()> &stop) {
    for (unsigned idle = 0;;) {
        bool advanced = false, left = false;
        bool taken[2][MAX_RANKS] = {};
        for (Transfer &transfer : transfers) {
            if (transfer.moved == transfer.bytes || taken[transfer.sends][transfer.peer]) continue;
            taken[transfer.sends][transfer.peer] = true;
            advanced |= advance(transfer);
            if (transfer.moved == transfer.bytes && transfer.fits && !transfer.fits()) return false;
        }
        for (const Transfer &transfer : transfers) left |= transfer.moved < transfer.bytes;
        if (!left) return true;
        if (stop()) return false;
        if (advanced) idle = 0;
        else if (++idle < 50) sched_yield();
        else usleep(30);
    }
}

} // namespace software_gpu
