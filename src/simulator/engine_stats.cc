#include "simulator/engine_stats.h"

#include <algorithm>

namespace penstock::simulator {

void PlainHistogram::observe(double value, uint64_t times) {
  const auto at = std::lower_bound(bounds_.begin(), bounds_.end(), value) - bounds_.begin();
  counts_[static_cast<size_t>(at)] += times;
  count_ += times;
  sum_ += value * static_cast<double>(times);
}

namespace engine_buckets {

std::span<const double> first_token_seconds() {
  static constexpr double kBounds[] = {0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75,
                                       1,     2.5,   5,    7.5,  10,   20,   40,   80,  160,  640, 2560};
  return kBounds;
}
std::span<const double> inter_token_seconds() {
  static constexpr double kBounds[] = {0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5,
                                       0.75, 1,     2.5,  5,     7.5, 10,   20,  40,  80};
  return kBounds;
}
std::span<const double> request_seconds() {
  static constexpr double kBounds[] = {0.3, 0.5, 0.8, 1,  1.5, 2,   2.5, 5,   10,   15,  20,
                                       30,  40,  50,  60, 120, 240, 480, 960, 1920, 7680};
  return kBounds;
}
std::span<const double> step_tokens() {
  static constexpr double kBounds[] = {1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384};
  return kBounds;
}
std::span<const double> request_n() {
  static constexpr double kBounds[] = {1, 2, 5, 10, 20};
  return kBounds;
}
std::span<const double> preemptions() {
  static constexpr double kBounds[] = {1, 2, 3, 4, 5, 10, 20};
  return kBounds;
}
std::vector<double> request_tokens(uint32_t max_model_len) {
  std::vector<double> bounds;
  for (double decade = 1; decade <= max_model_len; decade *= 10) {
    for (const double step : {1.0, 2.0, 5.0}) {
      if (decade * step <= max_model_len) bounds.push_back(decade * step);
    }
  }
  return bounds;
}

}  // namespace engine_buckets

EngineStats::EngineStats(uint32_t max_model_len)
    : token_bounds(engine_buckets::request_tokens(max_model_len)),
      request_prompt_tokens(token_bounds),
      request_generation_tokens(token_bounds),
      step_tokens(engine_buckets::step_tokens()),
      request_max_generation_tokens(token_bounds),
      request_n(engine_buckets::request_n()),
      request_max_tokens(token_bounds),
      first_token_seconds(engine_buckets::first_token_seconds()),
      inter_token_seconds(engine_buckets::inter_token_seconds()),
      request_token_seconds(engine_buckets::inter_token_seconds()),
      e2e_seconds(engine_buckets::request_seconds()),
      queue_seconds(engine_buckets::request_seconds()),
      inference_seconds(engine_buckets::request_seconds()),
      prefill_seconds(engine_buckets::request_seconds()),
      decode_seconds(engine_buckets::request_seconds()),
      request_preemptions(engine_buckets::preemptions()),
      request_computed_tokens(token_bounds) {}

}  // namespace penstock::simulator
