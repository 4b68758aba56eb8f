#include "kvindex/prefix_index.h"

#include <algorithm>
#include <bit>
#include <cassert>
#include <limits>
#include <random>
#include <thread>

#include "kvindex/prefix_index_inspector.h"
#include "kvindex/spin.h"

// Invariants, all between two operations of the writer:
//   * a hash has one place: at an index of one run, whose first hash is in the table of heads;
//   * a run is as long as its longest member sees, and has at least one member;
//   * the segments of one member partition [0, visible), first to last by `sibling`;
//   * in an endpoint's recency list, from newest to oldest, a block comes before its successor; hence what
//     an endpoint holds of any prompt is a prefix of it;
//   * an endpoint's blocks are the sum of its segments.
//
// Readers see: the table, nodes, member words, chunks. A node's version is odd while members move, the
// run shrinks or its memory is given back; what only grows (hashes behind the length, members behind
// the count, visible lengths) is published by one release store and needs no version. Versions come from
// one counter, so a node that is born where another died can't be taken for it.

namespace penstock::kvindex {

namespace {

constexpr unsigned kVisibleBits = 20;
constexpr uint32_t kVisibleMask = (1U << kVisibleBits) - 1;
static_assert(PrefixIndex::kMaxRunBlocks <= kVisibleMask);
static_assert(kMaxEndpoints == 1U << (32 - kVisibleBits), "any slot in a member word indexes a MatchResult");

constexpr size_t kChunkBlocks = 32;
constexpr unsigned kChunkOrder = 3;
constexpr size_t kInlineChunks = 4;
constexpr unsigned kNodeOrder = 1;
constexpr uint32_t kFirstBuckets = 1024;
constexpr int kMaxTries = 20;
constexpr int kMaxHops = 256;
// Work that one thread does for others before an insert of its own, and again after it. A unit is what one
// block takes, about 5 ns: an insert counts its blocks and 32 more, an evicted segment 16.
constexpr size_t kDrainWork = 512;
constexpr size_t kInsertWork = 32;
constexpr size_t kEvictionWork = 16;
constexpr size_t kBytesPerPromptBlock = 64;
constexpr size_t kRemovalSlice = 256;
constexpr uint64_t kMoreBit = uint64_t{1} << 63U;
constexpr uint64_t kTagMask = 0x7FFFFFFF;

uint32_t member_word(EndpointSlot slot, uint32_t visible) {
  return (static_cast<uint32_t>(slot) << kVisibleBits) | visible;
}

unsigned thread_number() {
  static std::atomic<unsigned> next{0};
  thread_local const unsigned number = next.fetch_add(1, std::memory_order_relaxed);
  return number;
}

uint64_t bucket_word(uint64_t mixed, uint32_t ref, bool more) {
  return (more ? kMoreBit : 0) | ((mixed & kTagMask) << 32U) | ref;
}

}  // namespace

// What changes rarely about a node, in one word.
struct PrefixIndex::Info {
  uint32_t word = 0;

  uint32_t count() const { return word & 0x1FFFU; }                    // members
  unsigned member_class() const { return (word >> 13U) & 0xFU; }       // 0: inline, k: 4 << (k - 1) places
  unsigned first_chunk_order() const { return (word >> 17U) & 0x3U; }  // 4, 8, 16 or 32 hashes
  unsigned list_class() const { return (word >> 19U) & 0xFU; }         // 0: none, k: 8 << (k - 1) chunks

  Info with_count(uint32_t count) const { return {(word & ~0x1FFFU) | count}; }
  Info with_member_class(unsigned c) const { return {(word & ~(0xFU << 13U)) | (c << 13U)}; }
  Info with_first_chunk_order(unsigned o) const { return {(word & ~(0x3U << 17U)) | (o << 17U)}; }
  Info with_list_class(unsigned c) const { return {(word & ~(0xFU << 19U)) | (c << 19U)}; }

  size_t member_places() const { return member_class() == 0 ? 2 : size_t{4} << (member_class() - 1); }
  size_t first_chunk_blocks() const { return size_t{4} << first_chunk_order(); }
  size_t list_places() const { return list_class() == 0 ? 0 : size_t{8} << (list_class() - 1); }
  // Chunks in the node itself: with a list, the last place is its reference.
  size_t inline_chunks() const { return list_class() == 0 ? kInlineChunks : kInlineChunks - 1; }
};

// A run. One cache line.
struct PrefixIndex::Node {
  Cell<uint32_t> version;
  Cell<uint32_t> length;  // blocks
  Cell<uint64_t> head;    // hash of the first block
  Cell<uint64_t> tail;    // of the last one: most look-ups end here
  Cell<uint32_t> next;    // in the bucket's chain
  Cell<uint32_t> info;
  Cell<uint32_t> words[2];  // members: inline, or words[0] is the array of words, then segments
  Cell<uint32_t> segments[2];
  Cell<uint32_t> chunks[kInlineChunks];

  Cell<uint32_t>& chunk_list() { return chunks[kInlineChunks - 1]; }
};

// A stretch [begin, end) of one run, held by one endpoint; an element of the endpoint's recency list.
struct PrefixIndex::Segment {
  Cell<uint32_t> node;
  Cell<uint32_t> begin;
  Cell<uint32_t> end;
  Cell<uint32_t> newer;
  Cell<uint32_t> older;
  Cell<uint32_t> sibling;  // next segment of the same member
  Cell<uint64_t> touched;  // number of the insert
};

struct PrefixIndex::Members {
  Cell<uint32_t>* words;
  Cell<uint32_t>* segments;
};

MatchResult::MatchResult()
    : lengths_(kMaxEndpoints, 0), touched_(kMaxEndpoints, 0), words_(kMaxEndpoints, 0) {}

void MatchResult::clear() {
  for (size_t i = 0; i < touched_count_; ++i) lengths_[touched_[i]] = 0;
  touched_count_ = 0;
}

// --- construction ------------------------------------------------------------------------------------

Result<std::unique_ptr<PrefixIndex>> PrefixIndex::create(const Options& given) {
  static_assert(sizeof(Node) == BlockPool::kUnitBytes << kNodeOrder);
  static_assert(sizeof(Segment) == BlockPool::kUnitBytes);
  Options options = given;
  options.max_bytes = std::max<size_t>(options.max_bytes, size_t{1} << 20U);
  options.max_endpoints = std::clamp<size_t>(options.max_endpoints, 1, kMaxEndpoints);
  options.queues = std::max<size_t>(options.queues, 1);
  options.queue_bytes = std::max<size_t>(options.queue_bytes, 1024);
  while (options.secret == 0) {
    std::random_device device;
    options.secret = (static_cast<uint64_t>(device()) << 32U) | device();
  }

  const size_t bucket_bytes = options.max_bytes / 16;
  Result<BlockPool> pool = BlockPool::create(options.max_bytes - bucket_bytes);
  if (!pool.ok()) return std::move(pool).error().wrap("prefix index");
  Result<Mapping> buckets = Mapping::reserve(bucket_bytes);
  if (!buckets.ok()) return std::move(buckets).error().wrap("prefix index");
  const auto max_buckets =
      static_cast<uint32_t>(std::min<size_t>(bucket_bytes / sizeof(uint64_t), size_t{1} << 30U));
  std::unique_ptr<PrefixIndex> index(
      new PrefixIndex(options, std::move(pool).value(), std::move(buckets).value(), max_buckets));
  for (size_t i = 0; i < options.queues; ++i) {
    Result<Mapping> ring = Mapping::reserve(options.queue_bytes);
    if (!ring.ok()) return std::move(ring).error().wrap("prefix index");
    index->queues_.push_back(std::make_unique<InsertQueue>(std::move(ring).value(), options.queue_bytes));
  }
  return index;
}

PrefixIndex::PrefixIndex(const Options& options, BlockPool pool, Mapping buckets, uint32_t max_buckets)
    : options_(options),
      pool_(std::move(pool)),
      bucket_mapping_(std::move(buckets)),
      buckets_(reinterpret_cast<Cell<uint64_t>*>(bucket_mapping_.data())),
      max_buckets_(max_buckets),
      secret_mask_(options.secret),
      secret_factor_((options.secret * 0x9E3779B97F4A7C15ULL) | 1U),
      table_state_(static_cast<uint64_t>(std::min(kFirstBuckets, max_buckets)) << 32U),
      endpoints_(options.max_endpoints) {
  for (EndpointState& endpoint : endpoints_) endpoint.capacity = options.capacity_blocks;
  path_.reserve(1024);
}

// --- table of heads: linear hashing, so it grows by one bucket at a time -------------------------------

// Clients choose what is hashed: where a hash lands must not be theirs to choose.
uint64_t PrefixIndex::mix(uint64_t hash) const {
  const auto product = static_cast<unsigned __int128>(hash ^ secret_mask_) * secret_factor_;
  return static_cast<uint64_t>(product >> 64U) ^ static_cast<uint64_t>(product);
}

uint32_t PrefixIndex::bucket_of(uint64_t mixed, uint32_t buckets) {
  const uint32_t mask = std::bit_ceil(buckets) - 1;
  const uint32_t bucket = static_cast<uint32_t>(mixed) & mask;
  return bucket < buckets ? bucket : bucket & (mask >> 1U);
}

PrefixIndex::Ref PrefixIndex::find(uint64_t hash, uint64_t table_state) const {
  const uint64_t mixed = mix(hash);
  const uint64_t word = buckets_[bucket_of(mixed, static_cast<uint32_t>(table_state >> 32U))].acquire();
  Ref ref = static_cast<Ref>(word);
  if (ref == 0) return 0;
  if (((word >> 32U) & kTagMask) == (mixed & kTagMask) && node_at(ref).head == hash) return ref;
  if ((word & kMoreBit) == 0) return 0;
  for (int hops = 0; hops < kMaxHops; ++hops) {
    ref = node_at(ref).next.acquire();
    if (ref == 0 || node_at(ref).head == hash) return ref;
  }
  return 0;
}

void PrefixIndex::link_head(Ref ref) {
  const uint64_t runs = runs_.load(std::memory_order_relaxed) + 1;
  for (;;) {
    const auto buckets = static_cast<uint32_t>(table_state_.load(std::memory_order_relaxed) >> 32U);
    if (buckets >= max_buckets_ || buckets >= 2 * runs) break;
    split_bucket();
  }
  runs_.store(runs, std::memory_order_relaxed);

  Node& node = node_at(ref);
  const uint64_t mixed = mix(node.head);
  const auto buckets = static_cast<uint32_t>(table_state_.load(std::memory_order_relaxed) >> 32U);
  Cell<uint64_t>& bucket = buckets_[bucket_of(mixed, buckets)];
  const auto first = static_cast<Ref>(static_cast<uint64_t>(bucket));
  node.next = first;
  bucket.release(bucket_word(mixed, ref, first != 0));
}

namespace {

uint64_t odd_version(uint64_t state) {
  return (state & ~uint64_t{0xFFFFFFFF}) | (static_cast<uint32_t>(state) + 1U);
}

}  // namespace

void PrefixIndex::unlink_head(Ref ref) {
  const uint64_t state = table_state_.load(std::memory_order_relaxed);
  table_state_.store(odd_version(state), std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_release);

  Node& node = node_at(ref);
  Cell<uint64_t>& bucket = buckets_[bucket_of(mix(node.head), static_cast<uint32_t>(state >> 32U))];
  const auto first = static_cast<Ref>(static_cast<uint64_t>(bucket));
  if (first == ref) {
    const Ref second = node.next;
    bucket = second == 0 ? 0 : bucket_word(mix(node_at(second).head), second, node_at(second).next != 0);
  } else {
    Ref before = first;
    while (node_at(before).next != ref) before = node_at(before).next;
    node_at(before).next = node.next;
    if (before == first && node.next == 0) bucket = bucket & ~kMoreBit;
  }
  runs_.store(runs_.load(std::memory_order_relaxed) - 1, std::memory_order_relaxed);
  table_state_.store(odd_version(odd_version(state)), std::memory_order_release);
}

void PrefixIndex::split_bucket() {
  const uint64_t state = table_state_.load(std::memory_order_relaxed);
  const auto added = static_cast<uint32_t>(state >> 32U);
  const uint32_t source = added - std::bit_floor(added);
  table_state_.store(odd_version(state), std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_release);

  const uint64_t word = buckets_[source];
  const uint32_t buckets = added + 1;
  if ((word & kMoreBit) == 0) {
    if (static_cast<Ref>(word) != 0 && bucket_of((word >> 32U) & kTagMask, buckets) == added) {
      buckets_[added] = word;
      buckets_[source] = 0;
    }
  } else {
    struct Chain {
      Ref first = 0;
      Ref last = 0;
      uint64_t mixed = 0;
      bool more = false;
    };
    Chain chains[2];
    for (Ref ref = static_cast<Ref>(word); ref != 0;) {
      const Ref next = node_at(ref).next;
      const uint64_t mixed = mix(node_at(ref).head);
      Chain& chain = chains[bucket_of(mixed, buckets) == added ? 1 : 0];
      if (chain.first == 0) {
        chain.first = ref;
        chain.mixed = mixed;
      } else {
        node_at(chain.last).next = ref;
        chain.more = true;
      }
      chain.last = ref;
      ref = next;
    }
    for (const Chain& chain : chains) {
      if (chain.last != 0) node_at(chain.last).next = 0;
    }
    buckets_[source] =
        chains[0].first == 0 ? 0 : bucket_word(chains[0].mixed, chains[0].first, chains[0].more);
    buckets_[added] =
        chains[1].first == 0 ? 0 : bucket_word(chains[1].mixed, chains[1].first, chains[1].more);
  }
  const uint64_t even = odd_version(odd_version(state));
  table_state_.store((static_cast<uint64_t>(buckets) << 32U) | static_cast<uint32_t>(even),
                     std::memory_order_release);
}

// --- reading -------------------------------------------------------------------------------------------

Cell<uint32_t>& PrefixIndex::chunk_at(Node& node, Info info, size_t chunk) const {
  const size_t in_node = info.inline_chunks();
  if (chunk < in_node) return node.chunks[chunk];
  if (info.list_class() == 0) return node.chunks[0];  // a reader's torn picture
  return pool_.at<Cell<uint32_t>>(node.chunk_list())[chunk - in_node];
}

Cell<uint64_t>& PrefixIndex::hash_at(Node& node, Info info, size_t index) const {
  return pool_.at<Cell<uint64_t>>(chunk_at(node, info, index / kChunkBlocks))[index % kChunkBlocks];
}

// Blocks of the run, of which `length` are looked at, that `hashes` begins with. Equality is monotone: the
// last one decides, else an eight-way search, whose probes don't wait for each other.
// REQUIRES: the first block is equal; both are at least 1 long.
//
// The tail may be one append older or newer than the length; it can only equal the hash of its own block,
// so a match is true, and after a mismatch the chunk decides.
size_t PrefixIndex::common_length(Node& node, Info info, size_t length,
                                  std::span<const uint64_t> hashes) const {
  const size_t longest = std::min(length, hashes.size());
  if (longest == length && node.tail == hashes[longest - 1]) return longest;
  if (hash_at(node, info, longest - 1) == hashes[longest - 1]) return longest;
  size_t low = 1;             // blocks known to be equal
  size_t high = longest - 1;  // index known to differ
  if (low >= high) return 1;
  while (high - low > 8) {
    const size_t step = (high - low) / 8;
    size_t equal = 0;
    for (size_t k = 1; k <= 8; ++k) {
      const size_t at = low + step * k - 1;
      equal += hash_at(node, info, at) == hashes[at] ? 1 : 0;
    }
    if (equal < 8) high = low + step * (equal + 1) - 1;
    low += step * equal;
  }
  size_t equal = 0;
  for (size_t at = low; at < high; ++at) equal += hash_at(node, info, at) == hashes[at] ? 1 : 0;
  return low + equal;
}

PrefixIndex::Members PrefixIndex::members_of(Node& node, Info info) const {
  if (info.member_class() == 0) return {node.words, node.segments};
  auto* array = pool_.at<Cell<uint32_t>>(node.words[0]);
  return {array, array + info.member_places()};
}

// The run that begins with hashes[0]: its match and a copy of its member words, consistent with each
// other. False when there is none. After kMaxTries (the writer lost its core in mid-change) it takes what
// it sees: giving up would claim that nothing matches.
bool PrefixIndex::read_run(std::span<const uint64_t> hashes, std::vector<uint32_t>& words,
                           RunView& view) const {
  for (int tries = 0;; ++tries) {
    const bool last = tries >= kMaxTries;
    const uint64_t state = table_state_.load(std::memory_order_acquire);
    const Ref ref = find(hashes[0], state);
    if (ref == 0) {
      std::atomic_thread_fence(std::memory_order_acquire);
      if (last || ((state & 1U) == 0 && table_state_.load(std::memory_order_relaxed) == state)) return false;
      spin_pause();
      continue;
    }
    Node& node = node_at(ref);
    const uint32_t version = node.version.acquire();
    if (node.head != hashes[0]) {
      if (last) return false;
      continue;
    }
    const Info info{node.info.acquire()};
    const size_t length = std::clamp<size_t>(node.length.acquire(), 1, kMaxRunBlocks);
    view.matched = common_length(node, info, length, hashes);
    view.members = std::min<size_t>({info.count(), info.member_places(), words.size()});
    const Members members = members_of(node, info);
    for (size_t i = 0; i < view.members; ++i) words[i] = members.words[i];
    std::atomic_thread_fence(std::memory_order_acquire);
    if (((version & 1U) == 0 && node.version == version) || last) return true;
    spin_pause();
  }
}

void PrefixIndex::match(std::span<const uint64_t> hashes, MatchResult& out) const {
  out.clear();
  RunView view;
  const uint32_t* words = out.words_.data();
  uint32_t* lengths = out.lengths_.data();
  for (uint32_t position = 0; position < hashes.size();) {
    if (!read_run(hashes.subspan(position), out.words_, view)) return;
    const auto matched = static_cast<uint32_t>(view.matched);
    bool reached = false;
    if (position == 0) {
      for (size_t i = 0; i < view.members; ++i) {
        const uint32_t slot = words[i] >> kVisibleBits;
        const uint32_t seen = std::min(words[i] & kVisibleMask, matched);
        lengths[slot] = seen;
        out.touched_[i] = static_cast<EndpointSlot>(slot);
        reached |= seen == matched;
      }
      out.touched_count_ = view.members;
    } else {
      for (size_t i = 0; i < view.members; ++i) {
        const uint32_t slot = words[i] >> kVisibleBits;
        const uint32_t seen = std::min(words[i] & kVisibleMask, matched);
        if (lengths[slot] != position) continue;
        lengths[slot] = position + seen;
        reached |= seen == matched;
      }
    }
    if (!reached) return;
    position += matched;
  }
}

uint32_t PrefixIndex::blocks(EndpointSlot slot) const {
  return slot < endpoints_.size() ? endpoints_[slot].blocks : 0;
}

uint64_t PrefixIndex::bytes() const {
  const uint64_t buckets = table_state_.load(std::memory_order_relaxed) >> 32U;
  return pool_.held_bytes() + buckets * sizeof(uint64_t) + endpoints_.size() * sizeof(EndpointState);
}

PrefixIndex::Stats PrefixIndex::stats() const {
  Stats stats;
  stats.entries = entries();
  stats.runs = runs_.load(std::memory_order_relaxed);
  stats.bytes = bytes();
  stats.used_bytes = stats.bytes - pool_.held_bytes() + pool_.used_bytes();
  stats.dropped = dropped_.load(std::memory_order_relaxed);
  stats.refused = refused_.load(std::memory_order_relaxed);
  stats.evicted = evicted_.load(std::memory_order_relaxed);
  return stats;
}

// --- who writes ----------------------------------------------------------------------------------------

bool PrefixIndex::try_lock() {
  return !writer_busy_.load(std::memory_order_relaxed) &&
         !writer_busy_.exchange(true, std::memory_order_seq_cst);
}

void PrefixIndex::lock() {
  for (unsigned spins = 0; !try_lock(); ++spins) {
    if (spins < 64)
      spin_pause();
    else
      std::this_thread::yield();
  }
}

// An insert queued while the holder was leaving would lie there until the next one: both sides look again
// after their step, with a full fence between.
void PrefixIndex::help() {
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (pending_.load(std::memory_order_relaxed) <= 0 || !try_lock()) return;
  drain_locked(kDrainWork);
  unlock();
}

PrefixIndex::InsertOutcome PrefixIndex::insert(const Insert& insert, std::span<const uint64_t> hashes) {
  InsertOutcome outcome;
  if (try_lock()) {
    drain_locked(kDrainWork);
    apply(insert, hashes);
    unlock();
  } else {
    InsertQueue& queue = *queues_[thread_number() % queues_.size()];
    outcome.queued = queue.push({insert.owner, insert.capacity_blocks, insert.slot}, hashes);
    outcome.dropped = !outcome.queued;
    if (outcome.queued)
      pending_.fetch_add(1, std::memory_order_relaxed);
    else
      dropped_.fetch_add(1, std::memory_order_relaxed);
  }
  help();
  return outcome;
}

void PrefixIndex::drain_locked(size_t work) {
  if (pending_.load(std::memory_order_relaxed) <= 0) return;
  InsertQueue::Header header;
  for (const auto& queue : queues_) {
    while (work > 0 && queue->pop(header, queued_hashes_)) {
      pending_.fetch_sub(1, std::memory_order_relaxed);
      work -= std::min(work, apply({header.slot, header.owner, header.capacity_blocks}, queued_hashes_));
    }
  }
}

void PrefixIndex::drain() {
  lock();
  drain_locked(std::numeric_limits<size_t>::max());
  unlock();
}

void PrefixIndex::remove_endpoint(EndpointSlot slot, uint64_t owner) {
  if (slot >= endpoints_.size()) return;
  EndpointState& endpoint = endpoints_[slot];
  lock();
  endpoint.removed_owner = owner;
  drain_locked(std::numeric_limits<size_t>::max());
  endpoint.capacity = options_.capacity_blocks;
  for (;;) {
    for (size_t i = 0; i < kRemovalSlice && endpoint.oldest != 0; ++i)
      evict_tail(slot, std::numeric_limits<uint32_t>::max());
    if (endpoint.oldest == 0) break;
    unlock();
    std::this_thread::yield();
    lock();
  }
  unlock();
  help();
}

// --- inserting -----------------------------------------------------------------------------------------

// Returns the work done.
size_t PrefixIndex::apply(const Insert& insert, std::span<const uint64_t> hashes) {
  const auto refuse = [this] {
    refused_.fetch_add(1, std::memory_order_relaxed);
    return kInsertWork;
  };
  if (insert.slot >= endpoints_.size()) return refuse();
  EndpointState& endpoint = endpoints_[insert.slot];
  if (insert.owner != 0 && insert.owner == endpoint.removed_owner) return refuse();
  if (insert.capacity_blocks != 0) endpoint.capacity = insert.capacity_blocks;
  // What would be evicted in the same breath is not inserted.
  hashes = hashes.first(std::min({hashes.size(), size_t{endpoint.capacity}, kMaxPromptBlocks,
                                  options_.max_bytes / kBytesPerPromptBlock}));
  endpoints_used_ = std::max<size_t>(endpoints_used_, insert.slot + 1U);
  if (!hashes.empty()) {
    walk(hashes);
    if (!secure_memory(insert.slot, hashes)) return refuse();
    ++operation_;
    extend_path(hashes);
    for (size_t i = path_.size(); i-- > 0;) touch(path_[i].node, insert.slot, path_[i].matched);
    unstash();
  }
  const size_t evicted = evict_to_capacity(insert.slot, options_.eviction_slice + hashes.size());
  return hashes.size() + kInsertWork + evicted * kEvictionWork;
}

// Sets path_ to the runs that `hashes` leads through.
void PrefixIndex::walk(std::span<const uint64_t> hashes) {
  path_.clear();
  const uint64_t state = table_state_.load(std::memory_order_relaxed);
  for (size_t position = 0; position < hashes.size();) {
    const Ref ref = find(hashes[position], state);
    if (ref == 0) return;
    Node& node = node_at(ref);
    const size_t matched = common_length(node, Info{node.info}, node.length, hashes.subspan(position));
    path_.push_back({ref, static_cast<uint32_t>(matched)});
    position += matched;
  }
}

size_t PrefixIndex::path_blocks() const {
  size_t blocks = 0;
  for (const PathStep& step : path_) blocks += step.matched;
  return blocks;
}

// Makes sure that an insert along path_ can't run out of memory half-way, evicting the globally oldest
// segments where it must.
bool PrefixIndex::secure_memory(EndpointSlot slot, std::span<const uint64_t> hashes) {
  size_t new_blocks = hashes.size() - path_blocks();
  const size_t plenty =
      2 * (new_blocks * sizeof(uint64_t) + (path_.size() + 16) * 2 * BlockPool::kSuperBytes);
  if (pool_.room_bytes() >= plenty) return true;
  for (;;) {
    if (stash_memory(slot, new_blocks)) return true;
    unstash();
    if (!evict_oldest(std::max<size_t>(new_blocks, kChunkBlocks))) return false;
    walk(hashes);
    new_blocks = hashes.size() - path_blocks();
  }
}

// Takes every block that the insert can need, in the largest number it can need.
bool PrefixIndex::stash_memory(EndpointSlot slot, size_t new_blocks) {
  stashed_ = true;
  const auto stash = [this](unsigned order, size_t count) {
    for (; count > 0; --count) {
      const Ref ref = pool_.allocate(order);
      if (ref == 0) return false;
      stash_[order].push_back(ref);
    }
    return true;
  };
  if (new_blocks > 0) {
    size_t blocks = new_blocks;
    if (!path_.empty()) blocks += node_at(path_.back().node).length;
    const size_t chunks = blocks / kChunkBlocks + 2;
    if (!stash(kNodeOrder, 1) || !stash(kChunkOrder, new_blocks / kChunkBlocks + 2)) return false;
    if (chunks > kInlineChunks &&
        !stash(BlockPool::order_for((chunks - kInlineChunks) * sizeof(uint32_t)), 1))
      return false;
  }
  for (const PathStep& step : path_) {
    Node& node = node_at(step.node);
    const Info info{node.info};
    if (info.count() == info.member_places() && find_member(node, slot) == info.count() &&
        !stash(info.member_class(), 1))
      return false;
  }
  return stash(0, 2 * (path_.size() + 1));
}

void PrefixIndex::unstash() {
  if (!stashed_) return;
  for (unsigned order = 0; order < stash_.size(); ++order) {
    for (const Ref ref : stash_[order]) pool_.release(ref, order);
    stash_[order].clear();
  }
  stashed_ = false;
}

// REQUIRES: secure_memory() saw this coming.
PrefixIndex::Ref PrefixIndex::take(unsigned order) {
  if (!stashed_) {
    const Ref ref = pool_.allocate(order);
    assert(ref != 0);
    return ref;
  }
  for (unsigned from = order; from < stash_.size(); ++from) {
    if (stash_[from].empty()) continue;
    const Ref ref = stash_[from].back();
    stash_[from].pop_back();
    while (from > order) {
      --from;
      pool_.release(ref + (1U << from), from);
    }
    return ref;
  }
  const Ref ref = pool_.allocate(order);
  assert(ref != 0);
  return ref;
}

// Gives the blocks behind path_ a place: at the end of its last run if the path leads there, else in a
// run of their own.
void PrefixIndex::extend_path(std::span<const uint64_t> hashes) {
  const std::span<const uint64_t> rest = hashes.subspan(path_blocks());
  if (rest.empty()) return;
  if (!path_.empty()) {
    PathStep& last = path_.back();
    Node& node = node_at(last.node);
    if (last.matched == node.length && last.matched + rest.size() <= kMaxRunBlocks) {
      append(node, rest);
      last.matched += static_cast<uint32_t>(rest.size());
      return;
    }
  }
  path_.push_back({make_run(rest), static_cast<uint32_t>(rest.size())});
}

PrefixIndex::Ref PrefixIndex::make_run(std::span<const uint64_t> hashes) {
  const Ref ref = take(kNodeOrder);
  Node& node = node_at(ref);
  begin_change(node);
  node.length = 0;
  node.head = hashes[0];
  node.next = 0;
  node.words[0] = 0;
  node.words[1] = 0;
  node.segments[0] = 0;
  node.segments[1] = 0;
  for (Cell<uint32_t>& chunk : node.chunks) chunk = 0;
  const unsigned order = BlockPool::order_for(std::min(hashes.size(), kChunkBlocks) * sizeof(uint64_t));
  node.chunks[0] = take(order);
  node.info = Info{}.with_first_chunk_order(order).word;
  append(node, hashes);
  end_change(node);
  link_head(ref);
  return ref;
}

// Readers don't see hashes behind the length.
void PrefixIndex::append(Node& node, std::span<const uint64_t> hashes) {
  const size_t before = node.length;
  const size_t after = before + hashes.size();
  if (Info{node.info}.first_chunk_blocks() < std::min(after, kChunkBlocks)) grow_first_chunk(node, after);
  const size_t chunks = (after + kChunkBlocks - 1) / kChunkBlocks;
  if (chunks > Info{node.info}.inline_chunks() + Info{node.info}.list_places()) grow_chunk_list(node, chunks);
  const Info info{node.info};
  for (size_t at = before; at < after;) {
    if (at % kChunkBlocks == 0 && at > 0) {
      chunk_at(node, info, at / kChunkBlocks) = take(kChunkOrder);
    }
    const size_t end = std::min(after, (at / kChunkBlocks + 1) * kChunkBlocks);
    Cell<uint64_t>* to = &hash_at(node, info, at);
    for (; at < end; ++at) *to++ = hashes[at - before];
  }
  node.length.release(static_cast<uint32_t>(after));
  node.tail = hashes.back();
}

void PrefixIndex::grow_first_chunk(Node& node, size_t blocks) {
  const Info info{node.info};
  const unsigned order = BlockPool::order_for(std::min(blocks, kChunkBlocks) * sizeof(uint64_t));
  const Ref old_chunk = node.chunks[0];
  const Ref new_chunk = take(order);
  const auto* from = pool_.at<Cell<uint64_t>>(old_chunk);
  auto* to = pool_.at<Cell<uint64_t>>(new_chunk);
  for (size_t i = 0; i < node.length; ++i) to[i] = from[i];
  begin_change(node);
  node.chunks[0] = new_chunk;
  node.info = info.with_first_chunk_order(order).word;
  end_change(node);
  pool_.release(old_chunk, info.first_chunk_order());
}

void PrefixIndex::grow_chunk_list(Node& node, size_t chunks) {
  const Info info{node.info};
  const unsigned order = BlockPool::order_for((chunks - (kInlineChunks - 1)) * sizeof(uint32_t));
  const Ref before = node.chunk_list();  // the old list, or the chunk that moves into the new one
  const Ref list = take(order);
  auto* to = pool_.at<Cell<uint32_t>>(list);
  if (info.list_class() == 0) {
    to[0] = before;
  } else {
    const auto* from = pool_.at<Cell<uint32_t>>(before);
    for (size_t i = 0; i < info.list_places(); ++i) to[i] = from[i];
  }
  begin_change(node);
  node.chunk_list() = list;
  node.info = info.with_list_class(order + 1).word;
  end_change(node);
  if (info.list_class() != 0) pool_.release(before, info.list_class() - 1);
}

// --- members, segments, recency ------------------------------------------------------------------------

size_t PrefixIndex::find_member(Node& node, EndpointSlot slot) const {
  const Info info{node.info};
  const Members members = members_of(node, info);
  size_t i = 0;
  while (i < info.count() && members.words[i] >> kVisibleBits != slot) ++i;
  return i;
}

// Makes blocks [0, length) of the run the endpoint's most recent ones.
void PrefixIndex::touch(Ref ref, EndpointSlot slot, uint32_t length) {
  Node& node = node_at(ref);
  const size_t member = find_member(node, slot);
  if (member == Info{node.info}.count()) {
    const Ref made = make_segment(ref, slot, 0, length);
    add_member(node, slot, length, made);
    count_blocks(slot, length);
    return;
  }
  const Members members = members_of(node, Info{node.info});
  const Ref first_ref = members.segments[member];
  Segment& first = segment_at(first_ref);
  if (first.end > length) {
    // The rest keeps its place in the recency list.
    const Ref rest_ref = take(0);
    Segment& rest = segment_at(rest_ref);
    rest.node = ref;
    rest.begin = length;
    rest.end = first.end;
    rest.sibling = first.sibling;
    rest.touched = first.touched;
    rest.newer = first.newer;
    rest.older = first_ref;
    if (first.newer != 0)
      segment_at(first.newer).older = rest_ref;
    else
      endpoints_[slot].newest = rest_ref;
    first.newer = rest_ref;
    first.end = length;
    first.sibling = rest_ref;
  } else {
    Ref next = first.sibling;
    while (next != 0 && segment_at(next).end <= length) {
      const Ref covered = next;
      next = segment_at(covered).sibling;
      first.end = segment_at(covered).end;
      unlink_segment(slot, covered);
      pool_.release(covered, 0);
    }
    first.sibling = next;
    if (next != 0) {
      segment_at(next).begin = length;
      first.end = length;
    } else if (first.end < length) {
      count_blocks(slot, static_cast<int64_t>(length) - first.end);
      first.end = length;
      members.words[member].release(member_word(slot, length));
    }
  }
  if (endpoints_[slot].newest != first_ref) {
    unlink_segment(slot, first_ref);
    push_newest(slot, first_ref);
  }
  first.touched = operation_;
}

PrefixIndex::Ref PrefixIndex::make_segment(Ref node, EndpointSlot slot, uint32_t begin, uint32_t end) {
  const Ref ref = take(0);
  Segment& segment = segment_at(ref);
  segment.node = node;
  segment.begin = begin;
  segment.end = end;
  segment.sibling = 0;
  segment.touched = operation_;
  push_newest(slot, ref);
  return ref;
}

void PrefixIndex::push_newest(EndpointSlot slot, Ref ref) {
  EndpointState& endpoint = endpoints_[slot];
  Segment& segment = segment_at(ref);
  segment.newer = 0;
  segment.older = endpoint.newest;
  if (endpoint.newest != 0)
    segment_at(endpoint.newest).newer = ref;
  else
    endpoint.oldest = ref;
  endpoint.newest = ref;
}

void PrefixIndex::unlink_segment(EndpointSlot slot, Ref ref) {
  EndpointState& endpoint = endpoints_[slot];
  Segment& segment = segment_at(ref);
  if (segment.newer != 0)
    segment_at(segment.newer).older = segment.older;
  else
    endpoint.newest = segment.older;
  if (segment.older != 0)
    segment_at(segment.older).newer = segment.newer;
  else
    endpoint.oldest = segment.newer;
}

void PrefixIndex::add_member(Node& node, EndpointSlot slot, uint32_t length, Ref segment) {
  if (Info{node.info}.count() == Info{node.info}.member_places())
    move_members(node, Info{node.info}.member_class() + 1);
  const Info info{node.info};
  const Members members = members_of(node, info);
  members.words[info.count()] = member_word(slot, length);
  members.segments[info.count()] = segment;
  node.info.release(info.with_count(info.count() + 1).word);
}

void PrefixIndex::remove_member(Node& node, size_t index) {
  const Info info{node.info};
  const Members members = members_of(node, info);
  const uint32_t last = info.count() - 1;
  begin_change(node);
  members.words[index] = members.words[last];
  members.segments[index] = members.segments[last];
  node.info = info.with_count(last).word;
  end_change(node);
  if (info.member_class() != 0 && last <= info.member_places() / 4)
    move_members(node, info.member_class() - 1);
}

// REQUIRES: the members fit. A move to a smaller class is left out when there is no memory for it.
void PrefixIndex::move_members(Node& node, unsigned member_class) {
  const Info info{node.info};
  const Info moved = info.with_member_class(member_class);
  const Members from = members_of(node, info);
  const Ref old_array = info.member_class() == 0 ? 0 : static_cast<Ref>(node.words[0]);
  if (member_class == 0) {
    uint32_t words[2] = {0, 0};
    uint32_t segments[2] = {0, 0};
    for (uint32_t i = 0; i < info.count(); ++i) {
      words[i] = from.words[i];
      segments[i] = from.segments[i];
    }
    begin_change(node);
    for (size_t i = 0; i < 2; ++i) {
      node.words[i] = words[i];
      node.segments[i] = segments[i];
    }
  } else {
    const bool grows = member_class > info.member_class();
    const Ref array = grows ? take(member_class - 1) : pool_.allocate(member_class - 1);
    if (array == 0) return;
    auto* words = pool_.at<Cell<uint32_t>>(array);
    auto* segments = words + moved.member_places();
    for (uint32_t i = 0; i < info.count(); ++i) {
      words[i] = from.words[i];
      segments[i] = from.segments[i];
    }
    begin_change(node);
    node.words[0] = array;
  }
  node.info = moved.word;
  end_change(node);
  if (old_array != 0) pool_.release(old_array, info.member_class() - 1);
}

void PrefixIndex::begin_change(Node& node) {
  node.version = node.version | 1U;
  std::atomic_thread_fence(std::memory_order_release);
}

void PrefixIndex::end_change(Node& node) {
  version_ += 2;
  node.version.release(version_);
}

void PrefixIndex::count_blocks(EndpointSlot slot, int64_t change) {
  Cell<uint32_t>& blocks = endpoints_[slot].blocks;
  blocks = static_cast<uint32_t>(blocks + change);
  entries_.store(entries_.load(std::memory_order_relaxed) + static_cast<uint64_t>(change),
                 std::memory_order_relaxed);
}

// --- forgetting ----------------------------------------------------------------------------------------

// Takes up to `blocks` off the end of the endpoint's oldest segment; returns how many.
// REQUIRES: the endpoint holds something.
uint32_t PrefixIndex::evict_tail(EndpointSlot slot, uint32_t blocks) {
  const Ref ref = endpoints_[slot].oldest;
  Segment& segment = segment_at(ref);
  assert(segment.sibling == 0);
  const Ref node_ref = segment.node;
  Node& node = node_at(node_ref);
  const uint32_t before = segment.end;
  const uint32_t gone = std::min(blocks, before - segment.begin);
  const uint32_t visible = before - gone;
  segment.end = visible;
  count_blocks(slot, -static_cast<int64_t>(gone));

  const size_t member = find_member(node, slot);
  const Members members = members_of(node, Info{node.info});
  if (visible == segment.begin) {
    if (members.segments[member] != ref) {
      Ref previous = members.segments[member];
      while (segment_at(previous).sibling != ref) previous = segment_at(previous).sibling;
      segment_at(previous).sibling = 0;
    }
    unlink_segment(slot, ref);
    pool_.release(ref, 0);
  }
  if (visible == 0)
    remove_member(node, member);
  else
    members.words[member].release(member_word(slot, visible));
  if (before == node.length) trim(node_ref);
  return gone;
}

// Cuts the run to what its longest member sees.
void PrefixIndex::trim(Ref ref) {
  Node& node = node_at(ref);
  const Info info{node.info};
  const Members members = members_of(node, info);
  uint32_t longest = 0;
  for (uint32_t i = 0; i < info.count(); ++i) longest = std::max(longest, members.words[i] & kVisibleMask);
  const uint32_t length = node.length;
  if (longest == length) return;
  if (longest == 0) return release_run(ref);

  const size_t kept = (longest + kChunkBlocks - 1) / kChunkBlocks;
  const size_t chunks = (length + kChunkBlocks - 1) / kChunkBlocks;
  begin_change(node);
  node.length = longest;
  node.tail = hash_at(node, info, longest - 1);
  for (size_t chunk = kept; chunk < chunks; ++chunk) {
    Cell<uint32_t>& place = chunk_at(node, info, chunk);
    pool_.release(place, kChunkOrder);
    place = 0;
  }
  if (kept <= kInlineChunks && info.list_class() != 0) {
    const Ref list = node.chunk_list();
    node.chunk_list() = pool_.at<Cell<uint32_t>>(list)[0];
    node.info = info.with_list_class(0).word;
    pool_.release(list, info.list_class() - 1);
  }
  end_change(node);
}

void PrefixIndex::release_run(Ref ref) {
  unlink_head(ref);
  Node& node = node_at(ref);
  const Info info{node.info};
  begin_change(node);
  const size_t chunks = (node.length + kChunkBlocks - 1) / kChunkBlocks;
  pool_.release(node.chunks[0], info.first_chunk_order());
  for (size_t chunk = 1; chunk < chunks; ++chunk) pool_.release(chunk_at(node, info, chunk), kChunkOrder);
  if (info.list_class() != 0) pool_.release(node.chunk_list(), info.list_class() - 1);
  if (info.member_class() != 0) pool_.release(node.words[0], info.member_class() - 1);
  pool_.release(ref, kNodeOrder);
}

// Evicts from at most `segments` segments; returns from how many.
size_t PrefixIndex::evict_to_capacity(EndpointSlot slot, size_t segments) {
  EndpointState& endpoint = endpoints_[slot];
  uint64_t blocks = 0;
  size_t evicted = 0;
  for (; evicted < segments && endpoint.blocks > endpoint.capacity; ++evicted)
    blocks += evict_tail(slot, endpoint.blocks - endpoint.capacity);
  if (blocks != 0) evicted_.fetch_add(blocks, std::memory_order_relaxed);
  return evicted;
}

// Evicts at least `blocks` blocks, the globally oldest segments first; false when nothing is held.
bool PrefixIndex::evict_oldest(size_t blocks) {
  constexpr uint64_t kNone = std::numeric_limits<uint64_t>::max();
  size_t evicted = 0;
  while (evicted < blocks) {
    size_t oldest = 0;
    uint64_t oldest_touch = kNone;
    uint64_t second_touch = kNone;
    for (size_t slot = 0; slot < endpoints_used_; ++slot) {
      if (endpoints_[slot].oldest == 0) continue;
      const uint64_t touched = segment_at(endpoints_[slot].oldest).touched;
      if (touched < oldest_touch) {
        second_touch = oldest_touch;
        oldest_touch = touched;
        oldest = slot;
      } else {
        second_touch = std::min(second_touch, touched);
      }
    }
    if (oldest_touch == kNone) break;
    EndpointState& endpoint = endpoints_[oldest];
    while (evicted < blocks && endpoint.oldest != 0 && segment_at(endpoint.oldest).touched < second_touch)
      evicted += evict_tail(static_cast<EndpointSlot>(oldest), std::numeric_limits<uint32_t>::max());
  }
  evicted_.fetch_add(evicted, std::memory_order_relaxed);
  return evicted > 0;
}

// --- inspection ----------------------------------------------------------------------------------------

std::string PrefixIndexInspector::check() {
  index_.lock();
  std::string breach = check_locked();
  index_.unlock();
  return breach;
}

std::string PrefixIndexInspector::check_locked() {
  using Ref = PrefixIndex::Ref;
  using Info = PrefixIndex::Info;
  size_t bytes = 0;
  size_t runs = 0;
  size_t member_blocks = 0;
  size_t segments = 0;
  const auto block = [](unsigned order) { return BlockPool::kUnitBytes << order; };

  const uint64_t state = index_.table_state_.load();
  const auto buckets = static_cast<uint32_t>(state >> 32U);
  if ((state & 1U) != 0) return "table version is odd";
  for (uint32_t b = 0; b < buckets; ++b) {
    size_t chain = 0;
    for (Ref ref = static_cast<Ref>(static_cast<uint64_t>(index_.buckets_[b])); ref != 0;
         ref = index_.node_at(ref).next) {
      PrefixIndex::Node& node = index_.node_at(ref);
      const Info info{node.info};
      ++runs;
      ++chain;
      if ((node.version & 1U) != 0) return "node version is odd";
      if (PrefixIndex::bucket_of(index_.mix(node.head), buckets) != b) return "run in the wrong bucket";
      if (index_.find(node.head, state) != ref) return "run not found by its head";
      if (index_.hash_at(node, info, 0) != node.head) return "head differs from the first block";
      bytes += block(kNodeOrder) + block(info.first_chunk_order());
      if (index_.hash_at(node, info, node.length - 1U) != node.tail)
        return "tail differs from the last block";
      const size_t chunks = (node.length + kChunkBlocks - 1) / kChunkBlocks;
      bytes += (chunks - 1) * block(kChunkOrder);
      if (chunks > 1 && info.first_chunk_order() != kChunkOrder) return "short first chunk in a long run";
      if (info.list_class() != 0) bytes += block(info.list_class() - 1);
      if (info.member_class() != 0) bytes += block(info.member_class() - 1);
      if (info.count() == 0) return "run without members";
      const PrefixIndex::Members members = index_.members_of(node, info);
      uint32_t longest = 0;
      for (uint32_t m = 0; m < info.count(); ++m) {
        const uint32_t visible = members.words[m] & kVisibleMask;
        const auto slot = static_cast<EndpointSlot>(members.words[m] >> kVisibleBits);
        if (index_.find_member(node, slot) != m) return "endpoint is a member twice";
        longest = std::max(longest, visible);
        member_blocks += visible;
        uint32_t covered = 0;
        for (Ref s = members.segments[m]; s != 0; s = index_.segment_at(s).sibling) {
          const PrefixIndex::Segment& segment = index_.segment_at(s);
          if (segment.node != ref) return "segment of another run";
          if (segment.begin != covered || segment.end <= segment.begin) return "segments don't partition";
          covered = segment.end;
          ++segments;
        }
        if (covered != visible) return "segments don't cover what the member sees";
      }
      if (longest != node.length) return "run longer than its longest member";
    }
    const bool more = (index_.buckets_[b] & kMoreBit) != 0;
    if (more != (chain > 1)) return "bucket's chain mark is wrong";
  }
  if (runs != index_.runs_.load()) return "run count is wrong";

  uint64_t entries = 0;
  size_t listed = 0;
  for (size_t slot = 0; slot < index_.endpoints_.size(); ++slot) {
    const PrefixIndex::EndpointState& endpoint = index_.endpoints_[slot];
    size_t blocks = 0;
    Ref newer = 0;
    for (Ref s = endpoint.newest; s != 0; s = index_.segment_at(s).older) {
      const PrefixIndex::Segment& segment = index_.segment_at(s);
      if (segment.newer != newer) return "recency list is torn";
      if (newer != 0 && index_.segment_at(newer).touched < segment.touched) return "recency is out of order";
      newer = s;
      blocks += segment.end - segment.begin;
      ++listed;
    }
    if (endpoint.oldest != newer) return "recency list has the wrong end";
    if (blocks != endpoint.blocks) return "endpoint's block count is wrong";
    entries += blocks;
  }
  bytes += segments * block(0);
  if (listed != segments) return "segments outside of their members";
  if (entries != index_.entries() || entries != member_blocks) return "entry count is wrong";
  if (bytes != index_.pool_.used_bytes())
    return "leak: " + std::to_string(index_.pool_.used_bytes()) + " bytes in use, " + std::to_string(bytes) +
           " reachable";
  return "";
}

}  // namespace penstock::kvindex
