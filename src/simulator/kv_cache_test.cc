#include "simulator/kv_cache.h"

#include <gtest/gtest.h>

#include <vector>

#include "base/random.h"

namespace penstock::simulator {
namespace {

TEST(KvCache, CopiesOfOneHashAreForgottenOneByOne) {
  KvCache cache(4, true);
  std::vector<uint32_t> first;
  std::vector<uint32_t> second;
  ASSERT_TRUE(cache.acquire({}, 0, 1, first));
  ASSERT_TRUE(cache.acquire({}, 0, 1, second));
  cache.publish(first[0], 42);
  cache.publish(second[0], 42);
  cache.release(first);
  cache.release(second);
  const std::vector<uint64_t> hashes = {42};
  EXPECT_EQ(cache.cached(), 2U);
  std::vector<uint32_t> taken;
  ASSERT_TRUE(cache.acquire({}, 0, 2, taken));  // the empty block and the older copy
  EXPECT_EQ(cache.cached(), 1U);
  EXPECT_EQ(cache.lookup(hashes), 1U);
  ASSERT_TRUE(cache.acquire({}, 0, 1, taken));
  EXPECT_EQ(cache.lookup(hashes), 0U);
}

TEST(KvCache, TakesNothingWhenItCannotTakeAll) {
  KvCache cache(4, true);
  std::vector<uint32_t> blocks;
  ASSERT_TRUE(cache.acquire({}, 0, 2, blocks));
  std::vector<uint32_t> more;
  EXPECT_FALSE(cache.acquire({}, 0, 2, more));
  EXPECT_TRUE(more.empty());
  EXPECT_EQ(cache.free(), 1U);
}

TEST(KvCache, AHitThatLeavesTheFreeQueueCountsAgainstIt) {
  KvCache cache(4, true);
  std::vector<uint32_t> blocks;
  ASSERT_TRUE(cache.acquire({}, 0, 1, blocks));
  cache.publish(blocks[0], 7);
  cache.release(blocks);
  const std::vector<uint64_t> hashes = {7};
  EXPECT_FALSE(cache.acquire(hashes, 1, 3, blocks));
  EXPECT_TRUE(cache.acquire(hashes, 1, 2, blocks));
  EXPECT_EQ(cache.free(), 0U);
}

TEST(KvCache, AgreesWithItsOwnAccountsUnderRandomUse) {
  KvCache cache(65, true);
  Random random(3);
  struct Held {
    std::vector<uint32_t> blocks;
  };
  std::vector<Held> held;
  for (int round = 0; round < 20000; ++round) {
    if (!held.empty() && random.below(2) == 0) {
      const size_t at = random.below(static_cast<uint32_t>(held.size()));
      cache.release(held[at].blocks);
      held.erase(held.begin() + static_cast<std::ptrdiff_t>(at));
      continue;
    }
    std::vector<uint64_t> hashes;
    const uint64_t chain = random.below(12);
    const uint32_t length = 1 + random.below(8);
    for (uint32_t i = 0; i < length; ++i) hashes.push_back(chain * 1000 + i * 64);  // many share a home slot
    const uint32_t hits = cache.lookup(hashes);
    Held one;
    if (!cache.acquire(hashes, hits, length - hits, one.blocks)) continue;
    for (uint32_t i = hits; i < length; ++i) cache.publish(one.blocks[i], hashes[i]);
    ASSERT_EQ(cache.lookup(hashes), length);
    held.push_back(std::move(one));
  }
  for (Held& one : held) cache.release(one.blocks);
  EXPECT_EQ(cache.free(), cache.usable());
  EXPECT_LE(cache.cached(), cache.usable());
  EXPECT_GT(cache.evictions(), 0U);
}

}  // namespace
}  // namespace penstock::simulator
