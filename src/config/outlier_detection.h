#pragma once

#include <cstdint>
#include <optional>

#include "base/clock.h"

namespace penstock::config {

// pools[].outlierDetection: when an endpoint that fails requests gets none for a while. What the fields do:
// director/endpoint_health.h.
struct OutlierDetectionSettings {
  std::optional<bool> enabled;       // absent: on in `serve`, off in `epp`
  int64_t consecutive_failures = 3;  // 0: not looked at
  int64_t connect_failures = 1;      // the same of failed connects; 0: they count as any other failure
  double failure_ratio = 0.5;        // of the answers within the window; 0: not looked at
  int64_t minimum_requests = 20;     // answers within the window, before the ratio counts
  Duration window = std::chrono::seconds(30);
  Duration base_ejection = std::chrono::seconds(5);  // doubles with each ejection
  Duration max_ejection = std::chrono::minutes(2);
  int64_t max_ejected_percent = 67;                       // of the endpoints that could get requests
  Duration first_token_stall = std::chrono::seconds(60);  // zero: not looked at

  bool operator==(const OutlierDetectionSettings&) const = default;
};

}  // namespace penstock::config
