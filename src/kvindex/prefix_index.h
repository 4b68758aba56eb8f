#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "inference/endpoint.h"
#include "kvindex/block_pool.h"
#include "kvindex/insert_queue.h"

namespace penstock::kvindex {

class PrefixIndexInspector;

// How many leading blocks of one prompt each endpoint holds. One per thread, used again and again: a
// look-up clears only what the one before had set. No allocation after construction.
class MatchResult {
 public:
  MatchResult();

  // Matched blocks of the endpoint in this slot, 0 when none.
  uint32_t length(EndpointSlot slot) const { return slot < lengths_.size() ? lengths_[slot] : 0; }
  // Every slot with a length above 0, in no order.
  std::span<const EndpointSlot> endpoints() const { return {touched_.data(), touched_count_}; }
  void clear();

 private:
  friend class PrefixIndex;
  std::vector<uint32_t> lengths_;
  std::vector<EndpointSlot> touched_;
  size_t touched_count_ = 0;
  std::vector<uint32_t> words_;  // member words of one run, copied before they are believed
};

// Which endpoint holds which prefix blocks, as far as this gateway can tell from what it sent where.
//
// An unbranched chain of blocks is a *run*: its hashes lie in one chunked array, and only the hash of its
// first block is in a table. A hash names its whole prefix, so comparing the last hash of a run tells
// whether all of it matches. The endpoints that hold a run are its members, each with the length it can
// see; along a prompt that set only shrinks. A branch is a run of its own, found by its first hash
// wherever its parent ends or is left.
//
// Recency is kept per endpoint, by segment of a run, and equals a block-wise LRU in which an insert
// touches its blocks last to first: a block is never older than its successor, so eviction takes tails
// and every match is contiguous from the first block.
//
// Threads: match() and the counters from anywhere, without locks. insert() from anywhere: whoever gets
// the writer's lock works, others leave their insert in a bounded queue, of which every holder of the
// lock applies a bounded piece; nobody waits. remove_endpoint() and drain() wait for the writer's lock.
//
// Bounds: blocks per endpoint (capacity), bytes in all (max_bytes: the globally oldest segment goes
// first), max_endpoints, bytes of each queue.
class PrefixIndex {
 public:
  static constexpr size_t kMaxRunBlocks = size_t{1} << 18;
  // Blocks of one prompt beyond this, or beyond one per 64 of max_bytes, are not kept.
  static constexpr size_t kMaxPromptBlocks = size_t{1} << 18;

  struct Options {
    size_t max_bytes = size_t{256} << 20;  // at least 1 MiB is taken
    size_t max_endpoints = kMaxEndpoints;  // at most kMaxEndpoints
    uint32_t capacity_blocks = 31250;      // of an endpoint until set otherwise
    size_t queues = 1;                     // one per event loop
    size_t queue_bytes = 128 * 1024;       // of each
    // Segments that one insert may evict beyond what the insert itself adds; the rest
    // goes with later inserts. Bounds the time the writer's lock is held.
    size_t eviction_slice = 64;
    uint64_t secret = 0;  // places hashes in the table; 0: drawn at random
  };

  struct Insert {
    EndpointSlot slot = 0;
    // Identity of the endpoint behind the slot, 0: unknown. Inserts for the identity that was last
    // removed from the slot are refused, so a late one can't revive what has gone.
    uint64_t owner = 0;
    uint32_t capacity_blocks = 0;  // becomes the endpoint's capacity; 0: unchanged
  };

  struct InsertOutcome {
    bool queued = false;   // left for the lock's holder
    bool dropped = false;  // lost, because the queue had no room
  };

  struct Stats {
    uint64_t entries = 0;  // (block, endpoint) pairs
    uint64_t runs = 0;
    uint64_t bytes = 0;       // memory held
    uint64_t used_bytes = 0;  // of them in use
    uint64_t dropped = 0;     // inserts lost because a queue was full
    uint64_t refused = 0;     // inserts for removed endpoints, or that found no memory
    uint64_t evicted = 0;     // blocks, by capacity or by bytes
  };

  static Result<std::unique_ptr<PrefixIndex>> create(const Options& options);

  // Fills `out` with the contiguous match of `hashes` (chained, first block first) for every endpoint.
  void match(std::span<const uint64_t> hashes, MatchResult& out) const;

  // Says that an endpoint will hold these blocks from now on; refreshes those it has. Without blocks it only
  // sets the capacity, down to which the endpoint is evicted in slices.
  InsertOutcome insert(const Insert& insert, std::span<const uint64_t> hashes);

  // Forgets everything of an endpoint before its slot is used again. Gives the lock up between slices.
  void remove_endpoint(EndpointSlot slot, uint64_t owner = 0);
  // Applies what is queued.
  void drain();

  uint32_t blocks(EndpointSlot slot) const;
  uint64_t entries() const { return entries_.load(std::memory_order_relaxed); }
  uint64_t bytes() const;
  Stats stats() const;
  const Options& options() const { return options_; }

 private:
  friend class PrefixIndexInspector;
  using Ref = BlockPool::Ref;
  struct Node;
  struct Segment;
  struct Info;
  struct Members;
  struct RunView {
    size_t matched = 0;
    size_t members = 0;
  };
  struct PathStep {
    Ref node = 0;
    uint32_t matched = 0;
  };
  struct EndpointState {
    Ref newest = 0;
    Ref oldest = 0;
    uint32_t capacity = 0;
    Cell<uint32_t> blocks;
    uint64_t removed_owner = 0;
  };

  PrefixIndex(const Options& options, BlockPool pool, Mapping buckets, uint32_t max_buckets);

  // Table of heads (readers and writer).
  uint64_t mix(uint64_t hash) const;
  static uint32_t bucket_of(uint64_t mixed, uint32_t buckets);
  Ref find(uint64_t hash, uint64_t table_state) const;
  void link_head(Ref node);
  void unlink_head(Ref node);
  void split_bucket();

  // Runs (readers and writer).
  Cell<uint32_t>& chunk_at(Node& node, Info info, size_t chunk) const;
  Cell<uint64_t>& hash_at(Node& node, Info info, size_t index) const;
  size_t common_length(Node& node, Info info, size_t length, std::span<const uint64_t> hashes) const;
  bool read_run(std::span<const uint64_t> hashes, std::vector<uint32_t>& words, RunView& view) const;
  Members members_of(Node& node, Info info) const;

  // The writer's side; all of it under the writer's lock.
  bool try_lock();
  void lock();
  void unlock() { writer_busy_.store(false, std::memory_order_release); }
  void drain_locked(size_t work);
  void help();
  size_t apply(const Insert& insert, std::span<const uint64_t> hashes);
  void walk(std::span<const uint64_t> hashes);
  size_t path_blocks() const;
  bool secure_memory(EndpointSlot slot, std::span<const uint64_t> hashes);
  bool stash_memory(EndpointSlot slot, size_t new_blocks);
  void unstash();
  Ref take(unsigned order);
  void extend_path(std::span<const uint64_t> hashes);
  Ref make_run(std::span<const uint64_t> hashes);
  void append(Node& node, std::span<const uint64_t> hashes);
  void grow_first_chunk(Node& node, size_t blocks);
  void grow_chunk_list(Node& node, size_t chunks);
  void touch(Ref node, EndpointSlot slot, uint32_t length);
  size_t find_member(Node& node, EndpointSlot slot) const;
  void add_member(Node& node, EndpointSlot slot, uint32_t length, Ref segment);
  void remove_member(Node& node, size_t index);
  void move_members(Node& node, unsigned member_class);
  void trim(Ref node);
  void release_run(Ref node);
  uint32_t evict_tail(EndpointSlot slot, uint32_t blocks);
  size_t evict_to_capacity(EndpointSlot slot, size_t segments);
  bool evict_oldest(size_t blocks);
  Ref make_segment(Ref node, EndpointSlot slot, uint32_t begin, uint32_t end);
  void push_newest(EndpointSlot slot, Ref segment);
  void unlink_segment(EndpointSlot slot, Ref segment);
  void begin_change(Node& node);
  void end_change(Node& node);
  void count_blocks(EndpointSlot slot, int64_t change);

  Node& node_at(Ref ref) const { return *pool_.at<Node>(ref); }
  Segment& segment_at(Ref ref) const { return *pool_.at<Segment>(ref); }

  Options options_;
  BlockPool pool_;
  Mapping bucket_mapping_;
  Cell<uint64_t>* buckets_;
  uint32_t max_buckets_;
  uint64_t secret_mask_;
  uint64_t secret_factor_;

  // Number of buckets in the upper half, version in the lower: odd while chains are being rebuilt.
  alignas(64) std::atomic<uint64_t> table_state_;

  alignas(64) std::atomic<bool> writer_busy_{false};
  std::atomic<int32_t> pending_{0};  // records in the queues; may be off by those in flight
  std::vector<std::unique_ptr<InsertQueue>> queues_;

  // The writer's.
  alignas(64) std::vector<EndpointState> endpoints_;
  size_t endpoints_used_ = 0;  // slots below have been used
  std::vector<PathStep> path_;
  std::vector<uint64_t> queued_hashes_;
  std::array<std::vector<Ref>, BlockPool::kMaxOrder + 1> stash_;
  bool stashed_ = false;
  uint64_t operation_ = 0;
  uint32_t version_ = 0;
  std::atomic<uint64_t> entries_{0};
  std::atomic<uint64_t> runs_{0};
  std::atomic<uint64_t> dropped_{0};
  std::atomic<uint64_t> refused_{0};
  std::atomic<uint64_t> evicted_{0};
};

}  // namespace penstock::kvindex
