#include "inference/freshness.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "inference/unseen_requests.h"

namespace penstock {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

TEST(FreshnessTest, InfluenceIsWholeUpToTheBudgetThenFallsInAStraightLineToNothing) {
  const FreshnessBounds bounds{milliseconds(2000), milliseconds(10000)};
  EXPECT_EQ(bounds.influence(milliseconds(0)), 1.0);
  EXPECT_EQ(bounds.influence(milliseconds(2000)), 1.0);
  EXPECT_EQ(bounds.influence(milliseconds(4000)), 0.75);
  EXPECT_EQ(bounds.influence(milliseconds(6000)), 0.5);
  EXPECT_EQ(bounds.influence(milliseconds(10000)), 0.0);
  EXPECT_EQ(bounds.influence(seconds(1000000)), 0.0);
}

TEST(FreshnessTest, TheLeastOfASetCountsAndWhatWasNeverSeenHasNone) {
  const TimePoint now(seconds(100));
  SignalView view;
  view.resize(1);
  const auto observe = [&](Signal signal, Duration age) {
    view.state[static_cast<size_t>(signal)][0] = SignalState::kFresh;
    view.observed_at[static_cast<size_t>(signal)][0] = now - age;
  };
  observe(Signal::kWaitingRequests, seconds(1));
  observe(Signal::kKvUsage, seconds(4));
  const Freshness freshness;
  const SignalSet waiting = signal_bit(Signal::kWaitingRequests);
  EXPECT_EQ(freshness.influence(view, waiting, 0, now), 1.0);
  EXPECT_EQ(freshness.influence(view, waiting | signal_bit(Signal::kKvUsage), 0, now), 0.75);
  EXPECT_EQ(freshness.influence(view, signal_bit(Signal::kRunningRequests), 0, now), 0.0);
  EXPECT_EQ(freshness.influence(view, kAdapterBit, 0, now), 0.0);
  EXPECT_EQ(freshness.influence(view, SignalSet{0}, 0, now), 1.0) << "nothing read, nothing old";
  view.state[static_cast<size_t>(Signal::kWaitingRequests)][0] = SignalState::kNameMissing;
  EXPECT_EQ(freshness.influence(view, waiting, 0, now), 0.0);
}

TEST(UnseenRequestsTest, ARequestCountsUntilAScrapeThatBeganAfterItIsRead) {
  UnseenRequests unseen;
  unseen.add();
  unseen.add();
  EXPECT_EQ(unseen.since(0), 2U) << "nothing was ever scraped";
  const UnseenRequests::Round first = unseen.begin_round();
  for (int i = 0; i < 3; ++i) unseen.add();
  EXPECT_EQ(unseen.since(0), 5U) << "the scrape is under way, the values are those of before";
  EXPECT_EQ(unseen.since(first), 3U) << "it is read: it shows the first two";
  const UnseenRequests::Round second = unseen.begin_round();
  EXPECT_EQ(unseen.since(first), 3U);
  EXPECT_EQ(unseen.since(second), 0U);
}

TEST(UnseenRequestsTest, ARequestThatIsOverCountsNoMoreAndIsTakenOffOnce) {
  UnseenRequests unseen;
  const UnseenRequests::Round round = unseen.add();
  unseen.remove(round);
  unseen.remove(round);
  EXPECT_EQ(unseen.since(0), 0U);
}

TEST(UnseenRequestsTest, AnEndLongAfterItsRoundWasForgottenTakesNothingFromAnother) {
  UnseenRequests unseen;
  const UnseenRequests::Round old = unseen.add();
  UnseenRequests::Round round = 0;
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(unseen.since(old), 1U);
    round = unseen.begin_round();
  }
  EXPECT_EQ(unseen.since(old), 0U);
  unseen.add();
  unseen.remove(old);
  EXPECT_EQ(unseen.since(round), 1U);
}

TEST(UnseenRequestsTest, RoundsGoOnAfterTheLargestNumber) {
  UnseenRequests unseen;
  for (int i = 0; i < 65535; ++i) unseen.begin_round();
  const UnseenRequests::Round last = unseen.add();
  EXPECT_EQ(last, 65535);
  EXPECT_EQ(unseen.begin_round(), 0);
  unseen.add();
  EXPECT_EQ(unseen.since(last), 2U);
  EXPECT_EQ(unseen.since(0), 1U);
  unseen.remove(last);
  EXPECT_EQ(unseen.since(last), 1U);
}

TEST(UnseenRequestsTest, MoreThanARoundHoldsAreNotCountedAndTouchNoOther) {
  UnseenRequests unseen;
  const UnseenRequests::Round before = unseen.add();
  const UnseenRequests::Round round = unseen.begin_round();
  for (int i = 0; i < 70000; ++i) unseen.add();
  EXPECT_EQ(unseen.since(round), 65535U);
  EXPECT_EQ(unseen.since(before), 65536U);
  EXPECT_EQ(unseen.begin_round(), round + 1);
}

TEST(UnseenRequestsTest, CountsHoldWhileThreadsSendAndScrapesBegin) {
  UnseenRequests unseen;
  std::vector<std::thread> senders;
  for (int t = 0; t < 3; ++t) {
    senders.emplace_back([&] {
      for (int i = 0; i < 20000; ++i) unseen.remove(unseen.add());
    });
  }
  UnseenRequests::Round round = 0;
  for (int i = 0; i < 1000; ++i) round = unseen.begin_round();
  for (std::thread& sender : senders) sender.join();
  EXPECT_EQ(unseen.since(round), 0U);
}

}  // namespace
}  // namespace penstock
