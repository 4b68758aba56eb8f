#pragma once

#include <optional>

#include "inference/plugin.h"
#include "scheduling/seen_endpoints.h"

namespace penstock::scheduling {

// `inflight-load-producer`: what is in flight on each endpoint now (its own counters, live, no scrape; with
// syncCrossReplicaState and shared state also what other replicas last told of theirs), and
// how many tokens of this request each endpoint would have to prefill; and, as the load estimator, what a
// request adds when it is reserved.
//   uncached(endpoint) = input tokens, without prefix data; else
//     max(0, (total - match) * block size) + max(0, input - total * block size)
//   output(input) = 0 for input <= 0; else input * outputRatio rounded half away from zero, lowered to the
//     client's max tokens (where >= 0) and to maxEstimatedOutputTokens
//   reserved tokens = uncached + (output if addEstimatedOutputTokens)
// Tokens come off when the answer begins, or with addEstimatedOutputTokens when it ends.
// Examples: 8 tokens, 1 of 2 blocks of 4 matched, outputs added, ratio 1.5: 4 + 12 = 16; input 5, 1 of 2
// blocks of 4: 4; input 333, ratio 1.5: output 500.
class InflightLoadProducer final : public DataProducer, public LoadEstimator, public EndpointObserver {
 public:
  struct Params {
    bool add_output = false;
    double output_ratio = 1.5;
    std::optional<int64_t> max_output;  // tokens
    std::string prefix_producer;
    bool sync_replicas = true;
  };
  static void bind(config::Binder& b, Params& p);
  explicit InflightLoadProducer(Params params);

  void declare_data(DataDeclaration& declaration) const override;
  void bind_slots(const SlotResolver& slots) override;
  Status produce(SchedulingContext& ctx) const override;

  uint64_t reserve_tokens(const SchedulingContext& ctx, Candidate candidate) const override;
  bool release_tokens_at_first_byte() const override { return !params_.add_output; }
  void endpoint_removed(const Endpoint& endpoint) const override { seen_.forget(endpoint.slot); }
  // {"endpoints":[{"endpoint","requests","tokens"}…],"totalEndpoints","maxEndpoints","truncated"}: those that
  // were sent a request, by requests + tokens, then name; at most 100.
  std::optional<std::string> dump_state() const override;

  // Estimated answer length in tokens.
  int64_t output_tokens(int64_t input, std::optional<int64_t> client_max) const;
  // Tokens to prefill. `match` is nullptr where nothing is known of the prefix.
  static int64_t uncached_tokens(int64_t input, const PrefixMatch* match);

 private:
  DataKey load_key() const { return data_keys::kInFlightLoad.with_producer(name()); }
  DataKey uncached_key() const { return data_keys::kUncachedRequestTokens.with_producer(name()); }

  Params params_;
  DataKey prefix_key_;
  AttributeSlot load_slot_ = kNoSlot;
  AttributeSlot uncached_slot_ = kNoSlot;
  AttributeSlot prefix_slot_ = kNoSlot;
  mutable SeenEndpoints seen_;
};

}  // namespace penstock::scheduling
