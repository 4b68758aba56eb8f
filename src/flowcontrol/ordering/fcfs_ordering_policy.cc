#include "flowcontrol/ordering/fcfs_ordering_policy.h"

namespace penstock::flowcontrol {

bool FcfsOrderingPolicy::before(const QueuedItem& a, const QueuedItem& b) const {
  if (a.enqueued_at != b.enqueued_at) return a.enqueued_at < b.enqueued_at;
  return a.sequence < b.sequence;
}

}  // namespace penstock::flowcontrol
