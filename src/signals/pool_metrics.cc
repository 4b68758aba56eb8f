#include "signals/pool_metrics.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <string_view>

namespace penstock::signals {

namespace {

using telemetry::MetricType;
using telemetry::Writer;

constexpr std::string_view kLoraSignal = "lora_adapters";

double rounded(double value) {
  return std::round(value * 100) / 100;
}

// One value per pool, under the reference's name and, where there is one, the deprecated name.
void write_per_pool(Writer& out, std::string_view name, std::string_view twin, std::string_view help,
                    const std::vector<std::pair<std::string_view, double>>& values) {
  if (values.empty()) return;
  out.header(name, std::string("[ALPHA] ").append(help), MetricType::kGauge);
  for (const auto& [pool, value] : values) out.sample(name, {{"name", pool}}, value);
  if (twin.empty()) return;
  out.header(twin, std::string("[ALPHA] [Deprecated: Use ").append(name).append("] ").append(help),
             MetricType::kGauge);
  for (const auto& [pool, value] : values) out.sample(twin, {{"name", pool}}, value);
}

// The endpoint's id without its namespace, as the reference's label has it.
std::string_view short_id(const Endpoint& endpoint) {
  std::string_view id = endpoint.id;
  if (const size_t slash = id.find('/'); slash != std::string_view::npos) id.remove_prefix(slash + 1);
  return id;
}

}  // namespace

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

void PoolMetrics::add_pool(const std::string& name, Membership membership) {
  const std::lock_guard lock(mutex_);
  pools_.emplace_back(name, std::move(membership));
  std::sort(pools_.begin(), pools_.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
}

void PoolMetrics::remove_pool(const std::string& name) {
  const std::lock_guard lock(mutex_);
  std::erase_if(pools_, [&](const auto& pool) { return pool.first == name; });
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
  write_per_pool(out, "llm_d_epp_ready_endpoints", "inference_pool_ready_pods",
                 "The number of ready endpoints in the inference server pool.", ready_counts);
  const struct {
    Signal signal;
    std::string_view name;
    std::string_view what;
  } kGauges[] = {
      {Signal::kKvUsage, "kv_cache_utilization", "kv cache utilization"},
      {Signal::kWaitingRequests, "queue_size", "number of requests pending in the model server queue"},
      {Signal::kRunningRequests, "running_requests", "number of requests running on the model server"},
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
    const std::string suffix(gauge.name);
    const std::string what(gauge.what);
    write_per_pool(out, "llm_d_epp_average_" + suffix, "inference_pool_average_" + suffix,
                   "The average " + what + " for an inference server pool.", means);
    write_per_pool(out, "llm_d_epp_std_dev_" + suffix, "",
                   "The standard deviation of " + what + " across an inference server pool.", deviations);
  }
}

void PoolMetrics::collect(Writer& out) const {
  const std::lock_guard lock(mutex_);
  const TimePoint now = clock_.now();
  std::vector<PoolRows> pools;
  for (const auto& [name, membership] : pools_) {
    pools.push_back({name, {}});
    const std::shared_ptr<const PoolSnapshot> snapshot = membership();
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
  const struct {
    std::string_view name;
    std::string_view help;
    std::string_view label;
  } kQueues[] = {
      {"llm_d_epp_per_endpoint_queue_size",
       "[ALPHA] The total number of requests pending in the model server queue for each underlying endpoint.",
       "model_server_endpoint"},
      {"inference_pool_per_pod_queue_size",
       "[ALPHA] [Deprecated: Use llm_d_epp_per_endpoint_queue_size] The total number of requests pending in "
       "the model server queue for each underlying pod.",
       "model_server_pod"},
  };
  for (const auto& queue : kQueues) {
    out.header(queue.name, queue.help, MetricType::kGauge);
    for_each([&](std::string_view pool, const Row& row) {
      out.sample(queue.name, {{"name", pool}, {queue.label, short_id(*row.endpoint)}},
                 row.signals.at(Signal::kWaitingRequests).value);
    });
  }

  const auto each_signal = [&](const auto& write) {
    for_each([&](std::string_view pool, const Row& row) {
      for (size_t s = 0; s < kSignalCount; ++s)
        write(pool, std::string_view(row.endpoint->id), signal_name(static_cast<Signal>(s)),
              row.signals.signals[s]);
      write(pool, std::string_view(row.endpoint->id), kLoraSignal,
            SignalValue{0, row.signals.lora.observed_at, row.signals.lora.state});
    });
  };
  out.header("penstock_signal_age_seconds", "Time since a signal of an endpoint was last observed.",
             MetricType::kGauge);
  each_signal(
      [&](std::string_view pool, std::string_view id, std::string_view signal, const SignalValue& value) {
        if (value.observed_at == kNever) return;
        out.sample("penstock_signal_age_seconds", {{"pool", pool}, {"endpoint", id}, {"signal", signal}},
                   to_seconds(now - value.observed_at));
      });
  out.header("penstock_signal_state",
             "1 for the state a signal of an endpoint is in: fresh, stale, never_seen, name_missing or "
             "endpoint_down.",
             MetricType::kGauge);
  each_signal(
      [&](std::string_view pool, std::string_view id, std::string_view signal, const SignalValue& value) {
        out.sample("penstock_signal_state",
                   {{"pool", pool},
                    {"endpoint", id},
                    {"signal", signal},
                    {"state", signal_state_name(state_of(value, now))}},
                   1);
      });
}

}  // namespace penstock::signals
