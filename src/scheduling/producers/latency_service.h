#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/random.h"
#include "inference/endpoint.h"
#include "inference/outside.h"
#include "scheduling/producers/latency_protocol.h"
#include "telemetry/metrics.h"

namespace penstock::scheduling {

// How to talk to an external latency predictor.
struct LatencyServiceSettings {
  std::vector<std::string> prediction_urls;            // one is drawn for each call; empty: there is none
  std::string training_url;                            // "": nothing is reported
  Duration deadline = std::chrono::milliseconds(400);  // of a question, all included
  Duration window = std::chrono::milliseconds(1);  // questions within it share calls; 0: each asks at once
  size_t max_bulk_rows = 100;                      // of one call: what the predictor takes
  size_t max_coalesced_rows = 0;                   // a window ends early with so many; 0: no bound
  size_t max_calls = 36;                           // under way at a time, over all loops
  size_t max_samples = 1000;                       // of one training call
  Duration flush_interval = std::chrono::seconds(1);
  Duration training_timeout = std::chrono::seconds(10);

  // Names the servers; "" changes nothing. `prediction`: a list with commas.
  void take_urls(std::string_view prediction, std::string_view training);
  // The variables of the reference's client: PREDICTION_SERVER_URL (a list), TRAINING_SERVER_URL,
  // LATENCY_COALESCE_WINDOW_MS, LATENCY_MAX_BULK_SIZE, LATENCY_MAX_COALESCED_ROWS,
  // LATENCY_MAX_CONCURRENT_DISPATCHES, LATENCY_MAX_SAMPLE_SIZE, LATENCY_FLUSH_INTERVAL_SEC,
  // LATENCY_HTTP_TIMEOUT_SEC (of training calls, and of questions where it is less than their deadline). As
  // there, a value that is none is ignored.
  void take_environment(const std::function<const char*(const char*)>& variable);
  // All of them as one text.
  std::string text() const;
};

// What the predictor said of a request's endpoints.
class LatencyQuestion final : public Question {
 public:
  // Of the endpoint in this slot; nullptr: it was not asked about. `hint`: 0 at first, then left alone, makes
  // asking in order cheap. REQUIRES: answered, and no failure.
  const LatencyTimes* of(EndpointSlot slot, size_t& hint) const;
  // Why there is no answer; "": there is one.
  const std::string& failure() const { return failure_; }

 private:
  friend class LatencyService;
  std::vector<EndpointSlot> slots_;
  std::vector<LatencyTimes> times_;  // as slots_
  size_t open_ = 0;                  // rows without an answer
  std::string failure_;
};

// The client of an external latency predictor. A question is answered, well or not, by its deadline.
// Questions of one loop that come within a window share calls of at most max_bulk_rows rows. After
// kFailuresUntilDown calls in a row that failed, nobody is asked for kDownPause, and then by one question
// until it is answered: decisions don't wait for one that hangs. Samples to learn from are
// kept up to 4 x max_samples a loop and go out every flush interval; those of a call that fails are lost, as
// in the reference, and counted.
//
// Each loop has a part of its own: ask() and teach() from the loops of `outside` only.
class LatencyService : public std::enable_shared_from_this<LatencyService> {
 public:
  static constexpr uint32_t kFailuresUntilDown = 3;
  static constexpr Duration kDownPause = std::chrono::seconds(1);
  static constexpr size_t kMaxQueuedRows = 16384;  // of a loop
  static constexpr size_t kMaxAnswerBytes = 1024UL * 1024;

  // `outside` and `clock` outlive it.
  LatencyService(LatencyServiceSettings settings, Outside& outside, const Clock& clock, size_t loops,
                 std::string_view plugin_name, telemetry::MetricRegistry& metrics);

  // One row an endpoint; texts in the rows are copied. Answered already where the predictor may not be asked
  // now.
  std::shared_ptr<LatencyQuestion> ask(std::span<const EndpointSlot> slots, std::span<const LatencyRow> rows);
  void teach(const LatencySample& sample);
  const LatencyServiceSettings& settings() const { return settings_; }

 private:
  struct Kept {
    LatencyRow row;
    std::string role;
  };
  struct Asked {
    std::shared_ptr<LatencyQuestion> question;
    size_t at = 0;  // in the question
    Kept kept;
  };
  struct KeptSample {
    LatencySample sample;
    std::string role;
  };
  // Of one loop.
  struct Part {
    explicit Part(size_t loop) : random(loop + 1) {}
    Random random;
    std::deque<Asked> queue;
    bool window_open = false;
    size_t calls = 0;
    uint32_t failures = 0;  // in a row
    TimePoint down_until = kNever;
    std::vector<KeptSample> samples;
    bool flush_armed = false;
  };

  Part& part() { return *parts_[outside_.loop() % parts_.size()]; }
  void send_queued(Part& part);
  void call(Part& part, std::vector<Asked> rows);
  void answered(Part& part, std::vector<Asked>& rows, Outside::Answer answer);
  static void fail(LatencyQuestion& question, std::string_view why);
  void note(Part& part, bool worked, std::string_view why);
  void count(std::string_view outcome) { calls_.with({name_, outcome}).add(); }
  void flush(Part& part);

  const LatencyServiceSettings settings_;
  Outside& outside_;
  const Clock& clock_;
  const std::string name_;
  size_t max_calls_;  // of a loop
  std::vector<std::unique_ptr<Part>> parts_;
  telemetry::Family<telemetry::Counter>& calls_;
  telemetry::Family<telemetry::Counter>& samples_;
  telemetry::Histogram& seconds_;
  telemetry::Gauge& up_;
};

}  // namespace penstock::scheduling
