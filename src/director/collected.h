#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "director/access_log.h"
#include "director/body_budget.h"
#include "director/director.h"
#include "discovery/registry.h"
#include "telemetry/metrics.h"

namespace penstock::director {

// A family that is written when /metrics is asked for: for the metrics reference, since collectors register
// no family.
struct CollectedFamily {
  std::string_view name;
  telemetry::MetricType type;
  std::string_view labels;  // comma-separated
  std::string_view help;
};

// What every front door shows of itself, whatever it serves.
std::span<const CollectedFamily> door_families();

// What keeps an endpoint from getting requests, the first that holds: "draining", "asleep", "ejected",
// "half_open"; "healthy": nothing.
std::string_view endpoint_state_name(const Pool& pool, const Endpoint& endpoint, TimePoint now);
struct ServedPool {
  const Pool* pool;
  const discovery::Pool* members;
};
// The families of pools among them.
void collect_pools(std::span<const ServedPool> pools, TimePoint now, telemetry::Writer& out);
// All of them; `access_log` may be nullptr. Thread-safe.
void collect_door(const BodyBudget& bodies, const AccessLog* access_log, std::span<const ServedPool> pools,
                  TimePoint now, telemetry::Writer& out);

}  // namespace penstock::director
