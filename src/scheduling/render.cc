#include "scheduling/render.h"

#include <cmath>

#include "base/strings.h"
#include "scheduling/number_text.h"

namespace penstock::scheduling {

namespace {

// Writes commas where they belong; every value goes through key() or item().
class Json {
 public:
  std::string out;

  Json& key(std::string_view name) {
    separate();
    append_json_quoted(out, name);
    out += ':';
    fresh_ = true;
    return *this;
  }
  void text(std::string_view value) {
    separate();
    append_json_quoted(out, value);
  }
  void number(double value) {
    separate();
    if (std::isfinite(value)) {
      append_number(out, value);
    } else {
      out += "null";
    }
  }
  void integer(uint64_t value) {
    separate();
    append_number(out, value);
  }
  void null() {
    separate();
    out += "null";
  }
  void open(char bracket) {
    separate();
    out += bracket;
    fresh_ = true;
  }
  void close(char bracket) {
    out += bracket;
    fresh_ = false;
  }

 private:
  void separate() {
    if (!fresh_) out += ',';
    fresh_ = false;
  }
  bool fresh_ = true;
};

void render_millis(Json& json, std::string_view key, Duration duration) {
  json.key(key);
  if (duration == Duration::max()) {
    json.null();
  } else {
    json.number(to_millis(duration));
  }
}

void render_moment(Json& json, std::string_view key, TimePoint moment, TimePoint arrival) {
  render_millis(json, key, moment == kNever || arrival == kNever ? Duration::max() : moment - arrival);
}

void render_candidate(Json& json, const ProfileRecord& profile, const CandidateRecord& candidate,
                      const RenderContext* context) {
  const Profile* config = context == nullptr ? nullptr : context->scheduler.find(profile.profile_name);
  json.open('{');
  json.key("endpoint").text(candidate.endpoint_id);
  json.key("total").number(candidate.total);
  json.key("scores").open('[');
  for (size_t s = 0; s < profile.scorers.size(); ++s) {
    const double score = candidate.scores[s];
    json.open('{');
    json.key("scorer").text(profile.scorers[s].plugin_name);
    json.key("score").number(score);
    json.key("weight").number(profile.scorers[s].weight);
    json.key("contribution").number(score * profile.scorers[s].weight);
    if (config != nullptr && s < config->scorers.size()) {
      std::string why;
      config->scorers[s].scorer->explain(context->ctx, candidate.candidate, why);
      json.key("explain").text(why);
    }
    json.close('}');
  }
  json.close(']');
  json.close('}');
}

void render_profile(Json& json, const ProfileRecord& profile, const RenderContext* context) {
  json.open('{');
  json.key("name").text(profile.profile_name);
  json.key("filters").open('[');
  for (const FilterRecord& filter : profile.filters) {
    json.open('{');
    json.key("filter").text(filter.plugin_name);
    json.key("before").integer(filter.before);
    json.key("after").integer(filter.after);
    json.close('}');
  }
  json.close(']');
  json.key("candidates_scored").integer(profile.candidates);
  json.key("nan_scores").integer(profile.nan_scores);
  json.key("candidates").open('[');
  for (const CandidateRecord& candidate : profile.top) render_candidate(json, profile, candidate, context);
  json.close(']');
  json.close('}');
}

}  // namespace

std::string render_decision(const DecisionRecord& record, const RenderContext* context) {
  Json json;
  json.open('{');
  json.key("request_id").text(record.request_id);
  json.key("winner").text(record.winner);
  json.key("winner_address").text(record.winner_host_port);
  json.key("primary_profile").text(record.primary_profile);
  json.key("fallback").text(fallback_state_name(record.fallback));
  json.key("pool").text(record.pool);
  json.key("incoming_model").text(record.incoming_model);
  json.key("target_model").text(record.target_model);
  json.key("identity").text(record.identity);
  json.key("fairness_id").text(record.fairness_id);
  json.key("priority").number(record.priority);

  json.key("moments_ms").open('{');
  render_moment(json, "arrived", record.arrived_at, record.arrived_at);
  render_moment(json, "pool_chosen", record.pool_chosen_at, record.arrived_at);
  render_moment(json, "decision_started", record.decision_started_at, record.arrived_at);
  render_moment(json, "endpoint_chosen", record.endpoint_chosen_at, record.arrived_at);
  render_moment(json, "first_token", record.first_token_at, record.arrived_at);
  json.close('}');
  render_millis(json, "queue_ms", record.queue_time);
  render_millis(json, "oldest_signal_age_ms", record.oldest_signal_age);

  json.key("seed").text(std::to_string(record.seed));
  json.key("policy_epoch").integer(record.policy_epoch);
  json.key("membership_epoch").integer(record.membership_epoch);
  json.key("signal_epoch").integer(record.signal_epoch);
  json.key("prompt_tokens").integer(record.prompt_tokens);
  json.key("prefix_blocks_matched").integer(record.prefix_blocks_matched);
  json.key("prefix_blocks_total").integer(record.prefix_blocks_total);

  json.key("profiles").open('[');
  for (const ProfileRecord& profile : record.profiles) render_profile(json, profile, context);
  json.close(']');
  json.close('}');
  return std::move(json.out);
}

}  // namespace penstock::scheduling
