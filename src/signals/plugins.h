#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "inference/plugin.h"
#include "signals/engine_table.h"
#include "signals/scalar_extractor.h"

namespace penstock::signals {

// Parameters of `metrics-data-source`: where each endpoint's metrics page is and how to reach it.
struct MetricsSourceParams {
  std::string scheme = "http";  // or https
  std::string path = "/metrics";
  int64_t port = 0;  // 0: the endpoint's own metrics port
  bool insecure_skip_verify = true;
  std::string ca_cert_path;
  std::string client_cert_path;
  std::string client_key_path;
  Duration interval{0};  // 0: the process's scrape interval
  // Which of them the document gave: others follow the endpoint (an https endpoint is scraped by https).
  bool scheme_given = false;
  bool insecure_skip_verify_given = false;
};

// The data sources `metrics-data-source`, `multicluster-metrics-data-source` (https, certificates checked),
// `models-data-source` (/v1/models) and `dcgm-data-source` (port 9400). Holds decoded parameters;
// signals::Scraper does the work. Errors: `invalid port <n>: must be between 1 and 65535`, `unsupported
// scheme: <s>`, `invalid interval "<x>": …`, `interval must be non-negative, got <d>`.
class MetricsDataSource final : public Plugin {
 public:
  explicit MetricsDataSource(MetricsSourceParams params) : params_(std::move(params)) {}
  const MetricsSourceParams& params() const { return params_; }

 private:
  MetricsSourceParams params_;
};

// A number beyond the load signals that an engine's page has: customMetrics of an engine mapping.
struct CustomMetric {
  std::string engine;
  std::string attribute_key;
  MetricSpec spec;
};

// Parameters of `core-metrics-extractor`.
struct CoreMetricsParams {
  std::string engine_label_key{kEngineLabel};
  std::string default_engine{kDefaultEngine};
  std::vector<EngineMapping> engine_configs;
  std::vector<CustomMetric> custom_metrics;
};

// The extractor `core-metrics-extractor`: says which metrics of which engine are the five load signals.
// It produces WaitingQueueSize, RunningRequestsSize and KVCacheUsagePercent (SignalValue), ActiveModels and
// WaitingModels (LoraSignal); their values are the SignalView, not attribute columns.
class CoreMetricsExtractor : public virtual Plugin {
 public:
  explicit CoreMetricsExtractor(CoreMetricsParams params) : params_(std::move(params)) {}
  const CoreMetricsParams& params() const { return params_; }
  // REQUIRES: the parameters were validated, as the factory does.
  EngineTable engines(SeriesMode mode) const;
  void declare_data(DataDeclaration& data) const override;

 private:
  CoreMetricsParams params_;
};

// The same with custom metrics, which become columns <attributeKey>/core-metrics-extractor.
class CustomMetricsExtractor final : public CoreMetricsExtractor, public ScalarExtractor {
 public:
  CustomMetricsExtractor(CoreMetricsParams params, std::vector<DataKey> keys,
                         std::shared_ptr<ScalarSink> sink)
      : CoreMetricsExtractor(std::move(params)), ScalarExtractor(std::move(keys), std::move(sink)) {}
  void declare_data(DataDeclaration& data) const override {
    CoreMetricsExtractor::declare_data(data);
    ScalarExtractor::declare_data(data);
  }
};

// The data-layer plugins of this build, one line each.
std::span<const PluginDescriptor> signal_plugins();

}  // namespace penstock::signals
