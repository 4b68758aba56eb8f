#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"

namespace penstock::simulator {

// A histogram of one thread: bounds are upper bounds without +Inf, ascending, and outlive it.
class PlainHistogram {
 public:
  explicit PlainHistogram(std::span<const double> bounds) : bounds_(bounds), counts_(bounds.size() + 1) {}
  void observe(double value, uint64_t times = 1);
  std::span<const double> bounds() const { return bounds_; }
  uint64_t bucket(size_t i) const { return counts_[i]; }
  uint64_t count() const { return count_; }
  double sum() const { return sum_; }

 private:
  std::span<const double> bounds_;
  std::vector<uint64_t> counts_;
  uint64_t count_ = 0;
  double sum_ = 0;
};

// Why a sequence ended; kNone while it runs. The order is that of the metric's series.
enum class FinishReason : uint8_t { kStop, kLength, kAbort, kError, kNone };
inline constexpr size_t kFinishReasons = 4;

// Bucket bounds as the real engine has them.
namespace engine_buckets {
std::span<const double> first_token_seconds();
std::span<const double> inter_token_seconds();
std::span<const double> request_seconds();
std::span<const double> step_tokens();
std::span<const double> request_n();
std::span<const double> preemptions();
// The 1-2-5 series up to max_model_len.
std::vector<double> request_tokens(uint32_t max_model_len);
}  // namespace engine_buckets

// Everything the metrics page shows of one engine. Gauges hold the state after the last step, as the real
// engine's do; counters and histograms never go back.
struct EngineStats {
  explicit EngineStats(uint32_t max_model_len);

  uint32_t running = 0;           // requests
  uint32_t waiting_capacity = 0;  // requests
  uint32_t waiting_deferred = 0;  // requests held back by the adapter limit
  double kv_usage_ratio = 0;

  uint64_t prefix_queries = 0;  // tokens
  uint64_t prefix_hits = 0;     // tokens
  uint64_t preemptions = 0;
  uint64_t prompt_tokens = 0;
  uint64_t prompt_tokens_cached = 0;
  uint64_t generation_tokens = 0;
  std::array<uint64_t, kFinishReasons> finished{};
  uint64_t rejected_requests = 0;  // the queue was full
  uint64_t steps = 0;

  // lora_requests_info: one series per combination seen, never removed up to kMaxAdapterSeries (then the
  // oldest goes); the last one is live. Empty before the first step.
  static constexpr size_t kMaxAdapterSeries = 4096;
  struct AdapterSeries {
    std::string running;  // names joined by commas
    std::string waiting;
    double updated_at = 0;  // unix seconds
  };
  std::vector<AdapterSeries> adapters;
  size_t live_adapters = 0;  // index of the series updated last

  std::vector<double> token_bounds;
  PlainHistogram request_prompt_tokens;
  PlainHistogram request_generation_tokens;
  PlainHistogram step_tokens;
  PlainHistogram request_max_generation_tokens;
  PlainHistogram request_n;
  PlainHistogram request_max_tokens;
  PlainHistogram first_token_seconds;
  PlainHistogram inter_token_seconds;
  PlainHistogram request_token_seconds;
  PlainHistogram e2e_seconds;
  PlainHistogram queue_seconds;
  PlainHistogram inference_seconds;
  PlainHistogram prefill_seconds;
  PlainHistogram decode_seconds;
  PlainHistogram request_preemptions;
  PlainHistogram request_computed_tokens;
};

}  // namespace penstock::simulator
