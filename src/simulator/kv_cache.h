#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace penstock::simulator {

// The paged KV cache of one simulated engine: blocks with reference counts, a queue of free blocks, and
// the hashes of full blocks. The rules are vLLM's block pool:
//   * only full blocks have a hash; a block can be hit from the moment it is scheduled to be filled;
//   * a block whose count falls to 0 goes to the tail of the free queue and keeps its hash; a hit takes it
//     out again; allocation pops the head and forgets that block's hash (eviction);
//   * a sequence's blocks are freed last one first, so a prompt loses its tail before its head;
//   * one block is reserved: `usable() == num_blocks - 1`.
// Several blocks may hold the same hash; each is forgotten on its own. Not thread-safe; owned by one
// EngineModel. No allocation after construction.
class KvCache {
 public:
  // REQUIRES: num_blocks >= 2.
  KvCache(uint32_t num_blocks, bool prefix_caching);

  uint32_t usable() const { return num_blocks_ - 1; }
  uint32_t free() const { return free_count_; }
  // 1 - free/usable, in [0, 1]; cached blocks that nobody holds count as free.
  double usage() const { return 1.0 - static_cast<double>(free_count_) / usable(); }
  uint64_t evictions() const { return evictions_; }
  // Blocks that hold a hash, held or free.
  uint32_t cached() const { return cached_count_; }

  // How many of the hashes, from the first on, are cached without a gap.
  uint32_t lookup(std::span<const uint64_t> hashes) const;
  // Takes the cached blocks of the first `hits` hashes and `fresh` free ones and appends them to `blocks`,
  // or takes nothing and returns false. REQUIRES: hits <= lookup(hashes).
  bool acquire(std::span<const uint64_t> hashes, uint32_t hits, uint32_t fresh,
               std::vector<uint32_t>& blocks);
  // Makes a held block findable under this hash. No effect on one that has a hash, or without prefix caching.
  void publish(uint32_t block, uint64_t hash);
  // Gives all blocks back, last one first, and empties the list.
  void release(std::vector<uint32_t>& blocks);
  // Forgets every hash, also of blocks that are held.
  void forget_hashes();

 private:
  static constexpr uint32_t kNone = UINT32_MAX;
  struct Block {
    uint64_t hash = 0;
    uint32_t references = 0;
    uint32_t previous = kNone;  // in the free queue
    uint32_t next = kNone;
    uint32_t same_hash = kNone;  // next block with this hash
    bool hashed = false;
  };

  uint32_t find(uint64_t hash) const;
  void insert(uint32_t block);
  void erase(uint32_t block);
  void push_free(uint32_t block);
  void unlink_free(uint32_t block);

  uint32_t num_blocks_;
  bool prefix_caching_;
  std::vector<Block> blocks_;
  uint32_t free_head_ = kNone;
  uint32_t free_tail_ = kNone;
  uint32_t free_count_ = 0;
  uint32_t cached_count_ = 0;
  uint64_t evictions_ = 0;
  // hash -> first block with it: open addressing, linear probing, at most half full
  std::vector<uint32_t> table_;
  uint32_t mask_ = 0;
};

// Hash of a full block given its parent's (or the root): XXH3 over parent and token ids.
uint64_t block_hash(uint64_t parent, std::span<const uint32_t> tokens);

}  // namespace penstock::simulator
