#pragma once

#include <mutex>
#include <vector>

#include "inference/plugin.h"
#include "scheduling/seen_endpoints.h"

namespace penstock::scheduling {

// `no-hit-lru-scorer`: spreads requests that no candidate has in its cache ("cold") over the endpoints in
// order of last cold use; for all others 0.5 for everyone.
//   Cold, one candidate: 1. Cold, n candidates: those never used, in candidate order i = 0, 1, …:
//   1 - i / (n - 1); used ones: rank = number of never used + place in the whole LRU (0 = oldest, endpoints
//   that are no candidates count), 1 - rank / (n - 1), at least 0.
// After a cold pick the destination (and that of a profile named "prefill") becomes the most recently used.
// Example: candidates [a, b, c, d], oldest to newest [b, a]: c 1, d 0.6667, b 0.3333, a 0.
//
// State: at most lruSize endpoints, by slot, under one mutex that is held for one pass over it; an endpoint
// that leaves the pool is forgotten.
class NoHitLruScorer final : public Scorer, public PreRequest, public EndpointObserver {
 public:
  static constexpr size_t kDefaultSize = 1024;
  struct Params {
    int lru_size = kDefaultSize;  // endpoints
    std::string producer;
    std::string prefix_plugin_type;
    std::string prefix_plugin_name;
  };
  static void bind(config::Binder& b, Params& p);
  explicit NoHitLruScorer(Params params);

  void declare_data(DataDeclaration& declaration) const override;
  void bind_slots(const SlotResolver& slots) override;
  void score(SchedulingContext& ctx, std::span<const Candidate> candidates,
             std::span<double> scores) const override;
  void explain(const SchedulingContext& ctx, Candidate candidate, std::string& out) const override;
  Status pre_request(SchedulingContext& ctx, const SchedulingResult& result) const override;
  void endpoint_removed(const Endpoint& endpoint) const override;
  // {"endpoints":[ids, oldest first, at most 100],"totalEndpoints","maxEndpoints"}.
  std::optional<std::string> dump_state() const override;

 private:
  bool is_cold(const SchedulingContext& ctx, std::span<const Candidate> candidates) const;
  void touch(const std::shared_ptr<const Endpoint>& endpoint) const;

  DataKey key_;
  AttributeSlot slot_ = kNoSlot;
  size_t capacity_;
  mutable std::mutex mutex_;
  mutable std::vector<EndpointSlot> lru_;  // oldest first
  mutable SeenEndpoints seen_;
};

}  // namespace penstock::scheduling
