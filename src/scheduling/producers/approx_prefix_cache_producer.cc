#include "scheduling/producers/approx_prefix_cache_producer.h"

#include <algorithm>
#include <limits>

#include "base/strings.h"
#include "kvindex/block_hash.h"
#include "telemetry/log.h"

namespace penstock::scheduling {

namespace {

constexpr size_t kMaxPodsDumped = 100;
// With more prompts than this, matches are added by matching endpoint instead of by candidate.
constexpr size_t kFewPrompts = 2;
// Different block sizes in one pool; further ones don't take part in the vote.
constexpr size_t kMaxSizes = 8;
constexpr Candidate kNoCandidate = std::numeric_limits<Candidate>::max();

// One look-up at a time on a thread, whichever instance asks.
kvindex::MatchResult& scratch() {
  thread_local kvindex::MatchResult result;
  return result;
}

uint64_t identity(const Endpoint& endpoint) {
  return static_cast<uint64_t>(reinterpret_cast<uintptr_t>(endpoint.live.get()));
}

telemetry::FamilyOptions labelled(std::string_view name, std::string_view help) {
  telemetry::FamilyOptions options{name, help, {"plugin_name", "plugin_type"}};
  return options;
}

telemetry::FamilyOptions with_twin(std::string_view name, std::string_view help, std::string_view twin,
                                   std::span<const double> bounds = {}) {
  telemetry::FamilyOptions options = labelled(name, help);
  options.bounds = bounds;
  options.twins.push_back({twin, {}});
  return options;
}

}  // namespace

void ApproxPrefixCacheProducer::bind(config::Binder& b, Params& p) {
  b.field("autoTune", p.auto_tune, "",
          "Take block size and capacity from what the engines report about their KV cache.");
  b.field("blockSizeTokens", p.block_size_tokens, "tokens",
          "Block size where no engine reports one; values below 64 count as 64.");
  b.field("blockSize", p.block_size, "tokens", "Deprecated name of blockSizeTokens.");
  b.field("maxPrefixBlocksToMatch", p.max_blocks, "blocks",
          "Deprecated: used only when maxPrefixTokensToMatch is 0. 0: no limit.");
  b.field("maxPrefixTokensToMatch", p.max_tokens, "tokens", "How far into a prompt blocks are compared.");
  b.field("lruCapacityPerServer", p.lru_capacity, "blocks",
          "Blocks remembered for an endpoint whose cache size is unknown; values below 1 count as 31250.");
  b.quantity(
      "maxIndexBytes", p.max_index_bytes, "bytes",
      "Memory of the index over all endpoints; beyond it the oldest blocks are forgotten. At least 1Mi.");
  if (b.describing()) return;

  if (p.block_size > 0 && !b.present("blockSizeTokens")) p.block_size_tokens = p.block_size;
  if (p.block_size_tokens <= 0 && !p.auto_tune) {
    b.fail("blockSizeTokens",
           "invalid configuration: BlockSizeTokens must be > 0 when AutoTune is disabled (current value: " +
               std::to_string(p.block_size_tokens) + ")");
  }
  if (p.max_tokens < 0) {
    b.fail("maxPrefixTokensToMatch",
           "invalid configuration: maxPrefixTokensToMatch must be >= 0 (current "
           "value: " +
               std::to_string(p.max_tokens) + ")");
  }
  if (p.max_blocks < 0) b.fail("maxPrefixBlocksToMatch", "must be >= 0");
  const auto block = std::max<int64_t>(p.block_size_tokens, kMinBlockSize);
  if (p.max_tokens > 0 && p.max_tokens < block) {
    b.fail("maxPrefixTokensToMatch", "is " + std::to_string(p.max_tokens) + ", less than one block of " +
                                         std::to_string(block) + " tokens: nothing would ever match");
  }
  if (p.max_index_bytes < (1 << 20)) b.fail("maxIndexBytes", "must be at least 1Mi");
}

Result<std::unique_ptr<Plugin>> ApproxPrefixCacheProducer::create(Params params,
                                                                  const PluginFactoryContext& context) {
  if (params.block_size > 0) {
    telemetry::log_warn("blockSize is deprecated, use blockSizeTokens",
                        {{"plugin", context.name}, {"field", context.path}});
  }
  if (!params.auto_tune && params.block_size_tokens < static_cast<int>(kMinBlockSize)) {
    telemetry::log_warn("blockSizeTokens below 64 counts as 64",
                        {{"plugin", context.name}, {"blockSizeTokens", params.block_size_tokens}});
  }
  const auto make = [&] { return make_index(params, context.loops); };
  Result<std::shared_ptr<kvindex::PrefixIndex>> index =
      context.warm == nullptr
          ? make()
          : context.warm->get<kvindex::PrefixIndex>(index_key(context.name, params), make);
  if (!index.ok()) return std::move(index).error().wrap(context.name);
  return std::unique_ptr<Plugin>(std::make_unique<ApproxPrefixCacheProducer>(params, std::move(index).value(),
                                                                             context.name, context.metrics));
}

Result<std::shared_ptr<kvindex::PrefixIndex>> ApproxPrefixCacheProducer::make_index(const Params& params,
                                                                                    size_t loops) {
  kvindex::PrefixIndex::Options options;
  options.max_bytes = static_cast<size_t>(params.max_index_bytes);
  options.capacity_blocks =
      params.lru_capacity > 0 ? static_cast<uint32_t>(params.lru_capacity) : kDefaultCapacity;
  options.queues = loops;
  auto index = kvindex::PrefixIndex::create(options);
  if (!index.ok()) return std::move(index).error();
  return std::shared_ptr<kvindex::PrefixIndex>(std::move(index).value());
}

std::string ApproxPrefixCacheProducer::index_key(std::string_view name, const Params& params) {
  return std::string(kType) + "/" + std::string(name) + "/" + std::to_string(params.max_index_bytes) + "/" +
         std::to_string(params.lru_capacity);
}

ApproxPrefixCacheProducer::ApproxPrefixCacheProducer(const Params& params,
                                                     std::shared_ptr<kvindex::PrefixIndex> index,
                                                     std::string_view name,
                                                     telemetry::MetricRegistry& metrics)
    : params_(params),
      index_(std::move(index)),
      block_size_(std::max(static_cast<uint32_t>(std::max(params.block_size_tokens, 0)), kMinBlockSize)),
      size_known_(!params.auto_tune),
      shapes_(kMaxEndpoints),
      named_(kMaxEndpoints),
      names_(kMaxEndpoints),
      removed_(kMaxEndpoints),
      size_(metrics
                .gauge(with_twin("llm_d_epp_prefix_indexer_size", "Prefix blocks held, over all endpoints.",
                                 "inference_extension_prefix_indexer_size"))
                .with({name, kType})),
      hit_ratio_(metrics
                     .histogram(with_twin("llm_d_epp_prefix_indexer_hit_ratio",
                                          "Share of a prompt's blocks that its destination holds.",
                                          "inference_extension_prefix_indexer_hit_ratio",
                                          telemetry::buckets::ratio()))
                     .with({name, kType})),
      hit_bytes_(metrics
                     .histogram(with_twin("llm_d_epp_prefix_indexer_hit_bytes",
                                          "Bytes of a prompt that its destination holds, 4 a token.",
                                          "inference_extension_prefix_indexer_hit_bytes",
                                          telemetry::buckets::hit_bytes()))
                     .with({name, kType})),
      bytes_(metrics.gauge(labelled("penstock_prefix_index_bytes", "Memory of the prefix index, in bytes."))
                 .with({name, kType})),
      entries_(metrics
                   .gauge(labelled("penstock_prefix_index_entries",
                                   "(block, endpoint) pairs in the prefix index."))
                   .with({name, kType})),
      dropped_(metrics
                   .counter(labelled("penstock_prefix_index_dropped_inserts_total",
                                     "Prompts not entered because the index's writer was too busy."))
                   .with({name, kType})) {}

void ApproxPrefixCacheProducer::declare_data(DataDeclaration& declaration) const {
  declaration.require<TokenizedPromptMarker>(data_keys::kTokenizedPrompt);
  declaration.produce<PrefixMatch>(match_key());
  declaration.produce<PromptHashes>(hashes_key());
}

void ApproxPrefixCacheProducer::bind_slots(const SlotResolver& slots) {
  match_slot_ = slots.slot(match_key());
  hashes_slot_ = slots.slot(hashes_key());
}

size_t ApproxPrefixCacheProducer::max_blocks(const Params& params, uint32_t block_size_tokens) {
  if (params.max_tokens > 0)
    return std::max<size_t>(static_cast<size_t>(params.max_tokens) / block_size_tokens, 1);
  return static_cast<size_t>(std::max(params.max_blocks, 0));
}

// --- what the engines say of their caches --------------------------------------------------------------

ApproxPrefixCacheProducer::CacheShape ApproxPrefixCacheProducer::shape_of(EndpointSlot slot) const {
  const uint64_t word = slot < shapes_.size() ? shapes_[slot].load(std::memory_order_relaxed) : 0;
  return {static_cast<uint32_t>(word >> 32U), static_cast<uint32_t>(word)};
}

// A value that is missing now leaves the last one: an engine doesn't change its block size without a restart.
void ApproxPrefixCacheProducer::learn_shape(EndpointSlot slot, const SignalView& signals,
                                            Candidate candidate) const {
  constexpr double kMost = std::numeric_limits<int32_t>::max();
  const auto reported = [&](Signal signal, uint32_t before) {
    const SignalValue value = signals.at(signal, candidate);
    return value.observed_at != kNever && value.value >= 1 && value.value <= kMost
               ? static_cast<uint32_t>(value.value)
               : before;
  };
  const CacheShape before = shape_of(slot);
  const uint64_t size = reported(Signal::kCacheBlockSize, before.block_size);
  const uint64_t blocks = reported(Signal::kCacheNumBlocks, before.blocks);
  shapes_[slot].store((size << 32U) | blocks, std::memory_order_relaxed);
}

// Runs on one thread at a time, once per publication of signals or members; the others use the block size
// there is.
void ApproxPrefixCacheProducer::follow_engines(const PoolSnapshot& pool, const SignalView& signals) const {
  if (!params_.auto_tune) return;
  if (pool.epoch <= pool_epoch_.load(std::memory_order_relaxed) &&
      signals.epoch <= signal_epoch_.load(std::memory_order_relaxed))
    return;
  if (following_.exchange(true, std::memory_order_acquire)) return;
  struct Votes {
    uint32_t size = 0;
    uint32_t endpoints = 0;
  };
  std::array<Votes, kMaxSizes> votes;
  for (size_t i = 0; i < pool.endpoints.size(); ++i) {
    const EndpointSlot slot = pool.endpoints[i]->slot;
    if (slot >= shapes_.size()) continue;
    learn_shape(slot, signals, static_cast<Candidate>(i));
    const uint32_t size = shape_of(slot).block_size;
    if (size == 0) continue;
    const uint32_t block = std::max(size, kMinBlockSize);
    for (Votes& vote : votes) {
      if (vote.size != 0 && vote.size != block) continue;
      vote.size = block;
      ++vote.endpoints;
      break;
    }
  }
  const Votes most = *std::max_element(votes.begin(), votes.end(), [](const Votes& a, const Votes& b) {
    return a.endpoints != b.endpoints ? a.endpoints < b.endpoints : a.size < b.size;
  });
  if (most.endpoints > 0) {
    block_size_.store(most.size, std::memory_order_relaxed);
    size_known_.store(true, std::memory_order_relaxed);
  }
  pool_epoch_.store(pool.epoch, std::memory_order_relaxed);
  signal_epoch_.store(signals.epoch, std::memory_order_relaxed);
  following_.store(false, std::memory_order_release);
}

// 0: as it is.
uint32_t ApproxPrefixCacheProducer::capacity_of(EndpointSlot slot, uint32_t block_size) const {
  if (!params_.auto_tune) return 0;
  const CacheShape shape = shape_of(slot);
  if (shape.block_size == 0 || shape.blocks == 0) return 0;
  const uint64_t blocks = static_cast<uint64_t>(shape.blocks) * shape.block_size / block_size;
  return static_cast<uint32_t>(std::clamp<uint64_t>(blocks, 1, std::numeric_limits<int32_t>::max()));
}

// --- the request ---------------------------------------------------------------------------------------

Status ApproxPrefixCacheProducer::produce(SchedulingContext& ctx) const {
  if (match_slot_ == kNoSlot || hashes_slot_ == kNoSlot) return {};
  follow_engines(ctx.pool, ctx.signals);
  const uint32_t block_size = this->block_size();
  const size_t most = max_blocks(params_, block_size);
  const std::span<const TokenizedPrompt> prompts = ctx.request.prompts;

  const std::span<uint32_t> blocks = ctx.arena.make_span<uint32_t>(prompts.size());
  size_t hashed = 0;
  size_t total = 0;
  for (size_t i = 0; i < prompts.size(); ++i) {
    const kvindex::BlockCount count = kvindex::count_blocks(prompts[i].token_ids.size(), block_size, most);
    blocks[i] = static_cast<uint32_t>(count.full);
    hashed += count.full;
    total += count.total;
  }

  const std::span<uint64_t> hashes = ctx.arena.make_span<uint64_t>(hashed);
  const uint64_t seed = kvindex::chain_seed(ctx.request.target_model, ctx.request.cache_salt);
  size_t at = 0;
  for (size_t i = 0; i < prompts.size(); ++i) {
    kvindex::hash_blocks(prompts[i], block_size, seed, hashes.subspan(at, blocks[i]));
    at += blocks[i];
  }
  auto* kept = ctx.attributes.create_value<PromptHashes>(hashes_slot_);
  *kept = {hashes, blocks};

  const std::span<PrefixMatch> column = ctx.attributes.create<PrefixMatch>(match_slot_);
  for (const Candidate c : ctx.candidates) column[c] = {0, static_cast<uint32_t>(total), block_size, 0};
  add_matches(ctx, column, *kept);
  return {};
}

void ApproxPrefixCacheProducer::add_matches(SchedulingContext& ctx, std::span<PrefixMatch> column,
                                            const PromptHashes& prompts) const {
  kvindex::MatchResult& result = scratch();
  const auto add = [&](Candidate c, EndpointSlot slot) {
    column[c].match_blocks += result.length(slot);
    column[c].cached_blocks = column[c].match_blocks;
  };
  std::span<Candidate> candidate_of;
  size_t at = 0;
  for (const uint32_t blocks : prompts.blocks_per_prompt) {
    index_->match(prompts.hashes.subspan(at, blocks), result);
    at += blocks;
    if (result.endpoints().empty()) continue;
    if (prompts.blocks_per_prompt.size() <= kFewPrompts) {
      for (const Candidate c : ctx.candidates) add(c, ctx.pool.endpoints[c]->slot);
      continue;
    }
    if (candidate_of.empty()) {
      candidate_of = ctx.arena.make_filled<Candidate>(kMaxEndpoints, kNoCandidate);
      for (const Candidate c : ctx.candidates) candidate_of[ctx.pool.endpoints[c]->slot] = c;
    }
    for (const EndpointSlot slot : result.endpoints()) {
      if (candidate_of[slot] != kNoCandidate) add(candidate_of[slot], slot);
    }
  }
}

Status ApproxPrefixCacheProducer::pre_request(SchedulingContext& ctx, const SchedulingResult& result) const {
  const auto* prompts = ctx.attributes.value<PromptHashes>(hashes_slot_);
  const std::span<const PrefixMatch> matches = ctx.attributes.column<PrefixMatch>(match_slot_);
  if (prompts == nullptr || matches.empty() || result.primary == nullptr || result.primary->targets.empty())
    return {};
  const Candidate target = result.primary->targets[0];
  const PrefixMatch& match = matches[target];
  if (match.total_blocks > 0) hit_ratio_.observe(match.ratio());
  hit_bytes_.observe(static_cast<double>(match.match_blocks) * match.block_size_tokens * 4);

  insert(*ctx.pool.endpoints[target], *prompts, match);
  for (const ProfileResult* profile : result.profiles) {
    if (profile == nullptr || profile == result.primary || profile->profile_name != "prefill") continue;
    if (!profile->targets.empty() && profile->targets[0] != target)
      insert(*ctx.pool.endpoints[profile->targets[0]], *prompts, matches[profile->targets[0]]);
  }
  show_size();
  return {};
}

void ApproxPrefixCacheProducer::show_size() const {
  const auto held = static_cast<double>(index_->entries());
  size_.set(held);
  entries_.set(held);
  bytes_.set(static_cast<double>(index_->bytes()));
}

void ApproxPrefixCacheProducer::insert(const Endpoint& endpoint, const PromptHashes& prompts,
                                       const PrefixMatch& match) const {
  thread_local uint32_t untold = 0;
  const bool tells =
      outlet_ != nullptr && (match.match_blocks < prompts.hashes.size() || ++untold % kTellAgain == 0);
  size_t at = 0;
  for (const uint32_t blocks : prompts.blocks_per_prompt) {
    const std::span<const uint64_t> hashes = prompts.hashes.subspan(at, blocks);
    at += blocks;
    insert(endpoint, match.block_size_tokens, hashes);
    if (tells && !hashes.empty()) outlet_->entered(name(), endpoint, match.block_size_tokens, hashes);
  }
}

void ApproxPrefixCacheProducer::insert(const Endpoint& endpoint, uint32_t block_size,
                                       std::span<const uint64_t> hashes) const {
  if (endpoint.slot >= named_.size()) return;
  if (named_[endpoint.slot].load(std::memory_order_acquire) != endpoint.live.get()) remember_name(endpoint);
  const auto outcome =
      index_->insert({endpoint.slot, identity(endpoint), capacity_of(endpoint.slot, block_size)}, hashes);
  if (outcome.dropped) dropped_.add();
}

// Before any engine told its block size, and before a request came, all sizes are taken: those that turn out
// to be others are never asked for, and age out.
bool ApproxPrefixCacheProducer::learn(const Endpoint& endpoint, uint32_t block_size_tokens,
                                      std::span<const uint64_t> hashes) const {
  if (block_size_tokens != block_size() && size_known_.load(std::memory_order_relaxed)) return false;
  insert(endpoint, block_size_tokens, hashes);
  show_size();
  return true;
}

// --- membership ----------------------------------------------------------------------------------------

void ApproxPrefixCacheProducer::remember_name(const Endpoint& endpoint) const {
  const std::lock_guard lock(names_mutex_);
  if (removed_[endpoint.slot] == endpoint.live && endpoint.live != nullptr) return;
  names_[endpoint.slot] = endpoint.id;
  named_[endpoint.slot].store(endpoint.live.get(), std::memory_order_release);
}

void ApproxPrefixCacheProducer::endpoint_removed(const Endpoint& endpoint) const {
  if (endpoint.slot >= named_.size()) return;
  {
    const std::lock_guard lock(names_mutex_);
    removed_[endpoint.slot] = endpoint.live;
    names_[endpoint.slot].clear();
    named_[endpoint.slot].store(nullptr, std::memory_order_release);
  }
  shapes_[endpoint.slot].store(0, std::memory_order_relaxed);
  index_->remove_endpoint(endpoint.slot, identity(endpoint));
  show_size();
}

std::optional<std::string> ApproxPrefixCacheProducer::dump_state() const {
  struct Pod {
    std::string name;
    uint32_t blocks;
  };
  std::vector<Pod> pods;
  {
    const std::lock_guard lock(names_mutex_);
    for (size_t slot = 0; slot < names_.size(); ++slot) {
      const uint32_t blocks = index_->blocks(static_cast<EndpointSlot>(slot));
      if (blocks != 0 && !names_[slot].empty()) pods.push_back({names_[slot], blocks});
    }
  }
  std::sort(pods.begin(), pods.end(), [](const Pod& a, const Pod& b) {
    return a.blocks != b.blocks ? a.blocks > b.blocks : a.name < b.name;
  });
  std::string out = "{\"pods\":[";
  for (size_t i = 0; i < std::min(pods.size(), kMaxPodsDumped); ++i) {
    if (i > 0) out += ',';
    out += "{\"pod\":";
    append_json_quoted(out, pods[i].name);
    out += ",\"blocks\":" + std::to_string(pods[i].blocks) + "}";
  }
  out += "],\"totalPods\":" + std::to_string(pods.size()) + ",\"maxPods\":" + std::to_string(kMaxPodsDumped) +
         "}";
  return out;
}

}  // namespace penstock::scheduling
