#include "scheduling/producers/burst_prefix_cache_producer.h"

#include <fmt/format.h>

#include <algorithm>

#include "kvindex/block_hash.h"
#include "scheduling/signal_column.h"

namespace penstock::scheduling {

// Shared by the requests that wait in it.
struct BurstPrefixCacheProducer::Batch {
  // Under the producer's mutex while it takes requests, then under `mutex`.
  TimePoint ready_at = kNever;
  std::vector<std::vector<uint64_t>> requests;  // blocks, by place
  size_t bytes = 0;
  std::mutex mutex;
  bool assigned = false;
  // By place. Who it is, not only where: a slot may be given to another endpoint.
  struct Target {
    EndpointSlot slot = 0;
    const EndpointLive* live = nullptr;  // only compared; nullptr: nobody
    uint32_t blocks = 0;
  };
  std::vector<Target> targets;
};

// What a request asks: who gets it. Answered when the window is over.
struct BurstPrefixCacheProducer::Place final : Question {
  std::shared_ptr<Batch> batch;
  uint32_t index = 0;  // in it
  Status joined;
  void over() { end(); }
};

Result<std::unique_ptr<Plugin>> BurstPrefixCacheProducer::create(const Params& params,
                                                                 const PluginFactoryContext& context) {
  return std::unique_ptr<Plugin>(std::make_unique<BurstPrefixCacheProducer>(params, context.outside));
}

void BurstPrefixCacheProducer::bind(config::Binder& b, Params& p) {
  std::string balance_by = "requests";
  b.field("windowDurationMs", p.window_ms, "ms", "How long requests wait for others, 1 to 10000.");
  b.field("maxPerReplica", p.rules.max_per_replica, "requests",
          "Requests with the same prompt that one endpoint gets before another gets some; -1: all of them.");
  b.field("blockSizeTokens", p.block_size_tokens, "tokens",
          "Length of the blocks that prompts are cut into.");
  b.field("maxPrefixTokensToMatch", p.max_prefix_tokens, "tokens",
          "How far into a prompt blocks are compared; 0: 2048 blocks.");
  int64_t min_colocate_blocks = p.rules.min_colocate_blocks;
  b.field("minColocateBlocks", min_colocate_blocks, "blocks",
          "Different prompts that share so many blocks at their beginning are put together, too; 0: none.");
  b.field("maxBatchSize", p.max_batch_size, "requests",
          "Requests that wait together; more go on without waiting. -1 and above 10000: 10000.");
  b.field("balanceBy", balance_by, "", "What is shared out evenly: requests, or tokens to prefill.");
  if (b.describing()) return;

  const auto require = [&](bool holds, std::string_view name, std::string_view text) {
    if (!holds) b.fail(name, fmt::format("invalid configuration: {} {}", name, text));
  };
  require(p.window_ms >= 1 && p.window_ms <= 10000, "windowDurationMs",
          fmt::format("must be between 1 and 10000, got {}", p.window_ms));
  require(p.rules.max_per_replica == -1 || p.rules.max_per_replica >= 1, "maxPerReplica",
          fmt::format("must be -1 or at least 1, got {}", p.rules.max_per_replica));
  require(p.block_size_tokens > 0 && p.block_size_tokens <= INT32_MAX, "blockSizeTokens",
          fmt::format("must be > 0, got {}", p.block_size_tokens));
  require(p.max_prefix_tokens == 0 || p.max_prefix_tokens >= p.block_size_tokens, "maxPrefixTokensToMatch",
          fmt::format("must be 0 or at least blockSizeTokens ({}), got {}", p.block_size_tokens,
                      p.max_prefix_tokens));
  require(min_colocate_blocks >= 0 && min_colocate_blocks <= INT32_MAX, "minColocateBlocks",
          fmt::format("must be >= 0, got {}", min_colocate_blocks));
  require(p.max_batch_size == -1 || p.max_batch_size >= 1, "maxBatchSize",
          fmt::format("must be -1 or at least 1, got {}", p.max_batch_size));
  require(balance_by.empty() || balance_by == "requests" || balance_by == "tokens", "balanceBy",
          fmt::format("must be \"requests\" or \"tokens\", got \"{}\"", balance_by));
  p.rules.min_colocate_blocks = static_cast<uint32_t>(std::max<int64_t>(min_colocate_blocks, 0));
  p.rules.balance_tokens = balance_by == "tokens";
}

void BurstPrefixCacheProducer::declare_data(DataDeclaration& declaration) const {
  declaration.require<TokenizedPromptMarker>(data_keys::kTokenizedPrompt);
  declaration.produce<PrefixMatch>(key());
}

std::vector<uint64_t> BurstPrefixCacheProducer::hash(const InferenceRequest& request) const {
  const auto block_size = static_cast<size_t>(params_.block_size_tokens);
  const size_t most = params_.max_prefix_tokens > 0
                          ? static_cast<size_t>(params_.max_prefix_tokens) / block_size
                          : kDefaultMaxBlocks;
  // All prompts of a request are one chain: two requests that share a block share all before it.
  uint64_t seed = kvindex::chain_seed(request.target_model, request.cache_salt);
  std::vector<uint64_t> out;
  for (const TokenizedPrompt& prompt : request.prompts) {
    const kvindex::BlockCount count = kvindex::count_blocks(prompt.token_ids.size(), block_size, most);
    const size_t before = out.size();
    out.resize(before + count.total);
    kvindex::hash_blocks(prompt, block_size, seed, std::span(out).subspan(before, count.full));
    if (count.full > 0) seed = out[before + count.full - 1];
    if (count.total == count.full) continue;
    // The rest, as one block of its own length.
    const size_t begin = count.full * block_size;
    std::vector<MultiModalFeature> features;
    for (MultiModalFeature feature : prompt.features) {
      if (feature.offset_tokens < begin) continue;
      feature.offset_tokens -= static_cast<uint32_t>(begin);
      features.push_back(feature);
    }
    const TokenizedPrompt rest{prompt.token_ids.subspan(begin), features};
    kvindex::hash_blocks(rest, rest.token_ids.size(), seed, std::span(out).last(1));
    seed = out.back();
  }
  return out;
}

std::shared_ptr<Question> BurstPrefixCacheProducer::ask(SchedulingContext& ctx) const {
  std::vector<uint64_t> blocks = hash(ctx.request);
  if (blocks.empty()) return nullptr;
  auto place = std::make_shared<Place>();
  place->joined = join(std::move(blocks), ctx.now, *place);
  if (place->joined.ok()) {
    outside_->after(place->batch->ready_at - ctx.now, [place] { place->over(); });
  } else {
    place->over();
  }
  return place;
}

Status BurstPrefixCacheProducer::join(std::vector<uint64_t> blocks, TimePoint now, Place& place) const {
  const size_t bytes = blocks.size() * sizeof(uint64_t);
  const std::lock_guard lock(mutex_);
  if (open_ == nullptr || now >= open_->ready_at) {
    open_ = std::make_shared<Batch>();
    open_->ready_at = now + std::chrono::milliseconds(params_.window_ms);
  }
  Batch& batch = *open_;
  const size_t most = params_.max_batch_size > 0
                          ? std::min(static_cast<size_t>(params_.max_batch_size), kMaxBatchRequests)
                          : kMaxBatchRequests;
  if (batch.requests.size() >= most) {
    return Error{ErrorCode::kResourceExhausted,
                 fmt::format("burst prefix batch full: maxBatchSize {} reached", most)};
  }
  if (batch.bytes + bytes > kMaxBatchBytes) {
    return Error{ErrorCode::kResourceExhausted,
                 fmt::format("burst prefix batch full: {} bytes of hashes", kMaxBatchBytes)};
  }
  batch.bytes += bytes;
  place.index = static_cast<uint32_t>(batch.requests.size());
  batch.requests.push_back(std::move(blocks));
  place.batch = open_;
  return {};
}

// REQUIRES: batch.mutex is held, the batch takes no more requests.
void BurstPrefixCacheProducer::assign(Batch& batch, const SchedulingContext& ctx) const {
  std::vector<BurstReplica> replicas;
  replicas.reserve(ctx.candidates.size());
  for (const Candidate c : ctx.candidates)
    replicas.push_back({ctx.pool.endpoints[c]->id, usable(ctx, Signal::kRunningRequests, c).value});
  const std::vector<uint32_t> chosen = assign_burst(batch.requests, replicas, params_.rules);
  batch.targets.resize(chosen.size());
  for (size_t i = 0; i < chosen.size(); ++i) {
    Batch::Target& target = batch.targets[i];
    target.blocks = static_cast<uint32_t>(batch.requests[i].size());
    if (chosen[i] == kNoReplica) continue;
    const Endpoint& endpoint = *ctx.pool.endpoints[ctx.candidates[chosen[i]]];
    target.slot = endpoint.slot;
    target.live = endpoint.live.get();
  }
  batch.assigned = true;
  batch.requests = {};
}

Status BurstPrefixCacheProducer::produce(SchedulingContext& ctx) const {
  if (slot_ == kNoSlot) return {};
  const auto asked = std::find_if(ctx.questions.begin(), ctx.questions.end(),
                                  [this](const AskedQuestion& q) { return q.by == this; });
  if (asked == ctx.questions.end()) return {};
  const auto& place = static_cast<const Place&>(*asked->question);
  if (!place.joined.ok()) return place.joined;
  if (!place.answered()) return {};  // nobody waits any more; the others of the batch do
  {
    const std::lock_guard lock(mutex_);
    if (open_ == place.batch) open_ = nullptr;
  }
  Batch::Target target;
  {
    Batch& batch = *place.batch;
    const std::lock_guard lock(batch.mutex);
    if (!batch.assigned) assign(batch, ctx);
    target = batch.targets[place.index];
  }
  const std::span<PrefixMatch> column = ctx.attributes.create<PrefixMatch>(slot_);
  const auto block_size = static_cast<uint32_t>(params_.block_size_tokens);
  for (const Candidate c : ctx.candidates) {
    const Endpoint& endpoint = *ctx.pool.endpoints[c];
    const bool chosen = endpoint.slot == target.slot && endpoint.live.get() == target.live;
    const uint32_t match = chosen ? target.blocks : 0;
    column[c] = {match, target.blocks, block_size, match};
  }
  return {};
}

}  // namespace penstock::scheduling
