#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "inference/plugin.h"

namespace penstock::telemetry {
class Counter;
class Histogram;
class Laps;
template <typename T>
class Family;
}  // namespace penstock::telemetry

namespace penstock::scheduling {

class SimplePick;

// One scheduling profile, in configuration order. Plugins are owned by the policy.
// REQUIRES: `picker` is set; weights are finite (zero and negative ones are accepted, as the reference
// does).
struct Profile {
  struct WeightedScorer {
    const Scorer* scorer = nullptr;
    double weight = 1.0;
    // The most that score * weight may add or take away.
    double max_contribution = std::numeric_limits<double>::infinity();
  };
  std::string name;
  std::vector<const Filter*> filters;
  std::vector<WeightedScorer> scorers;
  const Picker* picker = nullptr;
};

// Profile runs of one decision, per configured profile: what a handler that never stops asking is cut
// off at.
inline constexpr size_t kMaxRunsPerProfile = 4;

// llm_d_epp_plugin_duration_seconds: its labels are extension point, plugin type and plugin name.
telemetry::Family<telemetry::Histogram>& plugin_durations(telemetry::MetricRegistry& metrics);
// penstock_scores_corrected_total: plugin type, plugin name, kind.
telemetry::Family<telemetry::Counter>& corrected_scores(telemetry::MetricRegistry& metrics);

// The decision: filters shrink, scorers add, the picker takes. Immutable; used by every loop at once; all
// memory is the context's arena, so after warm-up a decision calls the heap never.
//
// total(candidate) = sum over scorers of clamp(score, 0, 1) * weight, each summand held within
// max_contribution: no division by the sum of weights, no normalisation. A score that is negative, missing or
// not a number counts as 0 and is counted, in the record and in penstock_scores_corrected_total. Example,
// weights queue 2, kv 2, prefix 3: A(queue 0, kv 0.9, prefix 0/10) = 2.2, B(4, 0.2, 5/10) = 4.1, C(8, 0.1,
// 10/10) = 4.8, so C is taken.
class Scheduler {
 public:
  // With `metrics` and `clock`, every filter, scorer, picker and handler call is timed into
  // llm_d_epp_plugin_duration_seconds, but for contexts that only explain.
  Scheduler(std::vector<Profile> profiles, const ProfileHandler* handler,
            telemetry::MetricRegistry* metrics = nullptr, const Clock* clock = nullptr);
  ~Scheduler();
  Scheduler(const Scheduler&) = delete;
  Scheduler& operator=(const Scheduler&) = delete;

  // Runs the profiles the handler asks for, each over ctx.candidates. `record` gets one ProfileRecord per
  // run (also on failure), the winner, epochs of membership and signals, the oldest age of the signals
  // the winner's scores used, and the fallback state unless one is set already.
  //
  // Errors have the code, text and reason that the client is to see (the reference's, epp-request-path):
  //  * filters left nothing, or there was no candidate: kResourceExhausted, reason rejected-saturated,
  //    "no endpoints available for the given request";
  //  * anything else: kResourceExhausted without a reason, "failed to find target endpoint: <why>".
  //
  // Steps are timed with `laps` where given; settling them is the caller's.
  Result<SchedulingResult> run(SchedulingContext& ctx, DecisionRecord& record,
                               telemetry::Laps* laps = nullptr) const;

  const std::vector<Profile>& profiles() const { return profiles_; }
  // The profile a record was made by, or nullptr.
  const Profile* find(std::string_view profile_name) const;

 private:
  struct Timers;
  struct ProfileTimers;
  // How a profile's last run ended.
  enum class Outcome : uint8_t { kNotRun, kPicked, kEmptied, kNoPick };
  // Signals that a profile needs, and that each of its scorers reads.
  struct ProfileSignals {
    SignalSet required = 0;
    std::vector<SignalSet> scorers;
  };

  Result<SchedulingResult> decide(SchedulingContext& ctx, telemetry::Laps* laps,
                                  DecisionRecord& record) const;
  Outcome run_profile(size_t index, SchedulingContext& ctx, telemetry::Laps* laps, ProfileRecord& record,
                      ProfileResult& result) const;
  Outcome run_simple(size_t index, SchedulingContext& ctx, std::span<const Candidate> candidates,
                     ProfileRecord& record, ProfileResult& result) const;
  static void filter(const Profile& profile, SchedulingContext& ctx, telemetry::Laps* laps,
                     const ProfileTimers* times, std::span<Candidate>& candidates, ProfileRecord& record);
  static void score(const Profile& profile, const ProfileSignals& signals, SchedulingContext& ctx,
                    telemetry::Laps* laps, const ProfileTimers* times, std::span<const Candidate> candidates,
                    std::span<double> scores, std::span<double> totals, ProfileRecord& record);
  // The simple choice that decides instead; kNone where the profile decides.
  static SimpleChoice fallback(const ProfileSignals& signals, const SchedulingContext& ctx,
                               std::span<const Candidate> candidates, ProfileRecord& record);
  // The error a client sees: a handler's own typed one, else an emptied profile's, else the text.
  Error failure(const Error& cause, std::span<const Outcome> outcomes) const;

  std::vector<Profile> profiles_;
  std::vector<std::string> names_;
  std::vector<ProfileSignals> signals_;   // per profile
  std::unique_ptr<SimplePick[]> simple_;  // per profile: each goes round by itself
  const ProfileHandler* handler_;
  std::unique_ptr<Timers> timers_;
};

// The scheduling and request-control plugins of this build, one line each.
std::span<const PluginDescriptor> scheduling_plugins();

}  // namespace penstock::scheduling
