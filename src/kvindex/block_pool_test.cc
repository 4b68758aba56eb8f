#include "kvindex/block_pool.h"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "base/random.h"

namespace penstock::kvindex {
namespace {

BlockPool make_pool(size_t bytes) {
  return std::move(BlockPool::create(bytes)).value();
}

TEST(BlockPool, OrdersAreTheSmallestThatFit) {
  EXPECT_EQ(BlockPool::order_for(1), 0U);
  EXPECT_EQ(BlockPool::order_for(32), 0U);
  EXPECT_EQ(BlockPool::order_for(33), 1U);
  EXPECT_EQ(BlockPool::order_for(256), 3U);
  EXPECT_EQ(BlockPool::order_for(BlockPool::kSuperBytes), BlockPool::kMaxOrder);
}

TEST(BlockPool, TakesNoMemoryBeforeTheFirstBlockAndNeverMoreThanItsLimit) {
  BlockPool pool = make_pool(size_t{1} << 20U);
  EXPECT_EQ(pool.held_bytes(), 0U);
  size_t blocks = 0;
  while (pool.allocate(3) != 0) ++blocks;
  EXPECT_GE(blocks * 256, (size_t{1} << 20U) * 9 / 10);
  EXPECT_LE(pool.held_bytes(), size_t{1} << 20U);
  EXPECT_EQ(pool.room_bytes(), 0U);
}

TEST(BlockPool, GrowsByFourPagesAtATimeAndPiecesNotUsedJoin) {
  BlockPool pool = make_pool(size_t{1} << 20U);
  constexpr size_t kPages = size_t{16} << 10U;
  constexpr size_t kBits = kPages / BlockPool::kUnitBytes / 8;
  const BlockPool::Ref small = pool.allocate(0);
  EXPECT_EQ(pool.held_bytes(), kPages + kBits);
  // The rest of the first piece, and no more, serves what fits there.
  EXPECT_NE(pool.allocate(8), 0U);
  EXPECT_EQ(pool.held_bytes(), kPages + kBits);
  // What is larger than a piece takes as many as it needs to lie at a multiple of its size.
  const BlockPool::Ref large = pool.allocate(BlockPool::kMaxOrder);
  EXPECT_EQ(large % (1U << BlockPool::kMaxOrder), 0U);
  EXPECT_EQ(pool.held_bytes(), 4 * (kPages + kBits));
  // The piece that was passed over is there for the next.
  EXPECT_NE(pool.allocate(9), 0U);
  EXPECT_EQ(pool.held_bytes(), 4 * (kPages + kBits));
  pool.release(small, 0);
  pool.release(large, BlockPool::kMaxOrder);
  EXPECT_NE(pool.allocate(BlockPool::kMaxOrder), 0U);
  EXPECT_EQ(pool.held_bytes(), 4 * (kPages + kBits));
}

TEST(BlockPool, WhatSmallBlocksGaveBackServesLargeOnes) {
  BlockPool pool = make_pool(size_t{1} << 20U);
  std::vector<BlockPool::Ref> small;
  for (BlockPool::Ref ref = pool.allocate(0); ref != 0; ref = pool.allocate(0)) small.push_back(ref);
  EXPECT_EQ(pool.allocate(BlockPool::kMaxOrder), 0U);
  for (const BlockPool::Ref ref : small) pool.release(ref, 0);
  EXPECT_EQ(pool.used_bytes(), 0U);
  EXPECT_NE(pool.allocate(BlockPool::kMaxOrder), 0U);
}

TEST(BlockPool, BlocksNeverOverlap) {
  BlockPool pool = make_pool(size_t{4} << 20U);
  Random random(7);
  struct Held {
    BlockPool::Ref ref;
    unsigned order;
    uint8_t fill;
  };
  std::vector<Held> held;
  const auto intact = [&pool](const Held& block) {
    const auto* bytes = pool.at<const uint8_t>(block.ref);
    for (size_t i = 0; i < BlockPool::kUnitBytes << block.order; ++i) {
      if (bytes[i] != block.fill) return false;
    }
    return true;
  };
  size_t used = 0;
  for (int step = 0; step < 20000; ++step) {
    if (random.below(2) == 0) {
      const auto order = random.below(8);
      const BlockPool::Ref ref = pool.allocate(order);
      if (ref == 0) continue;
      const auto fill = static_cast<uint8_t>(random.below(256));
      std::memset(pool.at<char>(ref), fill, BlockPool::kUnitBytes << order);
      held.push_back({ref, order, fill});
      used += BlockPool::kUnitBytes << order;
    } else if (!held.empty()) {
      const size_t i = random.below(static_cast<uint32_t>(held.size()));
      ASSERT_TRUE(intact(held[i])) << "step " << step;
      pool.release(held[i].ref, held[i].order);
      used -= BlockPool::kUnitBytes << held[i].order;
      held[i] = held.back();
      held.pop_back();
    }
    ASSERT_EQ(pool.used_bytes(), used);
  }
}

TEST(BlockPool, AnyReferenceCanBeRead) {
  BlockPool pool = make_pool(size_t{1} << 20U);
  EXPECT_EQ(*pool.at<uint64_t>(0), 0U);
  EXPECT_EQ(*pool.at<uint64_t>(0xFFFFFFFF), 0U);
  const auto last = static_cast<BlockPool::Ref>(pool.room_bytes() / BlockPool::kUnitBytes +
                                                (1U << BlockPool::kMaxOrder) - 1);
  EXPECT_EQ(pool.at<uint64_t>(last)[BlockPool::kSuperBytes / sizeof(uint64_t) - 1], 0U);
}

}  // namespace
}  // namespace penstock::kvindex
