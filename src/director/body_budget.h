#pragma once

#include <atomic>
#include <cstdint>

namespace penstock::director {

// The bytes of request bodies that a front door may hold at once, over all loops. Thread-safe.
class BodyBudget {
 public:
  explicit BodyBudget(int64_t limit) : limit_(limit) {}
  int64_t limit() const { return limit_; }
  int64_t held() const { return held_.load(std::memory_order_relaxed); }

 private:
  friend class BodyShare;
  const int64_t limit_;
  std::atomic<int64_t> held_{0};
};

// One request's part of the budget. Given back when destroyed.
class BodyShare {
 public:
  explicit BodyShare(BodyBudget& budget) : budget_(budget) {}
  BodyShare(const BodyShare&) = delete;
  BodyShare& operator=(const BodyShare&) = delete;
  ~BodyShare() { release(); }

  // False when the door holds too much; what was held before stays.
  bool resize(int64_t bytes) {
    if (bytes == held_) return true;
    const int64_t before = budget_.held_.fetch_add(bytes - held_, std::memory_order_relaxed);
    if (bytes > held_ && before + bytes - held_ > budget_.limit_) {
      budget_.held_.fetch_sub(bytes - held_, std::memory_order_relaxed);
      return false;
    }
    held_ = bytes;
    return true;
  }
  int64_t held() const { return held_; }
  void release() {
    if (held_ != 0) budget_.held_.fetch_sub(held_, std::memory_order_relaxed);
    held_ = 0;
  }

 private:
  BodyBudget& budget_;
  int64_t held_ = 0;
};

}  // namespace penstock::director
