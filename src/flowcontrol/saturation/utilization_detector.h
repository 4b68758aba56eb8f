#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "config/params.h"
#include "inference/plugin.h"
#include "telemetry/metrics.h"

namespace penstock::flowcontrol {

// `utilization-detector`: how full the pool is by what its engines report.
//
//   score(e)   = 1                                                   when e's signals are stale
//              = max(waiting / queueDepthThreshold, kv / kvCacheUtilThreshold)   otherwise
//   saturation = mean of score over the candidates; 1 without candidates
//
// An endpoint is stale when its newest signal was observed longer than metricsStalenessThreshold ago, or
// never, or when its engine exports neither of the two. A signal whose name the engine does not export is
// left out of the maximum. Example (thresholds 5 and 0.9): waiting 2, kv 0.5 -> 0.5556; waiting 10, kv 0.1
// -> 2.0; both together (2.0 + 0.5556) / 2 = 1.2778.
//
// Strict mode asks for each endpoint's score by itself, with the requests added to `waiting` that were sent
// since the last scrape (Freshness::in_flight_credit).
//
// As a filter of a profile it keeps fresh endpoints with waiting < queueDepthThreshold * (1 + headroom) and
// kv < kvCacheUtilThreshold * (1 + headroom), and all where that leaves none.
class UtilizationDetector final : public Filter, public SaturationDetector {
 public:
  struct Params {
    int64_t queue_depth_threshold = 5;
    double kv_cache_util_threshold = 0.8;
    // Unset: max(200 ms, 3 * scrape interval).
    std::optional<Duration> metrics_staleness_threshold;
    double headroom = 0;
  };
  static void bind(config::Binder& b, Params& p);
  // Errors begin with "invalid utilization detector configuration: "; a threshold below the scrape interval
  // is one: between two scrapes every endpoint would count as saturated.
  static Result<std::unique_ptr<Plugin>> create(const PluginFactoryContext& context);

  UtilizationDetector(Params params, Duration scrape_interval, telemetry::Gauge& stale_endpoints);

  double saturation(const PoolSnapshot& pool, const SignalView& signals,
                    std::span<const Candidate> candidates, TimePoint now) const override;
  size_t keep_unsaturated(const SchedulingContext& ctx, std::span<Candidate> inout) const override;
  size_t filter(SchedulingContext& ctx, std::span<Candidate> inout) const override;
  Duration staleness_threshold() const { return staleness_; }

 private:
  bool is_fresh(const SignalView& signals, Candidate candidate, TimePoint now) const;
  double endpoint_saturation(const SignalView& signals, Candidate candidate, uint32_t unseen) const;
  bool has_room(const SignalView& signals, Candidate candidate) const;
  void report_stale(size_t stale, size_t total, TimePoint now) const;

  Params params_;
  Duration staleness_;
  telemetry::Gauge& stale_endpoints_;
  mutable std::atomic<int64_t> logged_at_ns_{0};
};

}  // namespace penstock::flowcontrol
