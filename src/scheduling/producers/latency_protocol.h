#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/result.h"

// The JSON that llm-d's latency predictor speaks (llm-d-router, its latency predictor's client): bulk
// predictions and training samples.
namespace penstock::scheduling {

// One endpoint as the predictor looks at it; a request's row names the request's size too.
struct LatencyRow {
  double kv_usage = 0;  // ratio, 0..1
  uint64_t input_tokens = 0;
  uint64_t waiting_requests = 0;
  uint64_t running_requests = 0;
  uint64_t generated_tokens = 1;
  double prefix_score = 0;  // ratio, 0..1
  uint64_t encoder_items = 0;
  uint64_t encoder_items_matched = 0;  // at most encoder_items
  uint64_t prefill_tokens_in_flight = 0;
  uint64_t decode_tokens_in_flight = 0;
  std::string_view role;  // "": left out
};

struct LatencyTimes {
  double ttft_ms = 0;
  double tpot_ms = 0;
  double ttft_error_ms = 0;  // standard errors; 0: the predictor doesn't say
  double tpot_error_ms = 0;
};

// Something to learn from: a time that is 0 was not measured.
struct LatencySample {
  LatencyRow row;
  double ttft_ms = 0;
  double tpot_ms = 0;
  WallTime at;
};

// {"requests":[…]}. Ratios outside of 0..1 are brought there: the predictor refuses a whole bulk for one row.
std::string prediction_body(std::span<const LatencyRow> rows);
// {"entries":[…]}
std::string training_body(std::span<const LatencySample> samples);
// The "predictions" of an answer, one a row and in their order; negative times count as 0. Errors
// (kBadGateway) say what is wrong: no JSON, not as many predictions as rows, a time that is no number.
Result<std::vector<LatencyTimes>> parse_predictions(std::string_view body, size_t rows);

// How many of each kind to keep when only `most` may be: in proportion, rounded down, and the rest to the
// largest kind. Example: 600 and 900 of 1000 are 400 and 600.
struct SampleCounts {
  size_t ttft = 0;
  size_t tpot = 0;
  friend bool operator==(const SampleCounts&, const SampleCounts&) = default;
};
SampleCounts stratified(SampleCounts have, size_t most);

}  // namespace penstock::scheduling
