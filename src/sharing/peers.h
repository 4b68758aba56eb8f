#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/clock.h"
#include "sharing/records.h"
#include "sharing/resp.h"
#include "sharing/store_connection.h"

namespace penstock::sharing {

enum class PeerState : uint8_t {
  kFresh,         // its load counts
  kStale,         // told nothing within the bound: its load is unknown, and counts as none
  kOtherVersion,  // of another record format
  kUnreadable,    // not a record at all
};
std::string_view peer_state_name(PeerState state);

// What the other replicas of one pool last told of their load, each with a bound on its age that needs no
// clocks in step: a sender writes down the earliest the store's clock can have shown when it read its
// counters, a reader takes the latest it can have shown when the record came to it; the difference, and the
// local time since, is the most the record can be old. A step of the store's clock makes ages wrong until the
// senders' next records. One thread's.
class Peers {
 public:
  static constexpr size_t kMaxPeers = 64;
  // A field nobody has written for so long is removed from the store.
  static constexpr Duration kForgotten = std::chrono::minutes(1);

  struct Peer {
    std::string id;           // of the replica
    std::string incarnation;  // of its process
    PeerState state = PeerState::kUnreadable;
    bool same_hashing = true;
    LoadRecord record;
    uint64_t unread = 0;  // hash of a record that is not understood
    // No earlier, by the local clock; of a record that is not understood, when it was first seen as it is.
    TimePoint sampled_at = kNever;

    Duration age(TimePoint now) const { return now - sampled_at; }
  };

  // `own`: the field this replica writes. `bound`: on the age of what counts.
  Peers(std::string own, Duration bound, uint64_t hashing);

  // Everything the store holds of the pool: field, record, field, record …, as `clock` was read.
  void take(std::span<const RespReply> fields_and_records, const StoreClock& clock);
  // Lets go of those that are beyond the bound at `now`; true when there were such.
  bool fade(TimePoint now);
  // Requests, tokens and unseen requests of all fresh peers, by endpoint.
  struct Sum {
    uint64_t requests = 0;
    uint64_t tokens = 0;
    uint64_t unseen = 0;
  };
  void sum(std::unordered_map<uint64_t, Sum>& out) const;

  // By field.
  const std::map<std::string, Peer, std::less<>>& all() const { return peers_; }
  // Fields that nobody has written for long.
  std::vector<std::string> forgotten(TimePoint now) const;
  // Fields beyond kMaxPeers, at the last take().
  size_t left_out() const { return left_out_; }

 private:
  void take_one(std::string_view field, std::string_view record, const StoreClock& clock);

  std::string own_;
  Duration bound_;
  uint64_t hashing_;
  std::map<std::string, Peer, std::less<>> peers_;
  size_t left_out_ = 0;
};

// "<id>/<incarnation>", the field of a replica.
std::string peer_field(std::string_view id, uint64_t incarnation);

}  // namespace penstock::sharing
