#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "inference/decision.h"
#include "inference/endpoint.h"
#include "telemetry/metrics.h"

namespace penstock::director {

// The request families of the reference's catalogue (llm_d_epp_request_*, scheduler_*) and ours. Made once
// per process and shared by all pools and loops. Thread-safe.
class RequestMetrics {
 public:
  explicit RequestMetrics(telemetry::MetricRegistry& registry);

  // Model names that rewrites mention are labels always.
  void pin_model(std::string_view name) { models.pin(name); }

  telemetry::Family<telemetry::Counter>& total;
  telemetry::Family<telemetry::Counter>& errors;
  telemetry::Family<telemetry::Histogram>& duration;
  telemetry::Family<telemetry::Histogram>& request_bytes;
  telemetry::Family<telemetry::Histogram>& response_bytes;
  telemetry::Family<telemetry::Histogram>& input_tokens;
  telemetry::Family<telemetry::Histogram>& output_tokens;
  telemetry::Family<telemetry::Histogram>& cached_tokens;
  telemetry::Family<telemetry::Gauge>& running;
  telemetry::Family<telemetry::Histogram>& ntpot;
  telemetry::Family<telemetry::Histogram>& ttft;
  telemetry::Family<telemetry::Histogram>& tpot;
  telemetry::Family<telemetry::Histogram>& itl;
  telemetry::Family<telemetry::Counter>& attempts;
  telemetry::Family<telemetry::Counter>& rewrites;
  telemetry::Family<telemetry::Counter>& fallbacks;
  telemetry::Family<telemetry::Gauge>& fallback_state;
  telemetry::Family<telemetry::Counter>& fallback_transitions;
  telemetry::Family<telemetry::Counter>& retries;
  telemetry::Family<telemetry::Counter>& endpoint_failures;
  telemetry::Family<telemetry::Counter>& ejections;
  telemetry::Family<telemetry::Counter>& ejections_refused;
  telemetry::Family<telemetry::Counter>& endpoint_returns;
  telemetry::Family<telemetry::Gauge>& responses_held;
  telemetry::Family<telemetry::Counter>& response_lookups;
  telemetry::Family<telemetry::Counter>& responses_forgotten;
  telemetry::Family<telemetry::Histogram>& plugin_seconds;
  telemetry::Family<telemetry::Counter>& corrected_scores;  // written by schedulers
  telemetry::Histogram& scheduler_seconds;
  telemetry::Histogram& processing_seconds;
  telemetry::Histogram& decision_seconds;
  telemetry::Histogram& response_seconds;
  // Moments of a request, since it arrived: pool chosen, decision started, endpoint chosen, first token.
  std::array<telemetry::Histogram*, 4> moments;

  telemetry::LabelBudget models{1000};
  telemetry::LabelBudget fairness_ids{1000};
};

// The series of one (model, target model, fairness id, priority), looked up once per request instead of
// once per observation. References live as long as the registry.
struct RequestSeries {
  telemetry::Counter* total = nullptr;
  telemetry::Gauge* running = nullptr;
  telemetry::Histogram* duration = nullptr;
  telemetry::Histogram* request_bytes = nullptr;
  telemetry::Histogram* response_bytes = nullptr;
  telemetry::Histogram* input_tokens = nullptr;
  telemetry::Histogram* output_tokens = nullptr;
  telemetry::Histogram* cached_tokens = nullptr;
  telemetry::Histogram* ntpot = nullptr;
  telemetry::Histogram* ttft_streaming = nullptr;
  telemetry::Histogram* ttft_unary = nullptr;
  telemetry::Histogram* tpot = nullptr;
  telemetry::Histogram* itl = nullptr;
  // As the labels say, after their budgets.
  std::string_view model;
  std::string_view target;
  std::string_view fairness_id;
  std::string priority;
};

// One loop's cache of series. Bounded; entries stay for good, since requests in flight point to them. Not
// thread-safe.
class SeriesCache {
 public:
  static constexpr size_t kMaxCached = 4096;  // label sets beyond it share the series "other"

  explicit SeriesCache(RequestMetrics& metrics) : metrics_(metrics) {}
  const RequestSeries& find(std::string_view model, std::string_view target, std::string_view fairness_id,
                            int priority);
  // The counter of successful scheduling attempts towards an endpoint.
  telemetry::Counter& attempt(std::string_view target, const Endpoint& endpoint);

 private:
  struct Attempt {
    std::string target;
    std::string endpoint_id;
    telemetry::Counter* counter = nullptr;
  };

  RequestMetrics& metrics_;
  std::string key_;  // scratch
  std::unordered_map<std::string, std::unique_ptr<RequestSeries>> series_;
  const RequestSeries* last_ = nullptr;
  std::string last_key_;
  std::vector<Attempt> attempts_;  // by slot: the latest pair seen
};

}  // namespace penstock::director
