#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>

#include "base/result.h"
#include "simulator/engine_model.h"

namespace penstock::simulator {

// Whose metrics the engine shows. The names, labels, order and number format are those of the real
// engines: vLLM 0.32 (recorded pages), SGLang, trtllm-serve and Triton's TensorRT-LLM backend as they are
// documented. kVllmOld is vLLM before 0.10: gpu_cache_usage_perc, no engine label.
enum class MetricsDialect : uint8_t { kVllm, kVllmOld, kSglang, kTrtllmServe, kTritonTensorrtLlm };

Result<MetricsDialect> parse_dialect(std::string_view name);

// What a page shows beyond the model's own numbers.
struct MetricsContext {
  std::string_view model_name;
  bool adapters_enabled = false;
  int sleep_level = 0;    // 0: awake
  double started_at = 0;  // unix seconds: the value of every _created series
  std::string_view prefix_hash = "sha256";
  // Requests by (handler, method, status class) for http_requests_total.
  const std::map<std::pair<std::string, std::string>, uint64_t>* http_requests = nullptr;
};

// Appends a whole Prometheus page. The caller serves it under "/metrics" ("/prometheus/metrics" for
// trtllm-serve, whose "/metrics" is append_iteration_stats()).
void append_metrics(std::string& out, MetricsDialect dialect, const EngineModel& model,
                    const MetricsContext& context);
void append_iteration_stats(std::string& out, const EngineModel& model);

// A float as prometheus_client writes it: 8.0, 0.55, 1.234567e+06, +Inf.
void append_sample_value(std::string& out, double value);

}  // namespace penstock::simulator
