#include "scheduling/filters/session_affinity_filter.h"

namespace penstock::scheduling {

Result<std::unique_ptr<Plugin>> SessionAffinityFilter::create(Params params,
                                                              const PluginFactoryContext& context) {
  return std::unique_ptr<Plugin>(std::make_unique<SessionAffinityFilter>(
      std::move(params), SessionAffinity::make_table(context, kType)));
}

size_t SessionAffinityFilter::filter(SchedulingContext& ctx, std::span<Candidate> inout) const {
  const std::string_view bound = affinity_.bound_endpoint(ctx);
  if (bound.empty()) return inout.size();
  for (const Candidate c : inout) {
    if (ctx.pool.endpoints[c]->id != bound) continue;
    inout[0] = c;
    return 1;
  }
  return inout.size();
}

}  // namespace penstock::scheduling
