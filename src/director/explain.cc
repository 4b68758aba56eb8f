#include "director/explain.h"

#include <fmt/format.h>

#include <iterator>
#include <string_view>

#include "base/strings.h"

namespace penstock::director {

namespace {

void next_element(std::string& to) {
  if (!to.empty() && to.back() == '}') to += ',';
}

}  // namespace

void append_explanations(std::string& to, const Policy& policy, const SchedulingContext& ctx,
                         const SchedulingResult& scheduled) {
  for (const ProfileResult* result : scheduled.profiles) {
    if (result == nullptr) continue;
    for (const scheduling::Profile& profile : policy.scheduler->profiles()) {
      if (profile.name != result->profile_name) continue;
      for (const Candidate c : result->scored) {
        const Endpoint& endpoint = *ctx.pool.endpoints[c];
        const auto append = [&](const char* role, std::string_view name, const std::string& text) {
          next_element(to);
          fmt::format_to(std::back_inserter(to), "{{\"profile\":{},\"endpoint\":{},\"{}\":{},\"text\":{}}}",
                         json_quote(profile.name), json_quote(endpoint.id), role, json_quote(name),
                         json_quote(text));
        };
        const SimpleChoice simple = result->record == nullptr ? SimpleChoice::kNone : result->record->simple;
        if (simple != SimpleChoice::kNone) {
          append("scorer", simple_choice_name(simple),
                 std::to_string(endpoint.live->in_flight().requests) + " requests in flight");
          continue;
        }
        for (const auto& weighted : profile.scorers) {
          std::string text;
          weighted.scorer->explain(ctx, c, text);
          append("scorer", weighted.scorer->name(), text);
        }
        std::string text;
        profile.picker->explain(ctx, c, text);
        if (!text.empty()) append("picker", profile.picker->name(), text);
      }
    }
  }
}

void append_signals(std::string& to, const PoolSnapshot& pool, const SignalView& signals,
                    const Freshness* freshness, TimePoint now) {
  for (Candidate c = 0; c < pool.endpoints.size(); ++c) {
    for (size_t i = 0; i < kSignalCount; ++i) {
      const auto signal = static_cast<Signal>(i);
      const SignalValue value = signals.at(signal, c);
      next_element(to);
      to += "{\"endpoint\":" + json_quote(pool.endpoints[c]->id) +
            ",\"signal\":" + json_quote(signal_name(signal)) + ",\"value\":";
      if (value.observed_at == kNever) {
        to += "null";
      } else {
        fmt::format_to(std::back_inserter(to), "{:.10g}", value.value);
      }
      to += ",\"unit\":" + json_quote(signal_unit(signal)) +
            ",\"state\":" + json_quote(signal_state_name(value.state));
      if (value.observed_at != kNever) {
        fmt::format_to(std::back_inserter(to), ",\"age_ms\":{:.3f}", to_millis(now - value.observed_at));
      }
      if (freshness != nullptr && freshness->ages(signal)) {
        fmt::format_to(std::back_inserter(to), ",\"influence\":{:.4g}",
                       freshness->influence(signals, signal, c, now));
        if (freshness->has_credit(signal)) {
          const EndpointLive& live = *pool.endpoints[c]->live;
          fmt::format_to(std::back_inserter(to), ",\"sent_since\":{}", signals.unseen_requests(live, c));
        }
      }
      to += '}';
    }
  }
}

void append_health(std::string& to, const PoolSnapshot& pool, const EndpointHealth& health, TimePoint now) {
  for (const auto& endpoint : pool.endpoints) {
    next_element(to);
    to += "{\"endpoint\":" + json_quote(endpoint->id) + ',';
    health.append_json(to, *endpoint, now);
    if (endpoint->draining) to += ",\"draining\":true";
    if (endpoint->live->asleep.load(std::memory_order_relaxed)) to += ",\"asleep\":true";
    to += '}';
  }
}

}  // namespace penstock::director
