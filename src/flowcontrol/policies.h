#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/clock.h"
#include "inference/plugin.h"

// The policies of the flow-control queue, as plugins. They are pure and thread-safe. While the feature
// gate `flowControl` is off they are created and rest.
namespace penstock::flowcontrol {

// What a policy sees of a queued request.
struct QueuedItem {
  TimePoint enqueued_at = kNever;
  uint64_t sequence = 0;  // of the enqueueing: unique, rising
};

// Which of two requests of a flow goes first.
class OrderingPolicy : public virtual Plugin {
 public:
  virtual bool before(const QueuedItem& a, const QueuedItem& b) const = 0;
};

// Which flow of a band goes next. `heads`: the first item of each flow with something queued, in the order
// the flows came to be. Returns an index into it; heads.size() for none.
class FairnessPolicy : public virtual Plugin {
 public:
  virtual size_t pick(std::span<const QueuedItem> heads, const OrderingPolicy& ordering) const = 0;
};

// Up to which saturation each band may dispatch. `priorities` is descending; ceilings[i] belongs to
// priorities[i]: 0 never, 1 until the pool is saturated.
class UsageLimitPolicy : public virtual Plugin {
 public:
  virtual void ceilings(std::span<const int64_t> priorities, std::span<double> ceilings) const = 0;
};

}  // namespace penstock::flowcontrol
