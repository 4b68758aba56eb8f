#include "scheduling/producers/p2p_source_producer.h"

#include <algorithm>

#include "scheduling/signal_column.h"

namespace penstock::scheduling {

namespace {

constexpr std::string_view kHeader = "x-kv-cache-source-host-port";

uint64_t source_tokens(const PrefixMatch& match) {
  const uint64_t blocks =
      match.cpu_tier_blocks >= 0 ? static_cast<uint64_t>(match.cpu_tier_blocks) : match.cached_blocks;
  return blocks * match.block_size_tokens;
}

}  // namespace

void P2pSourceProducer::bind(config::Binder& b, Params& p) {
  b.field("prefixMatchInfoProducerName", p.prefix_producer, "",
          "Name of the prefix cache producer to read; empty: approx-prefix-cache-producer.");
  b.field("minCachedTokenDelta", p.min_delta, "tokens",
          "How many more tokens a source must hold than the computing endpoint.");
  b.field("prefillProfileName", p.prefill_profile, "", "Profile whose first target computes, where it ran.");
  if (b.describing()) return;
  if (p.prefill_profile.empty()) p.prefill_profile = "prefill";
  if (p.min_delta < 1) {
    b.fail("minCachedTokenDelta",
           "p2p-source-producer: minCachedTokenDelta must be >= 1, got " + std::to_string(p.min_delta));
  }
}

P2pSourceProducer::P2pSourceProducer(Params params)
    : params_(std::move(params)),
      prefix_key_(data_keys::kPrefixMatch.with_producer(params_.prefix_producer)) {}

void P2pSourceProducer::declare_data(DataDeclaration& declaration) const {
  declaration.require<PrefixMatch>(prefix_key_);
  declaration.produce<CacheSource>(source_key());
}

void P2pSourceProducer::bind_slots(const SlotResolver& slots) {
  prefix_slot_ = slots.slot(prefix_key_);
  source_slot_ = slots.slot(source_key());
}

uint32_t P2pSourceProducer::fnv1a(std::string_view text) {
  uint32_t hash = 0x811c9dc5U;
  for (const char c : text) hash = (hash ^ static_cast<uint8_t>(c)) * 0x01000193U;
  return hash;
}

Status P2pSourceProducer::produce(SchedulingContext& ctx) const {
  const auto matches = ctx.attributes.column<PrefixMatch>(prefix_slot_);
  if (matches.empty() || source_slot_ == kNoSlot) return {};
  uint64_t most = 0;
  for (const Candidate c : ctx.candidates) most = std::max(most, source_tokens(matches[c]));
  if (most == 0) return {};
  const auto takes_part = [&](Candidate c) {
    const uint64_t tokens = source_tokens(matches[c]);
    return tokens > 0 && tokens + matches[c].block_size_tokens >= most;
  };
  const SignalColumn waiting = gather(ctx, ctx.candidates, Signal::kWaitingRequests);
  const auto weight = [&](size_t i) { return 1.0 / (1.0 + waiting.values[i]); };
  double sum = 0;
  for (size_t i = 0; i < ctx.candidates.size(); ++i) sum += takes_part(ctx.candidates[i]) ? weight(i) : 0.0;
  double target = static_cast<double>(fnv1a(ctx.request.request_id)) * 0x1.0p-32 * sum;
  Candidate chosen = 0;
  for (size_t i = 0; i < ctx.candidates.size(); ++i) {
    if (!takes_part(ctx.candidates[i])) continue;
    chosen = ctx.candidates[i];
    if (target < weight(i)) break;
    target -= weight(i);
  }
  *ctx.attributes.create_value<CacheSource>(source_slot_) = {chosen, source_tokens(matches[chosen])};
  return {};
}

Status P2pSourceProducer::pre_request(SchedulingContext& ctx, const SchedulingResult& result) const {
  if (ctx.edits == nullptr) return {};
  ctx.edits->remove_request(kHeader);
  const auto* source = ctx.attributes.value<CacheSource>(source_slot_);
  const auto matches = ctx.attributes.column<PrefixMatch>(prefix_slot_);
  if (source == nullptr || matches.empty()) return {};
  const ProfileResult* computing = result.primary;
  for (const ProfileResult* profile : result.profiles) {
    if (profile != nullptr && profile->profile_name == params_.prefill_profile && !profile->targets.empty())
      computing = profile;
  }
  if (computing == nullptr || computing->targets.empty()) return {};
  const Candidate target = computing->targets[0];
  const std::string& from = ctx.pool.endpoints[source->endpoint]->host_port;
  const uint64_t own = uint64_t{matches[target].cached_blocks} * matches[target].block_size_tokens;
  const bool worth_it =
      source->cached_tokens >= own && source->cached_tokens - own >= static_cast<uint64_t>(params_.min_delta);
  if (from != ctx.pool.endpoints[target]->host_port && worth_it) ctx.edits->set_request(kHeader, from);
  return {};
}

}  // namespace penstock::scheduling
