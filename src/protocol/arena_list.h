#pragma once

#include <cstring>
#include <span>
#include <type_traits>

#include "base/arena.h"

namespace penstock::protocol {

// A growing list in an arena. Growing leaves the old storage behind until the arena is reset.
template <typename T>
class ArenaList {
  static_assert(std::is_trivially_copyable_v<T>);

 public:
  explicit ArenaList(Arena& arena) : arena_(&arena) {}

  void push_back(const T& value) {
    if (size_ == storage_.size()) {
      std::span<T> larger = arena_->make_span<T>(size_ == 0 ? 16 : 2 * size_);
      if (size_ != 0) std::memcpy(larger.data(), storage_.data(), size_ * sizeof(T));
      storage_ = larger;
    }
    new (&storage_[size_++]) T(value);
  }
  void truncate(size_t size) { size_ = size < size_ ? size : size_; }
  size_t size() const { return size_; }
  T& operator[](size_t i) { return storage_[i]; }
  std::span<T> view() const { return storage_.first(size_); }

 private:
  Arena* arena_;
  std::span<T> storage_;
  size_t size_ = 0;
};

}  // namespace penstock::protocol
