#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>

#include "base/clock.h"
#include "base/random.h"
#include "io/loop.h"
#include "kubernetes/api_client.h"

namespace penstock::kubernetes {

struct LeaderElectionOptions {
  std::string ns;
  std::string lease;                                   // name of the Lease object
  std::string identity;                                // ours, unique among the candidates
  Duration lease_duration = std::chrono::seconds(15);  // after which a holder that was not heard of is gone
  Duration renew_deadline = std::chrono::seconds(10);  // after which we give up what we can't renew
  Duration retry_period = std::chrono::seconds(2);
  uint64_t seed = 1;
};

// One leader among several processes, by a Lease object, as client-go elects: who holds it renews it each
// retry_period; another may take it once it has not changed for lease_duration by that one's own clock, so
// clocks need not agree. A leader that can't renew within renew_deadline steps down, before others may step
// up, and stands again. At the end the Lease is released, so that the next one need not wait.
// https://kubernetes.io/docs/concepts/architecture/leases/
class LeaderElection {
 public:
  // `changed` is called on the loop; the client outlives it.
  LeaderElection(ApiClient& api, LeaderElectionOptions options, std::function<void(bool leader)> changed);

  // Until the token fires; the release takes up to two seconds more. REQUIRES: once.
  io::Task<void> run(io::CancelToken token);
  bool leader() const { return leader_.load(std::memory_order_relaxed); }  // any thread

 private:
  io::Task<bool> attempt(Duration within, io::CancelToken token);
  io::Task<bool> acquire_or_renew(io::CancelToken token);
  io::Task<void> release();
  std::string lease_body(std::string_view metadata, std::string_view holder, std::string_view acquired,
                         int64_t transitions) const;
  void set_leader(bool leader);
  void complain(const Failure& failure);

  ApiClient& api_;
  const LeaderElectionOptions options_;
  const std::function<void(bool)> changed_;
  SystemClock clock_;
  Random random_;
  std::atomic<bool> leader_{false};
  std::string observed_;            // the Lease's spec as it was last seen
  TimePoint observed_at_ = kNever;  // when it was first seen so
  TimePoint renewed_at_ = kNever;
  std::string told_;  // the last failure in the log; "" since it works
};

}  // namespace penstock::kubernetes
