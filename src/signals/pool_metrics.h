#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "inference/endpoint.h"
#include "signals/signal_table.h"
#include "telemetry/metrics.h"

namespace penstock::signals {

// Mean and sample standard deviation (n - 1; 0 for one value), each rounded to two decimals, as the
// reference's pool gauges have them. {30, 70} -> 50 and 28.28.
struct Spread {
  double mean = 0;
  double std_dev = 0;
};
Spread spread_of(const std::vector<double>& values);

// One family that PoolMetrics writes: for the metrics reference, since collectors register no family.
struct CollectedFamily {
  std::string_view name;
  std::string_view help;
  std::string_view labels;           // comma-separated
  std::string_view deprecated_name;  // "" none
  std::string_view deprecated_labels;
};
std::span<const CollectedFamily> collected_families();

// Writes the gauges of all pools and their endpoints when /metrics is asked for, from the membership and
// the signal table as they are then: a vanished endpoint leaves no series, and an average nobody is fresh
// for is left out instead of frozen. Reference names:
//   llm_d_epp_ready_endpoints, llm_d_epp_{average,std_dev}_{kv_cache_utilization,queue_size,running_requests}
//   {name}, llm_d_epp_per_endpoint_queue_size{name, model_server_endpoint}; twins inference_pool_….
// Ours: penstock_signal_age_seconds{pool, endpoint, signal} and penstock_signal_state{pool, endpoint,
// signal, state}, which is 1 for the present state and absent for the others.
// Registers itself as a collector; the registry, table and clock outlive it. Thread-safe.
class PoolMetrics {
 public:
  using Membership = std::function<std::shared_ptr<const PoolSnapshot>()>;

  // An endpoint is ready when some value of it is no older than `staleness`.
  PoolMetrics(telemetry::MetricRegistry& registry, const SignalTable& table, const Clock& clock,
              Duration staleness = std::chrono::seconds(2));
  ~PoolMetrics();
  PoolMetrics(const PoolMetrics&) = delete;
  PoolMetrics& operator=(const PoolMetrics&) = delete;

  // Labelled with the pool's name, or "<namespace>/<name>" while pools of several namespaces share it.
  void add_pool(const std::string& ns, const std::string& name, Membership membership);
  void remove_pool(const std::string& ns, const std::string& name);

 private:
  struct Entry {
    std::string ns;
    std::string name;
    Membership membership;
  };
  struct Row {
    std::shared_ptr<const Endpoint> endpoint;
    SignalRow signals;
  };
  struct PoolRows {
    std::string name;
    std::vector<Row> rows;
  };

  void collect(telemetry::Writer& out) const;
  void write_averages(telemetry::Writer& out, const std::vector<PoolRows>& pools, TimePoint now) const;
  bool ready(const SignalRow& row, TimePoint now) const;
  SignalState state_of(const SignalValue& value, TimePoint now) const;

  telemetry::MetricRegistry& registry_;
  const SignalTable& table_;
  const Clock& clock_;
  const Duration staleness_;
  mutable std::mutex mutex_;
  std::vector<Entry> pools_;  // by name, then namespace
  uint64_t collector_ = 0;
};

}  // namespace penstock::signals
