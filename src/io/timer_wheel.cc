#include <bit>

#include "io/detail/timer_wheel.h"

namespace penstock::io::detail {

void TimerWheel::link(Timer& timer, uint32_t slot) {
  timer.slot_ = slot + 1;
  timer.previous_ = nullptr;
  timer.next_ = heads_[slot];
  if (timer.next_ != nullptr) timer.next_->previous_ = &timer;
  heads_[slot] = &timer;
  if (slot < kSlots) occupied_[slot / 64] |= uint64_t{1} << (slot % 64);
}

void TimerWheel::unlink(Timer& timer) noexcept {
  const uint32_t slot = timer.slot_ - 1;
  if (timer.next_ != nullptr) timer.next_->previous_ = timer.previous_;
  if (timer.previous_ != nullptr) {
    timer.previous_->next_ = timer.next_;
  } else {
    heads_[slot] = timer.next_;
    if (timer.next_ == nullptr && slot < kSlots) occupied_[slot / 64] &= ~(uint64_t{1} << (slot % 64));
  }
  timer.previous_ = nullptr;
  timer.next_ = nullptr;
  timer.slot_ = 0;
}

uint64_t TimerWheel::place(Timer& timer) {
  constexpr uint64_t kReach = uint64_t{1} << (8 + 6 * (kLevels - 1));
  uint64_t due = timer.tick_ < current_ ? current_ : timer.tick_;
  if (due - current_ >= kReach) due = current_ + kReach - 1;
  const uint64_t delta = due - current_;
  uint32_t level = 0;
  while (level + 1 < kLevels && delta >= (uint64_t{1} << shift_of(level + 1))) ++level;
  link(timer, slot_of(level, due));
  return (due >> shift_of(level)) << shift_of(level);
}

uint64_t TimerWheel::add(Timer& timer, uint64_t due_tick, uint64_t now_tick) {
  if (count_ == 0) current_ = now_tick > 0 ? now_tick - 1 : 0;
  timer.tick_ = due_tick <= current_ ? current_ + 1 : due_tick;
  ++count_;
  return place(timer);
}

void TimerWheel::remove(Timer& timer) noexcept {
  unlink(timer);
  --count_;
}

uint64_t TimerWheel::next_event() const {
  if (count_ == 0) return kNoTick;
  uint64_t best = kNoTick;
  // Level 0: the first occupied slot after the current one, going round.
  const uint32_t start = static_cast<uint32_t>((current_ + 1) & (kNear - 1));
  for (uint32_t step = 0; step < kNear;) {
    const uint32_t slot = (start + step) & (kNear - 1);
    const uint64_t bits = occupied_[slot / 64] >> (slot % 64);
    if (bits != 0) {
      step += static_cast<uint32_t>(std::countr_zero(bits));
      if (step < kNear) best = current_ + 1 + step;
      break;
    }
    step += 64 - slot % 64;
  }
  for (uint32_t level = 1; level < kLevels; ++level) {
    const uint64_t bits = occupied_[(kNear + (level - 1) * kFar) / 64];
    if (bits == 0) continue;
    const uint64_t here = current_ >> shift_of(level);
    const auto first = static_cast<int>((here + 1) & (kFar - 1));
    const uint64_t ahead = 1 + static_cast<uint64_t>(std::countr_zero(std::rotr(bits, first)));
    const uint64_t tick = (here + ahead) << shift_of(level);
    if (tick < best) best = tick;
  }
  return best;
}

void TimerWheel::advance(uint64_t now_tick) {
  for (uint64_t tick = next_event(); tick <= now_tick && tick != kNoTick; tick = next_event()) {
    current_ = tick;
    for (uint32_t level = kLevels - 1; level > 0; --level) {
      if ((tick & ((uint64_t{1} << shift_of(level)) - 1)) != 0) continue;
      const uint32_t slot = slot_of(level, tick);
      Timer* chain = heads_[slot];
      heads_[slot] = nullptr;
      occupied_[slot / 64] &= ~(uint64_t{1} << (slot % 64));
      while (chain != nullptr) {
        Timer* timer = chain;
        chain = chain->next_;
        place(*timer);
      }
    }
    const uint32_t slot = slot_of(0, tick);
    while (heads_[slot] != nullptr) {
      Timer& timer = *heads_[slot];
      unlink(timer);
      link(timer, kExpiring);
    }
    while (heads_[kExpiring] != nullptr) {
      Timer& timer = *heads_[kExpiring];
      remove(timer);
      timer.function_(timer.context_);
    }
  }
  if (count_ != 0 && now_tick > current_) current_ = now_tick;
}

}  // namespace penstock::io::detail
