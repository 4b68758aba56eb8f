#pragma once

#include "inference/plugin.h"

namespace penstock::scheduling {

// A latency objective of a request in ms, from x-llm-d-slo-ttft-ms or x-llm-d-slo-tpot-ms (or the older
// x-slo-…): 0 when absent or unreadable.
double ttft_objective_ms(const InferenceRequest& request);
double tpot_objective_ms(const InferenceRequest& request);

// `latency-slo-admitter`: refuses a sheddable request (priority below 0) with a latency objective when no
// endpoint is expected to meet both objectives, none is cold (KV usage below 0.02) and none is idle (no
// running request). Without predictions it admits.
// Examples, priority -1, TTFT objective 100: KV 0.5, 3 running, objectives missed: refused; one endpoint at
// KV 0.01, or with nothing running: admitted.
// Reason: "no valid endpoint available to serve the request", as 429 (the reference answers 500).
class LatencySloAdmitter final : public Admitter {
 public:
  static constexpr std::string_view kType = "latency-slo-admitter";
  struct Params {
    std::string producer;
  };
  static void bind(config::Binder& b, Params& p);
  explicit LatencySloAdmitter(const Params& params)
      : key_(data_keys::kLatencyPrediction.with_producer(params.producer)) {}

  void declare_data(DataDeclaration& declaration) const override;
  void bind_slots(const SlotResolver& slots) override { slot_ = slots.slot(key_); }
  Status admit(SchedulingContext& ctx) const override;

 private:
  DataKey key_;
  AttributeSlot slot_ = kNoSlot;
};

}  // namespace penstock::scheduling
