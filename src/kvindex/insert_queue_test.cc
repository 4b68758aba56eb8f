#include "kvindex/insert_queue.h"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <numeric>
#include <thread>
#include <vector>

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
  EXPECT_TRUE(queue.push({77, 31250, 4095}, hashes(10, 5)));
  EXPECT_TRUE(queue.push({78, 0, 1}, hashes(20, 0)));
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

TEST(InsertQueue, WhatFindsNoRoomIsDroppedAndWhatWaitsIsKept) {
  InsertQueue queue = make_queue(40 * 8);  // three records of 13 words
  for (uint64_t i = 0; i < 3; ++i) EXPECT_TRUE(queue.push({i}, hashes(i * 100, 10)));
  EXPECT_FALSE(queue.push({3}, hashes(300, 10)));
  EXPECT_FALSE(queue.push({4}, hashes(400, 100)));  // would never fit
  InsertQueue::Header header;
  std::vector<uint64_t> out;
  ASSERT_TRUE(queue.pop(header, out));
  EXPECT_EQ(header.owner, 0U);
  EXPECT_TRUE(queue.push({5}, hashes(500, 11)));  // goes round the end, and fills the ring
  EXPECT_FALSE(queue.push({6}, {}));
  for (const uint64_t owner : {1U, 2U}) {
    ASSERT_TRUE(queue.pop(header, out));
    EXPECT_EQ(header.owner, owner);
    EXPECT_EQ(out, hashes(owner * 100, 10));
  }
  ASSERT_TRUE(queue.pop(header, out));
  EXPECT_EQ(header.owner, 5U);
  EXPECT_EQ(out, hashes(500, 11));
  EXPECT_FALSE(queue.pop(header, out));
}

// Three threads push into one ring that is far too small for what they have, one takes out.
TEST(InsertQueue, RecordsOfManyThreadsComeWholeAndEachThreadsInOrder) {
  InsertQueue queue = make_queue(100 * 8);
  constexpr uint64_t kThreads = 3;
  constexpr uint64_t kRecords = 20000;
  std::array<uint64_t, kThreads> pushed{};
  std::atomic<uint64_t> left{kThreads};
  std::vector<std::thread> threads;
  for (uint64_t t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (uint64_t i = 1; i <= kRecords; ++i) {
        if (queue.push({i, static_cast<uint32_t>(t), 0}, hashes(i * 1000 + t, i % 40))) ++pushed[t];
      }
      left.fetch_sub(1, std::memory_order_release);
    });
  }
  std::array<uint64_t, kThreads> popped{};
  std::array<uint64_t, kThreads> last{};
  InsertQueue::Header header;
  std::vector<uint64_t> out;
  size_t wrong = 0;
  const auto take_all = [&] {
    while (queue.pop(header, out)) {
      const uint64_t t = header.capacity_blocks;
      if (t >= kThreads || header.owner <= last[t] ||
          out != hashes(header.owner * 1000 + t, header.owner % 40)) {
        ++wrong;
        continue;
      }
      last[t] = header.owner;
      ++popped[t];
    }
  };
  while (left.load(std::memory_order_acquire) > 0) take_all();
  for (std::thread& thread : threads) thread.join();
  take_all();
  EXPECT_EQ(wrong, 0U);
  EXPECT_EQ(popped, pushed);
}

}  // namespace
}  // namespace penstock::kvindex
