#pragma once

#include "flowcontrol/policies.h"

namespace penstock::flowcontrol {

// `global-strict-fairness-policy`: of all flows of the band the one whose head is best under the ordering
// policy; among equals the first. One heavy flow can own the band. No parameters.
class GlobalStrictFairnessPolicy final : public FairnessPolicy {
 public:
  size_t pick(std::span<const QueuedItem> heads, const OrderingPolicy& ordering) const override;
};

}  // namespace penstock::flowcontrol
