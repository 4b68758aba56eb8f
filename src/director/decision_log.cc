#include "director/decision_log.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/strings.h"

namespace penstock::director {

namespace {

// Names that clients choose are kept so far and no further, and so are errors, which may quote them.
constexpr size_t kMaxTextBytes = 256;
constexpr size_t kMaxErrorBytes = 1024;

template <typename T, typename Fix>
std::span<const T> copy_items(std::span<const T> items, Arena& arena, Fix&& fix) {
  std::span<T> out = arena.make_span<T>(items.size());
  std::uninitialized_copy(items.begin(), items.end(), out.begin());
  for (T& item : out) fix(item);
  return out;
}

void prefetch(const void* memory, size_t bytes) {
  if (memory == nullptr) return;
  for (size_t at = 0; at < bytes; at += 64) __builtin_prefetch(static_cast<const char*>(memory) + at, 1);
}

void key(std::string& out, std::string_view name) {
  if (out.back() != '{' && out.back() != '[') out += ',';
  out += '"';
  out += name;
  out += "\":";
}
void text(std::string& out, std::string_view name, std::string_view value) {
  key(out, name);
  append_json_quoted(out, value);
}
void number(std::string& out, std::string_view name, uint64_t value) {
  key(out, name);
  fmt::format_to(std::back_inserter(out), "{}", value);
}
void number(std::string& out, std::string_view name, double value) {
  key(out, name);
  fmt::format_to(std::back_inserter(out), "{:.6g}", value);
}
void moment(std::string& out, std::string_view name, TimePoint from, TimePoint at) {
  if (at == kNever) return;
  number(out, name, to_millis(at - from));
}

void append_profile(std::string& out, const ProfileRecord& profile) {
  out += '{';
  text(out, "profile", profile.profile_name);
  text(out, "picker", profile.picker_name);
  text(out, "picked", profile.picked);
  number(out, "candidates", uint64_t{profile.candidates});
  if (profile.simple != SimpleChoice::kNone) {
    text(out, "decided_by", simple_choice_name(profile.simple));
    number(out, "fresh_candidates", uint64_t{profile.fresh});
  }
  if (profile.nan_scores != 0) number(out, "nan_scores", uint64_t{profile.nan_scores});
  if (profile.negative_scores != 0) number(out, "negative_scores", uint64_t{profile.negative_scores});
  if (profile.missing_scores != 0) number(out, "missing_scores", uint64_t{profile.missing_scores});
  key(out, "filters");
  out += '[';
  for (const FilterRecord& filter : profile.filters) {
    if (out.back() == '}') out += ',';
    out += '{';
    text(out, "plugin", filter.plugin_name);
    number(out, "before", uint64_t{filter.before});
    number(out, "after", uint64_t{filter.after});
    out += '}';
  }
  out += ']';
  key(out, "scorers");
  out += '[';
  for (const ScorerRecord& scorer : profile.scorers) {
    if (out.back() == '}') out += ',';
    out += '{';
    text(out, "plugin", scorer.plugin_name);
    number(out, "weight", scorer.weight);
    if (std::isfinite(scorer.max_contribution)) number(out, "max_contribution", scorer.max_contribution);
    out += '}';
  }
  out += ']';
  key(out, "top");
  out += '[';
  for (const CandidateRecord& candidate : profile.top) {
    if (out.back() == '}') out += ',';
    out += '{';
    text(out, "endpoint", candidate.endpoint_id);
    number(out, "total", candidate.total);
    key(out, "scores");
    out += '{';
    const size_t scorers = std::min(profile.scorers.size(), candidate.scores.size());
    for (size_t i = 0; i < scorers; ++i) {
      if (out.back() != '{') out += ',';
      append_json_quoted(out, profile.scorers[i].plugin_name);
      fmt::format_to(std::back_inserter(out), ":{:.6g}", candidate.scores[i]);
    }
    out += "}}";
  }
  out += "]}";
}

// `keep` is given the names of what is configured.
template <typename Keep>
DecisionRecord copy_of(const DecisionRecord& record, Arena& arena, const Keep& keep) {
  DecisionRecord out = record;
  for (std::string_view* field : {&out.request_id, &out.incoming_model, &out.target_model, &out.identity,
                                  &out.fairness_id, &out.winner, &out.winner_host_port}) {
    *field = arena.copy(field->substr(0, kMaxTextBytes));
  }
  out.pool = keep(record.pool);
  out.primary_profile = keep(record.primary_profile);
  out.profiles = copy_items(record.profiles, arena, [&](ProfileRecord& profile) {
    profile.profile_name = keep(profile.profile_name);
    profile.picker_name = keep(profile.picker_name);
    profile.picked = arena.copy(profile.picked);
    profile.filters =
        copy_items(profile.filters, arena, [&](FilterRecord& f) { f.plugin_name = keep(f.plugin_name); });
    profile.scorers =
        copy_items(profile.scorers, arena, [&](ScorerRecord& s) { s.plugin_name = keep(s.plugin_name); });
    size_t scores = 0;
    for (const CandidateRecord& c : profile.top) scores += c.scores.size();
    std::span<float> rows = arena.make_span<float>(scores);
    profile.top = copy_items(profile.top, arena, [&](CandidateRecord& c) {
      c.endpoint_id = arena.copy(c.endpoint_id);
      std::copy(c.scores.begin(), c.scores.end(), rows.begin());
      c.scores = rows.first(c.scores.size());
      rows = rows.subspan(c.scores.size());
    });
  });
  return out;
}

}  // namespace

DecisionRecord copy_record(const DecisionRecord& record, Arena& arena) {
  return copy_of(record, arena, [&](std::string_view name) { return arena.copy(name); });
}

const std::string* DecisionLog::Names::find(std::string_view name) {
  auto known = all_.find(name);
  if (known == all_.end()) {
    if (all_.size() == kMaxNames) return nullptr;
    known = all_.emplace(name).first;
  }
  return &*known;
}

void append_record_json(std::string& out, const DecisionRecord& record, std::string_view error,
                        const std::optional<Outcome>& outcome, bool detail) {
  out += '{';
  text(out, "request_id", record.request_id);
  text(out, "pool", record.pool);
  text(out, "model", record.incoming_model);
  text(out, "target_model", record.target_model);
  if (!record.identity.empty()) text(out, "identity", record.identity);
  text(out, "fairness_id", record.fairness_id);
  key(out, "priority");
  fmt::format_to(std::back_inserter(out), "{}", record.priority);
  text(out, "endpoint", record.winner);
  text(out, "address", record.winner_host_port);
  if (!error.empty()) text(out, "error", error);
  text(out, "fallback", fallback_state_name(record.fallback));
  if (record.left_out.any()) {
    key(out, "left_out");
    out += '{';
    const LeftOut& left = record.left_out;
    for (const auto& [name, count] :
         {std::pair("draining", left.draining), std::pair("asleep", left.asleep),
          std::pair("ejected", left.ejected), std::pair("on_trial", left.on_trial)}) {
      if (count != 0) number(out, name, uint64_t{count});
    }
    out += '}';
  }
  if (record.picked_as != PickedAs::kHealthy) text(out, "picked_as", picked_as_name(record.picked_as));

  key(out, "moments_ms");
  out += '{';
  moment(out, "pool_chosen", record.arrived_at, record.pool_chosen_at);
  moment(out, "decision_started", record.arrived_at, record.decision_started_at);
  moment(out, "endpoint_chosen", record.arrived_at, record.endpoint_chosen_at);
  moment(out, "first_token", record.arrived_at, outcome ? outcome->first_token_at : record.first_token_at);
  if (outcome) moment(out, "ended", record.arrived_at, outcome->ended_at);
  out += '}';

  number(out, "queue_ms", to_millis(record.queue_time));
  if (record.oldest_signal_age == Duration::max()) {
    key(out, "oldest_signal_age_ms");
    out += "null";
  } else {
    number(out, "oldest_signal_age_ms", to_millis(record.oldest_signal_age));
  }
  number(out, "prompt_tokens", record.prompt_tokens);
  number(out, "prefix_blocks_matched", uint64_t{record.prefix_blocks_matched});
  number(out, "prefix_blocks_total", uint64_t{record.prefix_blocks_total});
  text(out, "seed", std::to_string(record.seed));  // JSON readers round integers beyond 2^53
  number(out, "policy_epoch", record.policy_epoch);
  number(out, "membership_epoch", record.membership_epoch);
  number(out, "signal_epoch", record.signal_epoch);
  if (outcome) {
    key(out, "outcome");
    out += '{';
    number(out, "status", static_cast<uint64_t>(outcome->status));
    text(out, "reason", outcome->reason);
    number(out, "attempts", uint64_t{outcome->attempts});
    number(out, "prompt_tokens", outcome->prompt_tokens);
    number(out, "cached_tokens", outcome->cached_tokens);
    number(out, "output_tokens", outcome->output_tokens);
    out += '}';
  }
  if (detail) {
    text(out, "primary_profile", record.primary_profile);
    key(out, "profiles");
    out += '[';
    for (const ProfileRecord& profile : record.profiles) {
      if (out.back() == '}') out += ',';
      append_profile(out, profile);
    }
    out += ']';
  }
  out += '}';
}

DecisionLog::DecisionLog(const Options& options)
    : per_shard_(std::max<size_t>(1, options.capacity / std::max<size_t>(1, options.shards))) {
  for (size_t i = 0; i < std::max<size_t>(1, options.shards); ++i) {
    shards_.push_back(std::make_unique<Shard>());
  }
}

DecisionLog::Handle DecisionLog::begin(size_t shard_index, const DecisionRecord& record,
                                       std::string_view error) {
  shard_index %= shards_.size();
  Shard& shard = *shards_[shard_index];
  const std::lock_guard lock(shard.mutex);
  const uint64_t sequence = shard.next_sequence++;
  const size_t at = sequence % per_shard_;
  if (at >= shard.ring.size()) shard.ring.resize(at + 1);
  if (shard.ring[at] == nullptr) shard.ring[at] = std::make_unique<Entry>();
  Entry& entry = *shard.ring[at];
  entry.arena.reset(8 * 1024);
  entry.sequence = sequence;
  shard.names.begin();
  entry.record = copy_of(record, entry.arena,
                         [&](std::string_view name) { return shard.names.keep(name, entry.arena); });
  entry.error = entry.arena.copy(error.substr(0, kMaxErrorBytes));
  entry.outcome.reset();
  // Entries have left the caches by the time that the ring comes round to them, so what the next two
  // decisions write to is prefetched. The entry first, for it knows where its copies lie: from the id on.
  constexpr size_t kUsualCopies = 768;
  if (const Entry* next = shard.at(sequence + 2, per_shard_)) prefetch(next, sizeof(Entry));
  if (const Entry* next = shard.at(sequence + 1, per_shard_))
    prefetch(next->record.request_id.data(), kUsualCopies);
  return {static_cast<uint32_t>(shard_index), sequence};
}

void DecisionLog::finish(Handle handle, const Outcome& outcome) {
  if (handle.sequence == 0) return;
  Shard& shard = *shards_[handle.shard];
  const std::lock_guard lock(shard.mutex);
  Entry* entry = shard.ring[handle.sequence % per_shard_].get();
  if (entry != nullptr && entry->sequence == handle.sequence) entry->outcome = outcome;
}

std::vector<DecisionLog::Found> DecisionLog::survey(std::optional<std::string_view> request_id) const {
  std::vector<Found> found;
  for (size_t shard_index = 0; shard_index < shards_.size(); ++shard_index) {
    const Shard& shard = *shards_[shard_index];
    for (size_t from = 0;; from += kSurveyBatch) {
      const std::lock_guard lock(shard.mutex);
      const size_t to = std::min(from + kSurveyBatch, shard.ring.size());
      for (size_t i = from; i < to; ++i) {
        const Entry* entry = shard.ring[i].get();
        if (entry == nullptr || (request_id && entry->record.request_id != *request_id)) continue;
        found.push_back({entry->record.arrived_at, {static_cast<uint32_t>(shard_index), entry->sequence}});
      }
      if (to == shard.ring.size()) break;
    }
  }
  std::sort(found.begin(), found.end(), [](const Found& a, const Found& b) {
    if (a.arrived_at != b.arrived_at) return a.arrived_at > b.arrived_at;
    return a.handle.shard == b.handle.shard && a.handle.sequence > b.handle.sequence;
  });
  return found;
}

bool DecisionLog::append_json(std::string& out, Handle handle, bool detail, Arena& arena) const {
  arena.reset();
  DecisionRecord record;
  std::string_view error;
  std::optional<Outcome> outcome;
  {
    const Shard& shard = *shards_[handle.shard];
    const std::lock_guard lock(shard.mutex);
    const Entry* entry = shard.ring[handle.sequence % per_shard_].get();
    if (entry == nullptr || entry->sequence != handle.sequence) return false;  // overwritten meanwhile
    DecisionRecord wanted = entry->record;
    if (!detail) wanted.profiles = {};
    record = copy_record(wanted, arena);
    error = arena.copy(entry->error);
    outcome = entry->outcome;
  }
  append_record_json(out, record, error, outcome, detail);
  return true;
}

std::optional<std::string> DecisionLog::find_json(std::string_view request_id) const {
  Arena arena;
  for (const Found& found : survey(request_id)) {
    std::string json;
    if (append_json(json, found.handle, true, arena)) return json;
  }
  return std::nullopt;
}

std::string DecisionLog::list_json(size_t limit) const {
  Arena arena;
  std::string out = "[";
  for (const Found& found : survey(std::nullopt)) {
    if (limit == 0) break;
    const size_t before = out.size();
    if (before > 1) out += ',';
    if (append_json(out, found.handle, false, arena)) {
      --limit;
    } else {
      out.resize(before);
    }
  }
  out += ']';
  return out;
}

}  // namespace penstock::director
