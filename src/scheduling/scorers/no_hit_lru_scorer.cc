#include "scheduling/scorers/no_hit_lru_scorer.h"

#include <algorithm>

#include "base/strings.h"

namespace penstock::scheduling {

void NoHitLruScorer::bind(config::Binder& b, Params& p) {
  b.field("lruSize", p.lru_size, "endpoints", "Endpoints remembered. Values below 1 count as 1024.");
  b.field("prefixMatchInfoProducerName", p.producer, "",
          "Name of the prefix cache producer to read; empty: approx-prefix-cache-producer.");
  b.field("prefixPluginType", p.prefix_plugin_type, "", "Ignored; accepted for older configurations.");
  b.field("prefixPluginName", p.prefix_plugin_name, "", "Ignored; accepted for older configurations.");
}

NoHitLruScorer::NoHitLruScorer(Params params)
    : key_(data_keys::kPrefixMatch.with_producer(params.producer)),
      capacity_(std::min(params.lru_size > 0 ? static_cast<size_t>(params.lru_size) : kDefaultSize,
                         kMaxEndpoints)) {
  lru_.reserve(capacity_ + 1);
}

void NoHitLruScorer::declare_data(DataDeclaration& declaration) const {
  declaration.require<PrefixMatch>(key_);
}

void NoHitLruScorer::bind_slots(const SlotResolver& slots) {
  slot_ = slots.slot(key_);
}

bool NoHitLruScorer::is_cold(const SchedulingContext& ctx, std::span<const Candidate> candidates) const {
  const std::span<const PrefixMatch> matches = ctx.attributes.column<PrefixMatch>(slot_);
  if (matches.empty()) return true;
  return std::none_of(candidates.begin(), candidates.end(),
                      [&](Candidate c) { return matches[c].match_blocks > 0; });
}

void NoHitLruScorer::score(SchedulingContext& ctx, std::span<const Candidate> candidates,
                           std::span<double> scores) const {
  const size_t n = candidates.size();
  if (!is_cold(ctx, candidates) || n == 0) {
    std::fill(scores.begin(), scores.end(), 0.5);
    return;
  }
  if (n == 1) {
    scores[0] = 1.0;
    return;
  }
  // Place in the LRU by slot, from 1; 0: never used.
  const std::span<uint16_t> place = ctx.arena.make_filled<uint16_t>(kMaxEndpoints, 0);
  {
    const std::lock_guard lock(mutex_);
    for (size_t i = 0; i < lru_.size(); ++i) place[lru_[i]] = static_cast<uint16_t>(i + 1);
  }
  const auto place_of = [&](Candidate c) { return place[ctx.pool.endpoints[c]->slot]; };
  const auto never = static_cast<size_t>(
      std::count_if(candidates.begin(), candidates.end(), [&](Candidate c) { return place_of(c) == 0; }));
  const auto last = static_cast<double>(n - 1);
  size_t seen_never = 0;
  for (size_t i = 0; i < n; ++i) {
    const uint16_t at = place_of(candidates[i]);
    const size_t rank = at == 0 ? seen_never++ : never + at - 1;
    scores[i] = std::max(0.0, 1.0 - static_cast<double>(rank) / last);
  }
}

void NoHitLruScorer::explain(const SchedulingContext& ctx, Candidate candidate, std::string& out) const {
  if (!is_cold(ctx, ctx.candidates)) {
    out += "a candidate holds a part of the prompt: 0.5 for all";
    return;
  }
  const EndpointSlot slot = ctx.pool.endpoints[candidate]->slot;
  const std::lock_guard lock(mutex_);
  const auto at = std::find(lru_.begin(), lru_.end(), slot);
  if (at == lru_.end()) {
    out += "cold prompt, endpoint not used for one yet";
    return;
  }
  out += "cold prompt, endpoint last used " + std::to_string(lru_.end() - at) + " of " +
         std::to_string(lru_.size()) + " cold destinations ago";
}

Status NoHitLruScorer::pre_request(SchedulingContext& ctx, const SchedulingResult& result) const {
  if (result.primary == nullptr || !is_cold(ctx, result.primary->scored)) return {};
  const auto touch_target = [&](const ProfileResult& profile) {
    if (!profile.targets.empty()) touch(ctx.pool.endpoints[profile.targets[0]]);
  };
  touch_target(*result.primary);
  for (const ProfileResult* profile : result.profiles) {
    if (profile != result.primary && profile->profile_name == "prefill") touch_target(*profile);
  }
  return {};
}

void NoHitLruScorer::touch(const std::shared_ptr<const Endpoint>& endpoint) const {
  seen_.see(endpoint);
  const std::lock_guard lock(mutex_);
  std::erase(lru_, endpoint->slot);
  lru_.push_back(endpoint->slot);
  if (lru_.size() > capacity_) lru_.erase(lru_.begin());
}

void NoHitLruScorer::endpoint_removed(const Endpoint& endpoint) const {
  const std::lock_guard lock(mutex_);
  std::erase(lru_, endpoint.slot);
  seen_.forget(endpoint.slot);
}

std::optional<std::string> NoHitLruScorer::dump_state() const {
  constexpr size_t kMaxDumped = 100;
  std::vector<EndpointSlot> lru;
  {
    const std::lock_guard lock(mutex_);
    lru = lru_;
  }
  std::string out = "{\"endpoints\":[";
  for (size_t i = 0; i < std::min(lru.size(), kMaxDumped); ++i) {
    if (i > 0) out += ',';
    append_json_quoted(out, seen_.id_of(lru[i]));
  }
  return out + "],\"totalEndpoints\":" + std::to_string(lru.size()) +
         ",\"maxEndpoints\":" + std::to_string(kMaxDumped) + "}";
}

}  // namespace penstock::scheduling
