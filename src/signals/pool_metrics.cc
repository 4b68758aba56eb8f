#include "signals/pool_metrics.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <string_view>
#include <tuple>

namespace penstock::signals {

namespace {

using telemetry::MetricType;
using telemetry::Writer;

constexpr std::string_view kLoraSignal = "lora_adapters";

enum Which : size_t {
  kReady,
  kAverageKv,
  kDeviationKv,
  kAverageQueue,
  kDeviationQueue,
  kAverageRunning,
  kDeviationRunning,
  kEndpointQueue,
  kAge,
  kState,
};

constexpr CollectedFamily kFamilies[] = {
    {"llm_d_epp_ready_endpoints", "[ALPHA] The number of ready endpoints in the inference server pool.",
     "name", "inference_pool_ready_pods", "name"},
    {"llm_d_epp_average_kv_cache_utilization",
     "[ALPHA] The average kv cache utilization for an inference server pool.", "name",
     "inference_pool_average_kv_cache_utilization", "name"},
    {"llm_d_epp_std_dev_kv_cache_utilization",
     "[ALPHA] The standard deviation of kv cache utilization across an inference server pool.", "name", "",
     ""},
    {"llm_d_epp_average_queue_size",
     "[ALPHA] The average number of requests pending in the model server queue.", "name",
     "inference_pool_average_queue_size", "name"},
    {"llm_d_epp_std_dev_queue_size",
     "[ALPHA] The standard deviation of the number of requests pending in the model server queue.", "name",
     "", ""},
    {"llm_d_epp_average_running_requests",
     "[ALPHA] The average number of requests running on the model server.", "name",
     "inference_pool_average_running_requests", "name"},
    {"llm_d_epp_std_dev_running_requests",
     "[ALPHA] The standard deviation of the number of requests running on the model server.", "name", "", ""},
    {"llm_d_epp_per_endpoint_queue_size",
     "[ALPHA] The total number of requests pending in the model server queue for each endpoint.",
     "name,model_server_endpoint", "inference_pool_per_pod_queue_size", "name,model_server_pod"},
    {"penstock_signal_age_seconds", "Time since a signal of an endpoint was last observed.",
     "pool,endpoint,signal", "", ""},
    {"penstock_signal_state",
     "1 for the state a signal of an endpoint is in: fresh, stale, never_seen, name_missing or "
     "endpoint_down.",
     "pool,endpoint,signal,state", "", ""},
};

void write_header(Writer& out, const CollectedFamily& family) {
  out.header(family.name, family.help, MetricType::kGauge);
}

void write_deprecated_header(Writer& out, const CollectedFamily& family) {
  constexpr std::string_view kAlpha = "[ALPHA] ";
  out.header(family.deprecated_name,
             std::string("[ALPHA] [Deprecated: Use ")
                 .append(family.name)
                 .append("] ")
                 .append(family.help.substr(kAlpha.size())),
             MetricType::kGauge);
}

double rounded(double value) {
  return std::round(value * 100) / 100;
}

// One value per pool, under the reference's name and, where there is one, the deprecated name.
void write_per_pool(Writer& out, const CollectedFamily& family,
                    const std::vector<std::pair<std::string_view, double>>& values) {
  if (values.empty()) return;
  write_header(out, family);
  for (const auto& [pool, value] : values) out.sample(family.name, {{"name", pool}}, value);
  if (family.deprecated_name.empty()) return;
  write_deprecated_header(out, family);
  for (const auto& [pool, value] : values) out.sample(family.deprecated_name, {{"name", pool}}, value);
}

// The endpoint's id without its namespace, as the reference's label has it.
std::string_view short_id(const Endpoint& endpoint) {
  std::string_view id = endpoint.id;
  if (const size_t slash = id.find('/'); slash != std::string_view::npos) id.remove_prefix(slash + 1);
  return id;
}

}  // namespace

std::span<const CollectedFamily> collected_families() {
  return kFamilies;
}

Spread spread_of(const std::vector<double>& values) {
  if (values.empty()) return {};
  double sum = 0;
  for (const double v : values) sum += v;
  const double mean = sum / static_cast<double>(values.size());
  double squares = 0;
  for (const double v : values) squares += (v - mean) * (v - mean);
  const double divisor = std::max<double>(1, static_cast<double>(values.size()) - 1);
  return {rounded(mean), rounded(std::sqrt(squares / divisor))};
}

PoolMetrics::PoolMetrics(telemetry::MetricRegistry& registry, const SignalTable& table, const Clock& clock,
                         Duration staleness)
    : registry_(registry), table_(table), clock_(clock), staleness_(staleness) {
  collector_ = registry_.add_collector([this](Writer& out) { collect(out); });
}

PoolMetrics::~PoolMetrics() {
  registry_.remove_collector(collector_);
}

void PoolMetrics::add_pool(const std::string& ns, const std::string& name, Membership membership) {
  const std::lock_guard lock(mutex_);
  pools_.push_back({ns, name, std::move(membership)});
  std::sort(pools_.begin(), pools_.end(),
            [](const Entry& a, const Entry& b) { return std::tie(a.name, a.ns) < std::tie(b.name, b.ns); });
}

void PoolMetrics::remove_pool(const std::string& ns, const std::string& name) {
  const std::lock_guard lock(mutex_);
  std::erase_if(pools_, [&](const Entry& pool) { return pool.ns == ns && pool.name == name; });
}

bool PoolMetrics::ready(const SignalRow& row, TimePoint now) const {
  return std::any_of(row.signals.begin(), row.signals.end(), [&](const SignalValue& v) {
    return v.observed_at != kNever && now - v.observed_at <= staleness_;
  });
}

SignalState PoolMetrics::state_of(const SignalValue& value, TimePoint now) const {
  const bool old = value.state == SignalState::kFresh && now - value.observed_at > staleness_;
  return old ? SignalState::kStale : value.state;
}

void PoolMetrics::write_averages(Writer& out, const std::vector<PoolRows>& pools, TimePoint now) const {
  std::vector<std::pair<std::string_view, double>> ready_counts;
  for (const PoolRows& pool : pools) {
    const auto count = std::count_if(pool.rows.begin(), pool.rows.end(),
                                     [&](const Row& row) { return ready(row.signals, now); });
    ready_counts.emplace_back(pool.name, static_cast<double>(count));
  }
  write_per_pool(out, kFamilies[kReady], ready_counts);
  const struct {
    Signal signal;
    Which average;
    Which deviation;
  } kGauges[] = {
      {Signal::kKvUsage, kAverageKv, kDeviationKv},
      {Signal::kWaitingRequests, kAverageQueue, kDeviationQueue},
      {Signal::kRunningRequests, kAverageRunning, kDeviationRunning},
  };
  for (const auto& gauge : kGauges) {
    std::vector<std::pair<std::string_view, double>> means;
    std::vector<std::pair<std::string_view, double>> deviations;
    for (const PoolRows& pool : pools) {
      std::vector<double> values;
      for (const Row& row : pool.rows) {
        const SignalValue& v = row.signals.at(gauge.signal);
        if (v.observed_at != kNever && now - v.observed_at <= staleness_) values.push_back(v.value);
      }
      if (values.empty()) continue;
      const Spread spread = spread_of(values);
      means.emplace_back(pool.name, spread.mean);
      deviations.emplace_back(pool.name, spread.std_dev);
    }
    write_per_pool(out, kFamilies[gauge.average], means);
    write_per_pool(out, kFamilies[gauge.deviation], deviations);
  }
}

void PoolMetrics::collect(Writer& out) const {
  const std::lock_guard lock(mutex_);
  const TimePoint now = clock_.now();
  std::vector<PoolRows> pools;
  for (size_t i = 0; i < pools_.size(); ++i) {
    const Entry& pool = pools_[i];
    const bool shared = (i > 0 && pools_[i - 1].name == pool.name) ||
                        (i + 1 < pools_.size() && pools_[i + 1].name == pool.name);
    pools.push_back({shared ? pool.ns + "/" + pool.name : pool.name, {}});
    const std::shared_ptr<const PoolSnapshot> snapshot = pool.membership();
    if (!snapshot) continue;
    for (const auto& endpoint : snapshot->endpoints)
      pools.back().rows.push_back({endpoint, table_.read(endpoint->slot)});
  }
  write_averages(out, pools, now);
  const bool any =
      std::any_of(pools.begin(), pools.end(), [](const PoolRows& pool) { return !pool.rows.empty(); });
  if (!any) return;

  const auto for_each = [&](const auto& write) {
    for (const PoolRows& pool : pools) {
      for (const Row& row : pool.rows) write(std::string_view(pool.name), row);
    }
  };
  const auto write_queues = [&](std::string_view name, std::string_view label) {
    for_each([&](std::string_view pool, const Row& row) {
      out.sample(name, {{"name", pool}, {label, short_id(*row.endpoint)}},
                 row.signals.at(Signal::kWaitingRequests).value);
    });
  };
  write_header(out, kFamilies[kEndpointQueue]);
  write_queues(kFamilies[kEndpointQueue].name, "model_server_endpoint");
  write_deprecated_header(out, kFamilies[kEndpointQueue]);
  write_queues(kFamilies[kEndpointQueue].deprecated_name, "model_server_pod");

  const auto each_signal = [&](const auto& write) {
    for_each([&](std::string_view pool, const Row& row) {
      for (size_t s = 0; s < kSignalCount; ++s)
        write(pool, std::string_view(row.endpoint->id), signal_name(static_cast<Signal>(s)),
              row.signals.signals[s]);
      write(pool, std::string_view(row.endpoint->id), kLoraSignal,
            SignalValue{0, row.signals.lora.observed_at, row.signals.lora.state});
    });
  };
  write_header(out, kFamilies[kAge]);
  each_signal(
      [&](std::string_view pool, std::string_view id, std::string_view signal, const SignalValue& value) {
        if (value.observed_at == kNever) return;
        out.sample(kFamilies[kAge].name, {{"pool", pool}, {"endpoint", id}, {"signal", signal}},
                   to_seconds(now - value.observed_at));
      });
  write_header(out, kFamilies[kState]);
  each_signal(
      [&](std::string_view pool, std::string_view id, std::string_view signal, const SignalValue& value) {
        out.sample(kFamilies[kState].name,
                   {{"pool", pool},
                    {"endpoint", id},
                    {"signal", signal},
                    {"state", signal_state_name(state_of(value, now))}},
                   1);
      });
}

}  // namespace penstock::signals
