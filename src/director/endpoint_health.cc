#include "director/endpoint_health.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "base/strings.h"
#include "telemetry/log.h"

namespace penstock::director {

namespace {

using config::OutlierDetectionSettings;

// An outcome word: 24 bits number of the slice, 20 bits answers, 20 bits failures.
constexpr uint32_t kCountBits = 20;
constexpr uint64_t kCountMask = (uint64_t{1} << kCountBits) - 1;
constexpr uint64_t kSliceMask = 0xFFFFFF;

uint64_t slice_of(TimePoint now, const OutlierDetectionSettings& settings) {
  const int64_t length =
      std::max<int64_t>(1, settings.window.count() / static_cast<int64_t>(EndpointLive::kOutcomeSlices));
  return static_cast<uint64_t>(now.time_since_epoch().count() / length);
}
uint64_t answers_in(uint64_t word) {
  return word >> kCountBits & kCountMask;
}
uint64_t failures_in(uint64_t word) {
  return word & kCountMask;
}
uint64_t number_in(uint64_t word) {
  return word >> 2 * kCountBits;
}

// How often output is noted, as a part of the bound that it is compared with.
constexpr int64_t kOutputSteps = 16;
// Ejections that double the time; more would overflow before the cap.
constexpr uint32_t kMaxDoublings = 30;

}  // namespace

std::string_view failure_kind_name(FailureKind kind) {
  return ejection_reason_name(static_cast<EjectionReason>(kind));
}

std::string_view ejection_reason_name(EjectionReason reason) {
  switch (reason) {
    case EjectionReason::kConnect:
      return "connect";
    case EjectionReason::kReset:
      return "reset";
    case EjectionReason::kStatus:
      return "status";
    case EjectionReason::kTimeout:
      return "timeout";
    case EjectionReason::kStall:
      return "stall";
    case EjectionReason::kFailureRatio:
      return "failure_ratio";
  }
  return "";
}

std::string_view health_state_name(HealthState state) {
  switch (state) {
    case HealthState::kHealthy:
      return "healthy";
    case HealthState::kEjected:
      return "ejected";
    case HealthState::kHalfOpen:
      return "half_open";
  }
  return "";
}

// --- EndpointHealth ---

EndpointHealth::EndpointHealth(std::string pool, RequestMetrics& metrics)
    : pool_(std::move(pool)),
      metrics_(metrics),
      settings_(std::make_shared<const OutlierDetectionSettings>()) {}

void EndpointHealth::configure(const OutlierDetectionSettings& settings) {
  settings_.publish(std::make_shared<const OutlierDetectionSettings>(settings));
}

void EndpointHealth::count(EndpointLive& live, const OutlierDetectionSettings& settings, bool failure,
                           TimePoint now) {
  const uint64_t slice = slice_of(now, settings);
  std::atomic<uint64_t>& cell = live.outcomes[slice % EndpointLive::kOutcomeSlices];
  const uint64_t one = (uint64_t{1} << kCountBits) + (failure ? 1 : 0);
  uint64_t word = cell.load(std::memory_order_relaxed);
  for (;;) {
    const bool same = number_in(word) == (slice & kSliceMask);
    if (same && answers_in(word) == kCountMask) return;
    const uint64_t next = same ? word + one : ((slice & kSliceMask) << 2 * kCountBits) + one;
    if (cell.compare_exchange_weak(word, next, std::memory_order_relaxed)) return;
  }
}

EndpointHealth::Window EndpointHealth::window_of(const EndpointLive& live,
                                                 const OutlierDetectionSettings& settings, TimePoint now) {
  const uint64_t slice = slice_of(now, settings);
  Window window;
  for (const std::atomic<uint64_t>& cell : live.outcomes) {
    const uint64_t word = cell.load(std::memory_order_relaxed);
    if (((slice - number_in(word)) & kSliceMask) >= EndpointLive::kOutcomeSlices) continue;
    window.answers += answers_in(word);
    window.failures += failures_in(word);
  }
  return window;
}

void EndpointHealth::failed(const Endpoint& endpoint, const OutlierDetectionSettings& settings,
                            FailureKind kind, uint32_t generation, bool on_trial, const PoolSize& size,
                            TimePoint now) {
  metrics_.endpoint_failures.with({pool_, failure_kind_name(kind)}).add();
  EndpointLive& live = *endpoint.live;
  if (live.health_generation.load(std::memory_order_acquire) != generation) return;
  const auto reason = static_cast<EjectionReason>(kind);
  if (on_trial) {
    eject(endpoint, settings, reason, generation, size, now);
    return;
  }
  const int64_t in_a_row = live.consecutive_failures.fetch_add(1, std::memory_order_relaxed) + 1;
  count(live, settings, true, now);
  if (live.ejected_until_ns.load(std::memory_order_relaxed) != 0) return;  // picked as the last resort
  const int64_t bound = kind == FailureKind::kConnect && settings.connect_failures != 0
                            ? settings.connect_failures
                            : settings.consecutive_failures;
  if (bound != 0 && in_a_row >= bound) {
    eject(endpoint, settings, reason, generation, size, now);
    return;
  }
  if (settings.failure_ratio <= 0) return;
  const Window window = window_of(live, settings, now);
  if (window.answers < static_cast<uint64_t>(settings.minimum_requests)) return;
  if (static_cast<double>(window.failures) < settings.failure_ratio * static_cast<double>(window.answers)) {
    return;
  }
  eject(endpoint, settings, EjectionReason::kFailureRatio, generation, size, now);
}

void EndpointHealth::succeeded(const Endpoint& endpoint, const OutlierDetectionSettings& settings,
                               uint32_t generation, TimePoint now) {
  EndpointLive& live = *endpoint.live;
  if (live.health_generation.load(std::memory_order_acquire) != generation) return;
  if (live.ejected_until_ns.load(std::memory_order_relaxed) != 0) {
    back(endpoint, 0, generation, now);
    return;
  }
  if (live.consecutive_failures.load(std::memory_order_relaxed) != 0)
    live.consecutive_failures.store(0, std::memory_order_relaxed);
  if (settings.failure_ratio > 0) count(live, settings, false, now);
}

uint32_t EndpointHealth::bring_back(const Endpoint& endpoint, const OutlierDetectionSettings& settings,
                                    uint32_t generation, TimePoint now) {
  const auto probation = static_cast<uint32_t>(std::max<int64_t>(0, settings.consecutive_failures - 1));
  return back(endpoint, probation, generation, now);
}

void EndpointHealth::eject(const Endpoint& endpoint, const OutlierDetectionSettings& settings,
                           EjectionReason reason, uint32_t generation, const PoolSize& size, TimePoint now) {
  EndpointLive& live = *endpoint.live;
  Duration away{0};
  uint32_t in_a_row = 0;
  size_t out = 0;
  bool held = false;
  {
    const std::lock_guard lock(mutex_);
    if (live.ejections.gone || live.health_generation.load(std::memory_order_relaxed) != generation) return;
    const bool again = live.ejected_until_ns.load(std::memory_order_relaxed) != 0;
    const auto bound = static_cast<size_t>(settings.max_ejected_percent) * size.endpoints;
    const size_t out_of_these = out_ - std::min(out_, size.others_out);
    if (!again && reason != EjectionReason::kConnect && (out_of_these + 1) * 100 > bound) {
      metrics_.ejections_refused.with({pool_}).add();
      held = !std::exchange(at_floor_, true);
      if (!held) return;
      out = out_;
    } else {
      if (!again && live.ejections.back_at != kNever && now - live.ejections.back_at >= settings.max_ejection)
        live.ejections.in_a_row = 0;
      const uint32_t doublings = std::min(live.ejections.in_a_row, kMaxDoublings);
      away = settings.base_ejection > settings.max_ejection / (int64_t{1} << doublings)
                 ? settings.max_ejection
                 : settings.base_ejection * (int64_t{1} << doublings);
      in_a_row = ++live.ejections.in_a_row;
      live.ejections.reason = static_cast<uint8_t>(reason);
      if (!again) ++out_;
      out = out_;
      // Zero would mean healthy.
      live.ejected_until_ns.store(std::max<int64_t>(1, (now + away).time_since_epoch().count()),
                                  std::memory_order_relaxed);
      live.consecutive_failures.store(0, std::memory_order_relaxed);
      live.health_generation.store(generation + 1, std::memory_order_release);
      live.on_trial.store(false, std::memory_order_release);
    }
  }
  if (held) {
    telemetry::log_warn("an endpoint that fails stays in the pool: no more of it may be ejected",
                        {{"pool", std::string_view(pool_)},
                         {"endpoint", std::string_view(endpoint.id)},
                         {"reason", ejection_reason_name(reason)},
                         {"pool_out", out}});
    return;
  }
  metrics_.ejections.with({pool_, ejection_reason_name(reason)}).add();
  telemetry::log_warn("endpoint ejected", {{"pool", std::string_view(pool_)},
                                           {"endpoint", std::string_view(endpoint.id)},
                                           {"reason", ejection_reason_name(reason)},
                                           {"seconds", to_seconds(away)},
                                           {"ejections", in_a_row},
                                           {"pool_out", out}});
}

uint32_t EndpointHealth::back(const Endpoint& endpoint, uint32_t consecutive_failures, uint32_t generation,
                              TimePoint now) {
  EndpointLive& live = *endpoint.live;
  size_t out = 0;
  bool gone = false;
  {
    const std::lock_guard lock(mutex_);
    if (live.health_generation.load(std::memory_order_relaxed) != generation ||
        live.ejected_until_ns.load(std::memory_order_relaxed) == 0) {
      return generation;
    }
    gone = live.ejections.gone;
    if (!gone) {
      out = --out_;
      at_floor_ = false;
    }
    live.ejections.back_at = now;
    for (std::atomic<uint64_t>& cell : live.outcomes) cell.store(0, std::memory_order_relaxed);
    live.consecutive_failures.store(consecutive_failures, std::memory_order_relaxed);
    live.ejected_until_ns.store(0, std::memory_order_relaxed);
    live.health_generation.store(generation + 1, std::memory_order_release);
    live.on_trial.store(false, std::memory_order_release);
  }
  if (gone) return generation + 1;
  metrics_.endpoint_returns.with({pool_}).add();
  telemetry::log_info(
      "endpoint is back",
      {{"pool", std::string_view(pool_)}, {"endpoint", std::string_view(endpoint.id)}, {"pool_out", out}});
  return generation + 1;
}

void EndpointHealth::removed(const Endpoint& endpoint) {
  const std::lock_guard lock(mutex_);
  EndpointLive& live = *endpoint.live;
  if (std::exchange(live.ejections.gone, true)) return;
  if (live.ejected_until_ns.load(std::memory_order_relaxed) == 0) return;
  --out_;
  at_floor_ = false;
}

size_t EndpointHealth::out() const {
  const std::lock_guard lock(mutex_);
  return out_;
}

HealthState EndpointHealth::state_of(const Endpoint& endpoint, TimePoint now) const {
  return settings_.get()->enabled.value_or(false) ? health_state(*endpoint.live, now) : HealthState::kHealthy;
}

void EndpointHealth::append_json(std::string& to, const Endpoint& endpoint, TimePoint now) const {
  const EndpointLive& live = *endpoint.live;
  const std::shared_ptr<const OutlierDetectionSettings> settings = settings_.get();
  const HealthState state = state_of(endpoint, now);
  EndpointLive::Ejections ejections;
  {
    const std::lock_guard lock(mutex_);
    ejections = live.ejections;
  }
  const auto out = std::back_inserter(to);
  fmt::format_to(out, "\"health\":{}", json_quote(health_state_name(state)));
  if (state != HealthState::kHealthy) {
    fmt::format_to(out, ",\"reason\":{}",
                   json_quote(ejection_reason_name(static_cast<EjectionReason>(ejections.reason))));
    const Duration left(live.ejected_until_ns.load(std::memory_order_relaxed) -
                        now.time_since_epoch().count());
    if (left > Duration::zero()) fmt::format_to(out, ",\"ejected_ms\":{:.0f}", to_millis(left));
    if (live.on_trial.load(std::memory_order_relaxed)) to += ",\"on_trial\":true";
  }
  if (ejections.in_a_row != 0) fmt::format_to(out, ",\"ejections\":{}", ejections.in_a_row);
  if (const uint32_t failures = live.consecutive_failures.load(std::memory_order_relaxed); failures != 0)
    fmt::format_to(out, ",\"consecutive_failures\":{}", failures);
  if (const Window window = window_of(live, *settings, now); window.answers != 0)
    fmt::format_to(out, ",\"answers\":{},\"failures\":{}", window.answers, window.failures);
}

// --- HealthTicket ---

void HealthTicket::note_output(TimePoint now) {
  const Duration bound = watch_->stall_bound();
  EndpointLive& live = *endpoint_->live;
  if (bound > Duration::zero()) {
    const int64_t now_ns = now.time_since_epoch().count();
    if (now_ns - live.last_output_ns.load(std::memory_order_relaxed) >= bound.count() / kOutputSteps)
      live.last_output_ns.store(now_ns, std::memory_order_relaxed);
  }
  if (waiting_) watch_->unlink(*this);
  if (live.ejected_until_ns.load(std::memory_order_relaxed) == 0) return;
  if (live.health_generation.load(std::memory_order_acquire) != generation_) return;
  generation_ = watch_->shared_.bring_back(*endpoint_, *watch_->current_, generation_, now);
  on_trial_ = false;
}

void HealthTicket::succeed(TimePoint now) {
  if (watch_ == nullptr) return;
  watch_->shared_.succeeded(*endpoint_, *watch_->current_, generation_, now);
  on_trial_ = false;
  release();
}

bool HealthTicket::next_failure_ejects() const {
  const int64_t bound = watch_->current_->consecutive_failures;
  return on_trial_ || (bound != 0 && int64_t{failures_in_a_row()} + 1 >= bound);
}

void HealthTicket::fail(FailureKind kind, TimePoint now) {
  if (watch_ == nullptr) return;
  watch_->shared_.failed(*endpoint_, *watch_->current_, kind, generation_, on_trial_, watch_->size_, now);
  on_trial_ = false;
  release();
}

void HealthTicket::drop(TimePoint now) {
  if (waiting_ && watch_->is_stalled(*this, now)) {
    fail(FailureKind::kStall, now);
  } else {
    release();
  }
}

void HealthTicket::release() {
  if (watch_ == nullptr) return;
  if (waiting_) watch_->unlink(*this);
  watch_ = nullptr;
  EndpointLive& live = *endpoint_->live;
  if (std::exchange(on_trial_, false) &&
      live.health_generation.load(std::memory_order_acquire) == generation_) {
    HealthWatch::give_back(live);
  }
  endpoint_.reset();
}

// --- HealthWatch ---

HealthWatch::~HealthWatch() {
  while (oldest_ != nullptr) oldest_->release();
}

void HealthWatch::begin(TimePoint now) {
  const std::shared_ptr<const OutlierDetectionSettings>& newest = settings_.current();
  if (newest != current_) current_ = newest;
  while (oldest_ != nullptr && oldest_->check_at_ <= now) {
    HealthTicket& ticket = *oldest_;
    if (stall_bound() > Duration::zero() && is_stalled(ticket, now)) {
      ticket.fail(FailureKind::kStall, now);
    } else {
      unlink(ticket);
      if (stall_bound() > Duration::zero()) link(ticket, now);
    }
  }
}

// A ticket is first looked at when it has waited for the bound, so what matters then is the endpoint's
// silence.
bool HealthWatch::is_stalled(const HealthTicket& ticket, TimePoint now) const {
  if (now < ticket.check_at_) return false;
  const Duration silence(now.time_since_epoch().count() -
                         ticket.endpoint_->live->last_output_ns.load(std::memory_order_relaxed));
  return silence >= stall_bound();
}

HealthWatch::Entry HealthWatch::admit(EndpointLive& live, TimePoint now, bool claim) const {
  if (!on()) return Entry::kIn;
  if (live.ejected_until_ns.load(std::memory_order_relaxed) > now.time_since_epoch().count())
    return Entry::kEjected;
  if (live.on_trial.load(std::memory_order_relaxed)) return Entry::kOnTrial;
  if (claim && live.on_trial.exchange(true, std::memory_order_acquire)) return Entry::kOnTrial;
  return Entry::kTrial;
}

void HealthWatch::open(HealthTicket& ticket, const std::shared_ptr<const Endpoint>& endpoint, bool on_trial,
                       bool streams, TimePoint now) {
  ticket.release();
  if (!on()) {
    if (on_trial) give_back(*endpoint->live);
    return;
  }
  ticket.watch_ = this;
  ticket.endpoint_ = endpoint;
  ticket.generation_ = endpoint->live->health_generation.load(std::memory_order_acquire);
  ticket.on_trial_ = on_trial;
  if (streams && stall_bound() > Duration::zero()) link(ticket, now);
  if (on_trial) {
    telemetry::log_info("endpoint is tried again", {{"pool", std::string_view(shared_.pool())},
                                                    {"endpoint", std::string_view(endpoint->id)}});
  }
}

void HealthWatch::link(HealthTicket& ticket, TimePoint now) {
  ticket.waiting_ = true;
  ticket.check_at_ = now + stall_bound();
  ticket.before_ = newest_;
  ticket.after_ = nullptr;
  (newest_ == nullptr ? oldest_ : newest_->after_) = &ticket;
  newest_ = &ticket;
}

void HealthWatch::unlink(HealthTicket& ticket) {
  ticket.waiting_ = false;
  (ticket.before_ == nullptr ? oldest_ : ticket.before_->after_) = ticket.after_;
  (ticket.after_ == nullptr ? newest_ : ticket.after_->before_) = ticket.before_;
}

}  // namespace penstock::director
