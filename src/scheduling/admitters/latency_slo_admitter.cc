#include "scheduling/admitters/latency_slo_admitter.h"

#include <algorithm>
#include <cmath>

#include "base/strings.h"
#include "scheduling/signal_column.h"

namespace penstock::scheduling {

namespace {

constexpr double kColdKvUsage = 0.02;

double objective(const InferenceRequest& request, std::string_view name, std::string_view alias) {
  auto value = find_header(request.headers, name);
  if (!value) value = find_header(request.headers, alias);
  if (!value) return 0;
  const double number = parse_double(trim(*value)).value_or(0);
  return std::isfinite(number) ? number : 0;
}

}  // namespace

double ttft_objective_ms(const InferenceRequest& request) {
  return objective(request, "x-llm-d-slo-ttft-ms", "x-slo-ttft-ms");
}

double tpot_objective_ms(const InferenceRequest& request) {
  return objective(request, "x-llm-d-slo-tpot-ms", "x-slo-tpot-ms");
}

void LatencySloAdmitter::bind(config::Binder& b, Params& p) {
  b.field("latencyPredictionInfoProducerName", p.producer, "",
          "Name of the latency producer to read; empty: predicted-latency-producer.");
}

void LatencySloAdmitter::declare_data(DataDeclaration& declaration) const {
  declaration.require<LatencyPrediction>(key_);
}

Status LatencySloAdmitter::admit(SchedulingContext& ctx) const {
  if (ctx.request.priority >= 0) return {};
  if (ttft_objective_ms(ctx.request) <= 0 && tpot_objective_ms(ctx.request) <= 0) return {};
  const auto column = ctx.attributes.column<LatencyPrediction>(slot_);
  const auto predicted = [&](Candidate c) { return column[c].known; };
  if (column.empty() || std::none_of(ctx.candidates.begin(), ctx.candidates.end(), predicted)) return {};
  const auto can_serve = [&](Candidate c) {
    if (column[c].known && column[c].ttft_valid && column[c].tpot_valid) return true;
    const UsableSignal usage = usable(ctx, Signal::kKvUsage, c);
    if (usage.known && usage.value < kColdKvUsage) return true;
    const UsableSignal running = usable(ctx, Signal::kRunningRequests, c);
    return running.known && running.value == 0;
  };
  if (std::any_of(ctx.candidates.begin(), ctx.candidates.end(), can_serve)) return {};
  return Error{ErrorCode::kResourceExhausted, "no valid endpoint available to serve the request",
               "rejected-saturated"};
}

}  // namespace penstock::scheduling
