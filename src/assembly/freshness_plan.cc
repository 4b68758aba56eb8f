#include "assembly/freshness_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "base/units.h"

namespace penstock::assembly {

namespace {

constexpr int kBudgetsUntilUnknown = 5;

// When a value is unknown where nobody says it: five budgets, or as long as time can be told.
Duration default_bound(Duration budget) {
  return budget > Duration::max() / kBudgetsUntilUnknown ? Duration::max() : kBudgetsUntilUnknown * budget;
}

std::string at_line(int line) {
  return line > 0 ? fmt::format(" (line {})", line) : std::string();
}

Result<FreshnessBounds> checked(const config::FreshnessConfig::Bounds& bounds, const std::string& path,
                                int line, Duration scrape_interval) {
  const FreshnessBounds out{*bounds.budget, *bounds.unknown_after};
  if (out.budget < scrape_interval) {
    return invalid_config(fmt::format(
        "{}.budget: {} is below the scrape interval {}: between two scrapes every value would be stale{}",
        path, format_duration(out.budget), format_duration(scrape_interval), at_line(line)));
  }
  if (out.unknown_after <= out.budget) {
    return invalid_config(fmt::format("{}.unknownAfter: {} is not above the budget {}{}", path,
                                      format_duration(out.unknown_after), format_duration(out.budget),
                                      at_line(line)));
  }
  return out;
}

SimpleChoice choice_of(std::string_view name) {
  for (const SimpleChoice choice : {SimpleChoice::kLeastInFlight, SimpleChoice::kRoundRobin}) {
    if (simple_choice_name(choice) == name) return choice;
  }
  return SimpleChoice::kNone;
}

}  // namespace

Result<Freshness> plan_freshness(std::optional<config::FreshnessConfig>& config, Duration scrape_interval,
                                 Duration staleness) {
  Freshness out;
  if (!config) config.emplace();
  config::FreshnessConfig& c = *config;
  const std::string path = "penstock.freshness";

  if (!c.bounds.budget) c.bounds.budget = std::max(staleness, scrape_interval);
  if (!c.bounds.unknown_after) c.bounds.unknown_after = default_bound(*c.bounds.budget);
  const Result<FreshnessBounds> common = checked(c.bounds, path, c.line, scrape_interval);
  if (!common) return common.error();
  out.bounds.fill(*common);
  out.attributes = *common;

  for (config::FreshnessConfig::SignalBounds& own : c.signals) {
    if (!own.bounds.budget) own.bounds.budget = c.bounds.budget;
    if (!own.bounds.unknown_after) {
      own.bounds.unknown_after = *c.bounds.unknown_after > *own.bounds.budget
                                     ? *c.bounds.unknown_after
                                     : default_bound(*own.bounds.budget);
    }
    const Result<FreshnessBounds> bounds =
        checked(own.bounds, path + ".signals." + own.signal, own.line, scrape_interval);
    if (!bounds) return bounds.error();
    if (own.signal == "attributes") {
      out.attributes = *bounds;
      continue;
    }
    size_t at = kSignalCount;  // lora_adapters
    for (size_t i = 0; i < kSignalCount; ++i) {
      if (signal_name(static_cast<Signal>(i)) == own.signal) at = i;
    }
    out.bounds[at] = *bounds;
  }
  if (!c.in_flight_credit) c.in_flight_credit = out.in_flight_credit;
  if (!c.min_fresh_share) c.min_fresh_share = out.min_fresh_share;
  if (!c.fallback) c.fallback = std::string(simple_choice_name(out.fallback));
  out.in_flight_credit = *c.in_flight_credit;
  out.min_fresh_share = *c.min_fresh_share;
  out.fallback = choice_of(*c.fallback);
  return out;
}

}  // namespace penstock::assembly
