#include "flowcontrol/limits/static_usage_limit_policy.h"

#include <fmt/format.h>

#include <algorithm>

namespace penstock::flowcontrol {

void StaticUsageLimitPolicy::bind(config::Binder& b, Params& p) {
  b.field("threshold", p.threshold, "ratio", "Saturation up to which every band dispatches, above 0 to 1.");
  if (!b.describing() && !(p.threshold > 0 && p.threshold <= 1)) {
    b.fail("threshold", fmt::format("must be above 0 and at most 1, got {}", p.threshold));
  }
}

void StaticUsageLimitPolicy::ceilings(std::span<const int64_t>, std::span<double> ceilings) const {
  std::fill(ceilings.begin(), ceilings.end(), params_.threshold);
}

}  // namespace penstock::flowcontrol
