#include "scheduling/scheduler_spans.h"

#include <algorithm>
#include <numeric>
#include <string>
#include <vector>

namespace penstock::scheduling {

namespace {

constexpr size_t kTop = 5;

int64_t count(size_t n) {
  return static_cast<int64_t>(n);
}

void describe_request(telemetry::SpanScope& span, const SchedulingContext& ctx) {
  span.set("gen_ai.request.model", std::string(ctx.request.target_model));
  span.set("gen_ai.request.id", std::string(ctx.request.request_id));
}

}  // namespace

void describe_filters(telemetry::SpanScope& span, const SchedulingContext& ctx, size_t before, size_t after) {
  span.set("llm_d.epp.filter.candidate_endpoints", count(before));
  span.set("llm_d.epp.filter.filtered_endpoints", count(after));
  describe_request(span, ctx);
}

void describe_scoring(telemetry::SpanScope& span, const SchedulingContext& ctx, size_t scorers,
                      size_t candidates) {
  span.set("llm_d.epp.scorer.count", count(scorers));
  span.set("llm_d.epp.scoring.candidate_endpoints", count(candidates));
  describe_request(span, ctx);
}

void describe_scorer(telemetry::SpanScope& span, const Plugin& scorer, double weight,
                     std::span<const double> row) {
  span.set("llm_d.epp.scorer.type", std::string(scorer.type()));
  span.set("llm_d.epp.scorer.name", std::string(scorer.name()));
  span.set("llm_d.epp.scorer.weight", weight);
  span.set("llm_d.epp.scorer.candidate_endpoints", count(row.size()));
  span.set("llm_d.epp.scorer.endpoints_scored", count(row.size()));
  if (row.empty()) return;
  span.set("llm_d.epp.scorer.score.max", *std::max_element(row.begin(), row.end()));
  span.set("llm_d.epp.scorer.score.avg",
           std::accumulate(row.begin(), row.end(), 0.0) / static_cast<double>(row.size()));
}

void describe_pick(telemetry::SpanScope& span, const SchedulingContext& ctx,
                   std::span<const Candidate> candidates, std::span<const double> totals) {
  std::vector<size_t> order(candidates.size());
  std::iota(order.begin(), order.end(), size_t{0});
  const size_t shown = std::min(kTop, order.size());
  const auto id = [&](size_t i) -> const std::string& { return ctx.pool.endpoints[candidates[i]]->id; };
  std::partial_sort(
      order.begin(), order.begin() + static_cast<ptrdiff_t>(shown), order.end(),
      [&](size_t a, size_t b) { return totals[a] != totals[b] ? totals[a] > totals[b] : id(a) < id(b); });
  std::vector<std::string> endpoints;
  std::vector<double> scores;
  for (const size_t i : std::span(order).first(shown)) {
    endpoints.push_back(id(i));
    scores.push_back(totals[i]);
  }
  span.set("llm_d.epp.picker.candidate_endpoints", count(candidates.size()));
  span.set("llm_d.epp.picker.top_endpoints", std::move(endpoints));
  span.set("llm_d.epp.picker.top_scores", std::move(scores));
  describe_request(span, ctx);
}

}  // namespace penstock::scheduling
