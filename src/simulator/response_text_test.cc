#include "simulator/response_text.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "simulator/recorded_exchange.h"

namespace penstock::simulator {
namespace {

using nlohmann::json;

constexpr const char* kFingerprint = "vllm-0.32.0-6ad402ff";

FinishReason finish_of(const json& reason) {
  if (reason.is_null()) return FinishReason::kNone;
  return reason == "stop" ? FinishReason::kStop : FinishReason::kLength;
}

ResponseContext context_of(EngineApi api, const json& recorded) {
  ResponseContext c;
  c.api = api;
  c.id = recorded.value("id", recorded.value("request_id", ""));
  c.created =
      recorded.contains("created") ? recorded["created"].get<int64_t>() : recorded.value("created_at", 0);
  static std::vector<std::unique_ptr<std::string>> kept;
  kept.push_back(std::make_unique<std::string>(recorded.value("model", "")));
  c.model = *kept.back();
  c.fingerprint = kFingerprint;
  c.prompt_tokens_details = true;
  return c;
}

Usage usage_of(const json& u) {
  Usage usage;
  usage.prompt_tokens = u["prompt_tokens"];
  usage.completion_tokens = u["completion_tokens"];
  if (u.contains("prompt_tokens_details")) {
    usage.cached_tokens = u["prompt_tokens_details"]["cached_tokens"];
    if (u["prompt_tokens_details"].contains("created_cache_tokens") &&
        !u["prompt_tokens_details"]["created_cache_tokens"].is_null())
      usage.created_cache_tokens = u["prompt_tokens_details"]["created_cache_tokens"];
  }
  return usage;
}

class Unary : public testing::TestWithParam<const char*> {};

TEST_P(Unary, ChatAndCompletionBodiesAreTheRealEnginesByteForByte) {
  const recorded::Exchange exchange = recorded::load(std::string("http/") + GetParam());
  const json body = json::parse(exchange.body);
  const bool chat = body["object"] == "chat.completion";
  ResponseContext c = context_of(chat ? EngineApi::kChat : EngineApi::kCompletions, body);
  std::vector<std::string> texts;
  std::vector<std::string> stops;
  std::vector<std::vector<uint32_t>> ids;
  for (const json& choice : body["choices"]) {
    texts.push_back(chat ? choice["message"]["content"] : choice["text"]);
    stops.push_back(choice["stop_reason"].is_string() ? choice["stop_reason"].get<std::string>() : "");
    ids.push_back(choice["token_ids"].is_null() ? std::vector<uint32_t>{}
                                                : choice["token_ids"].get<std::vector<uint32_t>>());
  }
  std::vector<uint32_t> prompt;
  if (chat && !body["prompt_token_ids"].is_null()) {
    c.return_token_ids = true;
    prompt = body["prompt_token_ids"].get<std::vector<uint32_t>>();
    c.prompt_tokens = prompt;
  }
  std::vector<ChoiceText> choices;
  for (size_t i = 0; i < texts.size(); ++i)
    choices.push_back({static_cast<uint32_t>(i), texts[i], finish_of(body["choices"][i]["finish_reason"]),
                       stops[i], ids[i]});
  std::string out;
  append_response(out, c, choices, usage_of(body["usage"]));
  EXPECT_EQ(out, exchange.body);
}

INSTANTIATE_TEST_SUITE_P(Recorded, Unary,
                         testing::Values("chat", "chat_lora", "chat_stop_string", "chat_token_ids",
                                         "error_bad_role", "completion", "completion_list",
                                         "completion_tokens", "completion_cached_usage_again",
                                         "header_request_id"));

class Streamed : public testing::TestWithParam<const char*> {};

TEST_P(Streamed, ChatAndCompletionEventsAreTheRealEnginesByteForByte) {
  const recorded::Exchange exchange = recorded::load(std::string("http/") + GetParam());
  std::vector<json> events;
  size_t at = 0;
  while (at < exchange.body.size()) {
    const size_t end = exchange.body.find("\n\n", at);
    const std::string data = exchange.body.substr(at + 6, end - at - 6);
    if (data != "[DONE]") events.push_back(json::parse(data));
    at = end + 2;
  }
  const bool chat = events[0]["object"] == "chat.completion.chunk";
  ResponseContext c = context_of(chat ? EngineApi::kChat : EngineApi::kCompletions, events[0]);
  c.include_usage = events.back()["choices"].empty();
  c.continuous_usage = events[0].contains("usage");
  Usage usage;
  if (c.include_usage) usage = usage_of(events.back()["usage"]);
  uint32_t choices = 0;
  std::string out;
  uint32_t sequence = 0;
  bool started = false;
  for (const json& event : events) {
    for (const json& choice : event["choices"])
      choices = std::max(choices, choice["index"].get<uint32_t>() + 1);
  }
  for (const json& event : events) {
    if (event["choices"].empty()) continue;
    const json& choice = event["choices"][0];
    if (chat && choice["delta"].contains("role")) {
      if (!started) append_stream_start(out, c, choices, usage);
      started = true;
      continue;
    }
    Usage running = usage;
    if (event.contains("usage")) running.completion_tokens = event["usage"]["completion_tokens"];
    const std::string text = chat ? choice["delta"]["content"] : choice["text"];
    append_stream_delta(out, c, {choice["index"], text, finish_of(choice["finish_reason"]), {}, {}}, running,
                        sequence);
  }
  append_stream_end(out, c, {}, usage, sequence);
  EXPECT_EQ(out, exchange.body);
}

INSTANTIATE_TEST_SUITE_P(Recorded, Streamed,
                         testing::Values("chat_stream", "chat_stream_usage", "chat_stream_continuous_usage",
                                         "chat_stream_empty_options", "chat_stream_n2",
                                         "chat_stream_interval", "completion_stream",
                                         "completion_stream_usage", "completion_stream_list",
                                         "header_request_id_stream"));

TEST(ResponseText, MessagesBodyIsTheRealEnginesByteForByte) {
  const recorded::Exchange exchange = recorded::load("http/messages");
  const json body = json::parse(exchange.body);
  const std::string text = body["content"][0]["text"];
  std::string out;
  const ChoiceText choice{0, text, FinishReason::kLength, {}, {}};
  append_response(out, context_of(EngineApi::kMessages, body), std::span(&choice, 1), {12, 6, 0, 0});
  EXPECT_EQ(out, exchange.body);
}

TEST(ResponseText, MessagesStreamIsTheRealEnginesByteForByte) {
  const recorded::Exchange exchange = recorded::load("http/messages_stream");
  ResponseContext c;
  c.api = EngineApi::kMessages;
  c.model = "tiny";
  c.id = exchange.body.substr(exchange.body.find("chatcmpl-"), 25);
  std::string out;
  uint32_t sequence = 0;
  append_stream_start(out, c, 1, {12, 0, 0, 0});
  std::string whole;
  for (const char* text : {"\xef\xbf\xbdict", "othing", " 3003", " морю", " 230"}) {
    append_stream_delta(out, c, {0, text, FinishReason::kNone, {}, {}}, {}, sequence);
    whole += text;
  }
  append_stream_end(out, c, {0, whole, FinishReason::kLength, {}, {}}, {12, 6, 0, 0}, sequence);
  EXPECT_EQ(out, exchange.body);
}

TEST(ResponseText, ResponsesBodyIsTheRealEnginesByteForByte) {
  const recorded::Exchange exchange = recorded::load("http/responses");
  const json body = json::parse(exchange.body);
  ResponseContext c = context_of(EngineApi::kResponses, body);
  c.item_id = body["output"][0]["id"];
  c.temperature = 0;
  c.max_tokens = 6;
  const std::string text = body["output"][0]["content"][0]["text"];
  const ChoiceText choice{0, text, FinishReason::kLength, {}, {}};
  std::string out;
  append_response(out, c, std::span(&choice, 1), {12, 6, 0, 0});
  EXPECT_EQ(out, exchange.body);
}

TEST(ResponseText, ResponsesStreamIsTheRealEnginesByteForByte) {
  const recorded::Exchange exchange = recorded::load("http/responses_stream");
  const json first = json::parse(exchange.body.substr(
      exchange.body.find("data: ") + 6, exchange.body.find("\n\n") - exchange.body.find("data: ") - 6));
  ResponseContext c = context_of(EngineApi::kResponses, first["response"]);
  c.item_id = exchange.body.substr(exchange.body.find("msg_"), 20);
  c.temperature = 0;
  c.max_tokens = 6;
  std::string out;
  uint32_t sequence = 4;
  append_stream_start(out, c, 1, {12, 0, 0, 0});
  std::string whole;
  for (const char* text : {"\xef\xbf\xbdict", "othing 3003", " морю", " 230"}) {
    append_stream_delta(out, c, {0, text, FinishReason::kNone, {}, {}}, {}, sequence);
    whole += text;
  }
  append_stream_end(out, c, {0, whole, FinishReason::kLength, {}, {}}, {12, 6, 0, 0}, sequence);
  EXPECT_EQ(out, exchange.body);
}

TEST(ResponseText, GenerateBodyAndStreamAreTheRealEnginesByteForByte) {
  const recorded::Exchange unary = recorded::load("http/generate");
  const json body = json::parse(unary.body);
  const std::vector<uint32_t> tokens = {209, 209, 209, 209};
  const ChoiceText whole{0, {}, FinishReason::kLength, {}, tokens};
  std::string out;
  append_response(out, context_of(EngineApi::kGenerate, body), std::span(&whole, 1), {2, 4, 0, 0});
  EXPECT_EQ(out, unary.body);

  const recorded::Exchange streamed = recorded::load("http/generate_stream");
  ResponseContext c;
  c.api = EngineApi::kGenerate;
  c.id = streamed.body.substr(streamed.body.find("generate-tokens-"), 32);
  out.clear();
  uint32_t sequence = 0;
  append_stream_start(out, c, 1, {});
  for (uint32_t i = 1; i <= 4; ++i) {
    const ChoiceText one{
        0, {}, i == 4 ? FinishReason::kLength : FinishReason::kNone, {}, std::span(tokens).first(1)};
    append_stream_delta(out, c, one, {2, i, 0, 0}, sequence);
  }
  append_stream_end(out, c, whole, {2, 4, 0, 0}, sequence);
  EXPECT_EQ(out, streamed.body);
}

}  // namespace
}  // namespace penstock::simulator
