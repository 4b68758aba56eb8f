#pragma once

#include <optional>

#include "base/result.h"
#include "config/endpoint_picker_config.h"
#include "inference/freshness.h"

namespace penstock::assembly {

// penstock.freshness with its defaults: budget `staleness`, unknownAfter 5 x budget, a signal of its own what
// it doesn't say from the common bounds (an unknownAfter that would lie at or below the signal's own budget:
// 5 x that one). Written back into `config`, so that the effective configuration shows what is in force.
// Errors: a budget below the scrape interval, under which every value would be stale between two scrapes;
// unknownAfter that is not above its budget.
Result<Freshness> plan_freshness(std::optional<config::FreshnessConfig>& config, Duration scrape_interval,
                                 Duration staleness);

}  // namespace penstock::assembly
