#pragma once

#include <gtest/gtest.h>

#include <condition_variable>
#include <memory>
#include <mutex>
#include <span>
#include <string_view>
#include <vector>

#include "telemetry/metrics.h"
#include "telemetry/trace.h"
#include "telemetry/tracer.h"

namespace penstock::telemetry::testing {

inline constexpr std::string_view kParent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
inline constexpr std::string_view kUnsampled = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00";

// Keeps what it is given, and answers as told.
class Collected {
 public:
  using Answer = SpanExporter::Answer;

  std::unique_ptr<SpanExporter> exporter() {
    struct Exporter final : SpanExporter {
      explicit Exporter(Collected& owner) : collected(owner) {}
      Answer send(std::span<const SpanBatch> batches, Duration) override { return collected.take(batches); }
      Collected& collected;
    };
    return std::make_unique<Exporter>(*this);
  }
  void answer_next(std::vector<Answer> answers) { answers_ = std::move(answers); }
  // Holds every send until release().
  void hold() { held_ = true; }
  void release() {
    const std::lock_guard lock(mutex_);
    held_ = false;
    changed_.notify_all();
  }
  std::vector<SpanBatch> wait_for(size_t batches) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, std::chrono::seconds(10), [&] { return batches_.size() >= batches; });
    return batches_;
  }
  bool wait_for_sends(size_t sends) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::seconds(10), [&] { return sends_ >= sends; });
  }

 private:
  Answer take(std::span<const SpanBatch> batches) {
    std::unique_lock lock(mutex_);
    ++sends_;
    changed_.notify_all();
    changed_.wait_for(lock, std::chrono::seconds(10), [&] { return !held_; });
    Answer answer;
    if (!answers_.empty()) {
      answer = answers_.front();
      answers_.erase(answers_.begin());
    }
    if (answer.outcome == SpanExporter::Outcome::kSent)
      batches_.insert(batches_.end(), batches.begin(), batches.end());
    changed_.notify_all();
    return answer;
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  bool held_ = false;
  size_t sends_ = 0;
  std::vector<Answer> answers_;
  std::vector<SpanBatch> batches_;
};

inline TracingOptions always() {
  TracingOptions options;
  options.sampler = TracingOptions::Sampler::kAlwaysOn;
  options.schedule_delay = std::chrono::milliseconds(1);
  options.service_version = "1.2.3";
  options.commit = "abc123";
  return options;
}

struct Traced {
  explicit Traced(const TracingOptions& options = always())
      : tracer(options, clock, metrics, collected.exporter()) {}
  uint64_t count(std::string_view outcome) {
    return metrics.counter({.name = "penstock_trace_spans_total", .help = "", .labels = {"outcome"}})
        .with({outcome})
        .value();
  }
  Collected collected;
  SystemClock clock;
  MetricRegistry metrics;
  Tracer tracer;
};

}  // namespace penstock::telemetry::testing
