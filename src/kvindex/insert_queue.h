#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "inference/endpoint.h"
#include "kvindex/block_pool.h"

namespace penstock::kvindex {

// Prompts that wait for somebody else to work on them: records {header, hashes} in a ring of words, from one
// event loop to whoever empties it. Neither side ever waits for the other, which may have lost its core at
// any point: what finds no room is dropped.
class InsertQueue {
 public:
  struct Header {
    uint64_t owner = 0;
    uint32_t capacity_blocks = 0;
    EndpointSlot slot = 0;
  };

  InsertQueue(Mapping ring, size_t bytes);

  // False: dropped, as there is no room, or as another thread is pushing just now and was not done within a
  // few rounds: loops have a queue each, threads that have none share them.
  bool push(const Header& header, std::span<const uint64_t> hashes);
  // The oldest record; false when there is none. `hashes` grows as needed and is otherwise reused.
  // REQUIRES: one caller at a time.
  bool pop(Header& header, std::vector<uint64_t>& hashes);

 private:
  static constexpr size_t kHeaderWords = 3;
  static constexpr int kSpins = 32;

  bool lock_pushing();
  void write(size_t at, std::span<const uint64_t> words);
  void read(size_t at, std::span<uint64_t> words) const;

  Mapping mapping_;
  uint64_t* ring_;
  size_t words_;
  alignas(64) std::atomic<size_t> head_{0};  // words ever taken out
  alignas(64) std::atomic<size_t> tail_{0};  // words ever put in
  std::atomic<bool> pushing_{false};
};

}  // namespace penstock::kvindex
