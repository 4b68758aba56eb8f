#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "inference/endpoint.h"
#include "kvindex/block_pool.h"

namespace penstock::kvindex {

// Inserts that wait for the index's writer: records {header, hashes} in a ring of words. Filled by the
// threads of one event loop (in practice one), emptied by whoever holds the writer's lock. Its own lock
// is held for one copy only and is never waited for longer than kSpins rounds: push() then gives up and
// counts the insert as dropped. When the ring is full the oldest records go.
class InsertQueue {
 public:
  static constexpr int kSpins = 4096;

  struct Header {
    uint64_t owner = 0;
    uint32_t capacity_blocks = 0;
    EndpointSlot slot = 0;
  };
  struct Push {
    bool queued = false;
    uint32_t dropped = 0;  // older records, and this one when !queued
  };

  InsertQueue(Mapping ring, size_t bytes);

  Push push(const Header& header, std::span<const uint64_t> hashes);
  // The oldest record; false when there is none. `hashes` grows as needed and is otherwise reused.
  bool pop(Header& header, std::vector<uint64_t>& hashes);

 private:
  static constexpr size_t kHeaderWords = 3;

  bool lock_within(int spins);
  void unlock() { busy_.store(false, std::memory_order_release); }
  void write(size_t at, std::span<const uint64_t> words);
  void read(size_t at, std::span<uint64_t> words) const;
  void drop_oldest();

  Mapping mapping_;
  uint64_t* ring_;
  size_t words_;
  size_t head_ = 0;  // words ever taken out
  size_t tail_ = 0;  // words ever put in
  alignas(64) std::atomic<bool> busy_{false};
};

}  // namespace penstock::kvindex
