#include "flowcontrol/fairness/global_strict_fairness_policy.h"

namespace penstock::flowcontrol {

size_t GlobalStrictFairnessPolicy::pick(std::span<const QueuedItem> heads,
                                        const OrderingPolicy& ordering) const {
  if (heads.empty()) return 0;
  size_t best = 0;
  for (size_t i = 1; i < heads.size(); ++i) {
    if (ordering.before(heads[i], heads[best])) best = i;
  }
  return best;
}

}  // namespace penstock::flowcontrol
