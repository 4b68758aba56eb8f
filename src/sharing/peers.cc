#include "sharing/peers.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "base/hash.h"
#include "base/strings.h"

namespace penstock::sharing {

namespace {

constexpr size_t kMaxField = 300;
constexpr Duration kOldest = std::chrono::hours(24);

}  // namespace

std::string_view peer_state_name(PeerState state) {
  switch (state) {
    case PeerState::kFresh:
      return "fresh";
    case PeerState::kStale:
      return "stale";
    case PeerState::kOtherVersion:
      return "other_version";
    case PeerState::kUnreadable:
      break;
  }
  return "unreadable";
}

std::string peer_field(std::string_view id, uint64_t incarnation) {
  return fmt::format("{}/{:016x}", id, incarnation);
}

Peers::Peers(std::string own, Duration bound, uint64_t hashing)
    : own_(std::move(own)), bound_(bound), hashing_(hashing) {}

void Peers::take_one(std::string_view field, std::string_view record, const StoreClock& clock) {
  const auto found = peers_.find(field);
  Peer& peer = found != peers_.end() ? found->second : peers_[std::string(field)];
  if (peer.id.empty()) {
    const size_t slash = field.rfind('/');
    peer.id = field.substr(0, slash);
    if (slash != std::string_view::npos) peer.incarnation = field.substr(slash + 1);
    peer.sampled_at = clock.answered;
  }
  LoadRecord now;
  const Decoded decoded = decode_load_record(record, now);
  if (decoded != Decoded::kOk) {
    peer.state = decoded == Decoded::kOtherVersion ? PeerState::kOtherVersion : PeerState::kUnreadable;
    peer.record = {};
    // Whoever lives writes another one with every heartbeat.
    const uint64_t unread = xxh64(record);
    if (unread != peer.unread) peer.sampled_at = clock.answered;
    peer.unread = unread;
    return;
  }
  const bool first = peer.state == PeerState::kUnreadable || peer.state == PeerState::kOtherVersion;
  if (!first && now.sequence == peer.record.sequence) return;
  const uint64_t latest = clock.latest(clock.answered);
  const uint64_t age_us = latest > now.sampled_us ? latest - now.sampled_us : 0;
  const Duration age = age_us > static_cast<uint64_t>(kOldest.count() / 1000)
                           ? kOldest
                           : Duration(static_cast<int64_t>(age_us) * 1000);
  peer.sampled_at = clock.answered - age;
  peer.same_hashing = now.hashing == hashing_;
  peer.record = std::move(now);
  peer.state = age <= bound_ ? PeerState::kFresh : PeerState::kStale;
}

void Peers::take(std::span<const RespReply> fields_and_records, const StoreClock& clock) {
  std::set<std::string_view> seen;
  left_out_ = 0;
  for (size_t i = 0; i + 1 < fields_and_records.size(); i += 2) {
    const std::string_view field = fields_and_records[i].text;
    if (field == own_ || field.empty()) continue;
    if (field.size() > kMaxField || !is_utf8(field) || seen.size() >= kMaxPeers) {
      ++left_out_;
      continue;
    }
    seen.insert(field);
    take_one(field, fields_and_records[i + 1].text, clock);
  }
  std::erase_if(peers_, [&](const auto& entry) { return !seen.contains(entry.first); });
}

bool Peers::fade(TimePoint now) {
  bool any = false;
  for (auto& [field, peer] : peers_) {
    if (peer.state != PeerState::kFresh || peer.age(now) <= bound_) continue;
    peer.state = PeerState::kStale;
    any = true;
  }
  return any;
}

void Peers::sum(std::unordered_map<uint64_t, Sum>& out) const {
  out.clear();
  for (const auto& [field, peer] : peers_) {
    if (peer.state != PeerState::kFresh) continue;
    for (const SharedLoad& load : peer.record.loads) {
      Sum& sum = out[load.endpoint];
      sum.requests += load.requests;
      sum.tokens += load.tokens;
      sum.unseen += load.unseen;
    }
  }
}

std::vector<std::string> Peers::forgotten(TimePoint now) const {
  std::vector<std::string> out;
  for (const auto& [field, peer] : peers_) {
    if (peer.age(now) > kForgotten) out.push_back(field);
  }
  return out;
}

}  // namespace penstock::sharing
