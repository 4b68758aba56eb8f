#include "scheduling/producers/latency_service.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/strings.h"
#include "telemetry/log.h"

namespace penstock::scheduling {

namespace {

constexpr size_t kKeptSampleFactor = 4;
constexpr size_t kMaxBulkRows = 100;     // the reference's own bound
constexpr uint64_t kMaxSamples = 10000;  // about 1 µs each to write, on the loop
constexpr int kAnswered = 200;
constexpr int kTaken = 202;
constexpr double kCallSeconds[] = {.0001, .0005, .001, .002, .005, .01, .02, .05, .1, .2, .5, 1, 2, 5};

std::string without_slash(std::string_view url) {
  url = trim(url);
  while (url.ends_with('/')) url.remove_suffix(1);
  return std::string(url);
}

}  // namespace

void LatencyServiceSettings::take_urls(std::string_view prediction, std::string_view training) {
  if (!trim(prediction).empty()) prediction_urls.clear();
  for (const std::string_view url : split(prediction, ',')) {
    if (!trim(url).empty()) prediction_urls.push_back(without_slash(url));
  }
  if (!trim(training).empty()) training_url = without_slash(training);
}

void LatencyServiceSettings::take_environment(const std::function<const char*(const char*)>& variable) {
  const auto text = [&](const char* name) {
    const char* found = variable(name);
    return found == nullptr ? std::string_view() : std::string_view(found);
  };
  take_urls(text("PREDICTION_SERVER_URL"), text("TRAINING_SERVER_URL"));
  const auto number = [&](const char* name, uint64_t least, uint64_t most, auto&& take) {
    const std::optional<uint64_t> value = parse_u64(text(name));
    if (value && *value >= least && *value <= most) take(*value);
  };
  number("LATENCY_COALESCE_WINDOW_MS", 0, 1000, [&](uint64_t ms) { window = std::chrono::milliseconds(ms); });
  number("LATENCY_MAX_BULK_SIZE", 1, kMaxBulkRows, [&](uint64_t n) { max_bulk_rows = n; });
  number("LATENCY_MAX_COALESCED_ROWS", 0, LatencyService::kMaxQueuedRows,
         [&](uint64_t n) { max_coalesced_rows = n; });
  number("LATENCY_MAX_CONCURRENT_DISPATCHES", 1, 10000, [&](uint64_t n) { max_calls = n; });
  number("LATENCY_MAX_SAMPLE_SIZE", 1, kMaxSamples, [&](uint64_t n) { max_samples = n; });
  number("LATENCY_FLUSH_INTERVAL_SEC", 1, 3600,
         [&](uint64_t s) { flush_interval = std::chrono::seconds(s); });
  number("LATENCY_HTTP_TIMEOUT_SEC", 1, 3600, [&](uint64_t s) {
    training_timeout = std::chrono::seconds(s);
    deadline = std::min<Duration>(deadline, training_timeout);
  });
}

std::string LatencyServiceSettings::text() const {
  return fmt::format("{} {} {} {} {} {} {} {} {} {}", fmt::join(prediction_urls, ","), training_url,
                     deadline.count(), window.count(), max_bulk_rows, max_coalesced_rows, max_calls,
                     max_samples, flush_interval.count(), training_timeout.count());
}

const LatencyTimes* LatencyQuestion::of(EndpointSlot slot, size_t& hint) const {
  if (hint >= slots_.size() || slots_[hint] != slot)
    hint = static_cast<size_t>(std::find(slots_.begin(), slots_.end(), slot) - slots_.begin());
  return hint == slots_.size() ? nullptr : &times_[hint++];
}

LatencyService::LatencyService(LatencyServiceSettings settings, Outside& outside, const Clock& clock,
                               size_t loops, std::string_view plugin_name, telemetry::MetricRegistry& metrics)
    : settings_(std::move(settings)),
      outside_(outside),
      clock_(clock),
      name_(plugin_name),
      max_calls_(std::max<size_t>(1, settings_.max_calls / std::max<size_t>(1, loops))),
      calls_(metrics.counter({"penstock_latency_predictor_calls_total",
                              "Calls to the external latency predictor, by outcome: ok, timeout, connect, "
                              "status, garbage; and questions that it was not asked: down, overload.",
                              {"plugin_name", "outcome"}})),
      samples_(metrics.counter({"penstock_latency_training_samples_total",
                                "Samples for the external latency predictor, by outcome: sent, thinned "
                                "(more than one call takes), dropped.",
                                {"plugin_name", "outcome"}})),
      seconds_(metrics
                   .histogram({"penstock_latency_predictor_call_seconds",
                               "Time of calls to the external latency predictor.",
                               {"plugin_name"},
                               kCallSeconds})
                   .with({plugin_name})),
      up_(metrics
              .gauge({"penstock_latency_predictor_up",
                      "Whether the external latency predictor answers: 0 after failures in a row.",
                      {"plugin_name"}})
              .with({plugin_name})) {
  up_.set(1);
  for (size_t i = 0; i < std::max<size_t>(1, loops); ++i) parts_.push_back(std::make_unique<Part>(i));
}

std::shared_ptr<LatencyQuestion> LatencyService::ask(std::span<const EndpointSlot> slots,
                                                     std::span<const LatencyRow> rows) {
  Part& part = this->part();
  auto question = std::make_shared<LatencyQuestion>();
  if (rows.empty()) {
    question->end();
    return question;
  }
  const TimePoint now = clock_.now();
  if (now < part.down_until) {
    count("down");
    fail(*question, "the latency predictor is down");
    return question;
  }
  if (!part.queue.empty() && part.queue.size() + rows.size() > kMaxQueuedRows) {
    count("overload");
    fail(*question, "too many questions wait for the latency predictor");
    return question;
  }
  if (part.failures >= kFailuresUntilDown) part.down_until = now + settings_.deadline;
  question->slots_.assign(slots.begin(), slots.end());
  question->times_.resize(rows.size());
  question->open_ = rows.size();
  for (size_t i = 0; i < rows.size(); ++i) {
    Asked& asked = part.queue.emplace_back(Asked{question, i, Kept{rows[i], std::string(rows[i].role)}});
    asked.kept.row.role = {};
  }
  outside_.after(settings_.deadline, [self = weak_from_this(), waiting = std::weak_ptr(question)] {
    const auto late = waiting.lock();
    if (late == nullptr || late->answered()) return;
    const auto service = self.lock();
    if (service != nullptr) {
      fail(*late, fmt::format("the latency predictor gave no answer within {} ms",
                              to_millis(service->settings_.deadline)));
    } else {
      fail(*late, "the latency predictor gave no answer in time");
    }
  });
  const bool full = settings_.max_coalesced_rows != 0 && part.queue.size() >= settings_.max_coalesced_rows;
  if (settings_.window <= Duration::zero() || full) {
    send_queued(part);
  } else if (!part.window_open) {
    part.window_open = true;
    outside_.after(settings_.window, [self = weak_from_this(), &part] {
      const auto service = self.lock();
      if (service == nullptr) return;
      part.window_open = false;
      service->send_queued(part);
    });
  }
  return question;
}

void LatencyService::send_queued(Part& part) {
  while (!part.queue.empty() && part.calls < max_calls_) {
    std::vector<Asked> rows;
    while (!part.queue.empty() && rows.size() < settings_.max_bulk_rows) {
      // Those whose time is over have been told so.
      if (!part.queue.front().question->answered()) rows.push_back(std::move(part.queue.front()));
      part.queue.pop_front();
    }
    if (!rows.empty()) call(part, std::move(rows));
  }
}

void LatencyService::call(Part& part, std::vector<Asked> rows) {
  std::vector<LatencyRow> table;
  table.reserve(rows.size());
  for (const Asked& asked : rows) {
    table.push_back(asked.kept.row);
    table.back().role = asked.kept.role;
  }
  const size_t drawn = settings_.prediction_urls.size() == 1
                           ? 0
                           : static_cast<size_t>(part.random.uniform() *
                                                 static_cast<double>(settings_.prediction_urls.size()));
  ++part.calls;
  outside_.post(settings_.prediction_urls[drawn] + "/predict/bulk/strict", prediction_body(table),
                settings_.deadline, kMaxAnswerBytes,
                [self = shared_from_this(), &part, begun = clock_.now(),
                 asked = std::make_shared<std::vector<Asked>>(std::move(rows))](Outside::Answer answer) {
                  self->seconds_.observe(to_seconds(self->clock_.now() - begun));
                  --part.calls;
                  self->answered(part, *asked, std::move(answer));
                  self->send_queued(part);
                });
}

void LatencyService::answered(Part& part, std::vector<Asked>& rows, Outside::Answer answer) {
  const auto failed = [&](std::string_view outcome, const std::string& why) {
    count(outcome);
    note(part, false, why);
    for (const Asked& asked : rows) fail(*asked.question, why);
  };
  if (answer.status == 0) {
    failed(answer.late ? "timeout" : "connect", "the latency predictor gave no answer: " + answer.error);
    return;
  }
  if (answer.status != kAnswered) {
    failed("status", fmt::format("the latency predictor answered with status {}", answer.status));
    return;
  }
  Result<std::vector<LatencyTimes>> times = parse_predictions(answer.body, rows.size());
  if (!times.ok()) {
    failed("garbage", times.error().message);
    return;
  }
  count("ok");
  note(part, true, {});
  for (size_t i = 0; i < rows.size(); ++i) {
    LatencyQuestion& question = *rows[i].question;
    if (question.answered()) continue;
    question.times_[rows[i].at] = (*times)[i];
    if (--question.open_ == 0) question.end();
  }
}

void LatencyService::fail(LatencyQuestion& question, std::string_view why) {
  if (question.answered()) return;
  question.failure_ = why;
  question.end();
}

void LatencyService::note(Part& part, bool worked, std::string_view why) {
  if (worked) {
    if (part.failures >= kFailuresUntilDown)
      telemetry::log_info("the latency predictor answers again", {{"plugin", std::string_view(name_)}});
    part.failures = 0;
    part.down_until = kNever;
    up_.set(1);
    return;
  }
  if (++part.failures < kFailuresUntilDown) return;
  part.down_until = clock_.now() + kDownPause;
  up_.set(0);
  if (part.failures == kFailuresUntilDown) {
    telemetry::log_warn("the latency predictor keeps failing, decisions go on without it",
                        {{"plugin", std::string_view(name_)}, {"error", why}});
  }
}

void LatencyService::teach(const LatencySample& sample) {
  if (settings_.training_url.empty()) return;
  Part& part = this->part();
  if (part.samples.size() >= kKeptSampleFactor * settings_.max_samples) {
    samples_.with({name_, "dropped"}).add();
    return;
  }
  KeptSample& kept = part.samples.emplace_back(KeptSample{sample, std::string(sample.row.role)});
  kept.sample.row.role = {};
  if (part.flush_armed) return;
  part.flush_armed = true;
  outside_.after(settings_.flush_interval, [self = weak_from_this(), &part] {
    if (const auto service = self.lock()) service->flush(part);
  });
}

void LatencyService::flush(Part& part) {
  part.flush_armed = false;
  std::vector<KeptSample> all = std::exchange(part.samples, {});
  SampleCounts have;
  for (const KeptSample& kept : all) ++(kept.sample.ttft_ms > 0 ? have.ttft : have.tpot);
  const SampleCounts keep = stratified(have, settings_.max_samples);
  // The same share of each kind, drawn as they lie: every `have / keep`th.
  std::vector<LatencySample> out;
  out.reserve(keep.ttft + keep.tpot);
  SampleCounts seen;
  for (const KeptSample& kept : all) {
    const bool first = kept.sample.ttft_ms > 0;
    size_t& index = first ? seen.ttft : seen.tpot;
    const size_t of = first ? have.ttft : have.tpot;
    const size_t wanted = first ? keep.ttft : keep.tpot;
    const bool takes = (index + 1) * wanted / of > index * wanted / of;
    ++index;
    if (!takes) continue;
    out.push_back(kept.sample);
    out.back().row.role = kept.role;
  }
  samples_.with({name_, "thinned"}).add(all.size() - out.size());
  const size_t sent = out.size();
  outside_.post(settings_.training_url + "/add_training_data_bulk", training_body(out),
                settings_.training_timeout, kMaxAnswerBytes,
                [self = shared_from_this(), sent](const Outside::Answer& answer) {
                  const bool taken = answer.status == kTaken || answer.status == kAnswered;
                  self->samples_.with({self->name_, taken ? "sent" : "dropped"}).add(sent);
                });
}

}  // namespace penstock::scheduling
