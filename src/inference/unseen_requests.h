#pragma once

#include <array>
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
class UnseenRequests {
 public:
  using Round = uint32_t;

  // A request was sent; the result is for remove().
  Round add() {
    // Whoever sees a new round sees its count cleared.
    const Round round = round_.load(std::memory_order_acquire);
    return round_of(counts_[round % kKept].fetch_add(1, std::memory_order_relaxed));
  }
  // It is over. No effect when its round is forgotten.
  void remove(Round round) {
    std::atomic<uint64_t>& count = counts_[round % kKept];
    uint64_t word = count.load(std::memory_order_relaxed);
    while (round_of(word) == round && requests_of(word) != 0 &&
           !count.compare_exchange_weak(word, word - 1, std::memory_order_relaxed)) {
    }
  }
  // Requests in flight of round `first` and later. Rounds that lie kKept back are forgotten.
  uint32_t since(Round first) const {
    uint32_t requests = 0;
    for (const std::atomic<uint64_t>& count : counts_) {
      const uint64_t word = count.load(std::memory_order_relaxed);
      if (round_of(word) - first < kKept) requests += requests_of(word);
    }
    return requests;
  }
  // A scrape begins after one that succeeded. The new round's number: what since() takes once this scrape's
  // values are read.
  Round begin_round() {
    const Round round = round_.load(std::memory_order_relaxed) + 1;
    counts_[round % kKept].store(uint64_t{round} << 32U, std::memory_order_relaxed);
    round_.store(round, std::memory_order_release);
    return round;
  }

 private:
  // A round's requests must still be there when the values of the scrape after the next one are on their way.
  static constexpr Round kKept = 4;
  static Round round_of(uint64_t word) { return static_cast<Round>(word >> 32U); }
  static uint32_t requests_of(uint64_t word) { return static_cast<uint32_t>(word); }

  // By round modulo kKept: the round in the upper half, its requests in flight in the lower one.
  std::array<std::atomic<uint64_t>, kKept> counts_{};
  std::atomic<Round> round_{0};
};

}  // namespace penstock
