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

bool InsertQueue::lock_pushing() {
  for (int i = 0; i < kSpins; ++i) {
    if (!pushing_.load(std::memory_order_relaxed) && !pushing_.exchange(true, std::memory_order_acquire))
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

bool InsertQueue::push(const Header& header, std::span<const uint64_t> hashes) {
  if (!lock_pushing()) return false;
  const size_t tail = tail_.load(std::memory_order_relaxed);
  const size_t needed = kHeaderWords + hashes.size();
  const bool fits = needed <= words_ - (tail - head_.load(std::memory_order_acquire));
  if (fits) {
    const std::array<uint64_t, kHeaderWords> packed{
        hashes.size(), header.owner, (static_cast<uint64_t>(header.capacity_blocks) << 16U) | header.slot};
    write(tail, packed);
    write(tail + kHeaderWords, hashes);
    tail_.store(tail + needed, std::memory_order_release);
  }
  pushing_.store(false, std::memory_order_release);
  return fits;
}

bool InsertQueue::pop(Header& header, std::vector<uint64_t>& hashes) {
  const size_t head = head_.load(std::memory_order_relaxed);
  if (head == tail_.load(std::memory_order_acquire)) return false;
  std::array<uint64_t, kHeaderWords> packed{};
  read(head, packed);
  header.owner = packed[1];
  header.capacity_blocks = static_cast<uint32_t>(packed[2] >> 16U);
  header.slot = static_cast<EndpointSlot>(packed[2] & 0xFFFFU);
  hashes.resize(packed[0]);
  read(head + kHeaderWords, hashes);
  head_.store(head + kHeaderWords + packed[0], std::memory_order_release);
  return true;
}

}  // namespace penstock::kvindex
