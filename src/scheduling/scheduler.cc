#include "scheduling/scheduler.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <optional>

#include "scheduling/scheduler_spans.h"
#include "scheduling/score_row.h"
#include "scheduling/signal_column.h"
#include "scheduling/simple_pick.h"
#include "telemetry/laps.h"
#include "telemetry/metrics.h"

// Invariants:
//  * every profile run starts from ctx.candidates, whatever earlier runs left;
//  * `scores` is a matrix of one row per scorer and one column per surviving candidate, clamped in place;
//  * a ProfileResult exists only with at least one target.

namespace penstock::scheduling {

namespace {

constexpr std::string_view kNothingLeft = "no endpoints available for the given request";

// Positions of the best totals, best first, equal ones in the order they came.
std::span<uint32_t> best_positions(Arena& arena, std::span<const double> totals, size_t count) {
  std::span<uint32_t> best = arena.make_span<uint32_t>(count);
  size_t held = 0;
  for (uint32_t i = 0; i < totals.size() && count > 0; ++i) {
    if (held == count && !(totals[i] > totals[best[held - 1]])) continue;
    size_t at = held < count ? held++ : held - 1;
    for (; at > 0 && totals[i] > totals[best[at - 1]]; --at) best[at] = best[at - 1];
    best[at] = i;
  }
  return best;
}

std::span<uint32_t> all_positions(Arena& arena, std::span<const double> totals) {
  std::span<uint32_t> order = arena.make_span<uint32_t>(totals.size());
  for (uint32_t i = 0; i < order.size(); ++i) order[i] = i;
  std::sort(order.begin(), order.end(),
            [&](uint32_t a, uint32_t b) { return totals[a] != totals[b] ? totals[a] > totals[b] : a < b; });
  return order;
}

// The recorded candidates: the best totals, the target among them; all when explaining.
std::span<const CandidateRecord> record_candidates(SchedulingContext& ctx,
                                                   std::span<const Candidate> candidates,
                                                   std::span<const double> totals,
                                                   std::span<const double> scores, size_t scorers,
                                                   Candidate target) {
  std::span<uint32_t> order =
      ctx.explain ? all_positions(ctx.arena, totals)
                  : best_positions(ctx.arena, totals, std::min(totals.size(), kRecordedCandidates));
  const auto is_target = [&](uint32_t i) { return candidates[i] == target; };
  if (std::none_of(order.begin(), order.end(), is_target)) {
    const auto at = std::find(candidates.begin(), candidates.end(), target);
    if (at != candidates.end()) order.back() = static_cast<uint32_t>(at - candidates.begin());
  }
  std::span<CandidateRecord> out = ctx.arena.make_span<CandidateRecord>(order.size());
  const size_t kept = std::min(scorers, kMaxScorersRecorded);
  const std::span<float> rows = ctx.arena.make_span<float>(order.size() * kept);
  for (size_t i = 0; i < order.size(); ++i) {
    const uint32_t position = order[i];
    const std::span<float> row = rows.subspan(i * kept, kept);
    for (size_t s = 0; s < kept; ++s) row[s] = static_cast<float>(scores[s * candidates.size() + position]);
    out[i] = {ctx.pool.endpoints[candidates[position]]->id, candidates[position], totals[position], row};
  }
  return out;
}

// Age of the oldest of the signals in `mask` on one endpoint; Duration::max() when one was never observed.
Duration oldest_age(const SchedulingContext& ctx, SignalSet mask, Candidate candidate) {
  Duration oldest{0};
  for (size_t s = 0; s < kSignalCount; ++s) {
    if ((mask >> s & 1U) == 0) continue;
    const SignalValue value = ctx.signals.at(static_cast<Signal>(s), candidate);
    if (value.observed_at == kNever) return Duration::max();
    oldest = std::max(oldest, ctx.now - value.observed_at);
  }
  return oldest;
}

// True when each of the signals is fresh on some candidate.
bool all_usable(const SchedulingContext& ctx, SignalSet mask, std::span<const Candidate> candidates) {
  for (size_t s = 0; s < kSignalCount; ++s) {
    if ((mask >> s & 1U) != 0 && !signals_usable(ctx, candidates, static_cast<Signal>(s))) return false;
  }
  return true;
}

// Whether an endpoint's values of a set are within their budgets. A signal that its engine does not export
// is none that can get old: it counts where there is no other.
bool is_fresh(const SchedulingContext& ctx, SignalSet set, Candidate candidate) {
  bool any = false;
  for (size_t s = 0; s < kSignalCount; ++s) {
    const auto signal = static_cast<Signal>(s);
    if ((set & signal_bit(signal)) == 0) continue;
    if (ctx.signals.at(signal, candidate).state == SignalState::kNameMissing) continue;
    any = true;
    if (ctx.freshness->influence(ctx.signals, signal, candidate, ctx.now) < 1.0) return false;
  }
  return any;
}

// The signals that a plugin reads, or those of them that it cannot do without.
SignalSet signals_of(const Plugin& plugin, bool required_only) {
  static const std::pair<const DataKey&, SignalSet> kKeys[] = {
      {data_keys::kWaitingQueueSize, signal_bit(Signal::kWaitingRequests)},
      {data_keys::kRunningRequestsSize, signal_bit(Signal::kRunningRequests)},
      {data_keys::kKvCacheUsagePercent, signal_bit(Signal::kKvUsage)},
      {data_keys::kActiveModels, kAdapterBit},
  };
  DataDeclaration declaration;
  plugin.declare_data(declaration);
  SignalSet signals = 0;
  for (const DataUse& use : declaration.consumes) {
    for (const auto& [key, bit] : kKeys) {
      if ((use.required || !required_only) && use.key == key) signals |= bit;
    }
  }
  // An engine without adapters is none that we know nothing of.
  return required_only ? signals & static_cast<SignalSet>(~kAdapterBit) : signals;
}

Error target_error(std::string_view why) {
  return Error{ErrorCode::kResourceExhausted, "failed to find target endpoint: " + std::string(why)};
}

}  // namespace

telemetry::Family<telemetry::Histogram>& plugin_durations(telemetry::MetricRegistry& metrics) {
  return metrics.histogram(
      {.name = "llm_d_epp_plugin_duration_seconds",
       .help = "[ALPHA] Plugin processing latency distribution in seconds for each extension "
               "point, plugin type and plugin name.",
       .labels = {"extension_point", "plugin_type", "plugin_name"},
       .bounds = telemetry::buckets::short_seconds(),
       .twins = {{.name = "inference_extension_plugin_duration_seconds",
                  .labels = {{"extension_point", "extension_point"},
                             {"plugin_type", "plugin_type"},
                             {"plugin_name", "plugin_name"}}}}});
}

telemetry::Family<telemetry::Counter>& corrected_scores(telemetry::MetricRegistry& metrics) {
  return metrics.counter({.name = "penstock_scores_corrected_total",
                          .help = "Scores that counted as 0 because they were not_a_number, negative or "
                                  "missing, by scorer and kind.",
                          .labels = {"plugin_type", "plugin_name", "kind"}});
}

struct Scheduler::ProfileTimers {
  struct Corrected {
    telemetry::Counter* not_a_number = nullptr;
    telemetry::Counter* negative = nullptr;
    telemetry::Counter* missing = nullptr;

    void add(const ScoreFaults& faults) const {
      not_a_number->add(faults.not_a_number);
      negative->add(faults.negative);
      missing->add(faults.missing);
    }
  };
  std::vector<telemetry::Histogram*> filters;
  std::vector<telemetry::Histogram*> scorers;
  std::vector<Corrected> corrected;  // as `scorers`
  telemetry::Histogram* picker = nullptr;
};

struct Scheduler::Timers {
  Timers(telemetry::MetricRegistry& metrics, const Clock& c, const std::vector<Profile>& profiles,
         const ProfileHandler& handler)
      : clock(c) {
    auto& family = plugin_durations(metrics);
    const auto series = [&](std::string_view point, const Plugin& plugin) {
      return &family.with({point, plugin.type(), plugin.name()});
    };
    handler_pick = series("ProfilePicker", handler);
    handler_process = series("ProcessProfilesResults", handler);
    for (const Profile& profile : profiles) {
      ProfileTimers& times = per_profile.emplace_back();
      for (const Filter* filter : profile.filters) times.filters.push_back(series("Filter", *filter));
      for (const auto& entry : profile.scorers) {
        const Scorer& scorer = *entry.scorer;
        times.scorers.push_back(series("Scorer", scorer));
        const auto count = [&](std::string_view kind) {
          return &corrected_scores(metrics).with({scorer.type(), scorer.name(), kind});
        };
        times.corrected.push_back({count("not_a_number"), count("negative"), count("missing")});
      }
      times.picker = series("Picker", *profile.picker);
    }
  }

  const Clock& clock;
  telemetry::Histogram* handler_pick;
  telemetry::Histogram* handler_process;
  std::vector<ProfileTimers> per_profile;
};

Scheduler::Scheduler(std::vector<Profile> profiles, const ProfileHandler* handler,
                     telemetry::MetricRegistry* metrics, const Clock* clock)
    : profiles_(std::move(profiles)),
      simple_(std::make_unique<SimplePick[]>(profiles_.size())),
      handler_(handler) {
  assert(handler_ != nullptr);
  for (const Profile& profile : profiles_) {
    assert(profile.picker != nullptr);
    names_.push_back(profile.name);
    ProfileSignals& signals = signals_.emplace_back();
    for (const Filter* filter : profile.filters) signals.required |= signals_of(*filter, true);
    for (const auto& entry : profile.scorers) {
      assert(std::isfinite(entry.weight) && entry.max_contribution >= 0);
      signals.required |= signals_of(*entry.scorer, true);
      signals.scorers.push_back(signals_of(*entry.scorer, false));
    }
  }
  if (metrics != nullptr && clock != nullptr) {
    timers_ = std::make_unique<Timers>(*metrics, *clock, profiles_, *handler_);
  }
}

Scheduler::~Scheduler() = default;

const Profile* Scheduler::find(std::string_view profile_name) const {
  for (const Profile& profile : profiles_) {
    if (profile.name == profile_name) return &profile;
  }
  return nullptr;
}

void Scheduler::filter(const Profile& profile, SchedulingContext& ctx, telemetry::Laps* laps,
                       const ProfileTimers* times, std::span<Candidate>& candidates, ProfileRecord& record) {
  telemetry::SpanScope span(ctx.trace, "filter_endpoints", telemetry::SpanKind::kInternal, kSchedulingScope);
  const size_t all = candidates.size();
  std::span<FilterRecord> filters =
      ctx.arena.make_filled<FilterRecord>(std::min(profile.filters.size(), kMaxFiltersRecorded));
  for (size_t f = 0; f < profile.filters.size() && !candidates.empty(); ++f) {
    const size_t before = candidates.size();
    candidates = candidates.first(std::min(before, profile.filters[f]->filter(ctx, candidates)));
    if (times != nullptr) laps->end(times->filters[f]);
    if (f >= filters.size()) continue;
    filters[f] = {profile.filters[f]->name(), static_cast<uint32_t>(before),
                  static_cast<uint32_t>(candidates.size())};
    record.filters = filters.first(f + 1);
  }
  if (span) describe_filters(span, ctx, all, candidates.size());
}

SimpleChoice Scheduler::fallback(const ProfileSignals& signals, const SchedulingContext& ctx,
                                 std::span<const Candidate> candidates, ProfileRecord& record) {
  if (ctx.freshness == nullptr || signals.required == 0 ||
      ctx.freshness->all_fresh(ctx.signals, signals.required, ctx.now)) {
    return SimpleChoice::kNone;
  }
  record.fresh = static_cast<uint32_t>(std::count_if(
      candidates.begin(), candidates.end(), [&](Candidate c) { return is_fresh(ctx, signals.required, c); }));
  const double share = static_cast<double>(record.fresh) / static_cast<double>(candidates.size());
  return share < ctx.freshness->min_fresh_share ? ctx.freshness->fallback : SimpleChoice::kNone;
}

void Scheduler::score(const Profile& profile, const ProfileSignals& signals, SchedulingContext& ctx,
                      telemetry::Laps* laps, const ProfileTimers* times,
                      std::span<const Candidate> candidates, std::span<double> scores,
                      std::span<double> totals, ProfileRecord& record) {
  telemetry::SpanScope span(ctx.trace, "llm_d.epp.scoring", telemetry::SpanKind::kInternal, kSchedulingScope);
  const size_t scorers = profile.scorers.size();
  if (span) describe_scoring(span, ctx, scorers, candidates.size());
  std::span<ScorerRecord> scorer_records =
      ctx.arena.make_span<ScorerRecord>(std::min(scorers, kMaxScorersRecorded));
  bool old = false;  // any of what the scorers read
  if (ctx.freshness != nullptr) {
    SignalSet read = 0;
    for (const SignalSet set : signals.scorers) read |= set;
    old = !ctx.freshness->all_fresh(ctx.signals, read, ctx.now);
  }
  for (size_t s = 0; s < scorers; ++s) {
    const auto& [scorer, weight, max_contribution] = profile.scorers[s];
    telemetry::SpanScope scorer_span(ctx.trace, "llm_d.epp.scorer.", telemetry::SpanKind::kInternal,
                                     kSchedulingScope, scorer->type());
    std::span<double> row = scores.subspan(s * candidates.size(), candidates.size());
    scorer->score(ctx, candidates, row);
    const AttributeSlot attribute = ctx.freshness == nullptr ? kNoSlot : scorer->aging_attribute();
    const bool fades =
        attribute != kNoSlot || (old && !ctx.freshness->all_fresh(ctx.signals, signals.scorers[s], ctx.now));
    ScoreFaults faults;
    if (!fades && std::isinf(max_contribution)) {
      faults = clamp_and_add_row(row, weight, totals);
    } else {
      faults = clamp_row(row);
      if (fades) fade_row(ctx, signals.scorers[s], attribute, candidates, row);
      add_row(row, weight, max_contribution, totals);
    }
    if (faults.any()) {
      record.nan_scores += faults.not_a_number;
      record.negative_scores += faults.negative;
      record.missing_scores += faults.missing;
      if (times != nullptr) times->corrected[s].add(faults);
    }
    if (s < scorer_records.size()) scorer_records[s] = {scorer->name(), weight, max_contribution};
    if (times != nullptr) laps->end(times->scorers[s]);
    if (scorer_span) describe_scorer(scorer_span, *scorer, weight, row);
  }
  record.scorers = scorer_records;
}

Scheduler::Outcome Scheduler::run_profile(size_t index, SchedulingContext& ctx, telemetry::Laps* laps,
                                          ProfileRecord& record, ProfileResult& result) const {
  const Profile& profile = profiles_[index];
  const Timers* timers = ctx.explain ? nullptr : timers_.get();
  const ProfileTimers* times = timers == nullptr ? nullptr : &timers->per_profile[index];
  record.profile_name = profile.name;
  record.picker_name = profile.picker->name();
  telemetry::SpanScope run_span(ctx.trace, "run_scheduler_profile", telemetry::SpanKind::kInternal,
                                kSchedulingScope);
  if (run_span) run_span.set("llm_d.epp.scheduling.profile.name", profile.name);

  std::span<Candidate> candidates = ctx.arena.make_span<Candidate>(ctx.candidates.size());
  std::copy(ctx.candidates.begin(), ctx.candidates.end(), candidates.begin());
  filter(profile, ctx, laps, times, candidates, record);
  record.candidates = static_cast<uint32_t>(candidates.size());
  if (candidates.empty()) {
    run_span.fail(kNothingLeft);
    return Outcome::kEmptied;
  }

  record.simple = fallback(signals_[index], ctx, candidates, record);
  if (record.simple != SimpleChoice::kNone) return run_simple(index, ctx, candidates, record, result);

  const size_t scorers = profile.scorers.size();
  std::span<double> totals = ctx.arena.make_filled<double>(candidates.size(), 0.0);
  std::span<double> scores = ctx.arena.make_span<double>(scorers * candidates.size());
  mark_missing(scores);
  score(profile, signals_[index], ctx, laps, times, candidates, scores, totals, record);

  telemetry::SpanScope pick_span(ctx.trace, "pick_endpoints", telemetry::SpanKind::kInternal,
                                 kSchedulingScope);
  const std::span<const Candidate> targets = profile.picker->pick(ctx, candidates, totals);
  if (times != nullptr) laps->end(times->picker);
  if (pick_span) describe_pick(pick_span, ctx, candidates, totals);
  if (targets.empty()) {
    run_span.fail("the picker chose no endpoint");
    return Outcome::kNoPick;
  }
  record.picked = ctx.pool.endpoints[targets[0]]->id;
  record.top = record_candidates(ctx, candidates, totals, scores, scorers, targets[0]);
  result = ProfileResult{profile.name, targets, candidates, totals, &record};
  return Outcome::kPicked;
}

Scheduler::Outcome Scheduler::run_simple(size_t index, SchedulingContext& ctx,
                                         std::span<const Candidate> candidates, ProfileRecord& record,
                                         ProfileResult& result) const {
  const Profile& profile = profiles_[index];
  const std::span<double> totals = ctx.arena.make_span<double>(candidates.size());
  const std::span<const Candidate> targets =
      simple_[index].pick(record.simple, ctx, candidates, profile.picker->max_targets(), totals);
  record.scorers = ctx.arena.make_filled<ScorerRecord>(1, {simple_choice_name(record.simple), 1.0});
  record.picker_name = simple_choice_name(record.simple);
  record.picked = ctx.pool.endpoints[targets[0]]->id;
  record.top = record_candidates(ctx, candidates, totals, totals, 1, targets[0]);
  result = ProfileResult{profile.name, targets, candidates, totals, &record};
  return Outcome::kPicked;
}

Error Scheduler::failure(const Error& cause, std::span<const Outcome> outcomes) const {
  if (cause.code != ErrorCode::kInternal) return cause;
  std::string why = cause.message;
  for (size_t i = 0; i < outcomes.size(); ++i) {
    if (outcomes[i] == Outcome::kEmptied)
      return Error{ErrorCode::kResourceExhausted, std::string(kNothingLeft), "rejected-saturated"};
    if (outcomes[i] == Outcome::kNoPick) {
      why += "\nprofile \"" + names_[i] + "\": picker '" + profiles_[i].picker->typed_name() +
             "' chose no endpoint";
    }
  }
  return target_error(why);
}

Result<SchedulingResult> Scheduler::run(SchedulingContext& ctx, DecisionRecord& record,
                                        telemetry::Laps* laps) const {
  std::optional<telemetry::Laps> own;
  if (laps == nullptr && timers_ != nullptr && !ctx.explain)
    laps = &own.emplace(timers_->clock, timers_->clock.now());
  Result<SchedulingResult> result = decide(ctx, laps, record);
  record.membership_epoch = ctx.pool.epoch;
  record.signal_epoch = ctx.signals.epoch;
  if (!result.ok()) {
    if (record.fallback == FallbackState::kNone) record.fallback = FallbackState::kNoEndpoint;
    return result;
  }
  const ProfileResult& primary = *result->primary;
  const Endpoint& winner = *ctx.pool.endpoints[primary.targets[0]];
  record.primary_profile = primary.profile_name;
  record.winner = winner.id;
  record.winner_host_port = winner.host_port;
  const auto at = std::find(names_.begin(), names_.end(), primary.profile_name);
  if (at != names_.end()) {
    const SignalSet mask = signals_[static_cast<size_t>(at - names_.begin())].required;
    record.oldest_signal_age = oldest_age(ctx, mask, primary.targets[0]);
    const bool simple = primary.record != nullptr && primary.record->simple != SimpleChoice::kNone;
    // What was wrong before says more: a pool that is down has no fresh signals either.
    if (record.fallback != FallbackState::kNone) return result;
    if (simple) {
      record.fallback = FallbackState::kTooFewFreshSignals;
    } else if (!all_usable(ctx, mask, primary.scored)) {
      record.fallback = FallbackState::kNoFreshSignals;
    }
  }
  return result;
}

Result<SchedulingResult> Scheduler::decide(SchedulingContext& ctx, telemetry::Laps* laps,
                                           DecisionRecord& record) const {
  const size_t n = profiles_.size();
  const Timers* timers = ctx.explain ? nullptr : timers_.get();
  const std::span<bool> done = ctx.arena.make_filled<bool>(n, false);
  const std::span<Outcome> outcomes = ctx.arena.make_filled<Outcome>(n, Outcome::kNotRun);
  const std::span<const ProfileResult*> results = ctx.arena.make_filled<const ProfileResult*>(n, nullptr);
  const std::span<ProfileRecord> records = ctx.arena.make_filled<ProfileRecord>(n * kMaxRunsPerProfile);
  size_t runs = 0;

  while (true) {
    const std::span<const uint32_t> wanted = handler_->pick(ctx, names_, done, results);
    if (timers != nullptr) laps->end(timers->handler_pick);
    if (wanted.empty()) break;
    for (const uint32_t index : wanted) {
      if (index >= n || runs == records.size())
        return target_error("profile handler '" + handler_->typed_name() +
                            "' asked for too many profile runs");
      ProfileResult* profile_result = ctx.arena.make<ProfileResult>();
      outcomes[index] = run_profile(index, ctx, laps, records[runs], *profile_result);
      results[index] = outcomes[index] == Outcome::kPicked ? profile_result : nullptr;
      done[index] = true;
      record.profiles = records.first(++runs);
    }
  }
  if (runs == 0)
    return target_error("failed to run any scheduler profile for request " +
                        std::string(ctx.request.request_id));

  Result<SchedulingResult> result = handler_->process(ctx, names_, results);
  if (timers != nullptr) laps->end(timers->handler_process);
  if (!result.ok()) return failure(result.error(), outcomes);
  if (result->primary == nullptr)
    return failure({ErrorCode::kInternal, "no primary profile result"}, outcomes);
  return result;
}

}  // namespace penstock::scheduling
