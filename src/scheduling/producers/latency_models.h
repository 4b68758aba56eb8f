#pragma once

#include <array>
#include <list>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/clock.h"
#include "inference/endpoint.h"
#include "scheduling/online_regression.h"
#include "scheduling/producers/latency_protocol.h"

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
// No prediction of a time before kMinSamples observations of it in a class; predictions are at least 0. At
// most kMaxClasses classes, further ones share the last. Thread-safe; one lock, held for microseconds.
class LatencyModels {
 public:
  static constexpr uint64_t kMinSamples = 20;
  static constexpr size_t kMaxClasses = 16;

  struct Prediction {
    // Of a time that is not learnt yet: 0.
    double ttft_ms = 0;
    double tpot_ms = 0;
    double ttft_error_ms = 0;  // standard error
    double tpot_error_ms = 0;
  };
  // Consistent look at one class for many endpoints.
  class Reader {
   public:
    bool ready() const { return ttft_ready() || tpot_ready(); }
    bool ttft_ready() const { return ttft_.samples() >= kMinSamples; }
    bool tpot_ready() const { return tpot_.samples() >= kMinSamples; }
    Prediction predict(const LatencyInputs& in) const;
    // What an uncached token adds to TTFT: a1. 0 before TTFT is predicted, or where a1 isn't above twice its
    // standard error.
    double prefill_ms_per_token() const;

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
    double ttft_standard_ms = 0;  // their standard error: what predictions have where much was learnt
    double tpot_standard_ms = 0;
  };
  // The largest over the classes.
  Errors errors() const;

  struct Learnt {
    std::string endpoint_class;
    uint64_t ttft_samples = 0;
    uint64_t tpot_samples = 0;
    bool ready = false;
    Errors errors;
  };
  std::vector<Learnt> learnt() const;

 private:
  Reader& find(std::string_view endpoint_class);

  mutable std::mutex mutex_;
  std::map<std::string, Reader, std::less<>> classes_;
};

// One request between its choice and the end of its answer.
struct TrackedRequest {
  // A class of endpoints and what its endpoint looked like when the request was sent.
  struct Stage {
    std::string endpoint_class;
    bool teaches = false;  // all of `inputs` was known
    LatencyInputs inputs;
    // For an external predictor; its role is this stage's.
    LatencyRow row;
    std::string role;
  };
  Stage prefill;  // the first token waits for it
  Stage decode;   // sets the pace of the others
  EndpointSlot slot = 0;
  TimePoint sent_at = kNever;
  TimePoint first_token_at = kNever;
  uint64_t chunks = 0;
  double tpot_objective_ms = 0;
  double ttft_objective_ms = 0;
};

// Requests on their way, by InferenceRequest::number, and who runs on each endpoint. At most kMaxRequests;
// those older than `ttl` are forgotten, oldest first. Thread-safe.
class RequestTracker {
 public:
  static constexpr size_t kMaxRequests = 65536;

  explicit RequestTracker(Duration ttl) : ttl_(ttl) {}

  // False when the number is on its way already: the first one stays.
  bool begin(uint64_t number, TrackedRequest request, TimePoint now);
  // Counts a piece of the answer.
  void chunk(uint64_t number, TimePoint now);
  // What was known of it; nothing of unknown numbers.
  std::optional<TrackedRequest> end(uint64_t number);

  struct Running {
    uint32_t requests = 0;
    double min_tpot_objective_ms = 0;  // 0: none has one
  };
  // Who runs on each of `slots`, at one moment. `out` is parallel to `slots`.
  void running(std::span<const EndpointSlot> slots, std::span<Running> out) const;
  void forget(EndpointSlot slot);
  // Those that run something.
  std::map<EndpointSlot, Running> endpoints() const;
  size_t size() const;

 private:
  struct Entry {
    uint64_t number;
    TimePoint begun_at;
    TrackedRequest request;
  };
  struct OnEndpoint {
    uint32_t requests = 0;
    std::multiset<double> tpot_objectives;
    Running running() const { return {requests, tpot_objectives.empty() ? 0.0 : *tpot_objectives.begin()}; }
  };
  void leave(const TrackedRequest& request);
  void drop_oldest();

  Duration ttl_;
  mutable std::mutex mutex_;
  std::list<Entry> entries_;  // oldest first
  std::unordered_map<uint64_t, std::list<Entry>::iterator> index_;
  std::vector<OnEndpoint> endpoints_;  // by slot, as long as the highest one seen
};

}  // namespace penstock::scheduling
