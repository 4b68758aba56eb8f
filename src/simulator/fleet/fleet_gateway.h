#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "assembly/assembly.h"
#include "base/clock.h"
#include "base/result.h"
#include "director/director.h"
#include "director/observer.h"
#include "director/pictures.h"
#include "discovery/registry.h"
#include "inference/warm_state.h"
#include "signals/signal_table.h"
#include "simulator/engine_stats.h"
#include "simulator/fleet/policies.h"
#include "simulator/fleet/workload.h"
#include "telemetry/metrics.h"

namespace penstock::simulator {

// One gateway of a simulated fleet: registry, signal table, policy, director and observer as the product has
// them, with a clock that somebody else moves. What the network does elsewhere is done by calls: scraped()
// for a metrics page, decide() for a request, first_token() to finish() for the answer's stream.
// Not thread-safe.
class FleetGateway {
 public:
  struct Options {
    uint64_t seed = 1;
    uint32_t engines = 1;
    uint32_t block_size = 16;  // as engines report them
    uint32_t num_blocks = 0;
    uint32_t max_adapters = 0;
    Duration scrape_interval{};
    Duration staleness{};
    std::span<const FleetClass> classes;  // whose objectives there are; valid during create()
    Outside* outside = nullptr;           // for plugins that wait; outlives the gateway
  };
  // Errors are the loader's. `clock` outlives the gateway.
  static Result<std::unique_ptr<FleetGateway>> create(const FleetPolicy& policy, const Options& options,
                                                      const Clock& clock);
  ~FleetGateway();
  FleetGateway(const FleetGateway&) = delete;
  FleetGateway& operator=(const FleetGateway&) = delete;

  // Time between two looks at an engine; 0: the configuration has no metrics source.
  Duration scrape_interval() const { return scrape_interval_; }
  // Nothing is kept of an engine that is no member.
  void scraped(uint32_t engine, const EngineStats& stats);
  // The engine's endpoint leaves the pool, or joins it as one of which nothing is known. All are members at
  // first. REQUIRES: a change.
  void set_member(uint32_t engine, bool member);

  struct Prompt {
    std::string_view request_id;
    std::span<const uint32_t> tokens;  // valid during decide()
    std::string_view session;          // id, empty: none
    std::string_view session_token;    // as the session's last answer gave it, empty: none
    const FleetClass* of_class = nullptr;
    std::string_view adapter;  // empty: the base model
    int32_t only = -1;         // the one engine that may be used
  };
  // A request, until it is refused, fail() or finish().
  using Handle = uint32_t;
  // A request comes. The decision is to wait while is_waiting() says so.
  Handle ask(const Prompt& prompt);
  bool is_waiting(Handle handle) const;
  struct Choice {
    Handle handle = 0;
    uint32_t engine = 0;
    bool fallback = false;
    uint32_t attempts = 1;
    bool connected = true;  // false: none of the engines that were tried; the handle is given back
  };
  // As many engines are tried as `serve` tries: one that is not `reachable` is left for another one.
  static constexpr uint32_t kAttempts = 3;
  // `prompt` as it was in ask().
  Result<Choice> decide(Handle handle, const Prompt& prompt,
                        const std::function<bool(uint32_t engine)>& reachable);
  Result<Choice> decide(const Prompt& prompt, const std::function<bool(uint32_t engine)>& reachable) {
    return decide(ask(prompt), prompt, reachable);
  }
  // The answer begins. `session_token`: set where the policy gives the client one.
  void first_token(Handle handle, std::string& session_token);
  // Every further token, where wants_tokens().
  void token(Handle handle);
  bool wants_tokens() const { return wants_tokens_; }
  // The engine is gone before its answer was complete; the handle may be given out again.
  void fail(Handle handle);
  // The answer is complete; the handle may be given out again.
  void finish(Handle handle, uint32_t prompt_tokens, uint32_t output_tokens, uint32_t cached_tokens);

  // Requests that came and have not ended.
  size_t in_flight() const { return exchanges_.size() - idle_.size(); }
  // In flight at an engine by this gateway's own count.
  uint32_t requests_at(uint32_t engine) const;

 private:
  struct Exchange {
    director::Request request;
    director::Observer observer;
    TimePoint received_at;
  };
  struct Input;

  FleetGateway(const Options& options, const Clock& clock);
  Status load(const FleetPolicy& policy);
  // Tells the pool who is a member.
  void tell_members();
  void join(uint32_t engine);
  Handle take();
  void refuse(Handle handle, uint32_t attempts, std::string_view reason, const Error& error);
  void piece(Exchange& exchange, std::string_view text);

  const Options options_;
  const Clock& clock_;
  telemetry::MetricRegistry metrics_;
  director::RequestMetrics request_metrics_;
  discovery::SlotAllocator slots_;
  discovery::Pool members_;
  signals::SignalTable signals_;
  WarmState warm_;
  director::Pool pool_;
  std::shared_ptr<const director::Policy> policy_;
  std::unique_ptr<director::Director> director_;
  Arena spare_;

  Duration scrape_interval_{};
  bool wants_tokens_ = false;
  std::string_view parsed_by_;     // parser of the path; empty: the policy reads no prompts there
  std::vector<bool> members_now_;  // by engine
  std::vector<signals::SignalTable::Ticket> tickets_;       // by engine
  std::vector<std::shared_ptr<const Endpoint>> endpoints_;  // by engine; nullptr: no member
  std::vector<std::unique_ptr<Exchange>> exchanges_;
  std::vector<Handle> idle_;
  std::vector<std::string_view> pieces_;  // scratch
  std::string text_;                      // scratch
};

}  // namespace penstock::simulator
