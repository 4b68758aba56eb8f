#pragma once

#include <span>

#include "inference/plugin.h"
#include "telemetry/trace.h"

// Attributes of the scheduler's spans, with the reference's names. Called only when a request is recorded.
namespace penstock::scheduling {

inline constexpr std::string_view kSchedulingScope = "llm-d-router/pkg/epp/scheduling";

void describe_filters(telemetry::SpanScope& span, const SchedulingContext& ctx, size_t before, size_t after);
void describe_scoring(telemetry::SpanScope& span, const SchedulingContext& ctx, size_t scorers,
                      size_t candidates);
// `row`: the scorer's clamped scores.
void describe_scorer(telemetry::SpanScope& span, const Plugin& scorer, double weight,
                     std::span<const double> row);
// The best five by total, equal ones by id.
void describe_pick(telemetry::SpanScope& span, const SchedulingContext& ctx,
                   std::span<const Candidate> candidates, std::span<const double> totals);

}  // namespace penstock::scheduling
