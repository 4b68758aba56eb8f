#include "flowcontrol/saturation/utilization_detector.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/units.h"
#include "telemetry/log.h"

namespace penstock::flowcontrol {

namespace {

constexpr Duration kMinStaleness = std::chrono::milliseconds(200);
constexpr int kScrapesUntilStale = 3;
constexpr Duration kLogEvery = std::chrono::seconds(30);

Duration staleness_of(const UtilizationDetector::Params& params, Duration scrape_interval) {
  return params.metrics_staleness_threshold.value_or(
      std::max(kMinStaleness, kScrapesUntilStale * scrape_interval));
}

// The value, or nothing where the engine was never heard or doesn't export it.
std::optional<double> known(const SignalView& signals, Signal signal, Candidate candidate) {
  const SignalValue value = signals.at(signal, candidate);
  if (value.observed_at == kNever || value.state == SignalState::kNeverSeen ||
      value.state == SignalState::kNameMissing) {
    return std::nullopt;
  }
  return value.value;
}

}  // namespace

void UtilizationDetector::bind(config::Binder& b, Params& p) {
  b.field("queueDepthThreshold", p.queue_depth_threshold, "requests",
          "Waiting requests at which an endpoint is saturated, above 0.");
  b.field("kvCacheUtilThreshold", p.kv_cache_util_threshold, "ratio",
          "KV cache usage at which an endpoint is saturated, above 0 to 1.");
  Duration staleness{};
  b.field(
      "metricsStalenessThreshold", staleness, "",
      "Age from which an endpoint's signals count as saturated; default max(200ms, 3 x scrape interval).");
  b.field("headroom", p.headroom, "ratio", "As a filter: how far above the thresholds is still allowed.");
  if (b.describing()) return;
  if (b.present("metricsStalenessThreshold")) p.metrics_staleness_threshold = staleness;
  if (p.queue_depth_threshold <= 0) {
    b.fail("queueDepthThreshold", fmt::format("must be positive, got {}", p.queue_depth_threshold));
  }
  if (!(p.kv_cache_util_threshold > 0 && p.kv_cache_util_threshold <= 1)) {
    b.fail("kvCacheUtilThreshold", fmt::format("must be in (0, 1], got {}", p.kv_cache_util_threshold));
  }
  if (p.metrics_staleness_threshold && *p.metrics_staleness_threshold <= Duration(0)) {
    b.fail("metricsStalenessThreshold",
           fmt::format("must be positive, got {}", format_duration(*p.metrics_staleness_threshold)));
  }
  if (!(p.headroom >= 0)) b.fail("headroom", fmt::format("must be non-negative, got {}", p.headroom));
}

Result<std::unique_ptr<Plugin>> UtilizationDetector::create(const PluginFactoryContext& context) {
  constexpr std::string_view kContext = "invalid utilization detector configuration";
  Params params;
  const Status status =
      config::decode_params(context.parameters, context.path, [&](config::Binder& b) { bind(b, params); });
  if (!status.ok()) return status.error().wrap(kContext);
  const std::optional<Duration>& set = params.metrics_staleness_threshold;
  if (set && *set < context.scrape_interval) {
    return invalid_config(
               fmt::format("{}.metricsStalenessThreshold: {} is below the scrape interval {}: between "
                           "two scrapes every endpoint would count as saturated",
                           context.path, format_duration(*set), format_duration(context.scrape_interval)))
        .wrap(kContext);
  }
  if (params.headroom > 1) {
    telemetry::log_warn("Unusually high headroom configured; verify value is a fraction, not a percentage",
                        {{"plugin", context.name}, {"headroom", params.headroom}});
  }
  telemetry::Gauge& gauge =
      context.metrics
          .gauge({.name = "llm_d_epp_flow_control_stale_endpoints",
                  .help = "[ALPHA] Endpoints whose signals were stale when the saturation "
                          "of the pool was last evaluated.",
                  .labels = {"detector"}})
          .with({context.name});
  return std::unique_ptr<Plugin>(
      std::make_unique<UtilizationDetector>(params, context.scrape_interval, gauge));
}

UtilizationDetector::UtilizationDetector(Params params, Duration scrape_interval,
                                         telemetry::Gauge& stale_endpoints)
    : params_(params), staleness_(staleness_of(params, scrape_interval)), stale_endpoints_(stale_endpoints) {}

bool UtilizationDetector::is_fresh(const SignalView& signals, Candidate candidate, TimePoint now) const {
  TimePoint newest = kNever;
  for (const Signal signal : {Signal::kWaitingRequests, Signal::kRunningRequests, Signal::kKvUsage}) {
    newest = std::max(newest, signals.at(signal, candidate).observed_at);
  }
  if (newest == kNever || now - newest > staleness_) return false;
  return known(signals, Signal::kWaitingRequests, candidate) || known(signals, Signal::kKvUsage, candidate);
}

double UtilizationDetector::endpoint_saturation(const SignalView& signals, Candidate candidate,
                                                uint32_t unseen) const {
  const double waiting = known(signals, Signal::kWaitingRequests, candidate).value_or(0) + unseen;
  const double kv = known(signals, Signal::kKvUsage, candidate).value_or(0);
  return std::max(waiting / static_cast<double>(params_.queue_depth_threshold),
                  kv / params_.kv_cache_util_threshold);
}

size_t UtilizationDetector::keep_unsaturated(const SchedulingContext& ctx, std::span<Candidate> inout) const {
  const bool credit = ctx.freshness != nullptr && ctx.freshness->has_credit(Signal::kWaitingRequests);
  size_t kept = 0;
  size_t stale = 0;
  for (const Candidate c : inout) {
    if (!is_fresh(ctx.signals, c, ctx.now)) {
      ++stale;
      continue;
    }
    const uint32_t unseen = credit ? ctx.signals.unseen_requests(*ctx.pool.endpoints[c]->live, c) : 0;
    if (endpoint_saturation(ctx.signals, c, unseen) < 1.0) inout[kept++] = c;
  }
  report_stale(stale, inout.size(), ctx.now);
  return kept;
}

double UtilizationDetector::saturation(const PoolSnapshot&, const SignalView& signals,
                                       std::span<const Candidate> candidates, TimePoint now) const {
  double total = 0;
  size_t stale = 0;
  for (const Candidate candidate : candidates) {
    if (!is_fresh(signals, candidate, now)) {
      total += 1.0;
      ++stale;
      continue;
    }
    total += endpoint_saturation(signals, candidate, 0);
  }
  report_stale(stale, candidates.size(), now);
  return candidates.empty() ? 1.0 : total / static_cast<double>(candidates.size());
}

void UtilizationDetector::report_stale(size_t stale, size_t total, TimePoint now) const {
  stale_endpoints_.set(static_cast<double>(stale));
  if (stale == 0) return;
  const int64_t now_ns = now.time_since_epoch().count();
  int64_t last = logged_at_ns_.load(std::memory_order_relaxed);
  if (last != 0 && now_ns - last < kLogEvery.count()) return;
  if (!logged_at_ns_.compare_exchange_strong(last, now_ns, std::memory_order_relaxed)) return;
  telemetry::log_warn(
      "Endpoints with missing or stale metrics are scored as fully saturated (fail-closed); if dispatch is "
      "stalled, check model-server metrics collection (scrape path, port, TLS, auth)",
      {{"staleEndpoints", stale},
       {"totalEndpoints", total},
       {"metricsStalenessThreshold", format_duration(staleness_)}});
}

bool UtilizationDetector::has_room(const SignalView& signals, Candidate candidate) const {
  const double factor = 1 + params_.headroom;
  return known(signals, Signal::kWaitingRequests, candidate).value_or(0) <
             static_cast<double>(params_.queue_depth_threshold) * factor &&
         known(signals, Signal::kKvUsage, candidate).value_or(0) < params_.kv_cache_util_threshold * factor;
}

size_t UtilizationDetector::filter(SchedulingContext& ctx, std::span<Candidate> inout) const {
  const auto keep = [&](Candidate c) {
    return is_fresh(ctx.signals, c, ctx.now) && has_room(ctx.signals, c);
  };
  if (std::none_of(inout.begin(), inout.end(), keep)) return inout.size();
  const auto end = std::remove_if(inout.begin(), inout.end(), [&](Candidate c) { return !keep(c); });
  return static_cast<size_t>(end - inout.begin());
}

}  // namespace penstock::flowcontrol
