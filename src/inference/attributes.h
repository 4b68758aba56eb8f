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

  // Share of the prompt that the endpoint holds; 0 of a prompt without blocks.
  double ratio() const {
    return total_blocks == 0 ? 0.0 : static_cast<double>(match_blocks) / static_cast<double>(total_blocks);
  }
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
  bool known = false;  // false: no prediction for this endpoint, of either time
  // Of a time that is not predicted: valid, 0 ms, headroom 0.
  bool ttft_known = false;
  bool tpot_known = false;
  bool ttft_valid = false;  // the objective would be met
  bool tpot_valid = false;
  double ttft_ms = 0;
  double tpot_ms = 0;
  double ttft_error_ms = 0;  // standard error of the prediction, 0: not stated
  double tpot_error_ms = 0;
  // Objective - prediction, and less the standard errors that the producer leaves room for; negative: the
  // objective would be missed.
  double ttft_headroom_ms = 0;
  double tpot_headroom_ms = 0;
  // What one more token to prefill adds to the time to the first token, as measured; 0: not known. It may be
  // known where no time is.
  double prefill_ms_per_token = 0;
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
// A slot is read as what it was created as: the data graph checks that when a configuration is loaded, debug
// builds assert it here. Storage is the request's arena.
class AttributeTable {
 public:
  AttributeTable(Arena& arena, size_t slots, size_t endpoints)
      : columns_(arena.make_filled<void*>(slots, nullptr)),
#ifndef NDEBUG
        kinds_(arena.make_filled<const void*>(slots, nullptr)),
#endif
        endpoints_(endpoints),
        arena_(arena) {
  }

  template <typename T>
  std::span<T> create(AttributeSlot slot) {
    assert(slot < columns_.size());
    std::span<T> column = arena_.make_filled<T>(endpoints_);
    columns_[slot] = column.data();
    mark<T[]>(slot);
    return column;
  }
  template <typename T>
  std::span<const T> column(AttributeSlot slot) const {
    if (slot >= columns_.size() || columns_[slot] == nullptr) return {};
    check<T[]>(slot);
    return {static_cast<const T*>(columns_[slot]), endpoints_};
  }
  // One value of the request as a whole in a slot of its own; nullptr while absent.
  template <typename T>
  T* create_value(AttributeSlot slot) {
    assert(slot < columns_.size());
    T* value = arena_.make<T>();
    columns_[slot] = value;
    mark<T>(slot);
    return value;
  }
  template <typename T>
  const T* value(AttributeSlot slot) const {
    if (slot >= columns_.size() || columns_[slot] == nullptr) return nullptr;
    check<T>(slot);
    return static_cast<const T*>(columns_[slot]);
  }
  size_t endpoints() const { return endpoints_; }

 private:
  // T[]: a column, T: one value.
#ifndef NDEBUG
  template <typename T>
  static constexpr char kKind = 0;
  template <typename T>
  void mark(AttributeSlot slot) {
    kinds_[slot] = &kKind<T>;
  }
  template <typename T>
  void check(AttributeSlot slot) const {
    assert(kinds_[slot] == &kKind<T> && "a slot is read as another type than it was created as");
  }
#else
  template <typename T>
  void mark(AttributeSlot) {}
  template <typename T>
  void check(AttributeSlot) const {}
#endif

  std::span<void*> columns_;
#ifndef NDEBUG
  std::span<const void*> kinds_;
#endif
  size_t endpoints_;
  Arena& arena_;
};

}  // namespace penstock
