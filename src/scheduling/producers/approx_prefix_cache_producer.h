#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "inference/plugin.h"
#include "inference/shared_prefixes.h"
#include "kvindex/prefix_index.h"
#include "telemetry/metrics.h"

namespace penstock::scheduling {

// What produce() leaves for pre_request(): the hashes of all prompts, one after the other, in the request's
// arena.
struct PromptHashes {
  std::span<const uint64_t> hashes;
  std::span<const uint32_t> blocks_per_prompt;
};

// `approx-prefix-cache-producer`: how much of the prompt each endpoint holds, as far as it follows from the
// requests sent there.
//   block size = the engines' own (with autoTune: the one most endpoints of the pool report, the larger on
//     a tie; before anyone has reported: blockSizeTokens), at least 64 tokens
//   total = blocks of all prompts, a trailing partial one included, at most maxPrefixTokensToMatch of each
//   match(endpoint) = over all prompts, full blocks from the first one on without a gap that were sent there
//   capacity(endpoint) = with autoTune, where the engine reports it: its blocks * its block size / block
//     size, so that both hold the same tokens; else lruCapacityPerServer
// After the pick the prompt's full blocks count as held by the destination, and by that of a profile named
// "prefill".
// Example: a prompt of 200 tokens was sent to A. Asked for again: block size 64, total 4, A 3, B 0. A prompt
// that shares its first 130 tokens: A 2.
//
// Differences from the reference, where it errs: a match has no gaps; the partial block, which no engine can
// reuse, counts in the total only; a missing metric doesn't change the block size; capacities count tokens;
// cache salts and images are part of the hashes (kvindex/block_hash.h); a removed endpoint is forgotten at
// once and late requests can't bring it back.
//
// Where replicas share state (sharing/replicas.h) an endpoint also holds what others sent there. Others are
// told of a prompt when its destination did not hold all of it yet, and every kTellAgain-th time otherwise,
// which keeps it from ageing out of their index.
//
// State: one index for all endpoints and loops, bounded by maxIndexBytes, shared by pointer so that it can
// outlive a policy. No allocation per request after warm-up.
class ApproxPrefixCacheProducer final : public DataProducer,
                                        public PreRequest,
                                        public EndpointObserver,
                                        public SharedPrefixes {
 public:
  static constexpr uint32_t kTellAgain = 16;
  static constexpr std::string_view kType = "approx-prefix-cache-producer";
  static constexpr uint32_t kMinBlockSize = 64;        // tokens
  static constexpr uint32_t kDefaultCapacity = 31250;  // blocks
  static constexpr int64_t kDefaultIndexBytes = 256 << 20;

  struct Params {
    bool auto_tune = true;
    int block_size_tokens = 16;
    int block_size = 0;
    int max_blocks = 2048;
    int max_tokens = 131072;
    int lru_capacity = kDefaultCapacity;
    int64_t max_index_bytes = kDefaultIndexBytes;
  };
  static void bind(config::Binder& b, Params& p);
  static Result<std::unique_ptr<Plugin>> create(Params params, const PluginFactoryContext& context);

  // An empty index as these parameters want it, for `loops` event loops.
  static Result<std::shared_ptr<kvindex::PrefixIndex>> make_index(const Params& params, size_t loops);
  // Equal texts: an index made for the one parameters serves the other.
  static std::string index_key(std::string_view name, const Params& params);

  ApproxPrefixCacheProducer(const Params& params, std::shared_ptr<kvindex::PrefixIndex> index,
                            std::string_view name, telemetry::MetricRegistry& metrics);

  void declare_data(DataDeclaration& declaration) const override;
  void bind_slots(const SlotResolver& slots) override;
  Status produce(SchedulingContext& ctx) const override;
  Status pre_request(SchedulingContext& ctx, const SchedulingResult& result) const override;
  void endpoint_removed(const Endpoint& endpoint) const override;
  void tell(std::shared_ptr<PrefixOutlet> outlet) override { outlet_ = std::move(outlet); }
  bool learn(const Endpoint& endpoint, uint32_t block_size_tokens,
             std::span<const uint64_t> hashes) const override;
  // {"pods":[{"pod","blocks"}…],"totalPods","maxPods"}: by blocks, then name; at most 100.
  std::optional<std::string> dump_state() const override;

  const std::shared_ptr<kvindex::PrefixIndex>& index() const { return index_; }

  // Hashed blocks of one prompt at most, for a block size; 0: no limit.
  static size_t max_blocks(const Params& params, uint32_t block_size_tokens);
  // Tokens a block of the index has now.
  uint32_t block_size() const { return block_size_.load(std::memory_order_relaxed); }

 private:
  // What an engine last said of its KV cache, as one word: 0 where it never did.
  struct CacheShape {
    uint32_t block_size = 0;  // tokens
    uint32_t blocks = 0;
  };

  DataKey match_key() const { return data_keys::kPrefixMatch.with_producer(name()); }
  DataKey hashes_key() const { return {"PromptHashes", name()}; }
  void follow_engines(const PoolSnapshot& pool, const SignalView& signals) const;
  void learn_shape(EndpointSlot slot, const SignalView& signals, Candidate candidate) const;
  CacheShape shape_of(EndpointSlot slot) const;
  uint32_t capacity_of(EndpointSlot slot, uint32_t block_size) const;
  void add_matches(SchedulingContext& ctx, std::span<PrefixMatch> column, const PromptHashes& prompts) const;
  void insert(const Endpoint& endpoint, const PromptHashes& prompts, const PrefixMatch& match) const;
  void insert(const Endpoint& endpoint, uint32_t block_size, std::span<const uint64_t> hashes) const;
  void show_size() const;
  void remember_name(const Endpoint& endpoint) const;

  Params params_;
  std::shared_ptr<kvindex::PrefixIndex> index_;
  std::shared_ptr<PrefixOutlet> outlet_;  // nullptr: nobody is told
  AttributeSlot match_slot_ = kNoSlot;
  AttributeSlot hashes_slot_ = kNoSlot;

  // The pool picture block_size_ was derived from.
  mutable std::atomic<uint64_t> pool_epoch_{0};
  mutable std::atomic<uint64_t> signal_epoch_{0};
  mutable std::atomic<bool> following_{false};
  mutable std::atomic<uint32_t> block_size_;
  mutable std::atomic<bool> size_known_;               // block_size_ is no longer a guess
  mutable std::vector<std::atomic<uint64_t>> shapes_;  // by endpoint slot

  // Who the slots are, for dump_state(); and the live sides of removed endpoints, kept so that no new one
  // gets their address, which is what the index tells endpoints apart by.
  mutable std::vector<std::atomic<const EndpointLive*>> named_;
  mutable std::mutex names_mutex_;
  mutable std::vector<std::string> names_;
  mutable std::vector<std::shared_ptr<EndpointLive>> removed_;

  telemetry::Gauge& size_;
  telemetry::Histogram& hit_ratio_;
  telemetry::Histogram& hit_bytes_;
  telemetry::Gauge& bytes_;
  telemetry::Gauge& entries_;
  telemetry::Counter& dropped_;
};

}  // namespace penstock::scheduling
