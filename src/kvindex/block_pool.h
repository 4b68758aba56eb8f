#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "base/result.h"

namespace penstock::kvindex {

// A word that one thread writes while others read it: every access is a relaxed atomic, ordering comes
// from acquire(), release() and fences around it.
template <typename T>
class Cell {
 public:
  operator T() const { return value_.load(std::memory_order_relaxed); }
  Cell& operator=(T value) {
    value_.store(value, std::memory_order_relaxed);
    return *this;
  }
  Cell& operator=(const Cell& other) { return *this = static_cast<T>(other); }
  T acquire() const { return value_.load(std::memory_order_acquire); }
  void release(T value) { value_.store(value, std::memory_order_release); }

 private:
  std::atomic<T> value_;
};

// Address space that is there at once and costs memory page by page as it is touched; zero at first.
class Mapping {
 public:
  Mapping() = default;
  Mapping(Mapping&& other) noexcept;
  Mapping& operator=(Mapping&& other) noexcept;
  ~Mapping();
  static Result<Mapping> reserve(size_t bytes);
  char* data() const { return data_; }

 private:
  char* data_ = nullptr;
  size_t bytes_ = 0;
};

// Memory of the prefix index: blocks of 32 B << order from one growing region, in the manner of a buddy
// allocator, so that what long runs gave back serves short ones and the reverse. Memory is never unmapped
// while the pool lives: a reader that follows a stale reference sees other data, not a fault. The region
// grows by 16 KiB at a time, so that no allocation but one larger than that waits for more than four pages of
// the system. Allocation and release belong to one writer; at() may be called from anywhere.
class BlockPool {
 public:
  // Unit number of a block; 0: none.
  using Ref = uint32_t;
  static constexpr size_t kUnitBytes = 32;
  static constexpr unsigned kMaxOrder = 10;
  static constexpr size_t kSuperBytes = kUnitBytes << kMaxOrder;

  // At most `limit_bytes` are ever handed out, bookkeeping (0.4 %) included.
  static Result<BlockPool> create(size_t limit_bytes);

  // 0 when nothing of that size is free and the limit is reached. Contents are undefined.
  Ref allocate(unsigned order);
  void release(Ref ref, unsigned order);

  // Any number gives a readable address: numbers out of range give the zero page at 0, and one block of
  // the highest order fits behind the last unit.
  template <typename T>
  T* at(Ref ref) const {
    return reinterpret_cast<T*>(base_ + static_cast<size_t>(ref < units_limit_ ? ref : 0) * kUnitBytes);
  }

  // Bytes of memory taken from the system so far, bookkeeping included.
  size_t held_bytes() const { return held_bytes_.load(std::memory_order_relaxed); }
  // Bytes in allocated blocks.
  size_t used_bytes() const { return used_bytes_.load(std::memory_order_relaxed); }
  // Bytes the region can still grow by.
  size_t room_bytes() const { return static_cast<size_t>(units_limit_ - units_end_) * kUnitBytes; }

  static unsigned order_for(size_t bytes);

  BlockPool(BlockPool&&) noexcept;
  BlockPool& operator=(BlockPool&&) = delete;

 private:
  struct FreeBlock {
    Cell<uint32_t> next;
    Cell<uint32_t> prev;
    Cell<uint32_t> order;
  };

  BlockPool(Mapping region, Mapping bits, uint32_t units_limit);
  void push(Ref ref, unsigned order);
  void unlink(Ref ref, unsigned order);
  void add_free(Ref ref, unsigned order);
  bool extend(unsigned order);
  bool is_free(Ref ref) const { return (bits_[ref / 64] >> (ref % 64)) & 1; }

  Mapping region_;
  Mapping bits_mapping_;
  char* base_;
  uint64_t* bits_;  // one bit a unit: a free block starts here
  uint32_t units_limit_;
  uint32_t units_end_;  // units below have been handed to the free lists
  uint32_t nonempty_ = 0;
  std::array<Ref, kMaxOrder + 1> free_{};
  std::atomic<size_t> held_bytes_{0};
  std::atomic<size_t> used_bytes_{0};
};

}  // namespace penstock::kvindex
