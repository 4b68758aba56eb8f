#include "kvindex/insert_queue.h"

#include <algorithm>
#include <array>
#include <cassert>

#include "kvindex/spin.h"

namespace penstock::kvindex {

InsertQueue::InsertQueue(Mapping ring, size_t bytes)
    : mapping_(std::move(ring)),
      ring_(reinterpret_cast<uint64_t*>(mapping_.data())),
      words_(bytes / sizeof(uint64_t)) {
  assert(words_ > kHeaderWords);
}

bool InsertQueue::lock_within(int spins) {
  for (int i = 0; i < spins; ++i) {
    if (!busy_.load(std::memory_order_relaxed) && !busy_.exchange(true, std::memory_order_acquire))
      return true;
    spin_pause();
  }
  return false;
}

void InsertQueue::write(size_t at, std::span<const uint64_t> words) {
  const size_t begin = at % words_;
  const size_t first = std::min(words.size(), words_ - begin);
  std::copy_n(words.data(), first, ring_ + begin);
  std::copy_n(words.data() + first, words.size() - first, ring_);
}

void InsertQueue::read(size_t at, std::span<uint64_t> words) const {
  const size_t begin = at % words_;
  const size_t first = std::min(words.size(), words_ - begin);
  std::copy_n(ring_ + begin, first, words.data());
  std::copy_n(ring_, words.size() - first, words.data() + first);
}

void InsertQueue::drop_oldest() {
  head_ += kHeaderWords + ring_[head_ % words_];
}

InsertQueue::Push InsertQueue::push(const Header& header, std::span<const uint64_t> hashes) {
  const size_t needed = kHeaderWords + hashes.size();
  Push result;
  if (needed > words_ || !lock_within(kSpins)) {
    result.dropped = 1;
    return result;
  }
  while (words_ - (tail_ - head_) < needed) {
    drop_oldest();
    ++result.dropped;
  }
  const std::array<uint64_t, kHeaderWords> packed{
      hashes.size(), header.owner, (static_cast<uint64_t>(header.capacity_blocks) << 16U) | header.slot};
  write(tail_, packed);
  write(tail_ + kHeaderWords, hashes);
  tail_ += needed;
  unlock();
  result.queued = true;
  return result;
}

bool InsertQueue::pop(Header& header, std::vector<uint64_t>& hashes) {
  if (!lock_within(kSpins)) return false;
  const bool any = head_ != tail_;
  if (any) {
    std::array<uint64_t, kHeaderWords> packed{};
    read(head_, packed);
    header.owner = packed[1];
    header.capacity_blocks = static_cast<uint32_t>(packed[2] >> 16U);
    header.slot = static_cast<EndpointSlot>(packed[2] & 0xFFFFU);
    hashes.resize(packed[0]);
    read(head_ + kHeaderWords, hashes);
    head_ += kHeaderWords + packed[0];
  }
  unlock();
  return any;
}

}  // namespace penstock::kvindex
