#pragma once

#include <cstdint>

#include "base/clock.h"

namespace penstock::config {

// pools[].stickyResponses: which engine holds which stored response. What the fields do:
// director/response_holders.h.
struct StickyResponsesSettings {
  int64_t entries = 100000;  // 0: nothing is learned
  Duration expiry = std::chrono::hours(24);

  bool operator==(const StickyResponsesSettings&) const = default;
};

}  // namespace penstock::config
