#include "base/arena.h"

#include <gtest/gtest.h>

namespace penstock {
namespace {

TEST(ArenaTest, KeepsAllocationsApartAndAligned) {
  Arena arena(256);
  auto bytes = arena.make_filled<char>(3, 'x');
  auto words = arena.make_filled<uint64_t>(10, 7);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(words.data()) % alignof(uint64_t), 0U);
  auto large = arena.make_filled<uint32_t>(1000, 9);
  EXPECT_EQ(bytes[2], 'x');
  EXPECT_EQ(words[9], 7U);
  EXPECT_EQ(large[999], 9U);
}

TEST(ArenaTest, HoldsNoMoreAfterTheSameLoadAgain) {
  Arena arena(256);
  size_t held = 0;
  for (int round = 0; round < 5; ++round) {
    for (int i = 0; i < 20; ++i) arena.make_span<char>(100 + static_cast<size_t>(i) * 10);
    if (round == 0) held = arena.held_bytes();
    EXPECT_EQ(arena.held_bytes(), held);
    arena.reset();
  }
}

TEST(ArenaTest, GivesBackWhatIsAboveTheKeepLimit) {
  Arena arena(256);
  arena.make_span<char>(4 << 20);
  arena.reset(1 << 20);
  EXPECT_LE(arena.held_bytes(), 1U << 20);
}

}  // namespace
}  // namespace penstock
