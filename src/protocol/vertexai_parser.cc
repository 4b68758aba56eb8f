#include "protocol/vertexai_parser.h"

#include <google/cloud/aiplatform/v1beta1/prediction_service.pb.h>

#include <cstring>
#include <limits>

#include "protocol/body_members.h"
#include "protocol/grpc_message.h"

namespace penstock::protocol {
namespace {

namespace vertex = google::cloud::aiplatform::v1beta1;

constexpr std::string_view kSuffixes[] = {
    ".PredictionService/ChatCompletions", ".PredictionService/StreamRawPredict",
    ".PredictionService/RawPredict",      "PredictionService/ChatCompletions",
    "PredictionService/StreamRawPredict", "PredictionService/RawPredict"};

// The HttpBody's bytes, followed by padding, in the arena.
template <typename Message>
Result<PaddedBody> http_body(std::string_view payload, std::string_view type, Arena& arena) {
  Message message;
  if (payload.size() > static_cast<size_t>(std::numeric_limits<int>::max()) ||
      !message.ParseFromArray(payload.data(), static_cast<int>(payload.size()))) {
    return bad_request("error unmarshaling " + std::string(type));
  }
  if (!message.has_http_body()) return bad_request(std::string(type) + " has no HttpBody");
  const std::string& data = message.http_body().data();
  const std::span<char> copy = arena.make_span<char>(data.size() + kBodyPadding);
  std::memcpy(copy.data(), data.data(), data.size());
  std::memset(copy.data() + data.size(), 0, kBodyPadding);
  return PaddedBody{copy.data(), data.size()};
}

}  // namespace

std::span<const std::string_view> VertexAiParser::path_suffixes() const {
  return kSuffixes;
}

Result<ParsedBody> VertexAiParser::parse(std::string_view path, std::span<const HeaderField> headers,
                                         const PaddedBody& body, Arena& arena) const {
  const bool chat = path.ends_with("PredictionService/ChatCompletions");
  const bool stream = path.ends_with("PredictionService/StreamRawPredict");
  if (!chat && !stream && !path.ends_with("PredictionService/RawPredict")) {
    ParsedBody unread;
    unread.skip_response = true;
    return unread;
  }
  const Result<std::string_view> payload = first_grpc_message(body.view());
  if (!payload.ok()) return payload.error();
  const Result<PaddedBody> json =
      chat     ? http_body<vertex::ChatCompletionsRequest>(*payload, "ChatCompletionsRequest", arena)
      : stream ? http_body<vertex::StreamRawPredictRequest>(*payload, "StreamRawPredictRequest", arena)
               : http_body<vertex::RawPredictRequest>(*payload, "RawPredictRequest", arena);
  if (!json.ok()) return json.error();
  Result<ParsedBody> parsed = json_.parse(chat ? "/chat/completions" : "/responses", headers, *json, arena);
  if (!parsed.ok()) return parsed;
  // Places within the inner body mean nothing in the outer one.
  parsed->api = chat ? ApiKind::kVertexChatCompletions : ApiKind::kVertexRawPredict;
  parsed->model_literals = {};
  parsed->rewritable = false;
  parsed->model_insert_offset = 0;
  parsed->model_insert_comma = false;
  return parsed;
}

}  // namespace penstock::protocol
