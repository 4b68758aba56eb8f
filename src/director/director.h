#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/arena.h"
#include "base/clock.h"
#include "base/random.h"
#include "base/result.h"
#include "director/candidates.h"
#include "director/decision_log.h"
#include "director/endpoint_health.h"
#include "director/load_guard.h"
#include "director/policy.h"
#include "director/published.h"
#include "director/request_health.h"
#include "director/request_metrics.h"
#include "director/response_holders.h"
#include "director/rewrites.h"
#include "director/subset.h"
#include "inference/decision.h"
#include "inference/header_edits.h"
#include "inference/plugin.h"
#include "inference/request.h"
#include "protocol/parser.h"
#include "telemetry/trace.h"

namespace penstock::director {

// What a loop knows of a pool at the moment: rows of `signals` belong to `endpoints` by number.
struct Picture {
  std::shared_ptr<const PoolSnapshot> pool;
  const SignalView* signals = nullptr;
};

// Where one loop gets a pool's picture from. refresh() must not block; its result is valid until the next
// call. Not thread-safe.
class PictureSource {
 public:
  virtual ~PictureSource() = default;
  virtual const Picture& refresh(TimePoint now) = 0;
};

// One pool as all loops share it. Made by the command that serves it; must outlive every Director. The
// policy must be published before the first request.
struct Pool {
  Pool(std::string pool_name, std::string pool_namespace, RequestMetrics& request_metrics,
       const DecisionLog::Options& log_options)
      : name(std::move(pool_name)),
        ns(std::move(pool_namespace)),
        metrics(request_metrics),
        log(log_options),
        health(name, request_metrics),
        responses(name, request_metrics, std::random_device{}()) {
    metrics.fallback_state.with({name, fallback_state_name(FallbackState::kNone)}).set(1);
  }

  const std::string name;
  const std::string ns;
  RequestMetrics& metrics;
  Published<Policy> policy;
  Published<PoolRules> rules;
  DecisionLog log;
  EndpointHealth health;
  ResponseHolders responses;
  // The state of the pool (no fresh signals, no endpoint) that the latest decision met which might have
  // picked any of its endpoints: a log line is written when it changes.
  std::atomic<FallbackState> fallback{FallbackState::kNone};
  std::mutex fallback_mutex;  // held while it changes
};

// The weighted total of one endpoint in the primary profile.
struct EndpointScore {
  std::string_view host_port;
  double total = 0;
};

// What the front door hands over. Views must stay valid during the call; of the body and the headers until
// the request is not decided again.
struct RequestInput {
  std::string_view request_id;
  std::string_view method;
  std::string_view path;  // without the query
  std::span<const HeaderField> headers;
  protocol::PaddedBody body;
  std::string_view identity;
  bool trust_fairness_header = false;  // else an identity is the fairness id whatever the header says
  TimePoint received_at = kNever;
  // The clock as it was when the door asked for the decision; kNever: it is read.
  TimePoint now = kNever;
  // What a parser of type `parsed_by` already found in the body, into the request's arena: not parsed
  // again where the policy has the same type for the path.
  const protocol::ParsedBody* parsed = nullptr;
  std::string_view parsed_by;
  // The message has no body, whatever its method: nothing is parsed.
  bool bodyless = false;
  // Set: only these endpoints are candidates. An entry whose port is that of an endpoint at its address means
  // that endpoint; otherwise all at the address.
  std::optional<std::span<const SubsetEntry>> subset;
  // The door sees an answer's bytes as they come: silence of a stream says something of its endpoint.
  bool shows_output = true;
  // Request::scores is wanted.
  bool keep_scores = false;
  // Replay: the seed to use instead of a fresh one.
  std::optional<uint64_t> seed;
};

// One request on its way through the director: everything it knows, in one arena. Reused: reset() starts
// the next. Lives on one loop.
class Request {
 public:
  Request() = default;
  Request(const Request&) = delete;
  Request& operator=(const Request&) = delete;

  void reset();
  // The decision has been sent: keeps what the answer's side needs, in memory of its own, and lets `spare`
  // have the arena. A request that waits for its answer takes little memory then. It is not decided again.
  void settle(Arena& spare);
  // Takes everything off again that was reserved.
  void release_load() {
    load.release();
    prefill_load.release();
    stage_load.release();
    health.release();
  }

  Arena arena;
  InferenceRequest inference;
  DecisionRecord record;
  protocol::ParsedBody parsed;
  protocol::PaddedBody body;
  std::shared_ptr<const Policy> policy;      // the epoch the request began with
  std::shared_ptr<const Endpoint> endpoint;  // where it goes; nullptr: not decided
  LoadGuard load;
  // Of the other stages of a disaggregated request: the prefill profile's target, until the answer begins,
  // and one more, until it ends.
  LoadGuard prefill_load;
  LoadGuard stage_load;
  RequestHealth health;                  // what the request will say of its endpoints
  std::string_view destination;          // "host:port[,host:port…]", best first
  protocol::RewrittenBody rewritten;     // what is sent; no pieces: the body goes out as it came
  bool tokens_until_first_byte = false;  // release the guard's tokens when the answer begins
  bool restore_model = false;            // the answer names the target model; the client knows another name
  bool learns_response = false;          // the answer is a response that its endpoint stores
  const RequestSeries* series = nullptr;
  DecisionLog::Handle log_handle;
  bool unreadable = false;  // the parser refused the body
  // Who made `parsed` of the body when the outside was asked: the decision need not do it again.
  const protocol::RequestParser* parsed_with = nullptr;
  std::vector<AskedQuestion> questions;  // asked for this decision
  std::optional<uint64_t> seed;          // the decision's, where it was needed before: to ask
  bool decided = false;                  // an endpoint was chosen once: request_total is counted
  telemetry::RequestTrace trace;         // begun by the door, director/tracing.h
  // Of the input, for deciding again.
  std::optional<std::span<const SubsetEntry>> subset;
  bool shows_output = true;
  bool keep_scores = false;
  std::span<const EndpointScore> scores;  // of the primary profile, with keep_scores
  // What plugins want changed in the headers: first removed, then set.
  std::span<const HeaderEdits::Edit> request_edits;
  std::span<const HeaderEdits::Edit> response_edits;

 private:
  std::string kept_;  // settle()'s
  std::vector<HeaderEdits::Edit> kept_edits_;
};

// Decides for the requests of one pool on one loop. Everything runs in the caller's turn: nothing waits.
// Steps and their order (epp-request-path §5): parse, rewrite, objective and priority, produce A, admit,
// candidates, produce B, schedule, reserve, pre-request, record. Not thread-safe.
class Director {
 public:
  struct Options {
    size_t loop = 0;    // index of the loop, for the decision log's shard
    uint64_t seed = 1;  // of the stream that request seeds are drawn from
  };
  Director(Pool& pool, std::unique_ptr<PictureSource> pictures, const Clock& clock, const Options& options);

  // Asks what the decision needs to know from outside. True: there is something to wait for
  // (assembly::await_questions) before decide(), with the same input. Reserves, tells and counts nothing.
  bool ask(Request& request, const RequestInput& input);

  // Parses and decides. On success request.endpoint, destination, rewritten and load are set, and the
  // decision is in the log; on failure the load is not held. Errors are those of the reference's table (§6).
  Status decide(Request& request, const RequestInput& input);

  // Chooses again for a request whose endpoint failed, leaving out `excluded`. Parsing and rewriting are
  // not repeated; the reservation moves. Errors: as decide(); kServiceUnavailable when nobody is left.
  Status decide_again(Request& request, std::span<const EndpointSlot> excluded);

  // A request that the front door refuses before it is decided: fills in what record and logs say of it.
  // `state` other than kNone is counted.
  void refuse(Request& request, const RequestInput& input, const Error& error,
              FallbackState state = FallbackState::kNone);

  // Decides like decide(), with everything recorded, but reserves nothing, tells no plugin, logs nothing and
  // counts nothing. JSON: the record of append_record_json() with every candidate, plus the arrays
  // "explanations", "signals" and "health" of director/explain.h.
  std::string explain(Request& request, const RequestInput& input);

  Pool& pool() { return pool_; }
  const Clock& clock() const { return clock_; }
  // The members of the pool as of now.
  const Picture& picture() { return pictures_->refresh(clock_.now()); }

 private:
  void describe(Request& request, const RequestInput& input);
  // kAsk and kExplain change nothing outside the request.
  enum class Purpose : uint8_t { kDecide, kExplain, kAsk };
  Status decide_steps(Request& request, const RequestInput& input, Purpose purpose, std::string* explanation);
  void ask_producers(Request& request, SchedulingContext& ctx, const Policy& policy);
  // `asks`: what is found is kept for the decision, of the same input.
  Status parse(Request& request, const RequestInput& input, bool asks);
  Status rewrite(Request& request, Random& random, bool explain);
  Status classify(Request& request, bool trust_fairness_header);
  Status screen(SchedulingContext& ctx, std::span<Candidate> candidates, size_t& count,
                const Policy& policy) const;
  // `last_resort`: endpoints that are ejected are candidates like the others.
  Status choose(Request& request, Random& random, std::span<const EndpointSlot> excluded, Purpose purpose,
                std::string* explanation, bool last_resort = false);
  // Sets `holder` where the request goes on from a stored response: nobody else may get it.
  Status find_holder(const Request& request, const PoolSnapshot& pool, const CandidateFinder::Wanted& wanted,
                     Arena& arena, TimePoint now, bool explain, std::optional<Candidate>& holder);
  Status reserve_and_tell(Request& request, SchedulingContext& ctx, const SchedulingResult& result,
                          Candidate winner, const TrialClaims& claims);
  void fill_record(Request& request, const SchedulingContext& ctx, const SchedulingResult& result,
                   Candidate winner);
  // Counts a decision in a fallback state; `of_pool`: the pool is in it, or in none.
  void note_fallback(FallbackState state, bool of_pool);
  // The series of the policy's producers and pre-request plugins, looked up once a policy.
  void find_plugin_series(const std::shared_ptr<const Policy>& policy);

  Pool& pool_;
  std::unique_ptr<PictureSource> pictures_;
  const Picture* chosen_by_ = nullptr;  // the last decision's; refresh() ends it
  const Clock& clock_;
  HealthWatch health_;
  CandidateFinder candidates_;
  Options options_;
  Random seeds_;
  uint64_t next_number_;  // of InferenceRequest; each director has a range of its own
  PublishedReader<Policy> policy_;
  PublishedReader<PoolRules> rules_;
  SeriesCache series_;
  std::shared_ptr<const Policy> timed_policy_;
  std::vector<telemetry::Histogram*> producer_seconds_;     // as Policy::producers
  std::vector<telemetry::Histogram*> pre_request_seconds_;  // as Policy::pre_request
};

}  // namespace penstock::director
