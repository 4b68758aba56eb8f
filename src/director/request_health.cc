#include "director/request_health.h"

#include <cstdint>
#include <limits>

namespace penstock::director {

namespace {

// How likely a failure is this endpoint's.
uint32_t suspicion(const HealthTicket& ticket) {
  return ticket.on_trial() ? std::numeric_limits<uint32_t>::max() : ticket.failures_in_a_row();
}

}  // namespace

void RequestHealth::prefilled(TimePoint now) {
  prefill_.output(now);
  prefill_.succeed(now);
}

void RequestHealth::fail(FailureKind kind, TimePoint now) {
  const bool shared = kind == FailureKind::kStatus || kind == FailureKind::kTimeout;
  if (!shared || !prefill_.open()) {
    target_.fail(kind, now);
    prefill_.release();
    return;
  }
  const uint32_t of_target = target_.open() ? suspicion(target_) : 0;
  const uint32_t of_prefill = suspicion(prefill_);
  const bool equal = of_target == of_prefill;
  if (of_target > of_prefill || (equal && !target_.next_failure_ejects())) target_.fail(kind, now);
  if (of_prefill >= of_target) prefill_.fail(kind, now);
  target_.release();
  prefill_.release();
}

void RequestHealth::fail_status(int status, bool empty, TimePoint now) {
  if (status != 502 || !empty || !prefill_.open()) {
    fail(FailureKind::kStatus, now);
    return;
  }
  if (!encodes_) prefill_.fail(FailureKind::kReset, now);
  release();
}

}  // namespace penstock::director
