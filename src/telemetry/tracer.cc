#include "telemetry/tracer.h"

#include <algorithm>
#include <cmath>

#include "telemetry/log.h"

namespace penstock::telemetry {

namespace {

constexpr int kTries = 5;
constexpr Duration kFirstDelay = std::chrono::seconds(1);
constexpr Duration kLongestDelay = std::chrono::seconds(30);

Family<Counter>& spans_total(MetricRegistry& metrics) {
  return metrics.counter({.name = "penstock_trace_spans_total",
                          .help = "Spans of sampled requests by what became of them: exported, queue_full, "
                                  "export_failed or shutdown.",
                          .labels = {"outcome"}});
}

// Sampled when the second half of the trace id, as a 63-bit number, is below this. The same for every process
// with the same ratio, and for those that use OpenTelemetry's libraries.
uint64_t bound_of(double ratio) {
  if (!(ratio > 0)) return 0;
  constexpr double kRange = 9223372036854775808.0;
  return ratio >= 1 ? uint64_t{1} << 63U : static_cast<uint64_t>(ratio * kRange);
}

}  // namespace

Tracer::Tracer(TracingOptions options, const Clock& clock, MetricRegistry& metrics,
               std::unique_ptr<SpanExporter> exporter)
    : options_(std::move(options)),
      clock_(clock),
      exporter_(std::move(exporter)),
      ratio_bound_(bound_of(options_.ratio)),
      exported_(spans_total(metrics).with({"exported"})),
      queue_full_(spans_total(metrics).with({"queue_full"})),
      export_failed_(spans_total(metrics).with({"export_failed"})),
      at_shutdown_(spans_total(metrics).with({"shutdown"})),
      thread_([this] { run(); }) {}

Tracer::~Tracer() {
  shutdown(Duration::zero());
}

bool Tracer::samples(const std::array<uint8_t, 16>& trace_id, const TraceContext* parent) const {
  if (options_.parent_based && parent != nullptr) return parent->sampled();
  switch (options_.sampler) {
    case TracingOptions::Sampler::kAlwaysOn:
      return true;
    case TracingOptions::Sampler::kAlwaysOff:
      return false;
    case TracingOptions::Sampler::kRatio:
      break;
  }
  uint64_t half = 0;
  for (size_t i = 8; i < 16; ++i) half = half << 8U | trace_id[i];
  return half >> 1U < ratio_bound_;
}

void Tracer::submit(SpanBatch batch) {
  const size_t spans = batch.spans.size();
  bool wake = false;
  {
    const std::lock_guard lock(mutex_);
    if (stopping_ || queued_spans_ + spans > options_.max_queue_spans) {
      (stopping_ ? at_shutdown_ : queue_full_).add(spans);
      if (stopping_) dropped_at_shutdown_ = true;
      return;
    }
    // Only a batch's worth ends the wait early; everything else goes at the next interval.
    wake = queue_.empty() ||
           (queued_spans_ < options_.max_batch_spans && queued_spans_ + spans >= options_.max_batch_spans);
    queue_.push_back(std::move(batch));
    queued_spans_ += spans;
  }
  if (wake) wake_.notify_one();
}

void Tracer::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    wake_.wait(lock, [this] { return stopping_ || !queue_.empty(); });
    if (!stopping_) {
      wake_.wait_for(lock, options_.schedule_delay,
                     [this] { return stopping_ || queued_spans_ >= options_.max_batch_spans; });
    }
    if (queue_.empty()) break;
    // Whole requests, at least one.
    size_t spans = 0;
    size_t count = 0;
    while (count < queue_.size() &&
           (count == 0 || spans + queue_[count].spans.size() <= options_.max_batch_spans)) {
      spans += queue_[count++].spans.size();
    }
    const auto end = queue_.begin() + static_cast<ptrdiff_t>(count);
    std::vector<SpanBatch> batches(std::make_move_iterator(queue_.begin()), std::make_move_iterator(end));
    queue_.erase(queue_.begin(), end);
    queued_spans_ -= spans;
    lock.unlock();
    export_batches(batches, spans);
    lock.lock();
  }
  has_ended_ = true;
  ended_.notify_all();
}

Duration Tracer::time_left() const {
  return std::max(Duration::zero(),
                  std::chrono::duration_cast<Duration>(stop_by_ - std::chrono::steady_clock::now()));
}

bool Tracer::wait_before_retry(Duration delay) {
  std::unique_lock lock(mutex_);
  const auto until = std::chrono::steady_clock::now() + delay;
  wake_.wait_until(lock, until, [this] { return stopping_; });
  if (!stopping_) return true;
  // At shutdown there is time for one more try, at once.
  return time_left() > Duration::zero();
}

void Tracer::export_batches(std::vector<SpanBatch>& batches, size_t spans) {
  Duration delay = kFirstDelay;
  SpanExporter::Answer answer;
  bool cut = false;
  for (int attempt = 1; attempt <= kTries; ++attempt) {
    Duration timeout = options_.timeout;
    bool last = attempt == kTries;
    {
      const std::lock_guard lock(mutex_);
      if (stopping_) {
        timeout = std::min(timeout, time_left());
        last = true;
      }
    }
    if (timeout <= Duration::zero()) {
      cut = true;
      break;
    }
    answer = exporter_->send(batches, timeout);
    if (answer.outcome != SpanExporter::Outcome::kRetry || last) break;
    const Duration wait = answer.retry_after > Duration::zero() ? answer.retry_after : delay;
    if (!wait_before_retry(std::min(wait, kLongestDelay))) {
      cut = true;
      break;
    }
    delay = std::min(delay * 2, kLongestDelay);
  }
  if (!cut && answer.outcome == SpanExporter::Outcome::kSent) {
    exported_.add(spans);
    if (failing_) log_info("traces are exported again");
    failing_ = false;
    return;
  }
  {
    const std::lock_guard lock(mutex_);
    if (stopping_) {
      dropped_at_shutdown_ = true;
      // Also what was interrupted.
      if (answer.outcome != SpanExporter::Outcome::kRefused && time_left() <= Duration::zero()) cut = true;
    }
  }
  (cut ? at_shutdown_ : export_failed_).add(spans);
  if (cut) return;
  // Once per outage, not per batch.
  if (!failing_) log_warn("spans were dropped: the collector does not take them", {{"error", answer.why}});
  failing_ = true;
}

bool Tracer::shutdown(Duration deadline) {
  {
    std::unique_lock lock(mutex_);
    if (!stopping_) {
      stopping_ = true;
      stop_by_ = std::chrono::steady_clock::now() + deadline;
    }
    wake_.notify_one();
    // What is being sent has the timeout of before.
    if (!ended_.wait_until(lock, stop_by_, [this] { return has_ended_; })) exporter_->interrupt();
  }
  if (thread_.joinable()) thread_.join();
  const std::lock_guard lock(mutex_);
  return !dropped_at_shutdown_;
}

Result<std::unique_ptr<Tracer>> make_tracer(const TracingOptions& options, const Clock& clock,
                                            MetricRegistry& metrics) {
  spans_total(metrics);  // in the metrics reference whether tracing is on or off
  if (options.exporter == TracingOptions::Exporter::kNone) return std::unique_ptr<Tracer>();
  Result<std::unique_ptr<SpanExporter>> exporter = make_span_exporter(options);
  if (!exporter.ok()) return exporter.error().wrap("tracing");
  return std::make_unique<Tracer>(options, clock, metrics, *std::move(exporter));
}

}  // namespace penstock::telemetry
