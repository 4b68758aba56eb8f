#include "simulator/step_time.h"

#include <array>

namespace penstock::simulator {

std::span<const StepTime::Profile> StepTime::profiles() {
  static constexpr std::array<Point, 11> kH100 = {{{1, 6.03},
                                                   {8, 5.92},
                                                   {16, 6.24},
                                                   {32, 6.24},
                                                   {64, 6.31},
                                                   {128, 6.86},
                                                   {256, 9.85},
                                                   {512, 12.90},
                                                   {1024, 22.64},
                                                   {2048, 43.65},
                                                   {4096, 89.33}}};
  static constexpr std::array<Point, 12> kA100 = {{{1, 9.70},
                                                   {8, 9.98},
                                                   {16, 10.13},
                                                   {32, 10.91},
                                                   {64, 11.23},
                                                   {128, 13.18},
                                                   {256, 19.49},
                                                   {512, 34.64},
                                                   {1024, 75.14},
                                                   {2048, 141.79},
                                                   {4096, 272.93},
                                                   {8192, 542.61}}};
  static constexpr std::array<Profile, 2> kProfiles = {{
      {"llama3-8b-h100", 1.5, 0.005, 1.06e-6, 4.89e-5, kH100},
      {"llama3-8b-a100", 1.7, 0.005, 3.36e-6, 8.04e-5, kA100},
  }};
  return kProfiles;
}

std::vector<std::string_view> StepTime::profile_names() {
  std::vector<std::string_view> names;
  for (const Profile& p : profiles()) names.push_back(p.name);
  return names;
}

Result<StepTime> StepTime::profile(std::string_view name) {
  std::string known;
  for (const Profile& p : profiles()) {
    if (p.name == name) {
      StepTime time(p.base_ms, 0);
      time.request_ms_ = p.request_ms;
      time.query_key_ms_ = p.query_key_ms;
      time.context_ms_ = p.context_ms;
      time.gemm_ms_ = p.gemm_ms;
      return time;
    }
    known += (known.empty() ? "" : ", ") + std::string(p.name);
  }
  return invalid_config("timing profile \"" + std::string(name) + "\" is not known; there are: " + known);
}

double StepTime::milliseconds(const StepWork& work) const {
  double ms = base_ms_;
  if (prefill_tokens_per_second_ > 0) ms += work.prefill_tokens / prefill_tokens_per_second_ * 1000.0;
  if (gemm_ms_.empty()) return ms;

  const double tokens = work.tokens;
  size_t right = 1;
  while (right + 1 < gemm_ms_.size() && gemm_ms_[right].tokens < tokens) ++right;
  const Point& a = gemm_ms_[right - 1];
  const Point& b = gemm_ms_[right];
  ms += a.ms + (b.ms - a.ms) * (tokens - a.tokens) / (b.tokens - a.tokens);
  return ms + request_ms_ * work.requests + query_key_ms_ * work.prefill_query_keys +
         context_ms_ * work.decode_context_tokens;
}

}  // namespace penstock::simulator
