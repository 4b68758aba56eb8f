#pragma once

#include <array>
#include <list>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>

#include "base/clock.h"
#include "inference/endpoint.h"
#include "scheduling/online_regression.h"

namespace penstock::scheduling {

// What the gateway knows of an endpoint when it sends a request there.
struct LatencyInputs {
  double uncached_tokens = 0;   // of the request
  double tokens_in_flight = 0;  // on the endpoint, before the request
  double waiting_requests = 0;
  double running_requests = 0;
  double kv_usage = 0;  // ratio
};

// The built-in latency predictor: one pair of linear models for each class of endpoints, learnt on-line from
// the answers that pass.
//   TTFT ms = a0 + a1 uncached kTokens + a2 kTokens in flight + a3 waiting + a4 running + a5 KV usage
//   TPOT ms = b0 + b1 running + b2 kTokens in flight + b3 KV usage
// No prediction before kMinSamples observations of a class; predictions are at least 0. At most kMaxClasses
// classes, further ones share the last. Thread-safe; one lock, held for microseconds.
class LatencyModels {
 public:
  static constexpr uint64_t kMinSamples = 20;
  static constexpr size_t kMaxClasses = 16;

  struct Prediction {
    double ttft_ms = 0;
    double tpot_ms = 0;
    double ttft_error_ms = 0;  // standard error
  };
  // Consistent look at one class for many endpoints.
  class Reader {
   public:
    bool ready() const { return ttft_.samples() >= kMinSamples; }
    Prediction predict(const LatencyInputs& in) const;

   private:
    friend class LatencyModels;
    OnlineRegression<6> ttft_;
    OnlineRegression<4> tpot_;
  };

  Reader reader(std::string_view endpoint_class) const;
  void learn_ttft(std::string_view endpoint_class, const LatencyInputs& in, double ttft_ms);
  void learn_tpot(std::string_view endpoint_class, const LatencyInputs& in, double tpot_ms);

  struct Errors {
    double ttft_ms = 0;  // mean absolute error of the latest predictions
    double tpot_ms = 0;
  };
  // The largest over the classes.
  Errors errors() const;

 private:
  Reader& find(std::string_view endpoint_class);

  mutable std::mutex mutex_;
  std::map<std::string, Reader, std::less<>> classes_;
};

// One request between its choice and the end of its answer.
struct TrackedRequest {
  std::string endpoint_class;
  LatencyInputs inputs;
  EndpointSlot slot = 0;
  TimePoint sent_at = kNever;
  TimePoint first_token_at = kNever;
  uint64_t chunks = 0;
  double tpot_objective_ms = 0;
  double ttft_objective_ms = 0;
};

// Requests on their way, by request id, and who runs on each endpoint. At most kMaxRequests; those older than
// `ttl` are forgotten, oldest first. Thread-safe.
class RequestTracker {
 public:
  static constexpr size_t kMaxRequests = 65536;

  explicit RequestTracker(Duration ttl) : ttl_(ttl) {}

  // False when the id is on its way already: the first one stays.
  bool begin(std::string_view request_id, TrackedRequest request, TimePoint now);
  // Counts a piece of the answer; the request as it is then, nothing for unknown ids.
  std::optional<TrackedRequest> chunk(std::string_view request_id, TimePoint now);
  std::optional<TrackedRequest> end(std::string_view request_id);

  struct Running {
    uint32_t requests = 0;
    double min_tpot_objective_ms = 0;  // 0: none has one
  };
  Running running(EndpointSlot slot) const;
  void forget(EndpointSlot slot);
  std::map<EndpointSlot, Running> endpoints() const;
  size_t size() const;

 private:
  struct Entry {
    uint64_t id;
    TimePoint begun_at;
    TrackedRequest request;
  };
  struct OnEndpoint {
    uint32_t requests = 0;
    std::multiset<double> tpot_objectives;
  };
  void leave(const TrackedRequest& request);
  void drop_oldest();

  Duration ttl_;
  mutable std::mutex mutex_;
  std::list<Entry> entries_;  // oldest first
  std::unordered_map<uint64_t, std::list<Entry>::iterator> index_;
  std::unordered_map<EndpointSlot, OnEndpoint> endpoints_;
};

}  // namespace penstock::scheduling
