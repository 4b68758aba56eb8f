#include "scheduling/filters/utilization_filter.h"

#include <algorithm>
#include <array>
#include <optional>

#include "scheduling/nested_params.h"
#include "scheduling/signal_column.h"

namespace penstock::scheduling {

namespace {

// In the order of Metric.
constexpr std::array<std::string_view, 4> kNames{"active-requests", "running-requests", "waiting-queue",
                                                 "kv-cache-utilization"};

}  // namespace

void UtilizationFilter::bind(config::Binder& b, Params& p) {
  bool any = false;
  const bool given = nested_list(
      b, "conditions",
      "List of {metric, maxValue}, at least one; metrics active-requests, running-requests, waiting-queue "
      "(requests) and kv-cache-utilization (ratio).",
      [&](config::Binder& c) {
        std::string metric;
        std::optional<double> max;
        c.field("metric", metric, "", "");
        c.field("maxValue", max, "", "");
        any = true;
        const auto* found = std::find(kNames.begin(), kNames.end(), metric);
        if (found == kNames.end()) {
          c.fail("metric",
                 "must be one of active-requests, running-requests, waiting-queue, kv-cache-utilization, got "
                 "\"" +
                     metric + "\"");
          return;
        }
        const auto kind = static_cast<Metric>(found - kNames.begin());
        if (!max.has_value()) {
          c.fail("maxValue", "must be specified");
        } else if (!(*max >= 0)) {
          c.fail("maxValue", "must be >= 0");
        } else if (kind == Metric::kKvUsage && *max > 1) {
          c.fail("maxValue", "must be <= 1 for kv-cache-utilization");
        } else {
          p.conditions.push_back({kind, *max});
        }
      });
  b.field("fallbackOnEmpty", p.fallback_on_empty, "", "Keep all endpoints where none would be left.");
  b.field("inFlightLoadProducerName", p.load_producer, "",
          "Name of the inflight-load-producer to read; empty: the default one.");
  if (!b.describing() && (!given || !any)) b.fail("conditions", "at least one condition must be specified");
}

UtilizationFilter::UtilizationFilter(Params params)
    : params_(std::move(params)), load_key_(data_keys::kInFlightLoad.with_producer(params_.load_producer)) {}

bool UtilizationFilter::uses_load() const {
  return std::any_of(params_.conditions.begin(), params_.conditions.end(),
                     [](const Condition& c) { return c.metric == Metric::kActiveRequests; });
}

void UtilizationFilter::declare_data(DataDeclaration& declaration) const {
  if (uses_load()) declaration.require<InFlightLoad>(load_key_);
}

void UtilizationFilter::bind_slots(const SlotResolver& slots) {
  if (uses_load()) load_slot_ = slots.slot(load_key_);
}

UsableSignal UtilizationFilter::figure(const SchedulingContext& ctx, Metric metric,
                                       Candidate candidate) const {
  if (metric == Metric::kActiveRequests) {
    const auto load = ctx.attributes.column<InFlightLoad>(load_slot_);
    return {true, load.empty() ? 0.0 : static_cast<double>(load[candidate].requests)};
  }
  const Signal signal = metric == Metric::kRunningRequests ? Signal::kRunningRequests
                        : metric == Metric::kWaitingQueue  ? Signal::kWaitingRequests
                                                           : Signal::kKvUsage;
  return usable(ctx, signal, candidate);
}

size_t UtilizationFilter::filter(SchedulingContext& ctx, std::span<Candidate> inout) const {
  // Strict mode: an endpoint that nobody knows doesn't pass before one that is known.
  const std::span<bool> must_know = ctx.arena.make_filled<bool>(params_.conditions.size(), false);
  for (size_t i = 0; ctx.freshness != nullptr && i < must_know.size(); ++i) {
    must_know[i] = std::any_of(inout.begin(), inout.end(), [&](Candidate c) {
      return figure(ctx, params_.conditions[i].metric, c).known;
    });
  }
  const auto keeps = [&](Candidate c) {
    for (size_t i = 0; i < must_know.size(); ++i) {
      const UsableSignal read = figure(ctx, params_.conditions[i].metric, c);
      if (read.known ? read.value > params_.conditions[i].max : must_know[i]) return false;
    }
    return true;
  };
  if (params_.fallback_on_empty && std::none_of(inout.begin(), inout.end(), keeps)) return inout.size();
  const auto end = std::remove_if(inout.begin(), inout.end(), [&](Candidate c) { return !keeps(c); });
  return static_cast<size_t>(end - inout.begin());
}

}  // namespace penstock::scheduling
