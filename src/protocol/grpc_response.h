#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "inference/request.h"
#include "protocol/grpc_message.h"
#include "protocol/response_reader.h"

namespace penstock::protocol {

// Reads the gRPC answers of vLLM's engine service and of Vertex AI's PredictionService while they pass, in
// whatever pieces they come; the bytes themselves are never changed. A message that is compressed, broken or
// longer than kMaxMessageBytes is passed over. Part of a ResponseReader.
//
// vLLM: usage of a chunk or completion counts when its prompt or completion count is not 0, with the cached
// count even where it is 0; each stream chunk is an event. Vertex: the data of each HttpBody is read as an
// OpenAI answer, JSON or events.
class GrpcResponse {
 public:
  static constexpr size_t kMaxMessageBytes = 1 << 20;

  // REQUIRES: reads(api).
  GrpcResponse(ApiKind api, size_t max_usage_bytes);
  // Whether answers of this API come in gRPC messages.
  static bool reads(ApiKind api);

  void feed(std::string_view piece);
  void finish();

  const Usage* usage() const;
  uint64_t events() const;
  bool first_token_seen() const { return first_token_; }
  bool error_seen() const { return inner_ != nullptr && inner_->error_seen(); }

 private:
  void message(std::string_view payload);
  void generate(std::string_view payload);
  void embed(std::string_view payload);
  void http_body(std::string_view payload);
  void merge(uint64_t prompt, uint64_t completion, uint64_t total, std::optional<uint64_t> cached);

  ApiKind api_;
  std::string header_;     // of a split message
  std::string kept_;       // payload of a split message so far
  size_t open_bytes_ = 0;  // of the current message still to come
  bool in_message_ = false;
  bool passed_over_ = false;  // the current message is not read

  bool has_usage_ = false;
  Usage usage_;
  uint64_t events_ = 0;
  bool first_token_ = false;

  // Vertex: the OpenAI reader of what is inside.
  std::unique_ptr<ResponseReader> inner_;
  std::vector<std::string_view> unused_;
  bool inner_has_events_ = false;
};

}  // namespace penstock::protocol
