#pragma once

#include <array>
#include <cstdint>

#include "io/loop.h"

namespace penstock::io::detail {

// Hierarchical timing wheel (Varghese & Lauck 1987) of intrusive timers. Invariants: every timer of level 0
// is due in (current, current + 256); one of level n > 0 sits in the slot whose first tick is the latest
// slot boundary not after its due tick, and moves down when `current` reaches that boundary. A bit per slot
// says whether it is occupied (a bit may be set for a slot that has become empty; it is cleared when met).
class TimerWheel {
 public:
  static constexpr unsigned kTickBits = 18;  // one tick: 2^18 ns = 262 µs
  static constexpr uint64_t kNoTick = ~uint64_t{0};

  static uint64_t tick_after(uint64_t ns) { return (ns + (uint64_t{1} << kTickBits) - 1) >> kTickBits; }
  static uint64_t tick_at(uint64_t ns) { return ns >> kTickBits; }

  // What a timer that is driven by hand, without its loop, calls.
  static void set_function(Timer& timer, Timer::Function function, void* context) {
    timer.function_ = function;
    timer.context_ = context;
  }

  bool empty() const { return count_ == 0; }
  size_t size() const { return count_; }

  // Puts an unarmed timer in; `now_tick` only matters when the wheel was empty. Returns the tick at which
  // the wheel must be advanced for it.
  uint64_t add(Timer& timer, uint64_t due_tick, uint64_t now_tick);
  void remove(Timer& timer) noexcept;
  // Fires everything due up to `now_tick`.
  void advance(uint64_t now_tick);
  // The next tick at which advance() has something to do, or kNoTick.
  uint64_t next_event() const;

 private:
  static constexpr uint32_t kNear = 256;  // slots of level 0
  static constexpr uint32_t kFar = 64;    // of each further level
  static constexpr uint32_t kLevels = 4;
  static constexpr uint32_t kSlots = kNear + (kLevels - 1) * kFar;
  static constexpr uint32_t kExpiring = kSlots;  // pseudo slot of those being fired

  static unsigned shift_of(uint32_t level) { return level == 0 ? 0 : 8 + 6 * (level - 1); }
  static uint32_t slot_of(uint32_t level, uint64_t tick) {
    return level == 0
               ? static_cast<uint32_t>(tick & (kNear - 1))
               : kNear + (level - 1) * kFar + static_cast<uint32_t>((tick >> shift_of(level)) & (kFar - 1));
  }
  uint64_t place(Timer& timer);
  void link(Timer& timer, uint32_t slot);
  void unlink(Timer& timer) noexcept;

  uint64_t current_ = 0;
  size_t count_ = 0;
  std::array<Timer*, kSlots + 1> heads_{};
  std::array<uint64_t, (kSlots + 63) / 64> occupied_{};
};

}  // namespace penstock::io::detail
