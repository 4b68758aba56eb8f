#pragma once

#include <memory>
#include <mutex>

#include "inference/endpoint.h"

namespace penstock::scheduling {

// What a plugin derives from the membership of its pool, made once for each epoch instead of with every
// request; rows by Candidate fit every snapshot of that epoch. May hold views into the snapshot's endpoints:
// it is given out for their epoch only. Thread-safe; a lock for the copy of a pointer, or while it is made.
template <typename T>
class EpochCache {
 public:
  // `make(pool)` gives a T; `replaced(before, now)` is called with it when the epoch moved, `before` being
  // nullptr at first.
  template <typename Make, typename Replaced>
  std::shared_ptr<const T> get(const PoolSnapshot& pool, Make&& make, Replaced&& replaced) {
    const std::lock_guard lock(mutex_);
    if (made_ != nullptr && made_->epoch == pool.epoch && !stale_) return {made_, &made_->value};
    stale_ = false;
    auto made = std::make_shared<const Made>(Made{pool.epoch, make(pool)});
    replaced(made_ == nullptr ? nullptr : &made_->value, made->value);
    made_ = std::move(made);
    return {made_, &made_->value};
  }
  template <typename Make>
  std::shared_ptr<const T> get(const PoolSnapshot& pool, Make&& make) {
    return get(pool, make, [](const T*, const T&) {});
  }
  // Something else that it is made of has changed: the next get() makes it anew.
  void renew() {
    const std::lock_guard lock(mutex_);
    stale_ = true;
  }

 private:
  struct Made {
    uint64_t epoch;
    T value;
  };
  std::mutex mutex_;
  std::shared_ptr<const Made> made_;
  bool stale_ = false;
};

}  // namespace penstock::scheduling
