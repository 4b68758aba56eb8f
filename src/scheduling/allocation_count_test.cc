#include "scheduling/allocation_count.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <memory>
#include <new>
#include <vector>

// ThreadSanitizer's runtime brings an operator new of its own, so nothing is counted under it; the tests that
// compare counts then hold trivially, and the other builds are the ones that tell.
#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define PENSTOCK_COUNTS_NOTHING
#endif
#endif

namespace {
std::atomic<uint64_t> news{0};
}  // namespace

#ifndef PENSTOCK_COUNTS_NOTHING
namespace {

void* counted(size_t bytes, size_t alignment) {
  news.fetch_add(1, std::memory_order_relaxed);
  void* out = std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
  if (out == nullptr) throw std::bad_alloc();
  return out;
}
}  // namespace

[[gnu::noinline]] void* operator new(size_t bytes) {
  return counted(bytes == 0 ? 1 : bytes, alignof(std::max_align_t));
}
[[gnu::noinline]] void* operator new[](size_t bytes) {
  return counted(bytes == 0 ? 1 : bytes, alignof(std::max_align_t));
}
[[gnu::noinline]] void* operator new(size_t bytes, std::align_val_t alignment) {
  return counted(bytes, static_cast<size_t>(alignment));
}
[[gnu::noinline]] void operator delete(void* p) noexcept {
  std::free(p);
}
[[gnu::noinline]] void operator delete[](void* p) noexcept {
  std::free(p);
}
[[gnu::noinline]] void operator delete(void* p, size_t) noexcept {
  std::free(p);
}
[[gnu::noinline]] void operator delete[](void* p, size_t) noexcept {
  std::free(p);
}
[[gnu::noinline]] void operator delete(void* p, std::align_val_t) noexcept {
  std::free(p);
}
[[gnu::noinline]] void operator delete(void* p, size_t, std::align_val_t) noexcept {
  std::free(p);
}

#endif  // PENSTOCK_COUNTS_NOTHING

namespace penstock::scheduling {

uint64_t allocations() {
  return news.load(std::memory_order_relaxed);
}

#ifndef PENSTOCK_COUNTS_NOTHING
TEST(AllocationCountTest, CountsEveryNew) {
  const uint64_t before = allocations();
  auto one = std::make_unique<std::vector<int>>(100);
  EXPECT_EQ(allocations() - before, 2U);
}
#endif

}  // namespace penstock::scheduling
