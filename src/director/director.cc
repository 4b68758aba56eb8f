#include "director/director.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <memory>

#include "base/strings.h"
#include "director/explain.h"
#include "director/stored_response.h"
#include "director/tracing.h"
#include "protocol/errors.h"
#include "telemetry/laps.h"
#include "telemetry/log.h"

namespace penstock::director {

namespace {

// A long prompt's tokens fit, so that serving it again asks the heap for nothing.
constexpr size_t kKeptArenaBytes = 512 * 1024;
// Of an id that a client made up, in a message.
constexpr size_t kMaxIdShown = 64;

// The signals every engine must have.
constexpr std::array<Signal, 3> kRequiredSignals{Signal::kWaitingRequests, Signal::kRunningRequests,
                                                 Signal::kKvUsage};

// Where the numbers of one director's requests begin: 2^40 for each.
uint64_t first_number() {
  static std::atomic<uint64_t> directors{0};
  return ((directors.fetch_add(1, std::memory_order_relaxed) & 0xFFFFFF) << 40) + 1;
}

// The value under the current name; the old name counts only where the current one is absent.
std::optional<std::string_view> aliased_header(std::span<const HeaderField> headers, std::string_view name,
                                               std::string_view alias) {
  if (const auto value = find_header(headers, name)) return value;
  return find_header(headers, alias);
}

bool prefers_cached_only(std::span<const HeaderField> headers) {
  const auto prefer = find_header(headers, "prefer");
  if (!prefer) return false;
  std::string_view rest = *prefer;
  while (!rest.empty()) {
    const size_t comma = rest.find(',');
    std::string_view token = rest.substr(0, comma);
    token = trim(token.substr(0, token.find(';')));
    if (ascii_iequals(token, "if-available")) return true;
    if (comma == std::string_view::npos) break;
    rest.remove_prefix(comma + 1);
  }
  return false;
}

PickedAs picked_as(const Endpoint& winner, bool on_trial, bool health_on, TimePoint now) {
  if (winner.draining) return PickedAs::kSession;
  if (on_trial) return PickedAs::kTrial;
  if (!health_on) return PickedAs::kHealthy;
  switch (health_state(*winner.live, now)) {
    case HealthState::kHealthy:
      break;
    case HealthState::kEjected:
      return PickedAs::kLastResort;
    case HealthState::kHalfOpen:  // explained, not claimed
      return PickedAs::kTrial;
  }
  return PickedAs::kHealthy;
}

// The stage whose target's load is held until the answer begins, and whose health is judged beside that of
// the target.
constexpr std::string_view kPrefillProfile = "prefill";

std::optional<Candidate> prefill_target(const SchedulingResult& result) {
  for (const ProfileResult* profile : result.profiles) {
    if (profile == nullptr || profile == result.primary || profile->targets.empty()) continue;
    if (profile->profile_name == kPrefillProfile) return profile->targets[0];
  }
  return std::nullopt;
}

// A request that may be dropped goes no further where the pool is full. Strict mode looks at each endpoint:
// one that has room takes the request while the pool's mean is full, and none is sent to a full one because
// others are idle.
Status shed(const Policy& policy, SchedulingContext& ctx, std::span<Candidate>& candidates) {
  if (ctx.request.priority >= 0 || policy.saturation == nullptr) return {};
  bool full = false;
  if (policy.strict) {
    candidates = candidates.first(policy.saturation->keep_unsaturated(ctx, candidates));
    ctx.candidates = candidates;
    full = candidates.empty();
  } else {
    full = policy.saturation->saturation(ctx.pool, ctx.signals, candidates, ctx.now) >= 1.0;
  }
  if (!full) return {};
  return Error{ErrorCode::kResourceExhausted, "system saturated, sheddable request dropped",
               "rejected-saturated"};
}

// The producers of one stage; one that fails leaves its data out, and the record says so. `seconds`: of each
// producer, what it takes; `laps`: nullptr where nothing is timed.
void produce(const Policy& policy, DataProducer::Stage stage, SchedulingContext& ctx, DecisionRecord& record,
             std::span<telemetry::Histogram* const> seconds, telemetry::Laps* laps) {
  for (size_t i = 0; i < policy.producers.size(); ++i) {
    const DataProducer* producer = policy.producers[i];
    if (producer->stage() != stage) continue;
    const Status status = producer->produce(ctx);
    if (laps != nullptr) laps->end(seconds[i]);
    if (status.ok()) continue;
    record.fallback = FallbackState::kProducerFailed;
    telemetry::log_debug("failed to prepare per request data",
                         {{"x-request-id", ctx.request.request_id},
                          {"plugin", std::string_view(producer->name())},
                          {"error", status.error().message}});
  }
}

// Why nobody can be asked. `asleep`: engines that could be woken are among those who are left out.
Error nobody_to_ask(bool asleep) {
  return Error{ErrorCode::kServiceUnavailable,
               asleep ? "every engine of the pool that could be asked sleeps"
                      : "failed to find endpoint candidates for serving the request",
               "rejected-no-endpoints"};
}

Status admit(const Policy& policy, SchedulingContext& ctx) {
  for (const Admitter* admitter : policy.admitters) {
    if (Status status = admitter->admit(ctx); !status.ok()) {
      const Error& denial = status.error();
      return Error{denial.code, "request cannot be admitted: " + denial.message, denial.dropped_reason};
    }
  }
  return {};
}

// The scores that go to the front door with the answer: copies, of every candidate that was scored.
std::span<EndpointScore> kept_scores(const PoolSnapshot& pool, const ProfileResult& primary, Arena& arena) {
  std::span<EndpointScore> scores = arena.make_span<EndpointScore>(primary.scored.size());
  for (size_t i = 0; i < scores.size(); ++i)
    scores[i] = {arena.copy(pool.endpoints[primary.scored[i]]->host_port), primary.totals[i]};
  return scores;
}

// `prefer: if-available` wants an endpoint that holds some of the prompt, or none.
Status check_cached(const Policy& policy, const SchedulingContext& ctx, Candidate winner) {
  if (!prefers_cached_only(ctx.request.headers)) return {};
  const auto matches = ctx.attributes.column<PrefixMatch>(policy.prefix_match_slot);
  if (!matches.empty() && matches[winner].match_blocks != 0) return {};
  return Error{ErrorCode::kPreconditionFailed, "no decode worker has the requested KV cache"};
}

bool has_no_body_by_method(std::string_view method) {
  return method == "GET" || method == "HEAD" || method == "DELETE" || method == "OPTIONS";
}

}  // namespace

void Request::reset() {
  release_load();
  arena.reset(kKeptArenaBytes);
  inference = {};
  record = {};
  parsed = {};
  body = {};
  policy.reset();
  endpoint.reset();
  destination = {};
  rewritten = {};
  tokens_until_first_byte = false;
  restore_model = false;
  learns_response = false;
  series = nullptr;
  log_handle = {};
  unreadable = false;
  parsed_with = nullptr;
  questions.clear();
  seed.reset();
  decided = false;
  trace.reset();
  subset.reset();
  shows_output = true;
  keep_scores = false;
  scores = {};
  request_edits = {};
  response_edits = {};
}

void Request::settle(Arena& spare) {
  // What was the same text stays one.
  struct Kept {
    std::string_view& text;
    std::string_view* twin = nullptr;
  };
  const Kept kept[] = {
      {inference.request_id, &record.request_id},
      {inference.method},
      {inference.path},
      {inference.incoming_model, &record.incoming_model},
      {inference.target_model, &record.target_model},
      {inference.fairness_id, &record.fairness_id},
      {inference.objective},
      {inference.identity, &record.identity},
      {record.winner},
      {record.winner_host_port},
  };
  size_t size = 0;
  for (const Kept& one : kept) {
    size += one.text.size();
    if (one.twin == nullptr) continue;
    if (one.twin->data() != one.text.data() || one.twin->size() != one.text.size()) size += one.twin->size();
  }
  for (const HeaderEdits::Edit& edit : response_edits) size += edit.name.size() + edit.value.size();
  if (kept_.size() < size) kept_.resize(size);
  char* at = kept_.data();
  const auto keep = [&at](std::string_view text) {
    if (!text.empty()) std::memcpy(at, text.data(), text.size());
    const std::string_view copy(at, text.size());
    at += text.size();
    return copy;
  };
  for (const Kept& one : kept) {
    const std::string_view before = std::exchange(one.text, keep(one.text));
    if (one.twin == nullptr) continue;
    const bool same = one.twin->data() == before.data() && one.twin->size() == before.size();
    *one.twin = same ? one.text : keep(*one.twin);
  }
  kept_edits_.clear();
  for (const HeaderEdits::Edit& edit : response_edits) {
    kept_edits_.push_back({keep(edit.name), keep(edit.value), edit.remove});
  }
  response_edits = kept_edits_;
  questions.clear();
  request_edits = {};
  inference.agent_identity = {};
  destination = record.winner_host_port;
  inference.headers = {};
  inference.cache_salt = {};
  inference.prompts = {};
  record.profiles = {};
  const bool skip_response = parsed.skip_response;
  parsed = {};
  parsed.skip_response = skip_response;
  body = {};
  rewritten = {};
  subset.reset();
  scores = {};
  arena.swap(spare);
}

Director::Director(Pool& pool, std::unique_ptr<PictureSource> pictures, const Clock& clock,
                   const Options& options)
    : pool_(pool),
      pictures_(std::move(pictures)),
      clock_(clock),
      health_(pool.health),
      candidates_(health_),
      options_(options),
      seeds_(options.seed),
      next_number_(first_number()),
      policy_(pool.policy),
      rules_(pool.rules),
      series_(pool.metrics) {}

Status Director::decide(Request& request, const RequestInput& input) {
  telemetry::SpanScope span(request.trace.recording(), "gateway.request_orchestration",
                            telemetry::SpanKind::kServer, kRequestControlScope);
  Status status = decide_steps(request, input, Purpose::kDecide, nullptr);
  end_orchestration(span, request, status);
  if (!status.ok()) {
    request.release_load();
    request.endpoint.reset();
    request.log_handle = pool_.log.begin(options_.loop, request.record, status.error().message);
  }
  return status;
}

bool Director::ask(Request& request, const RequestInput& input) {
  const std::shared_ptr<const Policy>& policy = policy_.current();
  if (policy == nullptr || policy->asking.empty()) return false;
  if (!request.seed) request.seed = seeds_.next_u64();
  request.questions.clear();
  const DecisionRecord record = request.record;
  const InferenceRequest inference = request.inference;
  // Where it fails the decision will, and say why.
  (void)decide_steps(request, input, Purpose::kAsk, nullptr);
  request.record = record;
  request.inference = inference;
  request.rewritten = {};
  return std::any_of(request.questions.begin(), request.questions.end(),
                     [](const AskedQuestion& asked) { return !asked.question->answered(); });
}

void Director::ask_producers(Request& request, SchedulingContext& ctx, const Policy& policy) {
  for (const AskingProducer* producer : policy.asking) {
    if (std::shared_ptr<Question> question = producer->ask(ctx))
      request.questions.push_back({producer, std::move(question)});
  }
}

void Director::describe(Request& request, const RequestInput& input) {
  Arena& arena = request.arena;
  InferenceRequest& inference = request.inference;
  inference.number = next_number_++;
  inference.request_id = arena.copy(input.request_id);
  inference.method = input.method;
  inference.path = input.path;
  inference.headers = input.headers;
  inference.body_bytes = input.body.size;
  inference.identity = arena.copy(input.identity);
  inference.received_at = input.received_at;
  request.body = input.body;
  request.subset = input.subset;
  request.shows_output = input.shows_output;
  request.keep_scores = input.keep_scores;
  request.scores = {};

  DecisionRecord& record = request.record;
  record.request_id = inference.request_id;
  record.pool = pool_.name;
  record.identity = inference.identity;
  record.arrived_at = input.received_at;
}

void Director::refuse(Request& request, const RequestInput& input, const Error& error, FallbackState state) {
  describe(request, input);
  request.record.fallback = state;
  if (state != FallbackState::kNone) note_fallback(state, false);
  request.log_handle = pool_.log.begin(options_.loop, request.record, error.message);
}

Status Director::decide_steps(Request& request, const RequestInput& input, Purpose purpose,
                              std::string* explanation) {
  const bool explain = purpose != Purpose::kDecide;
  const TimePoint started = input.now != kNever ? input.now : clock_.now();
  describe(request, input);
  request.policy = policy_.current();
  if (request.policy == nullptr) {
    return Error{ErrorCode::kServiceUnavailable, "pool " + pool_.name + " has no policy yet"};
  }
  const uint64_t seed = input.seed ? *input.seed : request.seed ? *request.seed : seeds_.next_u64();
  Random random(seed);
  InferenceRequest& inference = request.inference;
  DecisionRecord& record = request.record;
  record.pool_chosen_at = started;
  record.seed = seed;
  record.policy_epoch = request.policy->epoch;

  if (input.subset && input.subset->size() > kMaxSubsetEntries) {
    return Error{ErrorCode::kBadRequest,
                 "the endpoint subset has more than " + std::to_string(kMaxSubsetEntries) + " entries"};
  }
  if (Status status = parse(request, input, purpose == Purpose::kAsk); !status.ok()) return status;
  if (Status status = rewrite(request, random, explain); !status.ok()) return status;
  if (Status status = classify(request, input.trust_fairness_header); !status.ok()) return status;
  if (!explain) {
    request.series = &series_.find(inference.incoming_model, inference.target_model, inference.fairness_id,
                                   inference.priority);
  }
  if (Status status = choose(request, random, {}, purpose, explanation); !status.ok()) return status;
  if (!explain) {
    RequestMetrics& metrics = pool_.metrics;
    metrics.decision_seconds.observe(to_seconds(record.endpoint_chosen_at - started));
    metrics.processing_seconds.observe(to_seconds(record.endpoint_chosen_at - record.arrived_at));
    metrics.moments[0]->observe(to_seconds(record.pool_chosen_at - record.arrived_at));
    metrics.moments[1]->observe(to_seconds(record.decision_started_at - record.arrived_at));
    metrics.moments[2]->observe(to_seconds(record.endpoint_chosen_at - record.arrived_at));
    request.series->total->add();
    request.series->request_bytes->observe(static_cast<double>(inference.body_bytes));
    if (request.series->running != nullptr) request.series->running->add(1);
    request.decided = true;
    request.log_handle = pool_.log.begin(options_.loop, record, {});
  }
  return {};
}

Status Director::parse(Request& request, const RequestInput& input, bool asks) {
  if (const std::string_view id = stored_response_id(input.method, input.path); !id.empty()) {
    request.parsed.api = ApiKind::kResponses;
    request.parsed.previous_response_id = id;
    request.inference.api = ApiKind::kResponses;
    return {};
  }
  if (input.body.size == 0 && (input.bodyless || has_no_body_by_method(input.method))) return {};
  const protocol::RequestParser* parser = request.policy->parsers->find(input.path);
  if (parser == nullptr) {
    return Error{ErrorCode::kBadRequest,
                 "no parser registered matching path suffix for: " + std::string(input.path)};
  }
  // The input's own comes first: what was kept of an earlier one may lie in memory that is gone.
  const bool kept = std::exchange(request.parsed_with, nullptr) == parser;
  const protocol::ParsedBody* known = nullptr;
  if (input.parsed != nullptr && input.parsed_by == parser->type()) {
    known = input.parsed;
  } else if (kept) {
    known = &request.parsed;
  }
  Result<protocol::ParsedBody> parsed =
      known != nullptr ? *known : parser->parse(input.path, input.headers, input.body, request.arena);
  request.unreadable = !parsed.ok();
  if (!parsed.ok()) return protocol::unreadable_body(std::move(parsed).error(), input.headers);
  request.parsed = *parsed;
  if (asks) request.parsed_with = parser;

  InferenceRequest& inference = request.inference;
  inference.api = parsed->api;
  inference.incoming_model = request.arena.copy(parsed->model);
  inference.target_model = inference.incoming_model;
  inference.cache_salt = parsed->cache_salt;
  inference.streaming = parsed->streaming;
  inference.max_output_tokens = parsed->max_output_tokens;
  request.restore_model = parser->can_rewrite_model() && parsed->rewritable;
  request.learns_response = parsed->stores_response && pool_.responses.on();
  request.record.incoming_model = inference.incoming_model;
  return {};
}

Status Director::rewrite(Request& request, Random& random, bool explain) {
  InferenceRequest& inference = request.inference;
  const bool can_rewrite = request.restore_model;
  request.restore_model = false;
  const auto header =
      aliased_header(inference.headers, "x-llm-d-model-name-rewrite", "x-gateway-model-name-rewrite");
  std::string_view target = inference.incoming_model;
  if (header && !header->empty()) target = request.arena.copy(*header);
  if (!can_rewrite) {
    inference.target_model = target;
    request.record.target_model = target;
    return {};
  }
  const std::shared_ptr<const PoolRules>& rules = rules_.current();
  if (rules != nullptr && !rules->rewrites.empty()) {
    if (const RewriteTable::Rule* rule = rules->rewrites.find(inference.incoming_model)) {
      target = request.arena.copy(rule->choose(random));
      if (!explain) {
        pool_.metrics.rewrites
            .with({rule->object_name, pool_.metrics.models.admit(inference.incoming_model), target})
            .add();
      }
    }
  }
  if (target.empty()) return Error{ErrorCode::kBadRequest, "model not found in request body"};
  inference.target_model = target;
  request.record.target_model = target;
  if (target == request.parsed.model) return {};

  request.rewritten = protocol::rewrite_model(request.body, request.parsed, target, request.arena);
  request.restore_model = !inference.incoming_model.empty();
  return {};
}

Status Director::classify(Request& request, bool trust_fairness_header) {
  InferenceRequest& inference = request.inference;
  for (const RequestHook* hook : request.policy->request_hooks) {
    if (Status status = hook->on_request(inference, request.arena); !status.ok()) return status;
  }
  if (const auto objective =
          aliased_header(inference.headers, "x-llm-d-inference-objective", "x-gateway-inference-objective")) {
    inference.objective = request.arena.copy(*objective);
    const std::shared_ptr<const PoolRules>& rules = rules_.current();
    if (rules != nullptr) inference.priority = rules->priority_of(inference.objective);
  }
  const auto fairness =
      aliased_header(inference.headers, "x-llm-d-inference-fairness-id", "x-gateway-inference-fairness-id");
  // Whom we know is not somebody else by saying so.
  const bool listens = inference.identity.empty() || trust_fairness_header;
  if (listens && fairness && !fairness->empty()) {
    inference.fairness_id = request.arena.copy(*fairness);
  } else if (listens && !inference.agent_identity.empty()) {
    inference.fairness_id = inference.agent_identity;
  } else if (!inference.identity.empty()) {
    inference.fairness_id = inference.identity;
  } else {
    inference.fairness_id = "default-flow";
  }
  request.record.fairness_id = inference.fairness_id;
  request.record.priority = inference.priority;
  return {};
}

Status Director::screen(SchedulingContext& ctx, std::span<Candidate> candidates, size_t& count,
                        const Policy& policy) const {
  std::span<uint32_t> kept = ctx.arena.make_filled<uint32_t>(ctx.pool.endpoints.size(), 0);
  std::span<Candidate> list = ctx.arena.make_span<Candidate>(count);
  for (const Screener* screener : policy.screeners) {
    std::copy_n(candidates.begin(), count, list.begin());
    const size_t left = std::min(count, screener->screen(ctx, list));
    for (const Candidate c : list.first(left)) ++kept[c];
  }
  const auto end = std::remove_if(candidates.begin(), candidates.begin() + static_cast<ptrdiff_t>(count),
                                  [&](Candidate c) { return kept[c] < policy.screeners.size(); });
  count = static_cast<size_t>(end - candidates.begin());
  if (count != 0) return {};
  return Error{ErrorCode::kServiceUnavailable, "screeners eliminated all endpoint candidates",
               "rejected-no-endpoints"};
}

Status Director::find_holder(const Request& request, const PoolSnapshot& pool,
                             const CandidateFinder::Wanted& wanted, Arena& arena, TimePoint now, bool explain,
                             std::optional<Candidate>& holder) {
  const protocol::ParsedBody& parsed = request.parsed;
  if (!parsed.conversation_id.empty() && pool.endpoints.size() > 1) {
    return Error{ErrorCode::kNotImplemented,
                 "the request continues state that only the replica which made it has (" +
                     std::string(parsed.conversation_id.substr(0, kMaxIdShown)) +
                     "); send the whole input instead of conversation"};
  }
  const std::string_view id = parsed.previous_response_id;
  if (id.empty()) return {};
  const ResponseHolders::Found found = pool_.responses.find(id, pool, now, !explain);
  const std::string shown(id.substr(0, kMaxIdShown));
  if (found.known == ResponseHolders::Known::kUnknown) {
    // Where there is only one that could have made it, it knows best.
    if (pool.endpoints.size() <= 1) return {};
    return Error{ErrorCode::kNotFound,
                 "Response with id '" + shown +
                     "' not found: no endpoint of the pool is known to hold it; send the "
                     "whole input instead"};
  }
  if (found.known == ResponseHolders::Known::kGone) {
    return Error{ErrorCode::kNotFound,
                 "Response with id '" + shown +
                     "' not found: the endpoint that held it has left the pool; send the "
                     "whole input instead"};
  }
  if (!CandidateFinder::may_have(pool, wanted, found.candidate, arena)) {
    return Error{ErrorCode::kServiceUnavailable,
                 "the one endpoint that holds response '" + shown + "' cannot be used for this request",
                 "rejected-no-endpoints"};
  }
  const bool generates = stored_response_id(request.inference.method, request.inference.path).empty();
  if (generates && pool.endpoints[found.candidate]->live->asleep.load(std::memory_order_relaxed)) {
    return Error{ErrorCode::kServiceUnavailable, "the engine that holds response '" + shown + "' sleeps",
                 "rejected-no-endpoints"};
  }
  holder = found.candidate;
  return {};
}

Status Director::choose(Request& request, Random& random, std::span<const EndpointSlot> excluded,
                        Purpose purpose, std::string* explanation, bool last_resort) {
  const bool explain = purpose != Purpose::kDecide;
  const Policy& policy = *request.policy;
  InferenceRequest& inference = request.inference;
  DecisionRecord& record = request.record;
  Arena& arena = request.arena;
  const TimePoint now = clock_.now();
  record.decision_started_at = now;

  const Picture& picture = pictures_->refresh(now);
  chosen_by_ = &picture;
  const PoolSnapshot& pool = *picture.pool;
  const SignalView& signals = *picture.signals;
  record.membership_epoch = pool.epoch;
  record.signal_epoch = signals.epoch;

  health_.begin(now);
  TrialClaims claims(arena);
  const CandidateFinder::Wanted wanted{request.subset, excluded};
  const CandidateFinder::Found found =
      candidates_.find(picture.pool, wanted, now, arena, explain ? nullptr : &claims, last_resort);
  record.left_out = found.left_out;
  std::optional<Candidate> holder;
  if (Status status = find_holder(request, pool, wanted, arena, now, explain, holder); !status.ok())
    return status;
  // What this request tried and lost, or who alone can serve it, says nothing of its decision as a whole.
  if (excluded.empty() && found.nobody_healthy && !holder) record.fallback = FallbackState::kAllEjected;
  const bool of_pool = found.of_pool && !holder;
  std::span<Candidate> candidates = holder ? arena.make_filled<Candidate>(1, *holder) : found.candidates;

  if (!explain) find_plugin_series(request.policy);
  AttributeTable attributes(arena, policy.attribute_slots, pool.endpoints.size());
  SchedulingContext ctx{inference, pool, signals, attributes, arena, random, now, candidates, explain};
  if (policy.freshness) ctx.freshness = &*policy.freshness;
  HeaderEdits edits(arena);
  if (!explain) {
    ctx.edits = &edits;
    ctx.trace = request.trace.recording();
    ctx.questions = request.questions;
  }
  request.request_edits = {};
  request.response_edits = {};
  // What lies between two of the steps that are timed is less than their histograms tell apart: each begins
  // when the one before ended.
  std::optional<telemetry::Laps> timed;
  telemetry::Laps* const laps = explain ? nullptr : &timed.emplace(clock_, now);
  if (inference.prompts.empty()) inference.prompts = request.parsed.prompts;
  produce(policy, DataProducer::Stage::kRequest, ctx, record, producer_seconds_, laps);
  record.prompt_tokens = inference.prompt_tokens();
  if (record.left_out.draining != 0 && !policy.session_holders.empty() && !holder) {
    candidates = candidates_.with_bound(ctx, wanted, policy.session_holders);
    ctx.candidates = candidates;
  }

  if (purpose == Purpose::kAsk) {
    // Of everybody: who is screened out then may be another one.
    produce(policy, DataProducer::Stage::kEndpoints, ctx, record, producer_seconds_, laps);
    ask_producers(request, ctx, policy);
    return {};
  }
  if (candidates.empty()) {
    const bool asleep = of_pool && record.left_out.asleep != 0;
    // Endpoints that this request tried and lost, or may not use, say nothing about the pool.
    if (asleep || excluded.empty()) {
      record.fallback = asleep ? FallbackState::kAllAsleep : FallbackState::kNoEndpoint;
      if (!explain && of_pool) note_fallback(record.fallback, true);
    }
    return nobody_to_ask(asleep);
  }
  if (!policy.screeners.empty()) {
    size_t count = candidates.size();
    if (Status status = screen(ctx, candidates, count, policy); !status.ok()) return status;
    candidates = candidates.first(count);
    ctx.candidates = candidates;
  }
  if (Status status = shed(policy, ctx, candidates); !status.ok()) return status;
  produce(policy, DataProducer::Stage::kEndpoints, ctx, record, producer_seconds_, laps);
  if (Status status = admit(policy, ctx); !status.ok()) return status;
  if (laps != nullptr && !policy.admitters.empty()) laps->end(nullptr);
  if (laps != nullptr) laps->mark();

  const FallbackState before = record.fallback;
  Result<SchedulingResult> scheduled = policy.scheduler->run(ctx, record, laps);
  // Where a profile finds nobody, as of a role whose endpoints are all ejected, a bad chance is better than
  // none.
  if (!scheduled.ok() && !holder && !last_resort && found.left_out.ejected + found.left_out.on_trial != 0) {
    record.fallback = before;
    if (laps != nullptr) (void)laps->settle();
    return choose(request, random, excluded, purpose, explanation, true);
  }
  const TimePoint schedule_ended = laps != nullptr ? laps->settle() : clock_.now();
  if (laps != nullptr) pool_.metrics.scheduler_seconds.observe(to_seconds(laps->since_mark()));
  if (!scheduled.ok()) {
    if (!explain) {
      pool_.metrics.attempts.with({"failure", pool_.metrics.models.admit(inference.target_model), "", "", ""})
          .add();
    }
    return std::move(scheduled).error();
  }
  if (scheduled->primary == nullptr || scheduled->primary->targets.empty()) {
    return Error{ErrorCode::kInternal, "results must be greater than zero"};
  }
  const Candidate winner = scheduled->primary->targets[0];
  const std::optional<Candidate> prefill = prefill_target(*scheduled);
  claims.keep(winner, prefill.value_or(TrialClaims::kNobody));
  record.picked_as =
      holder ? PickedAs::kHolder : picked_as(*pool.endpoints[winner], claims.has(winner), health_.on(), now);
  fill_record(request, ctx, *scheduled, winner);
  record.endpoint_chosen_at = schedule_ended;
  if (request.keep_scores) request.scores = kept_scores(pool, *scheduled->primary, arena);
  if (Status status = check_cached(policy, ctx, winner); !status.ok()) return status;

  if (explain) {
    if (explanation != nullptr) append_explanations(*explanation, policy, ctx, *scheduled);
    return {};
  }
  series_.attempt(inference.target_model, *pool.endpoints[winner]).add();
  if (excluded.empty()) note_fallback(record.fallback, of_pool);
  Status told = reserve_and_tell(request, ctx, *scheduled, winner, claims);
  claims.hand_over();
  return told;
}

void Director::find_plugin_series(const std::shared_ptr<const Policy>& policy) {
  if (timed_policy_ == policy) return;
  timed_policy_ = policy;
  const auto find = [this](std::string_view point, const auto& plugins, auto& series) {
    series.clear();
    for (const auto* plugin : plugins) {
      series.push_back(&pool_.metrics.plugin_seconds.with({point, plugin->type(), plugin->name()}));
    }
  };
  find("DataProducer", policy->producers, producer_seconds_);
  find("PreRequest", policy->pre_request, pre_request_seconds_);
}

Status Director::reserve_and_tell(Request& request, SchedulingContext& ctx, const SchedulingResult& result,
                                  Candidate winner, const TrialClaims& claims) {
  const Policy& policy = *request.policy;
  request.endpoint = ctx.pool.endpoints[winner];
  const bool streams = ctx.request.streaming && request.shows_output;
  health_.open(request.health.target(), request.endpoint, claims.has(winner), streams, ctx.now);
  uint64_t tokens = 0;
  if (policy.load_estimator != nullptr) {
    tokens = policy.load_estimator->reserve_tokens(ctx, winner);
    request.tokens_until_first_byte = policy.load_estimator->release_tokens_at_first_byte();
  }
  request.load = LoadGuard(request.endpoint, tokens);
  for (const ProfileResult* profile : result.profiles) {
    if (profile == nullptr || profile == result.primary || profile->targets.empty()) continue;
    const Candidate target = profile->targets[0];
    const bool prefills = profile->profile_name == kPrefillProfile;
    if (prefills && target != winner) {
      health_.open(request.health.prefill(), ctx.pool.endpoints[target], claims.has(target), streams,
                   ctx.now);
    } else if (!prefills) {
      request.health.set_encodes();
    }
    LoadGuard& guard = prefills ? request.prefill_load : request.stage_load;
    guard =
        LoadGuard(ctx.pool.endpoints[target],
                  policy.load_estimator == nullptr ? 0 : policy.load_estimator->reserve_tokens(ctx, target));
  }

  std::string failures;
  size_t failed = 0;
  std::optional<Error> single;
  telemetry::Laps laps(clock_, request.record.endpoint_chosen_at);
  for (size_t i = 0; i < policy.pre_request.size(); ++i) {
    const PreRequest* plugin = policy.pre_request[i];
    Status status = plugin->pre_request(ctx, result);
    laps.end(pre_request_seconds_[i]);
    if (status.ok()) continue;
    ++failed;
    if (!failures.empty()) failures += '\n';
    failures += "PreRequest \"" + plugin->typed_name() + "\" failed: " + status.error().message;
    single = std::move(status).error();
  }
  if (failed == 0) {
    request.request_edits = ctx.edits->request();
    request.response_edits = ctx.edits->response();
    return {};
  }
  request.release_load();
  if (failed == 1) return *single;
  return Error{ErrorCode::kInternal, std::move(failures)};
}

void Director::fill_record(Request& request, const SchedulingContext& ctx, const SchedulingResult& result,
                           Candidate winner) {
  DecisionRecord& record = request.record;
  Arena& arena = request.arena;
  const Endpoint& endpoint = *ctx.pool.endpoints[winner];
  record.winner = arena.copy(endpoint.id);

  const std::span<const Candidate> targets = result.primary->targets;
  if (result.destination_port != 0) {
    std::string joined;
    size_t first = 0;
    for (const Candidate target : targets) {
      if (!joined.empty()) joined += ',';
      joined += ctx.pool.endpoints[target]->host_port_at(result.destination_port);
      if (first == 0) first = joined.size();
    }
    request.destination = arena.copy(joined);
    record.winner_host_port = request.destination.substr(0, first);
  } else if (targets.size() == 1) {
    record.winner_host_port = arena.copy(endpoint.host_port);
    request.destination = record.winner_host_port;
  } else {
    std::string joined;
    for (const Candidate target : targets) {
      if (!joined.empty()) joined += ',';
      joined += ctx.pool.endpoints[target]->host_port;
    }
    request.destination = arena.copy(joined);
    record.winner_host_port = request.destination.substr(0, endpoint.host_port.size());
  }

  const auto matches = ctx.attributes.column<PrefixMatch>(request.policy->prefix_match_slot);
  if (!matches.empty()) {
    record.prefix_blocks_matched = matches[winner].cached_blocks;
    record.prefix_blocks_total = matches[winner].total_blocks;
  }

  if (record.fallback == FallbackState::kNone && !request.policy->sources.empty()) {
    const bool any_fresh = std::any_of(ctx.candidates.begin(), ctx.candidates.end(), [&](Candidate c) {
      return std::any_of(kRequiredSignals.begin(), kRequiredSignals.end(), [&](Signal signal) {
        return ctx.signals.at(signal, c).state == SignalState::kFresh;
      });
    });
    if (!any_fresh) record.fallback = FallbackState::kNoFreshSignals;
  }
}

void Director::note_fallback(FallbackState state, bool of_pool) {
  if (state != FallbackState::kNone) {
    pool_.metrics.fallbacks.with({pool_.name, fallback_state_name(state)}).add();
  }
  if (!of_pool) return;
  // A producer fails, and time runs out, for a request, not for a pool.
  if (state == FallbackState::kProducerFailed || state == FallbackState::kOverTime) return;
  if (pool_.fallback.load(std::memory_order_relaxed) == state) return;
  const std::lock_guard lock(pool_.fallback_mutex);
  const FallbackState before = pool_.fallback.exchange(state, std::memory_order_relaxed);
  if (before == state) return;
  RequestMetrics& metrics = pool_.metrics;
  metrics.fallback_state.with({pool_.name, fallback_state_name(before)}).set(0);
  metrics.fallback_state.with({pool_.name, fallback_state_name(state)}).set(1);
  metrics.fallback_transitions.with({pool_.name, fallback_state_name(state)}).add();
  if (state == FallbackState::kNone) {
    telemetry::log_info("decisions are complete again",
                        {{"pool", std::string_view(pool_.name)}, {"was", fallback_state_name(before)}});
  } else {
    telemetry::log_warn("decisions are made in a fallback state",
                        {{"pool", std::string_view(pool_.name)}, {"state", fallback_state_name(state)}});
  }
}

Status Director::decide_again(Request& request, std::span<const EndpointSlot> excluded) {
  assert(request.policy != nullptr);
  request.release_load();
  request.endpoint.reset();
  request.destination = {};
  request.record.winner = {};
  request.record.winner_host_port = {};
  Random random(request.record.seed + excluded.size());
  telemetry::SpanScope span(request.trace.recording(), "gateway.request_orchestration",
                            telemetry::SpanKind::kServer, kRequestControlScope);
  Status status = choose(request, random, excluded, Purpose::kDecide, nullptr);
  end_orchestration(span, request, status);
  if (!status.ok()) {
    request.release_load();
    request.endpoint.reset();
  }
  // The log keeps the newest decision of the request.
  request.log_handle = pool_.log.begin(options_.loop, request.record,
                                       status.ok() ? std::string_view() : status.error().message);
  return status;
}

std::string Director::explain(Request& request, const RequestInput& input) {
  std::string explanations;
  const Status status = decide_steps(request, input, Purpose::kExplain, &explanations);
  std::string out;
  append_record_json(out, request.record, status.ok() ? std::string_view() : status.error().message,
                     std::nullopt, true);
  out.pop_back();
  out += ",\"explanations\":[" + explanations + "],\"signals\":[";
  // What was decided by, if it came so far: figures of a moment later would not explain it.
  const TimePoint started = request.record.decision_started_at;
  const TimePoint now = started != kNever ? started : clock_.now();
  const Picture& picture = started != kNever ? *chosen_by_ : pictures_->refresh(now);
  const Freshness* freshness =
      request.policy != nullptr && request.policy->freshness ? &*request.policy->freshness : nullptr;
  append_signals(out, *picture.pool, *picture.signals, freshness, now);
  out += "],\"health\":[";
  append_health(out, *picture.pool, pool_.health, now);
  out += "]}";
  return out;
}

}  // namespace penstock::director
