#pragma once

#include "inference/plugin.h"

namespace penstock::scheduling {

// `active-request-scorer`: prefers endpoints with few requests of ours in flight. n <= idleThreshold: 1;
// else (max - n) / max * maxBusyScore, max over the candidates. An endpoint without the data has n = 0.
// Examples: {0, 2, 4} give {1, 0.5, 0}; with idleThreshold 2 {1, 1, 0}; with maxBusyScore 0.5 {1, 0.25, 0};
// {3, 3} give {0, 0}.
class ActiveRequestScorer final : public Scorer {
 public:
  struct Params {
    std::string request_timeout;
    int idle_threshold = 0;       // requests
    double max_busy_score = 1.0;  // ratio
    std::string in_flight_producer;
  };
  static void bind(config::Binder& b, Params& p);
  explicit ActiveRequestScorer(Params params);

  void declare_data(DataDeclaration& declaration) const override;
  void bind_slots(const SlotResolver& slots) override;
  void score(SchedulingContext& ctx, std::span<const Candidate> candidates,
             std::span<double> scores) const override;
  void explain(const SchedulingContext& ctx, Candidate candidate, std::string& out) const override;

 private:
  DataKey key_;
  AttributeSlot slot_ = kNoSlot;
  int64_t idle_threshold_;
  double max_busy_score_;
};

}  // namespace penstock::scheduling
