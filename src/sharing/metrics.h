#pragma once

#include "telemetry/metrics.h"

namespace penstock::sharing {

// The families of shared state; `pool` is "<namespace>/<name>". Thread-safe.
struct Metrics {
  explicit Metrics(telemetry::MetricRegistry& registry);

  telemetry::Family<telemetry::Gauge>& connected;
  telemetry::Family<telemetry::Gauge>& bound;
  // Removed with their replica or pool: update() only.
  telemetry::Family<telemetry::Gauge>& staleness;
  telemetry::Family<telemetry::Gauge>& replicas;
  telemetry::Family<telemetry::Counter>& prefixes;
  telemetry::Family<telemetry::Counter>& bytes;
  telemetry::Family<telemetry::Counter>& failures;
  telemetry::Family<telemetry::Histogram>& exchange_seconds;
};

}  // namespace penstock::sharing
