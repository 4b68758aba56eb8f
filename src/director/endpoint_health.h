#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "config/outlier_detection.h"
#include "director/published.h"
#include "director/request_metrics.h"
#include "inference/endpoint.h"

// Passive health: what requests tell of the endpoints they were sent to. No probe is sent.
//
//             enough failures, and the floor allows it              time is up
//   healthy ───────────────────────────────────────────▶ ejected ─────────────▶ half-open: one request at a
//      ▲                                                    ▲                    │  │      time, the trial
//      └──────────── the trial shows output ────────────────┼────────────────────┘  │
//                                                           └──── the trial fails ──┘
//
// A failure is one request that the endpoint did not serve, counted once: FailureKind. A success is an answer
// below 500 that came to its end. A request that ends for another reason (its client left) says nothing.
//
// Healthy to ejected: `consecutiveFailures` in a row (a failed connect: `connectFailures`), or failures being
// `failureRatio` of at least `minimumRequests` answers of the last `window` (to a tenth). Never when more
// than `maxEjectedPercent` of the pool's endpoints, without those that drain or sleep, would then be out;
// except for failed connects, for an endpoint that nobody reaches is no capacity to lose. Ejected for
// baseEjection × 2^(n-1), at most maxEjection, the n-th time; n starts over once the endpoint has been
// healthy for maxEjection. Half-open: the trial's first output of an answer below 500 brings the endpoint
// back. It is on probation then: one failure ejects it again, unless an answer came to its end before, or
// `consecutiveFailures` is 0. A trial whose client leaves says nothing, and the next request is one. Outcomes
// of requests that were sent before the latest change of state change nothing.
//
// Example, defaults: three answers 502 in a row eject for 5 s; then one request goes there; it fails: 10 s;
// the next one is answered: back; one more 502 would mean 20 s, a whole answer clears that.
namespace penstock::director {

enum class FailureKind : uint8_t {
  kConnect,  // no connection: the request never reached the engine
  kReset,    // the connection broke before the answer was complete
  kStatus,   // the engine answered 5xx, other than 501
  kTimeout,  // a deadline passed: no head, or silence inside the answer
  kStall,    // a stream without output for firstTokenStall, in which the endpoint sent none to anybody else
};
inline constexpr size_t kFailureKinds = 5;
std::string_view failure_kind_name(FailureKind kind);
// Of the engine's own answers; 501 is about what was asked.
inline bool is_failure_status(int status) {
  return status >= 500 && status != 501;
}

// The kind of the last failure, or: too large a share of failures.
enum class EjectionReason : uint8_t { kConnect, kReset, kStatus, kTimeout, kStall, kFailureRatio };
inline constexpr size_t kEjectionReasons = 6;
std::string_view ejection_reason_name(EjectionReason reason);

enum class HealthState : uint8_t { kHealthy, kEjected, kHalfOpen };
std::string_view health_state_name(HealthState state);
inline HealthState health_state(const EndpointLive& live, TimePoint now) {
  const int64_t until = live.ejected_until_ns.load(std::memory_order_relaxed);
  if (until == 0) return HealthState::kHealthy;
  return until > now.time_since_epoch().count() ? HealthState::kEjected : HealthState::kHalfOpen;
}

// Endpoints of a pool, as a decision found them: those that could get requests, were they healthy (they
// neither drain nor sleep), and how many of the others are ejected or half-open.
struct PoolSize {
  size_t endpoints = 0;
  size_t others_out = 0;
};

// The health of one pool's endpoints, as all loops share it. Off until configured. Each event costs a few
// atomic operations on the endpoint's own cells; a lock is taken for a change of state only. Thread-safe.
class EndpointHealth {
 public:
  EndpointHealth(std::string pool, RequestMetrics& metrics);

  // Switched off, every endpoint counts as healthy.
  void configure(const config::OutlierDetectionSettings& settings);
  const Published<config::OutlierDetectionSettings>& settings() const { return settings_; }

  // A request's outcome; `generation` and `on_trial` as they were when it was sent.
  void failed(const Endpoint& endpoint, const config::OutlierDetectionSettings& settings, FailureKind kind,
              uint32_t generation, bool on_trial, const PoolSize& size, TimePoint now);
  void succeeded(const Endpoint& endpoint, const config::OutlierDetectionSettings& settings,
                 uint32_t generation, TimePoint now);
  // Output came from an ejected or half-open endpoint: it is back, on probation. The new generation.
  uint32_t bring_back(const Endpoint& endpoint, const config::OutlierDetectionSettings& settings,
                      uint32_t generation, TimePoint now);
  // The endpoint left the pool.
  void removed(const Endpoint& endpoint);

  // Healthy while switched off.
  HealthState state_of(const Endpoint& endpoint, TimePoint now) const;
  const std::string& pool() const { return pool_; }
  // Endpoints that are ejected or half-open.
  size_t out() const;
  // Members of a JSON object, "health" and, where they say something, "reason", "ejected_ms" (left to wait),
  // "ejections" (in a row), "consecutive_failures", "answers" and "failures" (of the window).
  void append_json(std::string& to, const Endpoint& endpoint, TimePoint now) const;

 private:
  struct Window {
    uint64_t answers = 0;
    uint64_t failures = 0;
  };
  static void count(EndpointLive& live, const config::OutlierDetectionSettings& settings, bool failure,
                    TimePoint now);
  static Window window_of(const EndpointLive& live, const config::OutlierDetectionSettings& settings,
                          TimePoint now);
  void eject(const Endpoint& endpoint, const config::OutlierDetectionSettings& settings,
             EjectionReason reason, uint32_t generation, const PoolSize& size, TimePoint now);
  uint32_t back(const Endpoint& endpoint, uint32_t consecutive_failures, uint32_t generation, TimePoint now);

  const std::string pool_;
  RequestMetrics& metrics_;
  Published<config::OutlierDetectionSettings> settings_;
  mutable std::mutex mutex_;
  size_t out_ = 0;
  bool at_floor_ = false;  // and said so
};

class HealthWatch;

// What one request will say of its endpoint: exactly one outcome, whoever tells it first. The destructor says
// nothing. Lives on the loop of its HealthWatch.
class HealthTicket {
 public:
  HealthTicket() = default;
  ~HealthTicket() { release(); }
  HealthTicket(const HealthTicket&) = delete;
  HealthTicket& operator=(const HealthTicket&) = delete;

  // Bytes of the answer with output in them; the first ones end the wait that may be a stall.
  void output(TimePoint now) {
    if (watch_ != nullptr) note_output(now);
  }
  // The answer came to its end, with a status that is no failure.
  void succeed(TimePoint now);
  void fail(FailureKind kind, TimePoint now);
  // The request is over and says nothing; unless it waited too long.
  void drop(TimePoint now);
  // The same without a clock.
  void release();

  bool open() const { return watch_ != nullptr; }
  bool on_trial() const { return on_trial_; }
  // REQUIRES: open().
  uint32_t failures_in_a_row() const {
    return endpoint_->live->consecutive_failures.load(std::memory_order_relaxed);
  }
  // One more failure in a row ends the trial or is the last that the endpoint may have. REQUIRES: open().
  bool next_failure_ejects() const;

 private:
  friend class HealthWatch;
  void note_output(TimePoint now);

  HealthWatch* watch_ = nullptr;
  std::shared_ptr<const Endpoint> endpoint_;
  uint32_t generation_ = 0;
  bool on_trial_ = false;
  bool waiting_ = false;  // for a stream's output; linked below
  TimePoint check_at_ = kNever;
  HealthTicket* before_ = nullptr;
  HealthTicket* after_ = nullptr;
};

// One loop's part: who may be picked, and the requests that wait for their first output, oldest first. No
// timer: who waits too long is found by the next decision. Not thread-safe. A ticket that outlives it may
// only be dropped or released.
class HealthWatch {
 public:
  explicit HealthWatch(EndpointHealth& shared) : shared_(shared), settings_(shared.settings()) {}
  ~HealthWatch();
  HealthWatch(const HealthWatch&) = delete;
  HealthWatch& operator=(const HealthWatch&) = delete;

  // Before the endpoints are looked at: takes changed settings and books stalls. Costs what it books.
  void begin(TimePoint now);
  bool on() const { return current_ != nullptr && current_->enabled.value_or(false); }

  enum class Entry : uint8_t {
    kIn,
    kTrial,  // in, for the one request whose ticket says so; claimed until given back
    kEjected,
    kOnTrial,
  };
  // REQUIRES: ejected_until_ns is set. Without `claim` a free trial is only told of.
  Entry admit(EndpointLive& live, TimePoint now, bool claim) const;
  static void give_back(EndpointLive& live) { live.on_trial.store(false, std::memory_order_release); }

  // A request leaves for `endpoint`. A claimed trial goes over to the ticket. `streams`: its answer is asked
  // for as a stream, so that a first output is to be expected soon.
  void open(HealthTicket& ticket, const std::shared_ptr<const Endpoint>& endpoint, bool on_trial,
            bool streams, TimePoint now);
  // As the latest decision found it.
  void set_size(const PoolSize& size) { size_ = size; }

 private:
  friend class HealthTicket;
  Duration stall_bound() const { return current_->first_token_stall; }
  bool is_stalled(const HealthTicket& ticket, TimePoint now) const;
  void link(HealthTicket& ticket, TimePoint now);
  void unlink(HealthTicket& ticket);

  EndpointHealth& shared_;
  PublishedReader<config::OutlierDetectionSettings> settings_;
  std::shared_ptr<const config::OutlierDetectionSettings> current_;
  PoolSize size_;
  HealthTicket* oldest_ = nullptr;
  HealthTicket* newest_ = nullptr;
};

}  // namespace penstock::director
