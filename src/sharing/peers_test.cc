#include "sharing/peers.h"

#include <gtest/gtest.h>

namespace penstock::sharing {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

// A store whose clock began at 1,000,000 s when the local one said 0, and what it holds.
struct Held : ::testing::Test {
  static constexpr uint64_t kStoreBegin = 1'000'000'000'000;
  static TimePoint at(Duration local) { return TimePoint(local); }
  // The store's clock as a reader finds it who asks at `asked` and is answered after `trip`.
  static StoreClock clock(Duration asked, Duration trip = milliseconds(2)) {
    const auto middle = asked + trip / 2;
    return {kStoreBegin + static_cast<uint64_t>(middle.count() / 1000), at(asked), at(asked + trip)};
  }
  // As if the replica had read its counters at `sampled`, knowing the store's clock perfectly.
  void write(const std::string& id, uint64_t sequence, Duration sampled, std::vector<SharedLoad> loads,
             uint64_t hashing = 1) {
    LoadRecord record{kStoreBegin + static_cast<uint64_t>(sampled.count() / 1000), sequence, hashing,
                      std::move(loads)};
    std::string bytes;
    append_load_record(bytes, record);
    put(peer_field(id, 5), bytes);
  }
  void put(const std::string& field, const std::string& bytes) { fields[field] = bytes; }
  void read(Duration asked, Duration trip = milliseconds(2)) {
    std::vector<RespReply> items;
    for (const auto& [field, bytes] : fields) {
      items.push_back({RespReply::Kind::kText, field, 0, {}});
      items.push_back({RespReply::Kind::kText, bytes, 0, {}});
    }
    peers.take(items, clock(asked, trip));
  }
  uint64_t requests(uint64_t endpoint = 1) {
    peers.sum(sums);
    const auto found = sums.find(endpoint);
    return found == sums.end() ? 0 : found->second.requests;
  }
  PeerState state(const std::string& id) { return peers.all().at(peer_field(id, 5)).state; }

  std::map<std::string, std::string> fields;
  Peers peers{peer_field("me", 5), seconds(1), 1};
  std::unordered_map<uint64_t, Peers::Sum> sums;
};

TEST_F(Held, LoadsOfAllOthersAreAdded) {
  write("me", 1, milliseconds(10), {{1, 50, 0, 0}});
  write("a", 1, milliseconds(10), {{1, 2, 1, 100}, {2, 1, 0, 7}});
  write("b", 4, milliseconds(12), {{1, 3, 2, 10}});
  read(milliseconds(20));
  peers.sum(sums);
  EXPECT_EQ(sums[1].requests, 5U);
  EXPECT_EQ(sums[1].tokens, 110U);
  EXPECT_EQ(sums[1].unseen, 3U);
  EXPECT_EQ(sums[2].requests, 1U);
}

TEST_F(Held, AgeIsTheMostThatItCanBe) {
  write("a", 1, milliseconds(100), {{1, 2, 0, 0}});
  read(milliseconds(200), milliseconds(40));
  // 240 ms by the local clock; the store was asked somewhere within 40 ms, so up to 20 ms more than true.
  EXPECT_EQ(peers.all().begin()->second.age(at(milliseconds(240))), milliseconds(160));
  EXPECT_EQ(peers.all().begin()->second.age(at(milliseconds(300))), milliseconds(220));
}

TEST_F(Held, WhatIsOlderThanTheBoundIsUnknownAndCountsAsNothing) {
  write("a", 1, milliseconds(0), {{1, 2, 0, 0}});
  read(milliseconds(10));
  EXPECT_FALSE(peers.fade(at(milliseconds(900))));
  EXPECT_EQ(requests(), 2U);
  EXPECT_TRUE(peers.fade(at(milliseconds(1010))));
  EXPECT_EQ(requests(), 0U);
  EXPECT_EQ(state("a"), PeerState::kStale);
  read(milliseconds(1020));
  EXPECT_EQ(requests(), 0U) << "reading the same record again makes it no younger";
  write("a", 2, milliseconds(1030), {{1, 3, 0, 0}});
  read(milliseconds(1040));
  EXPECT_EQ(requests(), 3U) << "it is back";
}

TEST_F(Held, ARecordThatADeadReplicaLeftIsStaleForANewcomerAtOnce) {
  write("dead", 9, milliseconds(0), {{1, 2, 0, 0}});
  read(seconds(5));
  EXPECT_EQ(requests(), 0U);
  EXPECT_EQ(state("dead"), PeerState::kStale);
  EXPECT_TRUE(peers.forgotten(at(seconds(50))).empty());
  EXPECT_EQ(peers.forgotten(at(seconds(61))).size(), 1U) << "and removed in the end";
}

TEST_F(Held, ARecordThatWasLongOnItsWayIsAsOldAsItsSample) {
  read(milliseconds(0));
  write("a", 1, milliseconds(10), {{1, 2, 0, 0}});  // sent then, but the store stood still
  read(seconds(3));
  EXPECT_EQ(requests(), 0U);
}

TEST_F(Held, AClockOfTheStoreThatWentBackMakesNothingYoungerForLong) {
  write("a", 1, seconds(5), {{1, 2, 0, 0}});
  read(seconds(1));  // it says 1 s now, the record 5 s
  EXPECT_EQ(requests(), 2U);
  read(milliseconds(1900));
  EXPECT_TRUE(peers.fade(at(milliseconds(2010)))) << "the local clock counts from when it was first seen";
  EXPECT_EQ(requests(), 0U);
}

TEST_F(Held, AReplicaThatLeavesIsGoneAtOnce) {
  write("a", 1, milliseconds(0), {{1, 2, 0, 0}});
  read(milliseconds(10));
  fields.clear();
  read(milliseconds(20));
  EXPECT_EQ(requests(), 0U);
  EXPECT_TRUE(peers.all().empty());
}

TEST_F(Held, RecordsOfOtherVersionsAndWhatIsNoneHaveNames) {
  write("a", 1, milliseconds(0), {{1, 2, 0, 0}});
  fields[peer_field("a", 5)][3] = 9;
  put("junk", "hello");
  put("no utf-8 \xff", "x");
  read(milliseconds(10));
  EXPECT_EQ(state("a"), PeerState::kOtherVersion);
  EXPECT_EQ(peers.all().at("junk").state, PeerState::kUnreadable);
  EXPECT_EQ(peers.left_out(), 1U);
  EXPECT_EQ(requests(), 0U);
}

TEST_F(Held, RecordsThatAreNotUnderstoodAreForgottenWhenNobodyWritesThemAnyMore) {
  write("dead", 1, milliseconds(0), {{1, 2, 0, 0}});
  write("live", 1, milliseconds(0), {{1, 2, 0, 0}});
  fields[peer_field("dead", 5)][3] = 9;
  fields[peer_field("live", 5)][3] = 9;
  put("junk", "hello");
  read(milliseconds(10));
  fields[peer_field("live", 5)].back() = 'x';
  read(seconds(50));
  EXPECT_TRUE(peers.forgotten(at(seconds(59))).empty());
  EXPECT_EQ(peers.forgotten(at(seconds(62))), (std::vector<std::string>{peer_field("dead", 5), "junk"}))
      << "and of another version is no reason to keep one for ever";
}

TEST_F(Held, OfMoreReplicasThanTheBoundTheRestIsLeftOut) {
  for (int i = 0; i < 70; ++i) write("r" + std::to_string(i), 1, milliseconds(0), {{1, 1, 0, 0}});
  read(milliseconds(10));
  EXPECT_EQ(requests(), Peers::kMaxPeers);
  EXPECT_EQ(peers.left_out(), 70 - Peers::kMaxPeers);
}

TEST_F(Held, AnotherWayToHashIsNotedAndTheLoadCountsAllTheSame) {
  write("a", 1, milliseconds(0), {{1, 2, 0, 0}}, 77);
  read(milliseconds(10));
  EXPECT_FALSE(peers.all().begin()->second.same_hashing);
  EXPECT_EQ(requests(), 2U);
}

}  // namespace
}  // namespace penstock::sharing
