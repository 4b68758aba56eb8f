#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/result.h"

namespace penstock::simulator {

// What one step of the batching loop computes.
struct StepWork {
  uint32_t requests = 0;
  uint32_t tokens = 0;               // of prefill and decode together
  uint32_t prefill_tokens = 0;       // new tokens of prefills
  double prefill_query_keys = 0;     // sum over prefills of q * (k + q/2): q new tokens after k computed ones
  double decode_context_tokens = 0;  // sum over decodes of the tokens computed before
};

// How long a step takes, in milliseconds. Two forms:
//
//   rate      base_ms + prefill_tokens / prefill_tokens_per_second * 1000
//   profile   c0 + c_req*requests + L(tokens) + c_pp*prefill_query_keys + c_kv*decode_context_tokens
//
// L is piecewise linear and goes on with its last slope. The profile form and its constants come from
// published kernel measurements (Vidur's A100 and H100 tables) for Llama-3-8B in bf16; worked values:
// llama3-8b-h100, one decode at context 1024: 7.585 ms; prefill of 2048 tokens: 47.378 ms.
class StepTime {
 public:
  // The rate form; 0 tokens a second means prefill takes no time.
  StepTime(double base_ms, double prefill_tokens_per_second)
      : base_ms_(base_ms), prefill_tokens_per_second_(prefill_tokens_per_second) {}
  // A named profile; the error lists the names.
  static Result<StepTime> profile(std::string_view name);
  static std::vector<std::string_view> profile_names();

  double milliseconds(const StepWork& work) const;
  bool is_zero() const { return gemm_ms_.empty() && base_ms_ == 0 && prefill_tokens_per_second_ == 0; }

 private:
  struct Point {
    double tokens;
    double ms;
  };
  struct Profile {
    std::string_view name;
    double base_ms, request_ms, query_key_ms, context_ms;
    std::span<const Point> gemm_ms;
  };
  static std::span<const Profile> profiles();

  double base_ms_ = 0;
  double prefill_tokens_per_second_ = 0;
  double request_ms_ = 0;
  double query_key_ms_ = 0;
  double context_ms_ = 0;
  std::span<const Point> gemm_ms_;
};

}  // namespace penstock::simulator
