#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "inference/endpoint.h"

namespace penstock {

// Why a signal's value may or may not be used. Never a number that looks fine.
enum class SignalState : uint8_t {
  kNeverSeen,  // no scrape has answered yet
  kFresh,
  kStale,         // older than the freshness budget
  kNameMissing,   // scrapes answer but the engine does not export it
  kEndpointDown,  // scrapes fail
};
std::string_view signal_state_name(SignalState state);

// Whether a value was ever observed under this state: fresh and stale ones, and those of an endpoint whose
// scrapes fail now but once answered.
inline bool is_known(SignalState state) {
  return state == SignalState::kFresh || state == SignalState::kStale;
}
inline bool is_known(SignalState state, TimePoint observed_at) {
  return is_known(state) || (state == SignalState::kEndpointDown && observed_at != kNever);
}

// The scalar signals every engine table maps to. Units in the comment.
enum class Signal : uint8_t {
  kWaitingRequests,  // requests
  kRunningRequests,  // requests
  kKvUsage,          // ratio, 0..1
  kCacheBlockSize,   // tokens
  kCacheNumBlocks,   // blocks
};
inline constexpr size_t kSignalCount = 5;
std::string_view signal_name(Signal signal);
std::string_view signal_unit(Signal signal);

// One value, when it was observed, and whether it can be used.
struct SignalValue {
  double value = 0;
  TimePoint observed_at = kNever;
  SignalState state = SignalState::kNeverSeen;
};

// LoRA adapters of an endpoint, by hash_of(name) (base/hash.h), sorted. Bounded: adapters beyond the
// bound are dropped and counted by the extractor.
inline constexpr size_t kMaxAdapters = 64;
struct LoraSignal {
  TimePoint observed_at = kNever;
  SignalState state = SignalState::kNeverSeen;
  uint16_t running_count = 0;
  uint16_t waiting_count = 0;
  int32_t max_adapters = 0;
  std::array<uint64_t, kMaxAdapters> running{};
  std::array<uint64_t, kMaxAdapters> waiting{};

  bool is_running(uint64_t name_hash) const;
  bool is_waiting(uint64_t name_hash) const;
};

// Signals of all endpoints of one snapshot in structure-of-arrays form, as one loop sees them during one
// decision. Row i belongs to PoolSnapshot::endpoints[i]. Owned by the loop and refreshed in place by
// signals::FrameReader when the frame's epoch moved; immutable during a decision.
struct SignalView {
  uint64_t epoch = 0;  // rises with every publication
  std::array<std::vector<double>, kSignalCount> value;
  std::array<std::vector<TimePoint>, kSignalCount> observed_at;
  std::array<std::vector<SignalState>, kSignalCount> state;
  std::vector<const LoraSignal*> lora;  // never null; points into `lora_rows`
  std::vector<LoraSignal> lora_rows;
  // By Signal, the last one of the adapter lists: when the oldest value of the pool was observed; kNever: not
  // every endpoint has one, or nobody looked.
  std::array<TimePoint, kSignalCount + 1> oldest{};
  // What EndpointLive::unseen.since() takes to tell of the requests that a row's values don't.
  std::vector<UnseenRequests::Round> shown_round;

  std::span<const double> values(Signal s) const { return value[static_cast<size_t>(s)]; }
  SignalValue at(Signal s, Candidate c) const {
    const auto i = static_cast<size_t>(s);
    return {value[i][c], observed_at[i][c], state[i][c]};
  }
  // Requests in flight at the candidate, whose live side is `live`, that its row does not show: ours, and
  // those that other replicas' rows don't show them.
  uint32_t unseen_requests(const EndpointLive& live, Candidate c) const {
    return live.unseen.since(shown_round[c]) + live.others_unseen.load(std::memory_order_relaxed);
  }
  void resize(size_t endpoints);
};

}  // namespace penstock
