#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "base/clock.h"
#include "director/director.h"
#include "director/load_guard.h"
#include "io/loop.h"
#include "telemetry/metrics.h"

namespace penstock::extproc {

// Reservations of requests whose answers nobody watches: each counts at its endpoint until that endpoint's
// next fresh scrape, which then tells of the request itself, or until `max_age` where none comes. One loop's.
class Credits {
 public:
  // `loop` may be nullptr: sweep() is then up to the caller. `total` and `expired` are shared by the loops.
  Credits(io::Loop* loop, director::Director& director, const Clock& clock, Duration max_age,
          std::atomic<int64_t>& total, telemetry::Counter& expired);
  Credits(const Credits&) = delete;
  Credits& operator=(const Credits&) = delete;
  ~Credits() { clear(); }

  void add(director::LoadGuard guard);
  // Ends what has been scraped since or is too old.
  void sweep();
  void clear();
  size_t size() const { return held_.size(); }

 private:
  static constexpr Duration kInterval = std::chrono::milliseconds(20);
  struct Credit {
    director::LoadGuard guard;
    TimePoint since;
  };
  static void tick(void* self);
  void arm();

  std::unique_ptr<io::Timer> timer_;
  director::Director& director_;
  const Clock& clock_;
  Duration max_age_;
  std::atomic<int64_t>& total_;
  telemetry::Counter& expired_;
  std::vector<Credit> held_;
  std::vector<TimePoint> scraped_;  // scratch: by slot
};

}  // namespace penstock::extproc
