#pragma once

#include "inference/plugin.h"

namespace penstock::scheduling {

// `p2p-source-producer`: names an endpoint that the computing one can pull cached prefix from.
//   source tokens(endpoint) = blocks of its CPU tier * block size, where tiers are known, else cached blocks
//   * block size. Of the endpoints that hold any, those within one of their own blocks of the largest take
//   part, weighted by 1 / (1 + waiting requests), an unknown queue being as long as the longest known one
//   (signal_column.h); which of them is drawn from the request id (FNV-1a), so that the same request always
//   gets the same.
// The header x-kv-cache-source-host-port is set where the source is not the computing endpoint (the first
// target of the prefill profile, else of the primary) and holds at least minCachedTokenDelta tokens more; a
// client's own header is removed.
// Examples, two equal sources with 0 and 1 waiting (weights 1 and 0.5): "req-1" (0.8558053) draws the second,
// "r0" (0.0520629) the first. Source 640, computing 576, delta 64: set; delta 65: not.
class P2pSourceProducer final : public DataProducer, public PreRequest {
 public:
  static constexpr std::string_view kType = "p2p-source-producer";
  struct Params {
    std::string prefix_producer;
    int64_t min_delta = 1;  // tokens
    std::string prefill_profile = "prefill";
  };
  static void bind(config::Binder& b, Params& p);
  explicit P2pSourceProducer(Params params);

  void declare_data(DataDeclaration& declaration) const override;
  void bind_slots(const SlotResolver& slots) override;
  Status produce(SchedulingContext& ctx) const override;
  Status pre_request(SchedulingContext& ctx, const SchedulingResult& result) const override;

  // 32-bit FNV-1a: "req-1" is db160f11, "" is 811c9dc5.
  static uint32_t fnv1a(std::string_view text);

 private:
  DataKey source_key() const { return data_keys::kCacheSource.with_producer(name()); }

  Params params_;
  DataKey prefix_key_;
  AttributeSlot prefix_slot_ = kNoSlot;
  AttributeSlot source_slot_ = kNoSlot;
};

}  // namespace penstock::scheduling
