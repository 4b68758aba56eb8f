#include "scheduling/scorers/context_length_aware.h"

#include <algorithm>
#include <limits>

#include "scheduling/number_text.h"

namespace penstock::scheduling {

void ContextLengthAware::bind(config::Binder& b, Params& p) {
  b.field("label", p.label, "",
          "Label that holds an endpoint's range of context lengths, \"min-max\" in tokens.");
  b.field("enableFiltering", p.filtering, "", "Also drop endpoints whose range does not contain the prompt.");
  if (!b.describing() && p.label.empty()) b.fail("label", "label must not be empty");
}

void ContextLengthAware::declare_data(DataDeclaration& declaration) const {
  declaration.require<TokenizedPromptMarker>(data_keys::kTokenizedPrompt);
}

std::optional<ContextLengthAware::Range> ContextLengthAware::parse_range(std::string_view text) {
  const size_t dash = text.find('-');
  if (dash == std::string_view::npos || text.find('-', dash + 1) != std::string_view::npos)
    return std::nullopt;
  const auto min = parse_u64(trim(text.substr(0, dash)));
  const auto max = parse_u64(trim(text.substr(dash + 1)));
  constexpr uint64_t kLimit = std::numeric_limits<int64_t>::max();
  if (!min.has_value() || !max.has_value() || *min > *max || *max > kLimit) return std::nullopt;
  return Range{static_cast<int64_t>(*min), static_cast<int64_t>(*max)};
}

double ContextLengthAware::score_in(const Range& range, int64_t context_tokens) {
  const auto context = static_cast<double>(context_tokens);
  const auto min = static_cast<double>(range.min);
  const auto max = static_cast<double>(range.max);
  if (context_tokens < range.min) return 0.3 / (1.0 + (min - context) / 1000.0);
  if (context_tokens > range.max) return 0.3 / (1.0 + (context - max) / 1000.0);
  const double width = max - min;
  if (width == 0) return 1.0;
  return 0.3 + 0.7 * (0.7 / (1.0 + width / 10000.0) + 0.3 * (max - context) / width);
}

size_t ContextLengthAware::filter(SchedulingContext& ctx, std::span<Candidate> inout) const {
  if (!params_.filtering) return inout.size();
  const auto context = static_cast<int64_t>(ctx.request.prompt_tokens());
  const auto kept = std::remove_if(inout.begin(), inout.end(), [&](Candidate c) {
    const auto& labels = ctx.pool.endpoints[c]->labels;
    const auto label = labels.find(params_.label);
    if (label == labels.end()) return false;
    const auto range = parse_range(label->second);
    return !range.has_value() || context < range->min || context > range->max;
  });
  return static_cast<size_t>(kept - inout.begin());
}

void ContextLengthAware::score(SchedulingContext& ctx, std::span<const Candidate> candidates,
                               std::span<double> scores) const {
  const auto context = static_cast<int64_t>(ctx.request.prompt_tokens());
  for (size_t i = 0; i < scores.size(); ++i) {
    const auto& labels = ctx.pool.endpoints[candidates[i]]->labels;
    const auto label = labels.find(params_.label);
    if (label == labels.end()) {
      scores[i] = 0.5;
      continue;
    }
    const auto range = parse_range(label->second);
    scores[i] = range.has_value() ? score_in(*range, context) : 0.0;
  }
}

void ContextLengthAware::explain(const SchedulingContext& ctx, Candidate candidate, std::string& out) const {
  out += "prompt ";
  append_number(out, ctx.request.prompt_tokens());
  out += " tokens, ";
  const auto& labels = ctx.pool.endpoints[candidate]->labels;
  const auto label = labels.find(params_.label);
  if (label == labels.end()) {
    out += "endpoint without a range";
    return;
  }
  out += parse_range(label->second).has_value() ? "range " : "unreadable range ";
  out += label->second;
  out += " tokens";
}

}  // namespace penstock::scheduling
