#pragma once

#include <atomic>
#include <cstdint>

namespace penstock {

// Our own requests in flight at an endpoint that its engine's last scrape cannot tell of, because they were
// sent after that scrape began. Without locks: requests are added and removed from any loop, rounds begin on
// the endpoint's scraping loop only.
//
// A round is the time between the beginnings of two scrapes of which the first succeeded. A request carries
// the number of the round it was sent in. A good scrape begun with round r shows all requests of rounds
// below r: whoever read its values adds since(r), which keeps telling until the next scrape's values are
// read. Scrapes that fail begin no new round, so during an outage requests go on counting.
// Example: 2 requests sent, scrape begins (round 1), 3 sent, its values arrive: since(1) = 3.
//
// One word holds it all, since every decision in strict mode reads it of every endpoint: the round's number
// and the requests of that round and of the two before it, which is what is needed while the values of the
// scrape after the next one are on their way.
class UnseenRequests {
 public:
  using Round = uint16_t;  // counts on from 0 after the largest

  // A request was sent; the result is for remove(). Beyond kMost of one round they are not counted.
  Round add() {
    uint64_t word = word_.load(std::memory_order_relaxed);
    while ((word & kMost) != kMost &&
           !word_.compare_exchange_weak(word, word + 1, std::memory_order_relaxed)) {
    }
    return round_of(word);
  }
  // It is over. No effect when its round is forgotten. The result: how often another thread was faster, for
  // benchmarks.
  uint32_t remove(Round round) {
    uint64_t word = word_.load(std::memory_order_relaxed);
    uint32_t failed = 0;
    while (true) {
      const auto back = static_cast<Round>(round_of(word) - round);
      if (back >= kKept) return failed;
      const uint32_t shift = kBits * back;
      if ((word >> shift & kMost) == 0) return failed;
      if (word_.compare_exchange_weak(word, word - (uint64_t{1} << shift), std::memory_order_relaxed))
        return failed;
      ++failed;
    }
  }
  // Requests in flight of round `first` and later. Rounds that lie kKept back are forgotten.
  uint32_t since(Round first) const {
    const uint64_t word = word_.load(std::memory_order_relaxed);
    const auto back = static_cast<Round>(round_of(word) - first);
    const uint64_t newest = word & kMost;
    const uint64_t before = back >= 1 ? word >> kBits & kMost : 0;
    const uint64_t oldest = back >= 2 ? word >> 2 * kBits & kMost : 0;
    return static_cast<uint32_t>(newest + before + oldest);
  }
  // Those of the newest round: sent since the last scrape began.
  uint32_t newest() const { return static_cast<uint32_t>(word_.load(std::memory_order_relaxed) & kMost); }
  // A scrape begins after one that succeeded. The new round's number: what since() takes once this scrape's
  // values are read.
  Round begin_round() {
    uint64_t word = word_.load(std::memory_order_relaxed);
    while (true) {
      const auto round = static_cast<Round>(round_of(word) + 1);
      const uint64_t next = (uint64_t{round} << kKept * kBits) | ((word << kBits) & kCounts);
      if (word_.compare_exchange_weak(word, next, std::memory_order_relaxed)) return round;
    }
  }

 private:
  static constexpr uint32_t kKept = 3;
  static constexpr uint32_t kBits = 16;
  static constexpr uint64_t kMost = (uint64_t{1} << kBits) - 1;
  static constexpr uint64_t kCounts = (uint64_t{1} << kKept * kBits) - 1;
  static Round round_of(uint64_t word) { return static_cast<Round>(word >> kKept * kBits); }

  // From the top: the round's number, requests two rounds ago, in the round before, in this one.
  std::atomic<uint64_t> word_{0};
};

}  // namespace penstock
