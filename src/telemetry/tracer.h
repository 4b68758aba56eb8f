#pragma once

#include <array>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "telemetry/metrics.h"
#include "telemetry/trace.h"

// Sampling, and a bounded queue of finished spans towards an exporter's thread.
namespace penstock::telemetry {

// --- options ---

// (A constructor, so that it is no aggregate: see io/task.h on GCC 12.)
struct TracingOptions {
  TracingOptions() {}

  enum class Exporter : uint8_t { kNone, kConsole, kOtlpGrpc, kOtlpHttp };
  enum class Sampler : uint8_t { kRatio, kAlwaysOn, kAlwaysOff };
  using Pairs = std::vector<std::pair<std::string, std::string>>;

  Exporter exporter = Exporter::kNone;
  // "http://host:port" or "https://…", for kOtlpHttp with the whole path; "": localhost, port 4317 (gRPC) or
  // 4318 and /v1/traces (HTTP).
  std::string endpoint;
  Pairs headers;        // sent with each export
  std::string ca_file;  // for https; "": the system's
  std::string client_certificate_file;
  std::string client_key_file;
  Duration timeout = std::chrono::seconds(10);  // of one export attempt

  Sampler sampler = Sampler::kRatio;
  bool parent_based = true;  // what the caller decided holds; the sampler decides for roots
  double ratio = 0.1;

  std::string service_name = "penstock";
  std::string service_version;
  std::string commit;         // attribute commit-sha of every scope, "" none
  Pairs resource_attributes;  // besides service.name and service.version

  size_t max_queue_spans = 2048;  // beyond: dropped and counted
  size_t max_batch_spans = 512;
  Duration schedule_delay = std::chrono::seconds(5);  // the longest a span waits for its batch
};

// What is decided already, in the variables' words; "": the environment says. `protocol` is of otlp.
struct FixedExport {
  std::string_view exporter;
  std::string_view protocol;
};

// `base` overlaid with what the standard variables say: OTEL_SDK_DISABLED, OTEL_TRACES_EXPORTER (otlp,
// console, none), OTEL_EXPORTER_OTLP_[TRACES_]{PROTOCOL (grpc, http/protobuf), ENDPOINT, INSECURE,
// CERTIFICATE, CLIENT_CERTIFICATE, CLIENT_KEY, HEADERS, TIMEOUT}, OTEL_TRACES_SAMPLER[_ARG],
// OTEL_SERVICE_NAME, OTEL_RESOURCE_ATTRIBUTES, OTEL_BSP_{SCHEDULE_DELAY, MAX_QUEUE_SIZE,
// MAX_EXPORT_BATCH_SIZE}. What they say wrongly is left as it was, with a warning. `fixed` is held against
// all of them but OTEL_SDK_DISABLED, which switches tracing off whatever else says it on. `variable` gives a
// variable's value, or nullptr.
TracingOptions tracing_from_environment(TracingOptions base, const FixedExport& fixed,
                                        const char* (*variable)(const char* name),
                                        std::vector<std::string>& warnings);
// The process's environment.
const char* environment_variable(const char* name);

// --- export ---

// Sends batches. Called by the tracer's thread only, except interrupt().
class SpanExporter {
 public:
  virtual ~SpanExporter() = default;
  enum class Outcome : uint8_t { kSent, kRetry, kRefused };
  struct Answer {
    Outcome outcome = Outcome::kSent;
    Duration retry_after{0};  // what the collector asked for; zero: nothing
    std::string why;          // when not sent
  };
  // Blocks up to `timeout`.
  virtual Answer send(std::span<const SpanBatch> batches, Duration timeout) = 0;
  // Makes the send() in progress, and any after it, end soon with what it has. Any thread; final. An exporter
  // that waits for nothing need not do anything.
  virtual void interrupt() {}
};

// Decides what is sampled, and carries finished spans to the exporter from a thread of its own: in batches,
// at the latest `schedule_delay` after they came. What can't be sent is tried again, at most 5 times in all,
// after what the collector asks for or else 1 s that doubles, neither longer than 30 s, and then dropped.
// Metrics: penstock_trace_spans_total{outcome="exported|queue_full|export_failed|shutdown"}. Thread-safe, but
// for shutdown(), which one thread calls at a time.
class Tracer {
 public:
  Tracer(TracingOptions options, const Clock& clock, MetricRegistry& metrics,
         std::unique_ptr<SpanExporter> exporter);
  Tracer(const Tracer&) = delete;
  Tracer& operator=(const Tracer&) = delete;
  ~Tracer();  // shutdown(0) when still running

  const Clock& clock() const { return clock_; }
  const TracingOptions& options() const { return options_; }
  // Whether a new span is recorded; `parent` when the request had one.
  bool samples(const std::array<uint8_t, 16>& trace_id, const TraceContext* parent) const;
  // Never waits for the exporter.
  void submit(SpanBatch batch);
  // Sends what is queued for up to `deadline`, then interrupts the exporter and ends; only standard output
  // that takes nothing can hold it longer. What is submitted later is dropped. False: something was dropped
  // since it began. A second call waits for nothing.
  bool shutdown(Duration deadline);

 private:
  void run();
  void export_batches(std::vector<SpanBatch>& batches, size_t spans);
  // False: the deadline of the shutdown has passed.
  bool wait_before_retry(Duration delay);
  Duration time_left() const;

  const TracingOptions options_;
  const Clock& clock_;
  std::unique_ptr<SpanExporter> exporter_;
  uint64_t ratio_bound_ = 0;
  Counter& exported_;
  Counter& queue_full_;
  Counter& export_failed_;
  Counter& at_shutdown_;

  std::mutex mutex_;
  std::condition_variable wake_;   // the thread
  std::condition_variable ended_;  // shutdown()
  std::vector<SpanBatch> queue_;
  size_t queued_spans_ = 0;
  bool stopping_ = false;
  bool has_ended_ = false;
  std::chrono::steady_clock::time_point stop_by_;
  bool dropped_at_shutdown_ = false;
  bool failing_ = false;
  std::thread thread_;
};

// The exporter the options name (floor 1, but over io): nullptr for kNone; kInvalidConfig for an endpoint or
// a certificate that can't be used.
Result<std::unique_ptr<SpanExporter>> make_span_exporter(const TracingOptions& options);
// Both together; nullptr when tracing is off.
Result<std::unique_ptr<Tracer>> make_tracer(const TracingOptions& options, const Clock& clock,
                                            MetricRegistry& metrics);

// An ExportTraceServiceRequest.
std::string encode_otlp(const TracingOptions& options, std::span<const SpanBatch> batches);
// One JSON object a line, one line a span.
std::string encode_console(const TracingOptions& options, std::span<const SpanBatch> batches);

}  // namespace penstock::telemetry
