#pragma once

#include "flowcontrol/policies.h"

namespace penstock::flowcontrol {

// `fcfs-ordering-policy`: the request that was enqueued first goes first; equal times in the order of
// enqueueing. No parameters.
class FcfsOrderingPolicy final : public OrderingPolicy {
 public:
  bool before(const QueuedItem& a, const QueuedItem& b) const override;
};

}  // namespace penstock::flowcontrol
