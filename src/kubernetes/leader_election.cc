#include "kubernetes/leader_election.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/strings.h"
#include "kubernetes/timestamps.h"
#include "telemetry/log.h"

namespace penstock::kubernetes {

namespace {
constexpr Duration kReleaseWithin = std::chrono::seconds(2);
constexpr double kJitter = 0.2;
}  // namespace

LeaderElection::LeaderElection(ApiClient& api, LeaderElectionOptions options,
                               std::function<void(bool)> changed)
    : api_(api), options_(std::move(options)), changed_(std::move(changed)), random_(options_.seed) {}

io::Task<void> LeaderElection::run(io::CancelToken token) {
  while (!token.cancelled()) {
    const TimePoint began = clock_.now();
    const Duration within =
        leader() ? options_.renew_deadline - (began - renewed_at_) : options_.renew_deadline;
    const bool held = co_await attempt(within, token);
    if (token.cancelled()) break;
    if (held) {
      // From when we asked: the others count from a later time.
      renewed_at_ = began;
      set_leader(true);
    } else if (leader() && clock_.now() - renewed_at_ >= options_.renew_deadline) {
      telemetry::log_error("leadership is lost: the lease was not renewed in time",
                           {{"lease", options_.lease}});
      set_leader(false);
    }
    const Duration pause(static_cast<int64_t>(static_cast<double>(options_.retry_period.count()) *
                                              (1 + kJitter * random_.uniform())));
    const Duration left = leader() ? options_.renew_deadline - (clock_.now() - renewed_at_) : pause;
    (void)co_await api_.loop().sleep(std::max(Duration(1), std::min(pause, left)), token);
  }
  if (leader()) co_await release();
  set_leader(false);
}

io::Task<bool> LeaderElection::attempt(Duration within, io::CancelToken token) {
  io::CancelSource cancel;
  cancel.follow(token);
  io::Timer timer(api_.loop());
  timer.arm(
      std::max(within, Duration(1)), [](void* source) { static_cast<io::CancelSource*>(source)->cancel(); },
      &cancel);
  co_return co_await acquire_or_renew(cancel.token());
}

io::Task<bool> LeaderElection::acquire_or_renew(io::CancelToken token) {
  const Answer read = co_await api_.get(kLeases, options_.ns, options_.lease, token);
  const std::string now = format_micro_time(clock_.wall_now());
  if (read.failure.reason == Reason::kNotFound) {
    const std::string metadata =
        fmt::format(R"({{"name":{},"namespace":{}}})", json_quote(options_.lease), json_quote(options_.ns));
    std::string body = lease_body(metadata, options_.identity, now, 0);
    const Answer created = co_await api_.create_object(kLeases, options_.ns, std::move(body), token);
    // Somebody else was faster: the next attempt reads it.
    if (!created.ok() && created.failure.reason != Reason::kAlreadyExists) complain(created.failure);
    if (created.ok()) told_.clear();
    co_return created.ok();
  }
  if (!read.ok()) {
    complain(read.failure);
    co_return false;
  }
  JsonDocument document;
  const Result<Json> lease = document.parse(read.body);
  if (!lease.ok()) co_return false;
  const Json spec = (*lease)["spec"];
  if (std::string text = spec.to_string(); text != observed_ || observed_at_ == kNever) {
    observed_ = std::move(text);
    observed_at_ = clock_.now();
  }
  const std::string_view holder = spec["holderIdentity"].text();
  const bool ours = holder == options_.identity;
  const Duration lasts =
      std::chrono::seconds(std::clamp<int64_t>(spec["leaseDurationSeconds"].integer().value_or(0), 0,
                                               std::chrono::seconds(std::chrono::hours(24)).count()));
  if (!holder.empty() && !ours && clock_.now() - observed_at_ < lasts) {
    told_.clear();
    co_return false;
  }
  const std::string acquired = ours ? std::string(spec["acquireTime"].text_or(now)) : now;
  const int64_t transitions = spec["leaseTransitions"].integer().value_or(0) + (ours ? 0 : 1);
  std::string body = lease_body((*lease)["metadata"].to_string(), options_.identity, acquired, transitions);
  const Answer written =
      co_await api_.replace(kLeases, options_.ns, options_.lease, "", std::move(body), token);
  if (!written.ok() && written.failure.reason != Reason::kConflict) complain(written.failure);
  if (written.ok()) told_.clear();
  co_return written.ok();
}

std::string LeaderElection::lease_body(std::string_view metadata, std::string_view holder,
                                       std::string_view acquired, int64_t transitions) const {
  const int64_t seconds =
      holder.empty() ? 1 : std::chrono::duration_cast<std::chrono::seconds>(options_.lease_duration).count();
  return fmt::format(
      R"({{"apiVersion":"coordination.k8s.io/v1","kind":"Lease","metadata":{},"spec":{{"holderIdentity":{},)"
      R"("leaseDurationSeconds":{},"acquireTime":{},"renewTime":{},"leaseTransitions":{}}}}})",
      metadata, json_quote(holder), std::max<int64_t>(seconds, 1), json_quote(acquired),
      json_quote(format_micro_time(clock_.wall_now())), transitions);
}

io::Task<void> LeaderElection::release() {
  io::CancelSource cancel;
  io::Timer timer(api_.loop());
  timer.arm(kReleaseWithin, [](void* source) { static_cast<io::CancelSource*>(source)->cancel(); }, &cancel);
  ApiClient::Change change = [this](Json lease) -> Result<std::string> {
    const Json spec = lease["spec"];
    if (spec["holderIdentity"].text() != options_.identity) return std::string();
    return lease_body(lease["metadata"].to_string(), "", format_micro_time(clock_.wall_now()),
                      spec["leaseTransitions"].integer().value_or(0));
  };
  const Answer answer =
      co_await api_.update(kLeases, options_.ns, options_.lease, "", change, cancel.token());
  if (answer.ok()) {
    telemetry::log_info("the lease is released", {{"lease", options_.lease}});
  } else {
    complain(answer.failure);
  }
}

void LeaderElection::set_leader(bool leader) {
  if (leader_.exchange(leader) == leader) return;
  if (leader)
    telemetry::log_info("this picker leads", {{"lease", options_.lease}, {"identity", options_.identity}});
  changed_(leader);
}

void LeaderElection::complain(const Failure& failure) {
  if (failure.reason == Reason::kCancelled || failure.message == told_) return;
  told_ = failure.message;
  telemetry::log_warn("the lease can't be read or written",
                      {{"lease", options_.lease}, {"error", failure.message}});
}

}  // namespace penstock::kubernetes
