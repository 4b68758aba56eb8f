#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_set>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/random.h"
#include "base/result.h"
#include "io/http_server.h"
#include "simulator/engine_model.h"
#include "simulator/faults.h"
#include "simulator/metrics_page.h"
#include "simulator/request_body.h"
#include "simulator/response_store.h"
#include "simulator/response_text.h"
#include "simulator/sim_engine.h"

namespace penstock::simulator {

// The HTTP side of one simulated engine: routes, bodies, faults and the model's timer. One loop's.
//
// A generation's life: read and parsed -> checked -> sequences in the model -> tokens arrive by pump() ->
// written. Whoever leaves early (client gone, write failed, fault) aborts what is left of its sequences in
// Generation's destructor, so slots and blocks never leak.
class EngineServer final : public io::HttpHandler {
 public:
  struct Settings {
    std::vector<std::string> models;
    std::vector<std::pair<std::string, std::string>> adapters;  // name, path
    MetricsDialect dialect = MetricsDialect::kVllm;
    std::string version;
    std::string api_key;
    uint64_t seed = 0;
    EngineModel::Options model;
    uint32_t output_tokens = 0;
    bool prompt_tokens_details = false;
    bool request_id_headers = false;
    bool force_usage = false;
    size_t max_body_bytes = 0;
    size_t record_requests = 0;
    size_t responses_store = 0;
    std::vector<std::string> faults;
  };
  static Result<Settings> settings_of(const SimEngineOptions& options);

  EngineServer(io::Loop& loop, const Settings& settings);
  void set_port(uint16_t port) { port_ = port; }

  io::Task<void> handle(io::HttpExchange& exchange) override;

 private:
  struct Adapter {
    std::string name;
    std::string path;
    int index = -1;
    bool listed = true;  // false once unloaded; sequences may still run
  };
  struct Generation;
  struct Choice {
    Generation* generation = nullptr;
    EngineModel::Sequence* sequence = nullptr;  // null once its last token arrived
    uint32_t index = 0;
    uint32_t prompt = 0;
    size_t text_limit = SIZE_MAX;  // bytes before a stop string
    std::string_view stop;         // that stop string
    std::string text;
    size_t sent = 0;  // bytes of text already in a stream
    std::vector<uint32_t> tokens;
    size_t tokens_sent = 0;
    FinishReason finish = FinishReason::kNone;
  };
  class TokensAwaiter;
  class BodyWriter;
  struct Route;
  using HeaderList = std::vector<io::HeaderField>;

  static const Route* find_route(std::string_view path);
  io::Task<void> serve(io::HttpExchange& x, const Route& route);
  io::Task<void> generate(io::HttpExchange& x, EngineApi api, const Fault* fault, EngineRequest& request);
  io::Task<void> stream(io::HttpExchange& x, Generation& g, const Fault* fault);
  io::Task<void> answer_body(io::HttpExchange& x, const Route& route);
  // What a request is to suffer: its own `x-sim-fault`, else one of those that are set. Error: no such fault.
  Result<std::optional<Fault>> fault_of(const io::RequestHead& head, const Route& route,
                                        std::string_view model);
  // Delays and refuses as the fault says; false: the exchange is over.
  io::Task<bool> suffer(io::HttpExchange& x, const Route& route, const Fault& fault, TimePoint began);
  // The JSON of what needs no generation.
  std::optional<ApiError> answer_at_once(EngineApi api, EngineRequest& request, std::string& text);
  io::Task<void> metrics(io::HttpExchange& x, std::string_view path);
  io::Task<void> health(io::HttpExchange& x);
  io::Task<void> control(io::HttpExchange& x);
  io::Task<void> management(io::HttpExchange& x);
  // GET and cancel of a response that is kept.
  io::Task<void> stored_response(io::HttpExchange& x);
  void keep_response(const Generation& g, std::span<const ChoiceText> texts);

  // Sends a whole response with the engine's usual header fields.
  io::Task<void> send(io::HttpExchange& x, int status, std::string_view content_type, std::string_view body,
                      std::span<const io::HeaderField> more = {}, bool vary = true);
  io::Task<void> refuse(io::HttpExchange& x, EngineApi api, const ApiError& error);
  void common_fields(io::HttpExchange& x, HeaderList& fields, std::string_view content_type, bool vary);
  void load_report(io::HttpExchange& x, std::string& out) const;

  std::optional<ApiError> resolve_model(EngineRequest& request, int& adapter, std::string_view& name) const;
  std::optional<ApiError> check_lengths(const EngineRequest& request) const;
  std::optional<ApiError> admit(Generation& g, EngineRequest& request);
  void plan_output(const EngineRequest& request, SequenceSpec& spec, Choice& choice) const;

  std::string models_body() const;
  std::string embeddings_body(const EngineRequest& request, std::string_view model);
  std::string tokenize_body(const EngineRequest& request) const;
  std::string state_body() const;
  std::optional<ApiError> load_adapter(const EngineRequest& request, std::string& text);
  std::optional<ApiError> unload_adapter(const EngineRequest& request, std::string& text);

  void pump();
  static void timer_fired(void* self);
  void count_http(const Route* route, std::string_view method, int status);
  void record(io::HttpExchange& x, std::string_view body);
  std::string random_hex(size_t digits);
  std::string_view date();
  TimePoint now() const { return loop_.now(); }
  static WallTime wall_now();
  static int64_t unix_now() { return static_cast<int64_t>(to_seconds(wall_now().time_since_epoch())); }

  io::Loop& loop_;
  Settings settings_;
  EngineModel model_;
  std::vector<Adapter> adapters_;
  Faults faults_;
  std::string faults_text_ = "[]";
  RequestReader reader_;
  std::vector<std::unique_ptr<EngineRequest>> idle_requests_;
  std::vector<TokenEvent> events_;
  io::Timer timer_;
  bool pumping_ = false;
  Random ids_;
  std::string fingerprint_;
  std::atomic<uint16_t> port_{0};  // set by the starting thread
  double started_at_ = 0;
  int sleep_level_ = 0;
  std::string frozen_metrics_;
  std::string date_;
  int64_t date_second_ = -1;
  std::map<std::pair<std::string, std::string>, uint64_t> http_requests_;
  std::unordered_set<uint64_t> seen_connections_;
  std::deque<std::string> recorded_;
  ResponseStore responses_;

  uint64_t requests_ = 0;  // inference requests received
  uint64_t answered_ = 0;  // completely written
  uint64_t aborted_ = 0;   // the client was gone before its answer was complete
  uint64_t refused_ = 0;   // answered with an error
  uint64_t in_flight_ = 0;
  double last_abort_after_ms_ = 0;
};

}  // namespace penstock::simulator
