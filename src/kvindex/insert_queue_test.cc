#include "kvindex/insert_queue.h"

#include <gtest/gtest.h>

#include <numeric>

namespace penstock::kvindex {
namespace {

InsertQueue make_queue(size_t bytes) {
  return InsertQueue(std::move(Mapping::reserve(bytes)).value(), bytes);
}

std::vector<uint64_t> hashes(uint64_t from, size_t count) {
  std::vector<uint64_t> out(count);
  std::iota(out.begin(), out.end(), from);
  return out;
}

TEST(InsertQueue, GivesRecordsBackInOrder) {
  InsertQueue queue = make_queue(1024);
  EXPECT_TRUE(queue.push({77, 31250, 4095}, hashes(10, 5)).queued);
  EXPECT_TRUE(queue.push({78, 0, 1}, hashes(20, 0)).queued);
  InsertQueue::Header header;
  std::vector<uint64_t> out;
  ASSERT_TRUE(queue.pop(header, out));
  EXPECT_EQ(header.owner, 77U);
  EXPECT_EQ(header.capacity_blocks, 31250U);
  EXPECT_EQ(header.slot, 4095);
  EXPECT_EQ(out, hashes(10, 5));
  ASSERT_TRUE(queue.pop(header, out));
  EXPECT_EQ(header.slot, 1);
  EXPECT_TRUE(out.empty());
  EXPECT_FALSE(queue.pop(header, out));
}

TEST(InsertQueue, AFullQueueDropsItsOldestRecordsAndSaysHowMany) {
  InsertQueue queue = make_queue(40 * 8);  // three records of 13 words
  for (uint64_t i = 0; i < 3; ++i) EXPECT_EQ(queue.push({i}, hashes(i * 100, 10)).dropped, 0U);
  EXPECT_EQ(queue.push({3}, hashes(300, 10)).dropped, 1U);
  EXPECT_EQ(queue.push({4}, hashes(400, 20)).dropped, 2U);
  InsertQueue::Header header;
  std::vector<uint64_t> out;
  ASSERT_TRUE(queue.pop(header, out));
  EXPECT_EQ(header.owner, 3U);
  EXPECT_EQ(out, hashes(300, 10));
  ASSERT_TRUE(queue.pop(header, out));
  EXPECT_EQ(out, hashes(400, 20));
  EXPECT_FALSE(queue.pop(header, out));
}

TEST(InsertQueue, ARecordThatNeverFitsIsDroppedAlone) {
  InsertQueue queue = make_queue(40 * 8);
  EXPECT_TRUE(queue.push({1}, hashes(0, 10)).queued);
  const InsertQueue::Push push = queue.push({2}, hashes(0, 100));
  EXPECT_FALSE(push.queued);
  EXPECT_EQ(push.dropped, 1U);
  InsertQueue::Header header;
  std::vector<uint64_t> out;
  EXPECT_TRUE(queue.pop(header, out));
}

}  // namespace
}  // namespace penstock::kvindex
