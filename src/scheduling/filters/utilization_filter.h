#pragma once

#include <vector>

#include "inference/plugin.h"
#include "scheduling/signal_column.h"

namespace penstock::scheduling {

// `utilization-filter`: keeps endpoints whose figures are at or below every given limit; a figure nobody
// knows counts as 0, in strict mode as too much where another candidate's is known. Nobody left and
// fallbackOnEmpty: all stay.
// Examples: waiting-queue at most 5: 5 stays, 6 goes; kv-cache-utilization at most 0.9 and waiting-queue at
// most 2: (0.95, 0) goes, (0.9, 2) stays.
class UtilizationFilter final : public Filter {
 public:
  static constexpr std::string_view kType = "utilization-filter";
  enum class Metric : uint8_t { kActiveRequests, kRunningRequests, kWaitingQueue, kKvUsage };
  struct Condition {
    Metric metric = Metric::kActiveRequests;
    double max = 0;
  };
  struct Params {
    std::vector<Condition> conditions;
    bool fallback_on_empty = false;
    std::string load_producer;
  };
  static void bind(config::Binder& b, Params& p);
  explicit UtilizationFilter(Params params);

  void declare_data(DataDeclaration& declaration) const override;
  void bind_slots(const SlotResolver& slots) override;
  size_t filter(SchedulingContext& ctx, std::span<Candidate> inout) const override;

 private:
  UsableSignal figure(const SchedulingContext& ctx, Metric metric, Candidate candidate) const;
  bool uses_load() const;

  Params params_;
  DataKey load_key_;
  AttributeSlot load_slot_ = kNoSlot;
};

}  // namespace penstock::scheduling
