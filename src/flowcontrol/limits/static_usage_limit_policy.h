#pragma once

#include "config/params.h"
#include "flowcontrol/policies.h"

namespace penstock::flowcontrol {

// `static-usage-limit-policy`: one ceiling for every band. Above 1 a band would go on dispatching into a
// saturated or empty pool, so that is refused (the reference accepts it).
class StaticUsageLimitPolicy final : public UsageLimitPolicy {
 public:
  struct Params {
    double threshold = 1.0;
  };
  static void bind(config::Binder& b, Params& p);

  explicit StaticUsageLimitPolicy(Params params) : params_(params) {}
  void ceilings(std::span<const int64_t> priorities, std::span<double> ceilings) const override;

 private:
  Params params_;
};

}  // namespace penstock::flowcontrol
