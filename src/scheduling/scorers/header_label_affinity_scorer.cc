#include "scheduling/scorers/header_label_affinity_scorer.h"

#include "base/strings.h"

namespace penstock::scheduling {

void HeaderLabelAffinityScorer::bind(config::Binder& b, Params& p) {
  b.field("headerName", p.header, "", "Name of the request header; required.");
  b.field("labelKey", p.label, "", "Name of the endpoints' label; required.");
  if (b.describing()) return;
  if (p.header.empty()) b.fail("headerName", "headerName must be specified");
  if (p.label.empty()) b.fail("labelKey", "labelKey must be specified");
  p.header = ascii_lower(p.header);
}

Result<std::unique_ptr<Plugin>> HeaderLabelAffinityScorer::create(const PluginFactoryContext& context) {
  if (context.parameters == nullptr || context.parameters->is_null()) {
    return Error{ErrorCode::kInvalidConfig,
                 context.path + ": header-label-affinity-scorer requires parameters"};
  }
  Params params;
  Status status =
      config::decode_params(context.parameters, context.path, [&](config::Binder& b) { bind(b, params); });
  if (!status.ok()) return std::move(status).error();
  return std::unique_ptr<Plugin>(std::make_unique<HeaderLabelAffinityScorer>(std::move(params)));
}

void HeaderLabelAffinityScorer::score(SchedulingContext& ctx, std::span<const Candidate> candidates,
                                      std::span<double> scores) const {
  const std::string_view wanted =
      find_header(ctx.request.headers, params_.header).value_or(std::string_view());
  for (size_t i = 0; i < scores.size(); ++i) {
    scores[i] = !wanted.empty() && ctx.pool.endpoints[candidates[i]]->label(params_.label) == wanted ? 1 : 0;
  }
}

void HeaderLabelAffinityScorer::explain(const SchedulingContext& ctx, Candidate candidate,
                                        std::string& out) const {
  const bool given = !find_header(ctx.request.headers, params_.header).value_or("").empty();
  out += given ? "label " + params_.label + " is \"" : "no " + params_.header + ", label is \"";
  out += ctx.pool.endpoints[candidate]->label(params_.label);
  out += '"';
}

}  // namespace penstock::scheduling
