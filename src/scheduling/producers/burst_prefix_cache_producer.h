#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "inference/plugin.h"
#include "scheduling/producers/burst_assignment.h"

namespace penstock::scheduling {

// `burst-prefix-cache-producer`: requests of one moment wait for each other, and those with the same prompt
// are told the same endpoint before any of them is sent.
//   A batch begins with the first request that asks and takes others for windowDurationMs, up to
//   maxBatchSize requests (kMaxBatchRequests at most) and 16 MiB of hashes; whoever comes when it is full
//   goes on without data ("burst prefix batch full: …"). The first of its requests to be decided when the
//   window is over assigns endpoints to all (burst_assignment.h), from its own candidates and their running
//   requests as they are then. A request without a prompt does not wait; one that is decided before, as its
//   client has left, gets no data.
//   match = all blocks of the prompt on the assigned endpoint, 0 on the others; all 0 without an assignment,
//   or where the endpoint is no candidate of the request.
//   Blocks: blockSizeTokens tokens, hashed as kvindex/block_hash.h says; the rest of a prompt counts as a
//   block, so that prompts that differ in their last words are different ones.
// Example: eight requests for the same prompt of 130 tokens within the window, four endpoints: each has
// match 3 of 3 on one endpoint, the same for all.
//
// Differences from the reference: its list of replicas is that of the batch's first grouped request; here
// it is that of the first to be decided, after the window.
//
// Requests of all loops meet in a batch, under two mutexes: one while it takes requests, held for the time of
// a push_back, and the batch's own while endpoints are assigned, for which only its requests wait. That takes
// less than a microsecond a request and endpoint: 0.2 to 0.8 ms for 1,000 requests of 2,048 blocks and 1,000
// endpoints.
class BurstPrefixCacheProducer final : public DataProducer, public AskingProducer {
 public:
  static constexpr std::string_view kType = "burst-prefix-cache-producer";
  static constexpr size_t kMaxBatchBytes = 16 << 20;   // of hashes
  static constexpr size_t kMaxBatchRequests = 10'000;  // whatever maxBatchSize says
  static constexpr size_t kDefaultMaxBlocks = 2048;    // of one prompt

  struct Params {
    int64_t window_ms = 100;
    int64_t block_size_tokens = 64;
    int64_t max_prefix_tokens = 0;
    int64_t max_batch_size = 1000;
    BurstRules rules;
  };
  static void bind(config::Binder& b, Params& p);
  static Result<std::unique_ptr<Plugin>> create(const Params& params, const PluginFactoryContext& context);
  // `outside` lets requests wait; nullptr: they don't, and nothing is known of any.
  BurstPrefixCacheProducer(const Params& params, Outside* outside) : params_(params), outside_(outside) {}

  void declare_data(DataDeclaration& declaration) const override;
  void bind_slots(const SlotResolver& slots) override { slot_ = slots.slot(key()); }
  bool asks() const override { return outside_ != nullptr; }
  std::shared_ptr<Question> ask(SchedulingContext& ctx) const override;
  Status produce(SchedulingContext& ctx) const override;

 private:
  struct Batch;
  struct Place;
  DataKey key() const { return data_keys::kPrefixMatch.with_producer(name()); }
  std::vector<uint64_t> hash(const InferenceRequest& request) const;
  Status join(std::vector<uint64_t> blocks, TimePoint now, Place& place) const;
  void assign(Batch& batch, const SchedulingContext& ctx) const;

  Params params_;
  Outside* outside_;
  AttributeSlot slot_ = kNoSlot;
  mutable std::mutex mutex_;
  mutable std::shared_ptr<Batch> open_;  // takes requests; they keep theirs
};

}  // namespace penstock::scheduling
