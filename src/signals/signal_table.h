#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "base/clock.h"
#include "inference/endpoint.h"
#include "inference/signals.h"

namespace penstock::signals {

// What is known of one endpoint. `state` of a written value is kFresh (seen by the last good scrape),
// kNameMissing or kEndpointDown; kStale is never written, readers derive it from observed_at.
struct SignalRow {
  std::array<SignalValue, kSignalCount> signals{};
  LoraSignal lora;
  // The UnseenRequests round that the scrape of these values began: what was sent before they show.
  UnseenRequests::Round shown_round = 0;

  SignalValue& at(Signal s) { return signals[static_cast<size_t>(s)]; }
  const SignalValue& at(Signal s) const { return signals[static_cast<size_t>(s)]; }
};

// The newest row of every endpoint slot: written by scrapers (or the simulator), read by every loop
// without locks under one sequence number per row. Rows are made in blocks of 64 as slots appear (about
// 1.2 KiB a row, never given back).
//
// One epoch covers the whole table. A write moves it at once when the last move is at least `coalesce`
// old; otherwise the next epoch() call after that time moves it, so that a hundred scrapes within ten
// milliseconds cost readers one refresh. Thread-safe.
class SignalTable {
 public:
  explicit SignalTable(Duration coalesce = std::chrono::milliseconds(10));
  ~SignalTable();
  SignalTable(const SignalTable&) = delete;
  SignalTable& operator=(const SignalTable&) = delete;

  // The right to write one slot's row, until the slot is attached again or detached.
  struct Ticket {
    EndpointSlot slot = 0;
    uint32_t generation = 0;
  };

  // Resets the row to "never seen" and makes every older ticket of the slot worthless.
  // REQUIRES: slot < kMaxEndpoints.
  Ticket attach(EndpointSlot slot, TimePoint now);
  // Resets the row; a late write by this ticket is dropped. No effect when the ticket is worthless.
  void detach(const Ticket& ticket, TimePoint now);
  // False when the ticket is worthless: nothing was written.
  bool write(const Ticket& ticket, const SignalRow& row, TimePoint now);

  // The slot's row as last written; a never-seen row for a slot that was never attached.
  SignalRow read(EndpointSlot slot) const;
  // Rises with every (coalesced) publication; starts at 1.
  uint64_t epoch(TimePoint now);

 private:
  friend class FrameReader;

  static constexpr size_t kRowsPerBlock = 64;
  static constexpr size_t kBlocks = kMaxEndpoints / kRowsPerBlock;
  // Words of a row: values, times, packed states, LoRA time, packed LoRA counts, shown round; then adapter
  // hashes.
  static constexpr size_t kHeadWords = 2 * kSignalCount + 4;
  static constexpr size_t kWords = kHeadWords + 2 * kMaxAdapters;

  struct Row {
    std::atomic<uint32_t> sequence{0};  // odd while being written
    uint32_t generation = 0;            // under mutex_
    std::array<std::atomic<uint64_t>, kWords> words{};
  };
  struct Block {
    std::array<Row, kRowsPerBlock> rows;
  };

  Row* find(EndpointSlot slot) const;
  static void store(Row& row, const SignalRow& from);
  // The row at one instant, and its sequence number.
  static uint32_t load(const Row& row, SignalRow& into);
  void published(TimePoint now);

  const int64_t coalesce_ns_;
  std::mutex mutex_;  // writers
  std::array<std::atomic<Block*>, kBlocks> blocks_{};
  std::atomic<uint64_t> epoch_{1};
  std::atomic<int64_t> last_publication_ns_{0};
  std::atomic<bool> pending_{false};
};

// One loop's eye on one pool: keeps a SignalView in step with the table. Cheap when nothing moved: one
// epoch comparison. Owned by one loop; one reader per pool and loop.
class FrameReader {
 public:
  // A value older than `freshness_budget` is seen as kStale.
  FrameReader(SignalTable& table, Duration freshness_budget);

  // Brings `view` to the table's present state for this membership. Copies only rows whose sequence
  // moved, all of them when the membership changed. REQUIRES: always the same view object.
  void refresh(const PoolSnapshot& pool, SignalView& view, TimePoint now);

  Duration freshness_budget() const { return budget_; }

 private:
  void copy_row(const SignalRow& row, size_t i, SignalView& view) const;
  void expire(SignalView& view, TimePoint now);
  static void find_oldest(SignalView& view);

  SignalTable& table_;
  Duration budget_;
  uint64_t seen_epoch_ = 0;
  uint64_t seen_membership_ = 0;
  std::vector<uint32_t> sequences_;  // of the rows copied last
  TimePoint next_expiry_ = TimePoint::max();
  SignalRow scratch_;
};

}  // namespace penstock::signals
