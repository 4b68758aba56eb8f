#include "simulator/sim_engine.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "base/source_path_testing.h"
#include "base/strings.h"
#include "simulator/recorded_exchange.h"

namespace penstock::simulator {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;
using namespace std::chrono_literals;

// A blocking client of one connection.
class Client {
 public:
  explicit Client(uint16_t port) : fd_(socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    timeval limit{10, 0};
    setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    EXPECT_EQ(connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  }
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;
  ~Client() { close(fd_); }

  void send(std::string_view bytes) {
    EXPECT_EQ(::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL), static_cast<ssize_t>(bytes.size()));
  }
  // Whatever comes next; "" at the end, and `broken` when it was a reset or took too long.
  std::string receive() {
    char buffer[65536];
    const ssize_t n = recv(fd_, buffer, sizeof buffer, 0);
    broken = n < 0;
    return n <= 0 ? std::string() : std::string(buffer, static_cast<size_t>(n));
  }
  std::string receive_until(std::string_view text) {
    std::string out;
    while (out.find(text) == std::string::npos) {
      const std::string piece = receive();
      if (piece.empty()) break;
      out += piece;
    }
    return out;
  }
  std::string receive_all() {
    std::string out;
    for (std::string piece = receive(); !piece.empty(); piece = receive()) out += piece;
    return out;
  }
  bool broken = false;

 private:
  int fd_;
};

struct Answer {
  int status = 0;
  std::string head;  // lower case
  std::string body;
  std::string header(const std::string& name) const {
    const size_t at = head.find("\r\n" + name + ": ");
    if (at == std::string::npos) return {};
    const size_t begin = at + name.size() + 4;
    return head.substr(begin, head.find("\r\n", begin) - begin);
  }
  json parsed() const { return json::parse(body); }
};

Answer answer_of(const std::string& bytes) {
  Answer out;
  const size_t end = bytes.find("\r\n\r\n");
  if (end == std::string::npos) return out;
  out.head = ascii_lower(bytes.substr(0, end + 2));
  out.status = std::stoi(bytes.substr(9, 3));
  out.body = bytes.substr(end + 4);
  if (out.header("transfer-encoding") == "chunked") out.body = recorded::join_chunks(out.body);
  return out;
}

std::string request_text(std::string_view method, std::string_view target, std::string_view body,
                         std::string_view more = "") {
  return std::string(method) + " " + std::string(target) +
         " HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n" +
         "content-type: application/json\r\ncontent-length: " + std::to_string(body.size()) + "\r\n" +
         std::string(more) + "\r\n" + std::string(body);
}

class SimEngineTest : public testing::Test {
 protected:
  void start(SimEngineOptions options) {
    options.port = 0;
    loops_.start();
    auto started = SimEngine::start(loops_, options);
    ASSERT_TRUE(started.ok()) << started.error().message;
    sim_ = std::move(*started);
  }
  static SimEngineOptions fast() {
    SimEngineOptions options;
    options.model = {"tiny"};
    options.adapter = {"alpha=models/tiny/lora-alpha", "beta=models/tiny/lora-beta"};
    options.decode_ms = 0;
    options.prefill_tokens_per_second = 0;
    return options;
  }
  uint16_t port(size_t i = 0) const { return sim_->ports()[i]; }
  Answer call(std::string_view method, std::string_view target, std::string_view body = "",
              std::string_view more = "") {
    Client client(port());
    client.send(request_text(method, target, body, more));
    return answer_of(client.receive_all());
  }
  Answer chat(const json& more = json::object()) {
    json body = {
        {"model", "tiny"}, {"max_tokens", 4}, {"messages", {{{"role", "user"}, {"content", "hello world"}}}}};
    body.update(more);
    return call("POST", "/v1/chat/completions", body.dump());
  }
  json state() { return call("GET", "/sim/state").parsed(); }
  // Asks until it holds; the engine's own progress is what is waited for.
  template <typename F>
  bool eventually(F holds) {
    for (int i = 0; i < 2000; ++i) {
      if (holds(state())) return true;
    }
    return false;
  }
  void fault(const json& fault) {
    const Answer answer = call("POST", "/sim/faults", fault.dump());
    ASSERT_EQ(answer.status, 200) << answer.body;
  }

  io::LoopGroup loops_{1};
  std::unique_ptr<SimEngine> sim_;

  void TearDown() override {
    if (sim_) sim_->stop();
    sim_.reset();
    loops_.stop();
  }
};

// --- against the recorded engine ---

// Keys, their order, literals and types; the values that differ by nature are levelled.
ordered_json levelled(const ordered_json& value, const std::string& key = "") {
  static const std::set<std::string> kept = {
      "object",      "finish_reason", "type",   "role",   "status", "owned_by", "stop_reason",
      "output_mode", "service_tier",  "detail", "parent", "code",   "param"};
  if (value.is_object()) {
    ordered_json out = ordered_json::object();
    for (const auto& [name, member] : value.items()) out[name] = levelled(member, name);
    return out;
  }
  if (value.is_array()) {
    ordered_json out = ordered_json::array();
    for (const auto& item : value) {
      if (item.is_number()) {
        if (out.empty()) out.push_back(0);
      } else {
        out.push_back(levelled(item));
      }
    }
    return out;
  }
  if (value.is_string() && !kept.contains(key)) return "text";
  if (value.is_number() && !kept.contains(key)) return 0;
  return value;
}

// A body as lines that can be compared: JSON levelled, SSE event by event with repeats folded.
std::vector<std::string> shape(const std::string& body, const std::string& content_type) {
  std::vector<std::string> out;
  if (!content_type.starts_with("text/event-stream")) {
    if (content_type == "application/json")
      out.push_back(levelled(ordered_json::parse(body)).dump());
    else
      out.push_back(body);
    return out;
  }
  size_t at = 0;
  while (at < body.size()) {
    const size_t end = body.find("\n\n", at);
    std::string line;
    for (const std::string_view part : split(std::string_view(body).substr(at, end - at), '\n')) {
      if (part.starts_with("data: {"))
        line += "data: " + levelled(ordered_json::parse(part.substr(6))).dump();
      else
        line += std::string(part) + "|";
    }
    if (out.empty() || out.back() != line) out.push_back(line);
    at = end + 2;
  }
  return out;
}

std::set<std::string> header_names(const std::string& head) {
  std::set<std::string> names;
  for (const std::string_view line : split(head, '\n')) {
    const size_t colon = line.find(':');
    if (colon != std::string_view::npos) names.insert(std::string(line.substr(0, colon)));
  }
  return names;
}

class Recorded : public SimEngineTest, public testing::WithParamInterface<const char*> {};

TEST_P(Recorded, RequestsAreAnsweredInTheRealEnginesShape) {
  SimEngineOptions options = fast();
  options.max_model_len = 2048;
  options.block_size = 32;
  options.num_blocks = 256;
  options.enable_prompt_tokens_details = true;
  options.enable_request_id_headers = true;
  start(options);
  const std::string base = source_path("tests/vectors/vllm-0.32.0/http/") + GetParam();
  const std::string request = recorded::read_file(base + ".request");
  const Answer real = answer_of(recorded::read_file(base + ".response"));
  Client client(port());
  client.send(request);
  const Answer ours = answer_of(client.receive_all());
  EXPECT_EQ(ours.status, real.status) << ours.body;
  EXPECT_EQ(header_names(ours.head), header_names(real.head));
  EXPECT_EQ(ours.header("content-type"), real.header("content-type"));
  EXPECT_EQ(shape(ours.body, ours.header("content-type")), shape(real.body, real.header("content-type")));
}

INSTANTIATE_TEST_SUITE_P(
    Vllm, Recorded,
    testing::Values("chat", "chat_lora", "chat_no_model", "chat_stream", "chat_stream_usage",
                    "chat_stream_continuous_usage", "chat_stream_empty_options", "chat_stream_n2",
                    "chat_stream_interval", "chat_token_ids", "completion", "completion_list",
                    "completion_tokens", "completion_stream", "completion_stream_usage",
                    "completion_stream_list", "completion_cached_usage", "messages", "messages_stream",
                    "messages_count_tokens", "responses", "responses_stream", "generate", "generate_stream",
                    "tokenize_chat", "tokenize_unknown_model", "tokenize_lora", "detokenize", "get_v1_models",
                    "get_version", "get_health", "get_ping", "ping_post", "get_load", "get_is_paused",
                    "get_is_sleeping", "get_nothing_here", "method_not_allowed", "body_request_id",
                    "header_request_id", "header_request_id_stream", "header_orca_text", "header_orca_json",
                    "header_orca_stream", "header_dp_rank_out_of_range", "unknown_field", "cache_salt",
                    "cache_salt_empty", "error_unknown_model", "error_unknown_model_stream",
                    "error_unknown_model_completion", "messages_unknown_model", "error_bad_type",
                    "error_empty_body", "error_not_an_object", "error_empty_messages", "error_no_messages",
                    "error_negative_max_tokens", "error_max_tokens_too_long", "error_context_too_long",
                    "error_context_too_long_stream", "error_stream_options_without_stream",
                    "error_bad_temperature", "error_lora_load_missing", "error_lora_load_twice",
                    "error_lora_unload_unknown", "error_image_to_text_model"),
    [](const auto& info) { return std::string(info.param); });

// --- behaviour ---

TEST_F(SimEngineTest, ARepeatedPromptIsReportedAsCached) {
  SimEngineOptions options = fast();
  options.enable_prompt_tokens_details = true;
  start(options);
  const json ask = {{"messages", {{{"role", "user"}, {"content", std::string(400, 'x')}}}}};
  const json first = chat(ask).parsed();
  const json second = chat(ask).parsed();
  EXPECT_EQ(first["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
  EXPECT_EQ(second["usage"]["prompt_tokens_details"]["cached_tokens"], 96);
  EXPECT_EQ(first["choices"][0]["message"]["content"], second["choices"][0]["message"]["content"]);
  const Answer page = call("GET", "/metrics");
  EXPECT_EQ(page.header("content-type"), "text/plain; version=1.0.0; charset=utf-8");
  EXPECT_NE(page.body.find("vllm:prefix_cache_hits_total{engine=\"0\",model_name=\"tiny\"} 96.0"),
            std::string::npos);
}

TEST_F(SimEngineTest, AStopStringEndsTheAnswerBeforeIt) {
  start(fast());
  const std::string whole = chat({{"max_tokens", 30}}).parsed()["choices"][0]["message"]["content"];
  const std::string stop = whole.substr(20, 3);
  const json cut = chat({{"max_tokens", 30}, {"stop", {stop}}}).parsed();
  EXPECT_EQ(cut["choices"][0]["message"]["content"], whole.substr(0, whole.find(stop)));
  EXPECT_EQ(cut["choices"][0]["finish_reason"], "stop");
  EXPECT_EQ(cut["choices"][0]["stop_reason"], stop);
}

TEST_F(SimEngineTest, AnApiKeyProtectsOnlyV1) {
  SimEngineOptions options = fast();
  options.api_key = "secret";
  start(options);
  const Answer refused = chat();
  EXPECT_EQ(refused.status, 401);
  EXPECT_EQ(refused.body, "{\"error\":\"Unauthorized\"}");
  EXPECT_EQ(call("GET", "/v1/models").status, 401);
  EXPECT_EQ(call("GET", "/v1/models", "", "authorization: Bearer secret\r\n").status, 200);
  EXPECT_EQ(call("GET", "/health").status, 200);
}

TEST_F(SimEngineTest, AFullQueueAnswers503InTheRealEnginesWords) {
  SimEngineOptions options = fast();
  options.max_num_queued_reqs = 1;
  options.decode_ms = 50;
  start(options);
  Client busy(port());
  busy.send(request_text("POST", "/v1/completions", R"({"prompt":"x","max_tokens":1000,"stream":true})"));
  busy.receive_until("data: ");
  const Answer refused = chat();
  EXPECT_EQ(refused.status, 503);
  const Answer real =
      answer_of(recorded::read_file(source_path("tests/vectors/vllm-0.32.0/http-extra/queue_full.response")));
  EXPECT_EQ(refused.body, real.body);
  EXPECT_NE(
      call("GET", "/metrics")
          .body.find(
              "vllm:admission_rejections_total{model_name=\"tiny\",reason=\"max_num_queued_reqs\"} 1.0"),
      std::string::npos);
}

TEST_F(SimEngineTest, AClientThatLeavesFreesItsSlot) {
  SimEngineOptions options = fast();
  options.decode_ms = 20;
  start(options);
  {
    Client client(port());
    client.send(request_text("POST", "/v1/completions", R"({"prompt":"x","max_tokens":5000,"stream":true})"));
    client.receive_until("data: ");
    EXPECT_EQ(state()["running"], 1);
  }
  EXPECT_TRUE(eventually(
      [](const json& s) { return s["running"] == 0 && s["aborted"] == 1 && s["in_flight"] == 0; }));
  EXPECT_EQ(state()["requests"], 1);
}

TEST_F(SimEngineTest, AClientThatLeavesAnUnaryRequestFreesItsSlotToo) {
  SimEngineOptions options = fast();
  options.decode_ms = 20;
  start(options);
  {
    Client client(port());
    client.send(request_text("POST", "/v1/completions", R"({"prompt":"x","max_tokens":5000})"));
    EXPECT_TRUE(eventually([](const json& s) { return s["running"] == 1; }));
  }
  EXPECT_TRUE(eventually([](const json& s) { return s["running"] == 0 && s["aborted"] == 1; }));
}

TEST_F(SimEngineTest, AdaptersAreLoadedListedUsedAndUnloaded) {
  start(fast());
  const Answer loaded =
      call("POST", "/v1/load_lora_adapter", R"({"lora_name":"sql","lora_path":"adapters/sql"})");
  EXPECT_EQ(loaded.body, "Success: LoRA adapter 'sql' added successfully.");
  EXPECT_NE(call("GET", "/v1/models").body.find("\"id\":\"sql\""), std::string::npos);
  EXPECT_EQ(chat({{"model", "sql"}}).parsed()["model"], "sql");
  EXPECT_EQ(call("POST", "/v1/unload_lora_adapter", R"({"lora_name":"sql"})").status, 200);
  EXPECT_EQ(chat({{"model", "sql"}}).status, 404);
}

TEST_F(SimEngineTest, EmbeddingsAreUnitVectorsThatDependOnTheText) {
  start(fast());
  const json answer = call("POST", "/v1/embeddings", R"({"model":"tiny","input":["a","a","b"]})").parsed();
  ASSERT_EQ(answer["data"].size(), 3U);
  double norm = 0;
  for (const json& value : answer["data"][0]["embedding"]) norm += value.get<double>() * value.get<double>();
  EXPECT_NEAR(norm, 1, 1e-4);
  EXPECT_EQ(answer["data"][0]["embedding"], answer["data"][1]["embedding"]);
  EXPECT_NE(answer["data"][0]["embedding"], answer["data"][2]["embedding"]);
}

TEST_F(SimEngineTest, SeveralEnginesInOneProcessKeepTheirOwnState) {
  SimEngineOptions options = fast();
  options.count = 3;
  start(options);
  ASSERT_EQ(sim_->ports().size(), 3U);
  chat();
  EXPECT_EQ(state()["requests"], 1);
  Client other(port(2));
  other.send(request_text("GET", "/sim/state", ""));
  EXPECT_EQ(answer_of(other.receive_all()).parsed()["requests"], 0);
}

TEST_F(SimEngineTest, APausedEngineLetsRequestsWait) {
  start(fast());
  EXPECT_EQ(call("POST", "/pause").body, "{\"status\":\"paused\"}");
  Client client(port());
  client.send(request_text("POST", "/v1/completions", R"({"prompt":"x","max_tokens":2})"));
  EXPECT_TRUE(eventually([](const json& s) { return s["waiting"] == 1; }));
  EXPECT_EQ(call("POST", "/resume").body, "{\"status\":\"resumed\"}");
  EXPECT_EQ(answer_of(client.receive_all()).status, 200);
}

// --- faults ---

TEST_F(SimEngineTest, AFaultForTheNextRequestsPassesByItself) {
  start(fast());
  fault({{"status", 503}, {"count", 2}, {"retry_after", "7"}});
  const Answer first = chat();
  EXPECT_EQ(first.status, 503);
  EXPECT_EQ(first.header("retry-after"), "7");
  EXPECT_EQ(chat().status, 503);
  EXPECT_EQ(chat().status, 200);
  EXPECT_EQ(state()["requests"], 3);
  EXPECT_EQ(state()["faults_injected"], 2);
}

TEST_F(SimEngineTest, AHeaderFaultsOneRequestOnly) {
  start(fast());
  const std::string body = R"({"prompt":"x","max_tokens":2})";
  EXPECT_EQ(call("POST", "/v1/completions", body, "x-sim-fault: {\"status\": 418}\r\n").status, 418);
  EXPECT_EQ(call("POST", "/v1/completions", body).status, 200);
}

TEST_F(SimEngineTest, AResetBreaksTheStreamAfterSoManyBytes) {
  start(fast());
  fault({{"reset_after_bytes", 500}});
  Client client(port());
  client.send(request_text("POST", "/v1/completions", R"({"prompt":"x","max_tokens":50,"stream":true})"));
  const std::string all = client.receive_all();
  EXPECT_NE(all.find("data: "), std::string::npos);
  EXPECT_EQ(all.find("[DONE]"), std::string::npos);
  EXPECT_EQ(all.find("\r\n0\r\n"), std::string::npos);
}

TEST_F(SimEngineTest, ATruncatedStreamEndsCleanlyWithoutItsMarker) {
  start(fast());
  fault({{"truncate_after_events", 3}});
  const Answer answer = call("POST", "/v1/completions", R"({"prompt":"x","max_tokens":50,"stream":true})");
  EXPECT_EQ(shape(answer.body, "text/event-stream").size(), 1U);
  EXPECT_EQ(std::count(answer.body.begin(), answer.body.end(), '\n'), 6);
}

TEST_F(SimEngineTest, AStreamErrorIsAnEventFollowedByTheEnd) {
  start(fast());
  fault({{"stream_error_after_events", 2}});
  const Answer answer = call("POST", "/v1/completions", R"({"prompt":"x","max_tokens":50,"stream":true})");
  EXPECT_NE(answer.body.find("data: {\"error\":{\"message\":\"Internal server error\""), std::string::npos);
  EXPECT_TRUE(answer.body.ends_with("data: [DONE]\n\n"));
}

TEST_F(SimEngineTest, AStalledStreamEndsWhenTheClientLeaves) {
  start(fast());
  fault({{"stall_after_events", 1}});
  {
    Client client(port());
    client.send(request_text("POST", "/v1/completions", R"({"prompt":"x","max_tokens":9,"stream":true})"));
    client.receive_until("data: ");
    EXPECT_EQ(state()["in_flight"], 1);
  }
  EXPECT_TRUE(eventually([](const json& s) { return s["in_flight"] == 0 && s["aborted"] == 1; }));
}

TEST_F(SimEngineTest, ALyingContentLengthPromisesMoreThanComes) {
  start(fast());
  fault({{"lying_content_length", true}});
  const Answer answer = chat();
  EXPECT_EQ(answer.status, 200);
  EXPECT_EQ(std::stoul(answer.header("content-length")), answer.body.size() + 64);
}

TEST_F(SimEngineTest, AHangingRequestIsAnsweredNeverAndItsAbortIsSeen) {
  start(fast());
  fault({{"hang", true}});
  {
    Client client(port());
    client.send(request_text("POST", "/v1/completions", R"({"prompt":"x","max_tokens":9})"));
    EXPECT_TRUE(eventually([](const json& s) { return s["in_flight"] == 1; }));
  }
  EXPECT_TRUE(eventually([](const json& s) { return s["in_flight"] == 0 && s["aborted"] == 1; }));
}

TEST_F(SimEngineTest, HealthAndMetricsFailOnDemand) {
  start(fast());
  fault({{"health_status", 503}, {"metrics_drop", {"vllm:kv_cache_usage_perc"}}});
  EXPECT_EQ(call("GET", "/health").status, 503);
  EXPECT_EQ(call("GET", "/metrics").body.find("kv_cache_usage_perc"), std::string::npos);
  fault({{"metrics_status", 500}});
  EXPECT_EQ(call("GET", "/metrics").status, 500);
  fault({{"metrics_freeze", true}});
  const std::string frozen = call("GET", "/metrics").body;
  chat();
  EXPECT_EQ(call("GET", "/metrics").body, frozen);
  fault(json::object());
  EXPECT_NE(call("GET", "/metrics").body, frozen);
  EXPECT_EQ(call("GET", "/health").status, 200);
  EXPECT_EQ(call("POST", "/sim/faults", R"({"nonsense": 1})").status, 400);
}

TEST_F(SimEngineTest, RecordedRequestsShowEveryByte) {
  SimEngineOptions options = fast();
  options.record_requests = 2;
  start(options);
  const std::string body = R"({"prompt":"x",  "max_tokens":2})";
  call("POST", "/v1/completions", body, "x-mine: yes\r\n");
  const json seen = call("GET", "/sim/requests").parsed();
  ASSERT_EQ(seen.size(), 1U);
  EXPECT_EQ(seen[0]["body"], body);
  EXPECT_EQ(seen[0]["target"], "/v1/completions");
}

TEST_F(SimEngineTest, AKeptResponseIsShownAndGoneOnFromByItsEngineAlone) {
  SimEngineOptions options = fast();
  options.responses_store = 2;
  start(options);
  const auto respond = [&](json body) {
    body["max_output_tokens"] = 4;
    const Answer reply = call("POST", "/v1/responses", body.dump());
    EXPECT_EQ(reply.status, 200) << reply.body;
    return reply.parsed();
  };
  const json first = respond({{"input", "one two three"}});
  const std::string id = first["id"];
  EXPECT_EQ(call("GET", "/v1/responses/" + id).parsed(), first);
  const json second = respond({{"input", "four"}, {"previous_response_id", id}});
  EXPECT_EQ(second["previous_response_id"], id);
  EXPECT_GT(second["usage"]["input_tokens"], first["usage"]["total_tokens"]);
  EXPECT_EQ(call("POST", "/v1/responses/" + id + "/cancel").status, 400);
  EXPECT_EQ(call("DELETE", "/v1/responses/" + id).status, 405);
  const json unkept = respond({{"input", "five"}, {"store", false}});
  EXPECT_EQ(call("GET", "/v1/responses/" + std::string(unkept["id"])).status, 404);
  // The third one takes the place of the first.
  const Answer streamed = call("POST", "/v1/responses",
                               R"({"input":"six","stream":true,"max_output_tokens":4,"request_id":"mine"})");
  EXPECT_EQ(streamed.status, 200);
  const json third = call("GET", "/v1/responses/resp_mine").parsed();
  EXPECT_EQ(third["object"], "response");
  EXPECT_NE(third["status"], "in_progress");
  EXPECT_EQ(call("GET", "/v1/responses/" + id).status, 404);
  EXPECT_EQ(call("POST", "/v1/responses/" + id + "/cancel").status, 404);
}

// --- flags ---

TEST(SimEngineFlags, AreDecodedStrictlyFromOneTable) {
  using Flags = std::vector<std::pair<std::string, std::string>>;
  const auto options = parse_sim_engine_flags(Flags{{"port", "8100"},
                                                    {"count", "4"},
                                                    {"model", "a"},
                                                    {"model", "b"},
                                                    {"adapter", "x=y"},
                                                    {"decode-ms", "2.5"},
                                                    {"lora-load-time", "20ms"},
                                                    {"no-prefix-caching", "true"}});
  ASSERT_TRUE(options.ok()) << options.error().message;
  EXPECT_EQ(options->port, 8100);
  EXPECT_EQ(options->model, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(options->decode_ms, 2.5);
  EXPECT_EQ(options->lora_load_time, 20ms);
  EXPECT_TRUE(options->no_prefix_caching);
  EXPECT_FALSE(parse_sim_engine_flags(Flags{{"prot", "1"}}).ok());
  EXPECT_FALSE(parse_sim_engine_flags(Flags{{"port", "70000"}}).ok());
  EXPECT_FALSE(parse_sim_engine_flags(Flags{{"port", "x"}}).ok());
  const auto error = [](const Flags& flags) {
    const auto parsed = parse_sim_engine_flags(flags);
    return parsed.ok() ? std::string("no error") : parsed.error().message;
  };
  EXPECT_EQ(error({{"model", "a"}, {"model", ""}}), "sim engine: model: a name is empty");
  EXPECT_EQ(error({{"count", "1024"}, {"port", "0"}, {"num-blocks", "16000000"}}),
            "sim engine: num-blocks: 1024 engines of 16000000 blocks are more than 67108864 blocks in all");
  EXPECT_EQ(error({{"time-scale", "1e300"}}), "sim engine: time-scale: 1e+300 is not between 0 and 1000");
  EXPECT_EQ(error({{"lora-load-time", "-5s"}}),
            "sim engine: lora-load-time: -5s is not between 0s and 24h0m0s");
  for (const config::ParamDoc& doc : sim_engine_flags()) EXPECT_FALSE(doc.text.empty()) << doc.name;
}

}  // namespace
}  // namespace penstock::simulator
