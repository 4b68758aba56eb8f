#include "signals/signal_table.h"

#include <gtest/gtest.h>

#include <thread>

namespace penstock::signals {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr TimePoint kStart{seconds(1000)};

PoolSnapshot pool_of(std::initializer_list<EndpointSlot> slots, uint64_t epoch) {
  PoolSnapshot pool;
  pool.epoch = epoch;
  for (const EndpointSlot slot : slots) {
    auto endpoint = std::make_shared<Endpoint>();
    endpoint->slot = slot;
    pool.endpoints.push_back(std::move(endpoint));
  }
  return pool;
}

SignalRow row_of(double waiting, TimePoint at) {
  SignalRow row;
  row.at(Signal::kWaitingRequests) = {waiting, at, SignalState::kFresh};
  row.lora.state = SignalState::kFresh;
  row.lora.observed_at = at;
  row.lora.max_adapters = 4;
  row.lora.running_count = 2;
  row.lora.running[0] = 7;
  row.lora.running[1] = 9;
  row.lora.waiting_count = 1;
  row.lora.waiting[0] = 9;
  return row;
}

TEST(SignalTableTest, ARowReadsAsItWasWritten) {
  SignalTable table;
  const auto ticket = table.attach(3, kStart);
  ASSERT_TRUE(table.write(ticket, row_of(5, kStart), kStart));
  const SignalRow row = table.read(3);
  EXPECT_EQ(row.at(Signal::kWaitingRequests).value, 5);
  EXPECT_EQ(row.at(Signal::kWaitingRequests).state, SignalState::kFresh);
  EXPECT_EQ(row.at(Signal::kKvUsage).state, SignalState::kNeverSeen);
  EXPECT_TRUE(row.lora.is_running(7));
  EXPECT_TRUE(row.lora.is_running(9));
  EXPECT_TRUE(row.lora.is_waiting(9));
  EXPECT_FALSE(row.lora.is_waiting(7));
  EXPECT_EQ(row.lora.max_adapters, 4);
  EXPECT_EQ(table.read(4000).at(Signal::kWaitingRequests).state, SignalState::kNeverSeen);
}

TEST(SignalTableTest, ALateWriteToAReusedSlotIsDropped) {
  SignalTable table;
  const auto old = table.attach(1, kStart);
  table.write(old, row_of(5, kStart), kStart);
  const auto young = table.attach(1, kStart);
  EXPECT_EQ(table.read(1).at(Signal::kWaitingRequests).state, SignalState::kNeverSeen);
  EXPECT_FALSE(table.write(old, row_of(6, kStart), kStart));
  table.detach(old, kStart);
  EXPECT_TRUE(table.write(young, row_of(7, kStart), kStart));
  table.detach(young, kStart);
  EXPECT_FALSE(table.write(young, row_of(8, kStart), kStart));
  EXPECT_EQ(table.read(1).at(Signal::kWaitingRequests).state, SignalState::kNeverSeen);
}

TEST(SignalTableTest, ManyWritesWithinTheWindowAreOnePublication) {
  SignalTable table(milliseconds(10));
  const auto ticket = table.attach(0, kStart);
  const uint64_t first = table.epoch(kStart);
  for (int i = 1; i < 10; ++i) table.write(ticket, row_of(i, kStart), kStart + milliseconds(i));
  EXPECT_EQ(table.epoch(kStart + milliseconds(9)), first);
  EXPECT_EQ(table.epoch(kStart + milliseconds(10)), first + 1);
  EXPECT_EQ(table.epoch(kStart + milliseconds(50)), first + 1);
  table.write(ticket, row_of(1, kStart), kStart + milliseconds(60));
  EXPECT_EQ(table.epoch(kStart + milliseconds(60)), first + 2) << "an idle table publishes at once";
}

TEST(FrameReaderTest, FollowsRowsAndMembership) {
  SignalTable table;
  const auto a = table.attach(10, kStart);
  const auto b = table.attach(20, kStart);
  table.write(a, row_of(1, kStart), kStart);
  FrameReader reader(table, seconds(2));
  SignalView view;
  reader.refresh(pool_of({10, 20}, 1), view, kStart);
  EXPECT_EQ(view.at(Signal::kWaitingRequests, 0).value, 1);
  EXPECT_EQ(view.at(Signal::kWaitingRequests, 1).state, SignalState::kNeverSeen);
  EXPECT_TRUE(view.lora[0]->is_running(7));

  const TimePoint later = kStart + milliseconds(20);
  table.write(b, row_of(2, later), later);
  reader.refresh(pool_of({10, 20}, 1), view, later);
  EXPECT_EQ(view.at(Signal::kWaitingRequests, 1).value, 2);

  reader.refresh(pool_of({20}, 2), view, later);
  ASSERT_EQ(view.lora.size(), 1U);
  EXPECT_EQ(view.at(Signal::kWaitingRequests, 0).value, 2);
  EXPECT_TRUE(view.lora[0]->is_waiting(9));
}

TEST(FrameReaderTest, TheOldestValueOfThePoolIsKnownOnlyWhereEveryEndpointHasOne) {
  SignalTable table;
  const auto a = table.attach(10, kStart);
  const auto b = table.attach(20, kStart);
  table.write(a, row_of(1, kStart), kStart);
  FrameReader reader(table, seconds(2));
  SignalView view;
  const auto oldest = [&](size_t s) { return view.oldest[s]; };
  reader.refresh(pool_of({10, 20}, 1), view, kStart);
  EXPECT_EQ(oldest(0), kNever);

  const TimePoint later = kStart + seconds(1);
  table.write(b, row_of(2, later), later);
  reader.refresh(pool_of({10, 20}, 1), view, later);
  EXPECT_EQ(oldest(0), kStart);
  EXPECT_EQ(oldest(kSignalCount), kStart) << "adapter lists";
  EXPECT_EQ(oldest(static_cast<size_t>(Signal::kKvUsage)), kNever);

  SignalRow down = row_of(1, kStart);
  down.at(Signal::kWaitingRequests).state = SignalState::kEndpointDown;
  table.write(a, down, later);
  reader.refresh(pool_of({10, 20}, 1), view, later + seconds(1));
  EXPECT_EQ(oldest(0), kStart) << "it was known once, and its age tells";
  down.at(Signal::kWaitingRequests).state = SignalState::kNameMissing;
  table.write(a, down, later + seconds(1));
  reader.refresh(pool_of({10, 20}, 1), view, later + seconds(2));
  EXPECT_EQ(oldest(0), kNever);
}

TEST(FrameReaderTest, ARowTellsWhichRequestsItShows) {
  SignalTable table;
  const auto ticket = table.attach(4, kStart);
  SignalRow row = row_of(1, kStart);
  row.shown_round = 77;
  table.write(ticket, row, kStart);
  EXPECT_EQ(table.read(4).shown_round, 77U);
  EXPECT_TRUE(table.read(4).lora.is_running(9)) << "what lies behind it in the row";
  FrameReader reader(table, seconds(2));
  SignalView view;
  reader.refresh(pool_of({4}, 1), view, kStart);
  EXPECT_EQ(view.shown_round[0], 77U);
}

TEST(FrameReaderTest, AFreshValueGoesStaleWithoutAnyWrite) {
  SignalTable table;
  const auto ticket = table.attach(0, kStart);
  SignalRow row = row_of(1, kStart);
  row.at(Signal::kKvUsage).state = SignalState::kNameMissing;
  table.write(ticket, row, kStart);
  FrameReader reader(table, milliseconds(200));
  SignalView view;
  const PoolSnapshot pool = pool_of({0}, 1);
  reader.refresh(pool, view, kStart + milliseconds(200));
  EXPECT_EQ(view.at(Signal::kWaitingRequests, 0).state, SignalState::kFresh);
  reader.refresh(pool, view, kStart + milliseconds(201));
  EXPECT_EQ(view.at(Signal::kWaitingRequests, 0).state, SignalState::kStale);
  EXPECT_EQ(view.at(Signal::kWaitingRequests, 0).value, 1);
  EXPECT_EQ(view.at(Signal::kKvUsage, 0).state, SignalState::kNameMissing);
  EXPECT_EQ(view.lora[0]->state, SignalState::kStale);
  const TimePoint again = kStart + milliseconds(300);
  table.write(ticket, row_of(4, again), again);
  reader.refresh(pool, view, again);
  EXPECT_EQ(view.at(Signal::kWaitingRequests, 0).state, SignalState::kFresh);
}

TEST(SignalTableTest, ReadersNeverSeeHalfARow) {
  SignalTable table;
  const auto ticket = table.attach(0, kStart);
  std::atomic<bool> stop{false};
  std::thread writer([&] {
    SignalRow row;
    for (uint64_t n = 0; n < 20000; ++n) {
      for (auto& v : row.signals) v = {static_cast<double>(n), kStart + Duration(n), SignalState::kFresh};
      row.lora.running_count = static_cast<uint16_t>(n % kMaxAdapters);
      row.lora.running.fill(n);
      table.write(ticket, row, kStart);
    }
    stop = true;
  });
  while (!stop) {
    const SignalRow row = table.read(0);
    const double n = row.signals[0].value;
    for (const auto& v : row.signals) ASSERT_EQ(v.value, n);
    for (size_t i = 0; i < row.lora.running_count; ++i) ASSERT_EQ(row.lora.running[i], n);
  }
  writer.join();
}

}  // namespace
}  // namespace penstock::signals
