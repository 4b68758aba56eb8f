#pragma once

#include "telemetry/metrics.h"

namespace penstock::kubernetes {

// The families of informers; `resource` is the plural. Thread-safe.
struct Metrics {
  explicit Metrics(telemetry::MetricRegistry& registry);

  telemetry::Family<telemetry::Gauge>& synced;
  telemetry::Family<telemetry::Gauge>& objects;
  telemetry::Family<telemetry::Gauge>& heard_at;
  telemetry::Family<telemetry::Counter>& watches;
  telemetry::Family<telemetry::Counter>& events;
  telemetry::Family<telemetry::Counter>& relists;
  telemetry::Family<telemetry::Counter>& unreadable;
  telemetry::Family<telemetry::Counter>& inconsistencies;
  telemetry::Histogram& apply_seconds;  // no labels
};

}  // namespace penstock::kubernetes
