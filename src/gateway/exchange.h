#pragma once

#include <array>
#include <memory>
#include <string_view>

#include "director/body_budget.h"
#include "gateway/core.h"
#include "gateway/framing.h"
#include "io/http.h"
#include "io/http_client.h"

namespace penstock::gateway {

// What a body holds while it is read, against the gateway's budget.
class BodyIntake final : public io::BodyBudget {
 public:
  explicit BodyIntake(director::BodyBudget& budget) : share_(budget) {}
  bool hold(uint64_t bytes) override { return share_.resize(static_cast<int64_t>(bytes)); }

 private:
  director::BodyShare share_;
};

// One exchange of a listener from its first byte to its last, as Proxy says. Its parts: exchange.cc (the way
// through, and every end), exchange_intake.cc (who calls, where to, the body, the decision),
// exchange_attempt.cc (one engine after the other), exchange_answer.cc (what goes back), exchange_service.cc
// (plain services and model lists). Lives in Proxy::handle()'s frame, on the connection's loop.
class Exchange {
 public:
  Exchange(Core& core, LoopPart& part, ListenerState& listener, io::HttpExchange& http, ExchangeState& state)
      : core_(core), part_(part), listener_(listener), http_(http), state_(state) {
    now_ = core.clock.now();
    arrived_at_ = now_;
    state_.decision_fields.clear();
    state_.total_expired = false;
  }
  // A handler that is torn down while it waits still gives back what it counted.
  ~Exchange() { end(0, "aborted", nullptr); }
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;

  io::Task<void> run();

 private:
  static constexpr size_t kMaxExcluded = 8;

  // Where a request ends: what the accounts say.
  void end(int status, std::string_view reason, const Error* error);
  // Answers with `failure_` in the client's shape, or breaks a response off that has begun. The error is a
  // member, and set in a statement of its own, because GCC 12 destroys aggregate temporaries of an
  // expression that waits twice.
  io::Task<void> fail(std::string_view reason);
  // The same after a wait that failed: the client may be gone or the time may be up.
  io::Task<void> fail_waiting(std::string_view reason);
  io::Task<void> respond_json(int status, std::string_view body);

  // Logic is in plain functions, waiting in few coroutines: a request that waits for its engine keeps the
  // frames it is nested in, and with many in flight those are what misses the cache. The plain ones set
  // `failure_` and `refusal_` when the request ends here.
  bool admit();
  bool routed_by_model() const;
  bool read_model();
  enum class Target : uint8_t { kRefused, kPool, kService, kModels };
  Target find_target();
  void begin_decision(PoolPart& pool);
  director::RequestInput decision_input() const;
  bool pool_with_response();
  bool decide(PoolPart& pool);
  Target refuse(ErrorCode code, std::string message, std::string_view reason);

  io::Task<void> serve_pool_models();
  io::Task<void> serve_service(ServiceState& service);

  // What whoever gets the request is told of its client; views of the request and of `state_`.
  RequestRules rules_of_client();
  // One attempt at an endpoint: sets `call_`, and `answer_` or `failure_`.
  io::Task<void> attempt(PoolPart& pool, const Endpoint& endpoint);
  enum class Next : uint8_t { kAnswer, kAgain, kFail };
  Next after_attempt(PoolPart& pool);
  // Books `failure_` on the endpoint, unless it says nothing about it.
  void note_failure(bool cancelled);
  bool choose_another(PoolPart& pool, std::string_view reason);
  io::Task<void> stream_back();
  io::Task<void> stream_service();
  // Reads the body into memory within the limits; false: the exchange is over.
  io::Task<bool> read_body();

  // `otherwise` holds where the rule sets no timeout; zero: none.
  void start_deadline(Duration otherwise);
  static void total_expired(void* self);
  void convert_fields();
  std::string_view endpoint_header() const {
    return core_.options.tell_endpoint ? state_.request.record.winner_host_port : std::string_view();
  }
  bool client_gone() const { return http_.cancel_token().cancelled(); }
  // Why an exchange ended whose token fired or whose client takes nothing any more.
  std::string_view gone_reason() const {
    return core_.stopping.load(std::memory_order_relaxed) ? "shutdown" : "client_disconnect";
  }

  Core& core_;
  LoopPart& part_;
  ListenerState& listener_;
  io::HttpExchange& http_;
  ExchangeState& state_;
  BodyIntake intake_{core_.bodies};
  TimePoint now_;
  TimePoint arrived_at_;
  std::string_view request_id_;
  std::string_view identity_;
  std::shared_ptr<const config::ApiKeys> keys_;
  std::shared_ptr<const RouteTable> routes_;  // keeps `rule_`
  const RouteRule* rule_ = nullptr;  // nullptr: the pool that holds a stored response, which no rule names
  size_t backend_ = 0;               // index of the pool or service
  bool all_pools_ = false;           // models of every pool are asked for
  std::shared_ptr<const UpstreamSettings> upstream_;
  director::Pool* pool_ = nullptr;  // set: the observer was started and ends the accounts
  protocol::PaddedBody body_;
  bool body_read_ = false;
  protocol::ParsedBody parsed_;  // set with `parsed_by_`, the parser's type
  std::string_view parsed_by_;
  ApiKind api_ = ApiKind::kNone;
  Error failure_;
  std::string_view refusal_;  // a literal: why the request ends, for the accounts
  io::HttpCall call_;
  const io::ResponseHead* answer_ = nullptr;
  bool sent_ = false;  // the request may have reached the engine
  uint32_t attempts_ = 0;
  uint64_t own_bytes_ = 0;  // of a body that no observer counts: the gateway's own or a service's
  std::array<EndpointSlot, kMaxExcluded> excluded_{};
  size_t excluded_count_ = 0;
  bool ended_ = false;
};

}  // namespace penstock::gateway
