#include "scheduling/scorers/session_affinity_scorer.h"

namespace penstock::scheduling {

Result<std::unique_ptr<Plugin>> SessionAffinityScorer::create(Params params,
                                                              const PluginFactoryContext& context) {
  return std::unique_ptr<Plugin>(std::make_unique<SessionAffinityScorer>(
      std::move(params), SessionAffinity::make_table(context, kType)));
}

void SessionAffinityScorer::score(SchedulingContext& ctx, std::span<const Candidate> candidates,
                                  std::span<double> scores) const {
  const std::string_view bound = affinity_.bound_endpoint(ctx);
  for (size_t i = 0; i < scores.size(); ++i) {
    scores[i] = !bound.empty() && ctx.pool.endpoints[candidates[i]]->id == bound ? 1.0 : 0.0;
  }
}

void SessionAffinityScorer::explain(const SchedulingContext& ctx, Candidate candidate,
                                    std::string& out) const {
  const std::string_view bound = affinity_.bound_endpoint(ctx);
  if (bound.empty()) {
    out += "the request belongs to no session";
  } else {
    out +=
        ctx.pool.endpoints[candidate]->id == bound ? "the session's endpoint" : "not the session's endpoint";
  }
}

}  // namespace penstock::scheduling
