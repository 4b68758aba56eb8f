#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/arena.h"
#include "base/clock.h"
#include "base/random.h"
#include "base/result.h"
#include "config/params.h"
#include "inference/attributes.h"
#include "inference/data_key.h"
#include "inference/decision.h"
#include "inference/endpoint.h"
#include "inference/freshness.h"
#include "inference/header_edits.h"
#include "inference/outside.h"
#include "inference/request.h"
#include "inference/signals.h"
#include "inference/warm_state.h"

namespace penstock {

namespace telemetry {
class MetricRegistry;
class RequestTrace;
}  // namespace telemetry

// Everything a plugin may look at while one request is decided. Built by the director on the request's
// loop; lives until the decision is made.
struct SchedulingContext {
  InferenceRequest& request;
  const PoolSnapshot& pool;
  const SignalView& signals;
  AttributeTable& attributes;
  Arena& arena;
  Random& random;
  TimePoint now;
  // Candidates the decision started with: after subset filter and screeners.
  std::span<const Candidate> candidates;
  // When set, the whole picture is recorded, not only the top candidates.
  bool explain = false;
  // What plugins change in headers; nullptr where nobody sends anything (explain, tests).
  HeaderEdits* edits = nullptr;
  // The request's trace when its spans are recorded (telemetry/trace.h).
  telemetry::RequestTrace* trace = nullptr;
  // How age counts in strict mode; nullptr: values count as they are, whatever their age.
  const Freshness* freshness = nullptr;
  // What was asked before this decision, by AskingProducers.
  std::span<const AskedQuestion> questions = {};
};

// What the picker returned for one profile. `targets`: in order, first is the destination.
struct ProfileResult {
  std::string_view profile_name;
  std::span<const Candidate> targets;
  std::span<const Candidate> scored;  // every candidate that survived the filters
  std::span<const double> totals;     // parallel to `scored`
  const ProfileRecord* record = nullptr;
};

struct SchedulingResult {
  std::span<const ProfileResult* const> profiles;  // those that ran and succeeded
  const ProfileResult* primary = nullptr;
  // The port requests go to instead of each target's own; 0: the targets' ports.
  uint16_t destination_port = 0;
};

// A plugin instance lives as long as its policy epoch; its methods are called from every loop at once,
// so they are const or synchronise themselves. No method blocks.
class Plugin {
 public:
  virtual ~Plugin() = default;
  Plugin() = default;
  Plugin(const Plugin&) = delete;
  Plugin& operator=(const Plugin&) = delete;

  // Set by the loader right after construction.
  void set_identity(std::string name, std::string type) {
    name_ = std::move(name);
    type_ = std::move(type);
  }
  const std::string& name() const { return name_; }
  const std::string& type() const { return type_; }
  // "<name>/<type>", as log lines and errors write it.
  std::string typed_name() const { return name_ + "/" + type_; }

  virtual void declare_data(DataDeclaration&) const {}
  virtual void bind_slots(const SlotResolver&) {}
  // Compact JSON for /debug/plugins/state; nothing: the plugin keeps no state.
  virtual std::optional<std::string> dump_state() const { return std::nullopt; }
  // What it does happens in the answer, in its headers or by learning from it: lost where nobody looks at
  // answers.
  virtual bool works_on_answers() const { return false; }

 private:
  std::string name_;
  std::string type_;
};

// Shrinks the candidate list in place, keeping order; returns how many of `inout` remain.
class Filter : public virtual Plugin {
 public:
  virtual size_t filter(SchedulingContext& ctx, std::span<Candidate> inout) const = 0;
};

// Fills one score per candidate, nominally in [0, 1]. The profile clamps, counts NaN as 0 and multiplies
// by the weight. A negative zero-width convention does not exist: a candidate without data gets 0.
class Scorer : public virtual Plugin {
 public:
  virtual void score(SchedulingContext& ctx, std::span<const Candidate> candidates,
                     std::span<double> scores) const = 0;
  // What one candidate's score was made of, for `explain`: "waiting 3 requests, age 41 ms". Appends to out.
  virtual void explain(const SchedulingContext& ctx, Candidate candidate, std::string& out) const = 0;
  // The column of EndpointScalar whose age counts in strict mode; kNoSlot: none. Signals are declared.
  virtual AttributeSlot aging_attribute() const { return kNoSlot; }
};

// Chooses up to its configured number of candidates, best first; returns them in ctx.arena.
class Picker : public virtual Plugin {
 public:
  virtual std::span<const Candidate> pick(SchedulingContext& ctx, std::span<const Candidate> candidates,
                                          std::span<const double> totals) const = 0;
  // What besides the totals the choice looks at in one candidate, for `explain`: "2 requests, 900 tokens in
  // flight". Appends to out; nothing: the totals alone count.
  virtual void explain(const SchedulingContext&, Candidate, std::string& /*out*/) const {}
  // How many candidates it returns where there are that many.
  virtual size_t max_targets() const { return 1; }
};

// Decides which profiles run and which result is primary. pick() is called until it returns nothing.
class ProfileHandler : public virtual Plugin {
 public:
  // Indices into `profile_names` to run now. `done[i]` says profile i ran (or was decided against);
  // `results[i]` is its result or nullptr.
  virtual std::span<const uint32_t> pick(SchedulingContext& ctx, std::span<const std::string> profile_names,
                                         std::span<bool> done,
                                         std::span<const ProfileResult* const> results) const = 0;
  // REQUIRES: called once, after pick() returned nothing and at least one profile ran.
  virtual Result<SchedulingResult> process(SchedulingContext& ctx, std::span<const std::string> profile_names,
                                           std::span<const ProfileResult* const> results) const = 0;
  // The number of profiles this handler insists on, 0: any.
  virtual size_t required_profiles() const { return 0; }
};

// Makes data for scorers and filters before scheduling. A failure is recorded and the request goes on;
// consumers of the missing column use their fallback.
class DataProducer : public virtual Plugin {
 public:
  // kRequest: needs only the request, runs before queueing. kEndpoints: needs the candidates.
  enum class Stage : uint8_t { kRequest, kEndpoints };
  virtual Stage stage() const { return Stage::kEndpoints; }
  virtual Status produce(SchedulingContext& ctx) const = 0;
};

// A producer of stage kEndpoints whose data come from outside. Where it asks, the request's front door has
// the question asked on candidates as they are then, waits until it is answered, and only then has the
// decision made: produce() finds the question among SchedulingContext::questions. None there: the decision is
// only explained, or its front door cannot wait.
class AskingProducer : public virtual Plugin {
 public:
  virtual bool asks() const = 0;
  // On the request's loop, with the data of the producers before it; ctx.explain is set: nothing is counted
  // or told. The question ends by itself. nullptr: nothing to ask.
  virtual std::shared_ptr<Question> ask(SchedulingContext& ctx) const = 0;
};

// Told of the choice after the pick, before the request leaves (index inserts, session bindings).
class PreRequest : public virtual Plugin {
 public:
  virtual Status pre_request(SchedulingContext& ctx, const SchedulingResult& result) const = 0;
};

// Looks at a request's headers before anything is decided, and writes what it finds into the request
// (InferenceRequest::agent_identity). An error ends the request.
class RequestHook : public virtual Plugin {
 public:
  virtual Status on_request(InferenceRequest& request, Arena& arena) const = 0;
};

// Shrinks the candidates before any data is made for them. Each screener gets the whole list; what all of
// them keep remains, in order. Nothing left: the client gets 503.
class Screener : public virtual Plugin {
 public:
  virtual size_t screen(SchedulingContext& ctx, std::span<Candidate> inout) const = 0;
};

// Says no to a request once its data are made: the error's text is the reason, its code the client's status.
class Admitter : public virtual Plugin {
 public:
  virtual Status admit(SchedulingContext& ctx) const = 0;
};

// One moment in the life of an answer, as ResponseHook is told.
struct ResponseEvent {
  enum class Kind : uint8_t {
    kHead,   // status and headers are there
    kChunk,  // a further piece of a stream that carries output
    kEnd,    // it is over, one way or the other; once
  };
  Kind kind = Kind::kHead;
  uint64_t request_number = 0;  // InferenceRequest::number
  std::string_view request_id;
  const Endpoint* endpoint = nullptr;  // that served it; nullptr: nobody was chosen
  bool streaming = false;
  int status = 0;  // of the answer; 0: none came
  TimePoint now = kNever;
  // kEnd: token counts of the engine's own report, absent where there was none.
  bool has_usage = false;
  uint64_t prompt_tokens = 0;
  uint64_t completion_tokens = 0;
  uint64_t total_tokens = 0;
  std::optional<uint64_t> cached_tokens;
  bool natural_end = false;  // kEnd: the answer came whole, whatever its status
  // kHead: the endpoint that the data plane says it used; nullopt: it says nothing (behind Envoy: the
  // metadata x-gateway-destination-endpoint-served); `has_lb_metadata`: whether it sent any of that
  // namespace.
  bool has_lb_metadata = false;
  std::optional<std::string_view> served_endpoint;
};
// What a ResponseHook may add to an answer. Names and values live as long as the call.
class ResponseEdits {
 public:
  virtual ~ResponseEdits() = default;
  virtual void set_header(std::string_view name, std::string_view value) = 0;               // kHead
  virtual void set_metadata(std::string_view ns, std::string_view name, double value) = 0;  // kEnd
};
// Told of the answer. Called on the request's loop; must not block.
class ResponseHook : public virtual Plugin {
 public:
  virtual void on_response(const ResponseEvent& event, ResponseEdits& edits) const = 0;
  bool works_on_answers() const override { return true; }
};

// Says how many tokens a request adds to an endpoint's in-flight load when it is reserved there.
class LoadEstimator : public virtual Plugin {
 public:
  virtual uint64_t reserve_tokens(const SchedulingContext& ctx, Candidate candidate) const = 0;
  // True: the tokens come off when the answer begins; false: when it ends.
  virtual bool release_tokens_at_first_byte() const = 0;
};

// 0 = idle, >= 1 = saturated.
class SaturationDetector : public virtual Plugin {
 public:
  virtual double saturation(const PoolSnapshot& pool, const SignalView& signals,
                            std::span<const Candidate> candidates, TimePoint now) const = 0;
  // Strict mode's gate, endpoint by endpoint: moves those below 1 to the front, in order, and returns how
  // many they are.
  virtual size_t keep_unsaturated(const SchedulingContext& ctx, std::span<Candidate> inout) const {
    size_t kept = 0;
    for (const Candidate c : inout) {
      if (saturation(ctx.pool, ctx.signals, {&c, 1}, ctx.now) < 1.0) inout[kept++] = c;
    }
    return kept;
  }
};

// Told when an endpoint leaves the pool, before its slot is reused. Called from one thread at a time.
class EndpointObserver : public virtual Plugin {
 public:
  virtual void endpoint_removed(const Endpoint& endpoint) const = 0;
};

enum class Stability : uint8_t { kAlpha, kBeta, kStable };

// The instances a factory may refer to: those its descriptor's `references` names exist already.
class PluginLookup {
 public:
  virtual ~PluginLookup() = default;
  virtual Plugin* find(std::string_view name) const = 0;
};

// What a factory may use. Valid during the call; registries outlive the instance.
struct PluginFactoryContext {
  std::string_view name;           // instance name
  const config::Node* parameters;  // nullptr when absent
  std::string path;                // for errors: "plugins[2].parameters"
  telemetry::MetricRegistry& metrics;
  const Clock& clock;
  size_t loops;  // event loops that will call the instance
  // Time between scrapes of an endpoint.
  Duration scrape_interval = std::chrono::milliseconds(200);
  WarmState* warm = nullptr;  // nullptr: state starts cold and ends with the instance
  const PluginLookup* plugins = nullptr;
  Outside* outside = nullptr;  // nullptr: there is no way out
};

// One line of a registry table.
struct PluginDescriptor {
  std::string_view type;
  Stability stability = Stability::kBeta;
  std::string_view summary;  // one sentence
  Result<std::unique_ptr<Plugin>> (*create)(const PluginFactoryContext&) = nullptr;
  // Parameters for the documentation; nullptr: takes none.
  std::vector<config::ParamDoc> (*describe)() = nullptr;
  std::string_view replaced_by = {};  // deprecated types
  // Names of the instances the parameters refer to: those are created first. nullptr: none.
  std::vector<std::string> (*references)(const config::Node* parameters) = nullptr;
};

}  // namespace penstock
