#include "simulator/kv_cache.h"

#include <bit>
#include <cassert>

#include "base/hash.h"

namespace penstock::simulator {

KvCache::KvCache(uint32_t num_blocks, bool prefix_caching)
    : num_blocks_(num_blocks), prefix_caching_(prefix_caching), blocks_(num_blocks) {
  assert(num_blocks >= 2);
  table_.assign(std::bit_ceil(static_cast<uint64_t>(num_blocks) * 2), kNone);
  mask_ = static_cast<uint32_t>(table_.size() - 1);
  for (uint32_t block = 1; block < num_blocks; ++block) push_free(block);
}

uint32_t KvCache::find(uint64_t hash) const {
  for (uint32_t slot = static_cast<uint32_t>(hash) & mask_; table_[slot] != kNone;
       slot = (slot + 1) & mask_) {
    if (blocks_[table_[slot]].hash == hash) return table_[slot];
  }
  return kNone;
}

void KvCache::insert(uint32_t block) {
  Block& b = blocks_[block];
  uint32_t slot = static_cast<uint32_t>(b.hash) & mask_;
  while (table_[slot] != kNone) {
    Block& first = blocks_[table_[slot]];
    if (first.hash == b.hash) {
      b.same_hash = first.same_hash;
      first.same_hash = block;
      return;
    }
    slot = (slot + 1) & mask_;
  }
  b.same_hash = kNone;
  table_[slot] = block;
}

void KvCache::erase(uint32_t block) {
  const uint64_t hash = blocks_[block].hash;
  uint32_t slot = static_cast<uint32_t>(hash) & mask_;
  while (blocks_[table_[slot]].hash != hash) slot = (slot + 1) & mask_;
  const uint32_t first = table_[slot];
  if (first != block) {
    uint32_t before = first;
    while (blocks_[before].same_hash != block) before = blocks_[before].same_hash;
    blocks_[before].same_hash = blocks_[block].same_hash;
    return;
  }
  if (blocks_[block].same_hash != kNone) {
    table_[slot] = blocks_[block].same_hash;
    return;
  }
  // Close the gap: move back every follower that the gap would cut off from its home slot.
  uint32_t gap = slot;
  for (uint32_t at = (slot + 1) & mask_; table_[at] != kNone; at = (at + 1) & mask_) {
    const uint32_t home = static_cast<uint32_t>(blocks_[table_[at]].hash) & mask_;
    if (((at - home) & mask_) >= ((at - gap) & mask_)) {
      table_[gap] = table_[at];
      gap = at;
    }
  }
  table_[gap] = kNone;
}

void KvCache::push_free(uint32_t block) {
  Block& b = blocks_[block];
  b.previous = free_tail_;
  b.next = kNone;
  if (free_tail_ == kNone)
    free_head_ = block;
  else
    blocks_[free_tail_].next = block;
  free_tail_ = block;
  ++free_count_;
}

void KvCache::unlink_free(uint32_t block) {
  Block& b = blocks_[block];
  if (b.previous == kNone)
    free_head_ = b.next;
  else
    blocks_[b.previous].next = b.next;
  if (b.next == kNone)
    free_tail_ = b.previous;
  else
    blocks_[b.next].previous = b.previous;
  --free_count_;
}

uint32_t KvCache::lookup(std::span<const uint64_t> hashes) const {
  if (!prefix_caching_) return 0;
  uint32_t hits = 0;
  while (hits < hashes.size() && find(hashes[hits]) != kNone) ++hits;
  return hits;
}

bool KvCache::acquire(std::span<const uint64_t> hashes, uint32_t hits, uint32_t fresh,
                      std::vector<uint32_t>& blocks) {
  uint32_t from_free = fresh;
  for (uint32_t i = 0; i < hits; ++i) from_free += blocks_[find(hashes[i])].references == 0 ? 1 : 0;
  if (from_free > free_count_) return false;
  for (uint32_t i = 0; i < hits; ++i) {
    const uint32_t block = find(hashes[i]);
    if (blocks_[block].references++ == 0) unlink_free(block);
    blocks.push_back(block);
  }
  for (uint32_t i = 0; i < fresh; ++i) {
    const uint32_t block = free_head_;
    unlink_free(block);
    Block& b = blocks_[block];
    if (b.hashed) {
      erase(block);
      b.hashed = false;
      --cached_count_;
      ++evictions_;
    }
    b.references = 1;
    blocks.push_back(block);
  }
  return true;
}

void KvCache::publish(uint32_t block, uint64_t hash) {
  Block& b = blocks_[block];
  assert(b.references > 0);
  if (b.hashed || !prefix_caching_) return;
  b.hash = hash;
  b.hashed = true;
  ++cached_count_;
  insert(block);
}

void KvCache::release(std::vector<uint32_t>& blocks) {
  for (size_t i = blocks.size(); i-- > 0;) {
    Block& b = blocks_[blocks[i]];
    assert(b.references > 0);
    if (--b.references == 0) push_free(blocks[i]);
  }
  blocks.clear();
}

void KvCache::forget_hashes() {
  table_.assign(table_.size(), kNone);
  for (Block& b : blocks_) {
    b.hashed = false;
    b.same_hash = kNone;
  }
  cached_count_ = 0;
}

uint64_t block_hash(uint64_t parent, std::span<const uint32_t> tokens) {
  return XXH3_64bits_withSeed(tokens.data(), tokens.size_bytes(), parent);
}

}  // namespace penstock::simulator
