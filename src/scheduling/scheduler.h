#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "inference/plugin.h"

namespace penstock::scheduling {

// One scheduling profile, in configuration order. Plugins are owned by the policy.
struct Profile {
  struct WeightedScorer {
    const Scorer* scorer = nullptr;
    double weight = 1.0;
  };
  std::string name;
  std::vector<const Filter*> filters;
  std::vector<WeightedScorer> scorers;
  const Picker* picker = nullptr;
};

// The decision: filters shrink, scorers add, the picker takes. Immutable; used by every loop at once; all
// memory is the context's arena, so after warm-up a decision calls the heap never.
class Scheduler {
 public:
  Scheduler(std::vector<Profile> profiles, const ProfileHandler* handler);

  // Runs the profiles the handler asks for, each over ctx.candidates.
  // Errors: kResourceExhausted "no endpoints available for the given request" (reason rejected-saturated)
  // when filters leave nothing; "failed to run any scheduler profile for request <id>"; the handler's own.
  // `record` gets one ProfileRecord per run, in arena memory, also on failure.
  Result<SchedulingResult> run(SchedulingContext& ctx, DecisionRecord& record) const;

  const std::vector<Profile>& profiles() const { return profiles_; }

 private:
  std::vector<Profile> profiles_;
  std::vector<std::string> names_;
  const ProfileHandler* handler_;
};

// The scheduling and request-control plugins of this build, one line each.
std::span<const PluginDescriptor> scheduling_plugins();

}  // namespace penstock::scheduling
