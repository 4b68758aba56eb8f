#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>

namespace penstock::director {

// An immutable value that is swapped as a whole: policies, rewrite rules, route tables. Thread-safe.
// Loops read it through PublishedReader, which costs one atomic load while nothing changed.
template <typename T>
class Published {
 public:
  Published() = default;
  explicit Published(std::shared_ptr<const T> value) { publish(std::move(value)); }

  void publish(std::shared_ptr<const T> value) {
    const std::lock_guard lock(mutex_);
    value_ = std::move(value);
    version_.fetch_add(1, std::memory_order_release);
  }
  std::shared_ptr<const T> get() const {
    const std::lock_guard lock(mutex_);
    return value_;
  }
  uint64_t version() const { return version_.load(std::memory_order_acquire); }

 private:
  mutable std::mutex mutex_;
  std::shared_ptr<const T> value_;
  std::atomic<uint64_t> version_{0};
};

// One loop's view of a Published value, which must outlive it. Not thread-safe.
template <typename T>
class PublishedReader {
 public:
  explicit PublishedReader(const Published<T>& source) : source_(source) {}
  // The newest value, nullptr before the first publication. Valid until the next call.
  const std::shared_ptr<const T>& current() {
    const uint64_t version = source_.version();
    if (version != version_) {
      value_ = source_.get();
      version_ = version;
    }
    return value_;
  }

 private:
  const Published<T>& source_;
  uint64_t version_ = 0;
  std::shared_ptr<const T> value_;
};

}  // namespace penstock::director
