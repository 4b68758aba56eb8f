#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <memory_resource>
#include <new>
#include <span>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace penstock {

// Memory of one request: allocation is a pointer bump, everything goes at once in reset(), which keeps
// the blocks, so a warmed-up arena never calls the heap. Destructors are not run: only for trivially
// destructible types, or pmr containers that are abandoned before reset(). Not thread-safe; owned by
// one loop.
class Arena final : public std::pmr::memory_resource {
 public:
  explicit Arena(size_t block_bytes = 16 * 1024) : block_bytes_(block_bytes) {}
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  // Uninitialised storage for `count` objects.
  template <typename T>
  std::span<T> make_span(size_t count) {
    static_assert(std::is_trivially_destructible_v<T>);
    return {static_cast<T*>(allocate_bytes(count * sizeof(T), alignof(T))), count};
  }
  // `count` value-initialised objects.
  template <typename T>
  std::span<T> make_filled(size_t count, const T& value = T{}) {
    std::span<T> out = make_span<T>(count);
    std::uninitialized_fill(out.begin(), out.end(), value);
    return out;
  }
  template <typename T, typename... Args>
  T* make(Args&&... args) {
    static_assert(std::is_trivially_destructible_v<T>);
    return new (allocate_bytes(sizeof(T), alignof(T))) T(std::forward<Args>(args)...);
  }
  std::string_view copy(std::string_view text) {
    if (text.empty()) return {};
    char* out = static_cast<char*>(allocate_bytes(text.size(), 1));
    std::memcpy(out, text.data(), text.size());
    return {out, text.size()};
  }

  void* allocate_bytes(size_t bytes, size_t alignment) {
    uintptr_t at = (reinterpret_cast<uintptr_t>(next_) + alignment - 1) & ~(alignment - 1);
    if (next_ == nullptr || at + bytes > reinterpret_cast<uintptr_t>(end_))
      return allocate_slow(bytes, alignment);
    next_ = reinterpret_cast<char*>(at + bytes);
    return reinterpret_cast<void*>(at);
  }

  // Forgets every allocation. Keeps up to `keep_bytes` of blocks for the next request.
  void reset(size_t keep_bytes = 1024 * 1024);
  // Exchanges the memory, and what is in it, with another arena.
  void swap(Arena& other) noexcept {
    std::swap(block_bytes_, other.block_bytes_);
    blocks_.swap(other.blocks_);
    std::swap(current_, other.current_);
    std::swap(next_, other.next_);
    std::swap(end_, other.end_);
    std::swap(held_bytes_, other.held_bytes_);
  }
  // Bytes of blocks held, used or not.
  size_t held_bytes() const { return held_bytes_; }

 private:
  struct Block {
    std::unique_ptr<char[]> data;
    size_t size;
  };

  void* allocate_slow(size_t bytes, size_t alignment);
  void* do_allocate(size_t bytes, size_t alignment) override { return allocate_bytes(bytes, alignment); }
  void do_deallocate(void*, size_t, size_t) override {}
  bool do_is_equal(const std::pmr::memory_resource& other) const noexcept override { return this == &other; }

  size_t block_bytes_;
  std::vector<Block> blocks_;
  size_t current_ = 0;  // index of the block `next_` points into; blocks_.size() == 0 at first
  char* next_ = nullptr;
  char* end_ = nullptr;
  size_t held_bytes_ = 0;
};

}  // namespace penstock
