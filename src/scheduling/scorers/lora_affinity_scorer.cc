#include "scheduling/scorers/lora_affinity_scorer.h"

#include <string>

#include "base/hash.h"
#include "scheduling/number_text.h"
#include "scheduling/signal_column.h"

namespace penstock::scheduling {

namespace {

// What is known of an endpoint's adapters: nothing where in strict mode the lists are too old.
const LoraSignal& adapters_of(const SchedulingContext& ctx, Candidate candidate) {
  static const LoraSignal kNothing;
  const LoraSignal& lora = *ctx.signals.lora[candidate];
  const bool too_old =
      ctx.freshness != nullptr && ctx.now - lora.observed_at >= ctx.freshness->adapters().unknown_after;
  return too_old ? kNothing : lora;
}

bool has_room(const LoraSignal& lora) {
  return int32_t{lora.running_count} + int32_t{lora.waiting_count} < lora.max_adapters;
}

}  // namespace

void LoraAffinityScorer::declare_data(DataDeclaration& declaration) const {
  declaration.require<LoraSignal>(data_keys::kActiveModels);
  declaration.require<LoraSignal>(data_keys::kWaitingModels);
}

void LoraAffinityScorer::score(SchedulingContext& ctx, std::span<const Candidate> candidates,
                               std::span<double> scores) const {
  const uint64_t model = hash_of(ctx.request.target_model);
  for (size_t i = 0; i < scores.size(); ++i) {
    const LoraSignal& lora = adapters_of(ctx, candidates[i]);
    if (lora.is_running(model)) {
      scores[i] = 1.0;
    } else if (has_room(lora)) {
      scores[i] = 0.8;
    } else {
      scores[i] = lora.is_waiting(model) ? 0.6 : 0.0;
    }
  }
}

void LoraAffinityScorer::explain(const SchedulingContext& ctx, Candidate candidate, std::string& out) const {
  const LoraSignal& lora = adapters_of(ctx, candidate);
  if (!is_known(lora.state, lora.observed_at)) {
    out += "no LoRA information (";
    out += signal_state_name(lora.state);
    out += ")";
    return;
  }
  const uint64_t model = hash_of(ctx.request.target_model);
  if (lora.is_running(model)) {
    out += "adapter running";
  } else if (has_room(lora)) {
    out += "adapter not running, room for one";
  } else {
    out += lora.is_waiting(model) ? "adapter waiting" : "adapter absent, no room";
  }
  out += " (";
  append_number(out, uint64_t{lora.running_count});
  out += " running, ";
  append_number(out, uint64_t{lora.waiting_count});
  out += " waiting, at most ";
  out += std::to_string(lora.max_adapters);
  out += "), age ";
  append_millis(out, ctx.now - lora.observed_at);
  out += ", ";
  out += signal_state_name(lora.state);
  if (ctx.freshness == nullptr) return;
  const double influence = ctx.freshness->adapters().influence(ctx.now - lora.observed_at);
  if (influence >= 1) return;
  out += ", influence ";
  append_rounded(out, influence);
}

}  // namespace penstock::scheduling
