#pragma once

#include <algorithm>
#include <cstddef>

#include "config/params.h"

namespace penstock::scheduling {

// What every picker takes.
struct PickerParams {
  int max_endpoints = 1;

  static void bind(config::Binder& b, PickerParams& p) {
    b.field("maxNumOfEndpoints", p.max_endpoints, "endpoints",
            "How many endpoints are returned, best first: the destination, then its fallbacks. Values below "
            "1 count as 1.");
  }
  size_t limit() const { return static_cast<size_t>(std::max(max_endpoints, 1)); }
  size_t count(size_t candidates) const { return std::min(limit(), candidates); }
};

}  // namespace penstock::scheduling
