#include "scheduling/scorers/active_request_scorer.h"

#include <algorithm>

#include "scheduling/number_text.h"
#include "telemetry/log.h"

namespace penstock::scheduling {

void ActiveRequestScorer::bind(config::Binder& b, Params& p) {
  b.field("requestTimeout", p.request_timeout, "", "Ignored; accepted for older configurations.");
  b.field("idleThreshold", p.idle_threshold, "requests",
          "Up to this many requests in flight an endpoint counts as idle. Negative values count as 0.");
  b.field("maxBusyScore", p.max_busy_score, "ratio",
          "The highest score of an endpoint that is not idle. Values outside 0 to 1 count as 1.");
  b.field("inFlightLoadProducerName", p.in_flight_producer, "",
          "Name of the inflight-load-producer to read; empty: the default one.");
}

ActiveRequestScorer::ActiveRequestScorer(Params params)
    : key_(data_keys::kInFlightLoad.with_producer(params.in_flight_producer)),
      idle_threshold_(std::max(params.idle_threshold, 0)),
      max_busy_score_(params.max_busy_score) {
  if (max_busy_score_ >= 0 && max_busy_score_ <= 1) return;
  telemetry::log_warn("maxBusyScore of active-request-scorer is outside 0 to 1, 1 is used",
                      {{"value", max_busy_score_}});
  max_busy_score_ = 1.0;
}

void ActiveRequestScorer::declare_data(DataDeclaration& declaration) const {
  declaration.require<InFlightLoad>(key_);
}

void ActiveRequestScorer::bind_slots(const SlotResolver& slots) {
  slot_ = slots.slot(key_);
}

void ActiveRequestScorer::score(SchedulingContext& ctx, std::span<const Candidate> candidates,
                                std::span<double> scores) const {
  const std::span<const InFlightLoad> load = ctx.attributes.column<InFlightLoad>(slot_);
  if (load.empty()) {
    std::fill(scores.begin(), scores.end(), 1.0);
    return;
  }
  int64_t max = 0;
  for (const Candidate c : candidates) max = std::max(max, load[c].requests);
  for (size_t i = 0; i < scores.size(); ++i) {
    const int64_t n = load[candidates[i]].requests;
    scores[i] = n <= idle_threshold_
                    ? 1.0
                    : static_cast<double>(max - n) / static_cast<double>(max) * max_busy_score_;
  }
}

void ActiveRequestScorer::explain(const SchedulingContext& ctx, Candidate candidate, std::string& out) const {
  const std::span<const InFlightLoad> load = ctx.attributes.column<InFlightLoad>(slot_);
  if (load.empty()) {
    out += "in flight unknown (no data from ";
    out += key_.producer;
    out += "): counts as idle";
    return;
  }
  out += "in flight ";
  append_number(out, static_cast<uint64_t>(load[candidate].requests));
  out += " requests, live";
}

}  // namespace penstock::scheduling
