#include "director/collected.h"

#include <array>
#include <map>
#include <string>

#include "telemetry/log.h"

namespace penstock::director {

namespace {

constexpr std::array<CollectedFamily, 7> kFamilies{{
    {"penstock_body_bytes_buffered", telemetry::MetricType::kGauge, "", "Bytes of request bodies in memory."},
    {"penstock_body_bytes_limit", telemetry::MetricType::kGauge, "",
     "Bytes of request bodies that may be in memory at once."},
    {"penstock_access_log_dropped_lines_total", telemetry::MetricType::kCounter, "",
     "Lines of the access log that were dropped because nobody took them in time."},
    {"penstock_log_dropped_lines_total", telemetry::MetricType::kCounter, "",
     "Log lines that were dropped because nobody took them in time."},
    {"llm_d_epp_inflight_requests", telemetry::MetricType::kGauge,
     "endpoint_name, namespace, producer_name, fairness_id, priority",
     "Requests on their way at each endpoint. fairness_id and priority are always empty."},
    {"llm_d_epp_inflight_tokens", telemetry::MetricType::kGauge,
     "endpoint_name, namespace, producer_name, fairness_id, priority",
     "Estimated tokens on their way at each endpoint. fairness_id and priority are always empty."},
    {"penstock_pool_endpoints", telemetry::MetricType::kGauge, "pool, state",
     "Endpoints of the pool by what keeps them from getting requests: draining, asleep, ejected, half_open "
     "(one "
     "request at a time); healthy: nothing."},
}};

constexpr size_t kFirstOfPools = 4;

std::string_view begin_family(size_t index, telemetry::Writer& out) {
  const CollectedFamily& family = kFamilies[index];
  out.header(family.name, family.help, family.type);
  return family.name;
}

// The load that pools with a load estimator hold at their endpoints. Endpoints of several pools may have one
// name: their loads are added.
void collect_load(std::span<const ServedPool> pools, telemetry::Writer& out, bool tokens,
                  std::string_view name) {
  std::map<std::array<std::string, 3>, uint64_t> loads;
  for (const ServedPool& pool : pools) {
    const std::shared_ptr<const Policy> policy = pool.pool->policy.get();
    if (policy == nullptr || policy->load_estimator == nullptr) continue;
    for (const auto& endpoint : pool.members->snapshot()->endpoints) {
      const uint64_t load = endpoint->live->load.load(std::memory_order_relaxed);
      loads[{endpoint->name, endpoint->ns, policy->load_estimator->name()}] +=
          tokens ? EndpointLive::tokens_of(load) : EndpointLive::requests_of(load);
    }
  }
  for (const auto& [labels, load] : loads) {
    out.sample(name,
               {{"endpoint_name", labels[0]},
                {"namespace", labels[1]},
                {"producer_name", labels[2]},
                {"fairness_id", ""},
                {"priority", ""}},
               static_cast<double>(load));
  }
}

void collect_states(std::span<const ServedPool> pools, TimePoint now, telemetry::Writer& out,
                    std::string_view name) {
  static constexpr std::array<std::string_view, 5> kStates{"healthy", "half_open", "ejected", "asleep",
                                                           "draining"};
  // Pools of several namespaces may have one name: their endpoints are added.
  std::map<std::string_view, std::array<uint64_t, kStates.size()>> pools_counts;
  for (const ServedPool& pool : pools) {
    auto& counts = pools_counts[pool.pool->name];
    for (const auto& endpoint : pool.members->snapshot()->endpoints) {
      const std::string_view state = endpoint_state_name(*pool.pool, *endpoint, now);
      for (size_t i = 0; i < kStates.size(); ++i) counts[i] += state == kStates[i] ? 1 : 0;
    }
  }
  for (const auto& [pool, counts] : pools_counts) {
    for (size_t i = 0; i < kStates.size(); ++i)
      out.sample(name, {{"pool", pool}, {"state", kStates[i]}}, static_cast<double>(counts[i]));
  }
}

}  // namespace

std::string_view endpoint_state_name(const Pool& pool, const Endpoint& endpoint, TimePoint now) {
  if (endpoint.draining) return "draining";
  if (endpoint.live->asleep.load(std::memory_order_relaxed)) return "asleep";
  return health_state_name(pool.health.state_of(endpoint, now));
}

std::span<const CollectedFamily> door_families() {
  return kFamilies;
}

void collect_pools(std::span<const ServedPool> pools, TimePoint now, telemetry::Writer& out) {
  size_t next = kFirstOfPools;
  const auto begin = [&] { return begin_family(next++, out); };
  collect_load(pools, out, false, begin());
  collect_load(pools, out, true, begin());
  collect_states(pools, now, out, begin());
}

void collect_door(const BodyBudget& bodies, const AccessLog* access_log, std::span<const ServedPool> pools,
                  TimePoint now, telemetry::Writer& out) {
  const std::array<double, kFirstOfPools> values{
      static_cast<double>(bodies.held()), static_cast<double>(bodies.limit()),
      static_cast<double>(access_log == nullptr ? 0 : access_log->dropped_lines()),
      static_cast<double>(telemetry::dropped_log_lines())};
  for (size_t i = 0; i < values.size(); ++i) out.sample(begin_family(i, out), {}, values[i]);
  collect_pools(pools, now, out);
}

}  // namespace penstock::director
