#include "scheduling/admitters/probabilistic_admitter.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "scheduling/number_text.h"
#include "scheduling/signal_column.h"

namespace penstock::scheduling {

void ProbabilisticAdmitter::bind(config::Binder& b, Params& p) {
  b.field("queueDepthThreshold", p.queue_threshold, "requests",
          "Waiting requests of an endpoint that count as saturated.");
  b.field("kvCacheUtilThreshold", p.kv_threshold, "ratio", "KV cache usage that counts as saturated.");
  b.field("power", p.power, "", "How steeply refusals rise with saturation.");
  b.field("k", p.k, "", "Factor of the probability.");
  if (b.describing()) return;
  const auto check = [&](std::string_view name, double value) {
    if (value > 0) return;
    std::string message = "plugin 'probabilistic-admitter': " + std::string(name) + " must be > 0, got ";
    append_number(message, value);
    b.fail(name, message);
  };
  check("queueDepthThreshold", p.queue_threshold);
  check("kvCacheUtilThreshold", p.kv_threshold);
  check("power", p.power);
  check("k", p.k);
}

double ProbabilisticAdmitter::saturation(const SchedulingContext& ctx) const {
  double sum = 0;
  for (const Candidate c : ctx.candidates) {
    const UsableSignal waiting = usable(ctx, Signal::kWaitingRequests, c);
    const UsableSignal usage = usable(ctx, Signal::kKvUsage, c);
    if (!waiting.known && !usage.known) {
      sum += 1.0;
      continue;
    }
    const double queue = waiting.known ? waiting.value / params_.queue_threshold : 0.0;
    const double kv = usage.known ? usage.value / params_.kv_threshold : 0.0;
    sum += std::max(queue, kv);
  }
  return ctx.candidates.empty() ? 0.0 : sum / static_cast<double>(ctx.candidates.size());
}

double ProbabilisticAdmitter::probability(double saturation) const {
  return std::min(std::pow(saturation, params_.power) * params_.k, 1.0);
}

Status ProbabilisticAdmitter::admit(SchedulingContext& ctx) const {
  if (ctx.request.priority >= 0 || ctx.candidates.empty()) return {};
  const double saturated = saturation(ctx);
  const double refuse = probability(saturated);
  if (!(ctx.random.uniform() < refuse)) return {};
  return Error{
      ErrorCode::kResourceExhausted,
      fmt::format("probabilistic-admitter: rejected, saturation={:.3f} prob={:.2f}", saturated, refuse),
      "rejected-saturated"};
}

}  // namespace penstock::scheduling
