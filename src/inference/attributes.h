#pragma once

#include <cassert>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "base/arena.h"
#include "base/clock.h"
#include "inference/data_key.h"
#include "inference/endpoint.h"

namespace penstock {

// How much of a request's prompt an endpoint holds. Value of data_keys::kPrefixMatch.
struct PrefixMatch {
  uint32_t match_blocks = 0;
  uint32_t total_blocks = 0;
  uint32_t block_size_tokens = 0;
  uint32_t cached_blocks = 0;  // unweighted count; equals match_blocks for the approximate producer
  // Blocks in the endpoint's CPU tier, which others can pull from; below 0: tiers are not known.
  int32_t cpu_tier_blocks = -1;
};
// Value of data_keys::kInFlightLoad: requests and tokens in flight on an endpoint.
struct InFlightLoad {
  int64_t requests = 0;
  int64_t tokens = 0;
};
// Value of data_keys::kUncachedRequestTokens: tokens of this request an endpoint would have to prefill.
struct UncachedTokens {
  int64_t tokens = 0;
};
// Value of data_keys::kMultiModalMatch: how many of the request's distinct media items an endpoint's encoder
// cache holds.
struct MultiModalMatch {
  uint32_t matched_items = 0;
  uint32_t request_items = 0;
};
// Value of data_keys::kLatencyPrediction: what a predictor expects of this request on an endpoint.
struct LatencyPrediction {
  bool known = false;  // false: no prediction for this endpoint
  bool ttft_valid = false;
  bool tpot_valid = false;
  double ttft_ms = 0;
  double tpot_ms = 0;
  double ttft_headroom_ms = 0;  // objective - prediction; negative: the objective would be missed
  double tpot_headroom_ms = 0;
  double ttft_error_ms = 0;  // standard error of the prediction, 0: not stated
  uint32_t dispatched_requests = 0;
};
// Value of data_keys::kTopology: where an endpoint runs. Views into the endpoint's labels; empty: unknown.
struct Topology {
  std::string_view hostname;
  std::string_view rack;
  std::string_view zone;
  std::string_view region;
  bool known() const { return !hostname.empty() || !rack.empty() || !zone.empty() || !region.empty(); }
};
// Value of the keys of scraped numbers beyond the load signals (custom metrics, GPU utilisation, figures of
// another cluster).
struct EndpointScalar {
  bool known = false;
  double value = 0;
  TimePoint observed_at = kNever;
};
// Values of the request as a whole (AttributeTable::value).
struct SessionId {  // data_keys::kSessionId
  std::string_view text;
};
struct PeerEndpoint {  // data_keys::kPeerEndpoint: the other half of a disaggregated request
  Candidate endpoint = 0;
};
struct CacheSource {  // data_keys::kCacheSource: where cached prefix may be pulled from
  Candidate endpoint = 0;
  uint64_t cached_tokens = 0;
};
// Value of data_keys::kTokenizedPrompt: a marker, the data are InferenceRequest::prompts.
struct TokenizedPromptMarker {};

// Columns of per-endpoint values for one request: column = slot, row = Candidate. A column exists once
// its producer ran; readers of an absent column get an empty span and use their documented fallback.
// Storage is the request's arena.
class AttributeTable {
 public:
  AttributeTable(Arena& arena, size_t slots, size_t endpoints)
      : columns_(arena.make_filled<void*>(slots, nullptr)), endpoints_(endpoints), arena_(arena) {}

  template <typename T>
  std::span<T> create(AttributeSlot slot) {
    assert(slot < columns_.size());
    std::span<T> column = arena_.make_filled<T>(endpoints_);
    columns_[slot] = column.data();
    return column;
  }
  template <typename T>
  std::span<const T> column(AttributeSlot slot) const {
    if (slot >= columns_.size() || columns_[slot] == nullptr) return {};
    return {static_cast<const T*>(columns_[slot]), endpoints_};
  }
  // One value of the request as a whole in a slot of its own; nullptr while absent.
  template <typename T>
  T* create_value(AttributeSlot slot) {
    assert(slot < columns_.size());
    T* value = arena_.make<T>();
    columns_[slot] = value;
    return value;
  }
  template <typename T>
  const T* value(AttributeSlot slot) const {
    return slot < columns_.size() ? static_cast<const T*>(columns_[slot]) : nullptr;
  }
  size_t endpoints() const { return endpoints_; }

 private:
  std::span<void*> columns_;
  size_t endpoints_;
  Arena& arena_;
};

}  // namespace penstock
