#pragma once

#include <string>

#include "inference/decision.h"
#include "inference/plugin.h"
#include "scheduling/scheduler.h"

namespace penstock::scheduling {

// What a decision was made from, while it still exists: adds each score's explanation.
struct RenderContext {
  const SchedulingContext& ctx;
  const Scheduler& scheduler;
};

// A decision record as one JSON object: who asked, the five moments in milliseconds after arrival, epochs,
// seed, ages, each profile's filters with counts, its recorded candidates with every score, weight and
// contribution, and the winner. With `context`, each score also says what it was made of. Contains no
// prompt text. Times never reached, and ages of signals never observed, are null; 64-bit numbers that
// JavaScript would round (seed) are strings.
std::string render_decision(const DecisionRecord& record, const RenderContext* context = nullptr);

}  // namespace penstock::scheduling
