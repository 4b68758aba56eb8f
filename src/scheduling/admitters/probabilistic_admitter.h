#pragma once

#include "inference/plugin.h"

namespace penstock::scheduling {

// `probabilistic-admitter`: refuses sheddable requests (priority below 0) ever more likely as the pool fills:
//   saturation = mean over the endpoints of max(waiting / queueDepthThreshold, KV usage /
//   kvCacheUtilThreshold), 1 for an endpoint whose signals nobody knows; probability = min(saturation^power *
//   k, 1).
// Examples with the defaults: (waiting 0, KV 0.08): 0.1, 0.003; (1, 0.2): 0.25, 0.29296875; (1, 0.1) and
// (2, 0.4): 0.35, 1.
// Answered with 429 (the reference loses its own code and answers 500).
class ProbabilisticAdmitter final : public Admitter {
 public:
  static constexpr std::string_view kType = "probabilistic-admitter";
  struct Params {
    int queue_threshold = 5;    // requests
    double kv_threshold = 0.8;  // ratio
    double power = 5;
    double k = 300;
  };
  static void bind(config::Binder& b, Params& p);
  explicit ProbabilisticAdmitter(const Params& params) : params_(params) {}

  Status admit(SchedulingContext& ctx) const override;

  double saturation(const SchedulingContext& ctx) const;
  double probability(double saturation) const;

 private:
  Params params_;
};

}  // namespace penstock::scheduling
