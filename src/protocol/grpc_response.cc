#include "protocol/grpc_response.h"

#include <google/cloud/aiplatform/v1beta1/prediction_service.pb.h>
#include <vllm/grpc/engine/vllm_engine.pb.h>

#include <algorithm>

#include "protocol/usage.h"

namespace penstock::protocol {
namespace {

template <typename Message>
bool read_message(std::string_view payload, Message& message) {
  return message.ParseFromArray(payload.data(), static_cast<int>(payload.size()));
}

}  // namespace

GrpcResponse::GrpcResponse(ApiKind api, size_t max_usage_bytes) : api_(api) {
  if (api != ApiKind::kVertexChatCompletions && api != ApiKind::kVertexRawPredict) return;
  ResponseReader::Options options;
  options.api = api == ApiKind::kVertexChatCompletions ? ApiKind::kChatCompletions : ApiKind::kResponses;
  options.max_usage_bytes = max_usage_bytes;
  inner_ = std::make_unique<ResponseReader>(options);
  // Lines of bare JSON are read like events, so one reader serves both kinds of answers.
  inner_->begin(200, "text/event-stream", {});
}

bool GrpcResponse::reads(ApiKind api) {
  return api == ApiKind::kVllmGrpcGenerate || api == ApiKind::kVllmGrpcEmbed ||
         api == ApiKind::kVertexChatCompletions || api == ApiKind::kVertexRawPredict;
}

void GrpcResponse::feed(std::string_view piece) {
  while (!piece.empty()) {
    if (!in_message_) {
      // Whole headers in one piece are read in place.
      std::string_view header = piece;
      if (!header_.empty() || piece.size() < kGrpcHeaderBytes) {
        const size_t taken = std::min(kGrpcHeaderBytes - header_.size(), piece.size());
        header_.append(piece.substr(0, taken));
        piece.remove_prefix(taken);
        if (header_.size() < kGrpcHeaderBytes) return;
        header = header_;
      } else {
        piece.remove_prefix(kGrpcHeaderBytes);
      }
      const GrpcHeader read = read_grpc_header(header);
      header_.clear();
      kept_.clear();
      in_message_ = true;
      open_bytes_ = read.length;
      passed_over_ = read.compressed || read.length > kMaxMessageBytes;
    }
    const std::string_view part = piece.substr(0, open_bytes_);
    piece.remove_prefix(part.size());
    open_bytes_ -= part.size();
    if (open_bytes_ != 0) {
      if (!passed_over_) kept_.append(part);
      continue;
    }
    in_message_ = false;
    if (passed_over_) {
      first_token_ = true;
    } else if (kept_.empty()) {
      message(part);
    } else {
      kept_.append(part);
      message(kept_);
      kept_.clear();
    }
  }
}

void GrpcResponse::finish() {
  if (inner_ != nullptr) inner_->finish(unused_);
}

void GrpcResponse::message(std::string_view payload) {
  if (inner_ != nullptr) {
    http_body(payload);
  } else if (api_ == ApiKind::kVllmGrpcGenerate) {
    generate(payload);
  } else {
    embed(payload);
  }
}

void GrpcResponse::merge(uint64_t prompt, uint64_t completion, uint64_t total,
                         std::optional<uint64_t> cached) {
  if (prompt == 0 && completion == 0) return;
  Usage found;
  found.prompt_tokens = prompt;
  found.completion_tokens = completion;
  found.total_tokens = total;
  found.cached_tokens = cached;
  merge_usage(usage_, found);
  has_usage_ = true;
}

void GrpcResponse::generate(std::string_view payload) {
  vllm::grpc::engine::GenerateResponse response;
  if (!read_message(payload, response)) return;
  if (response.has_chunk()) {
    const auto& chunk = response.chunk();
    ++events_;
    first_token_ = first_token_ || chunk.token_ids_size() > 0;
    merge(chunk.prompt_tokens(), chunk.completion_tokens(),
          uint64_t{chunk.prompt_tokens()} + chunk.completion_tokens(), chunk.cached_tokens());
  } else if (response.has_complete()) {
    const auto& complete = response.complete();
    first_token_ = true;
    merge(complete.prompt_tokens(), complete.completion_tokens(),
          uint64_t{complete.prompt_tokens()} + complete.completion_tokens(), complete.cached_tokens());
  }
}

void GrpcResponse::embed(std::string_view payload) {
  vllm::grpc::engine::EmbedResponse response;
  if (!read_message(payload, response)) return;
  first_token_ = true;
  merge(response.prompt_tokens(), 0, response.prompt_tokens(), std::nullopt);
}

void GrpcResponse::http_body(std::string_view payload) {
  google::cloud::aiplatform::v1beta1::RawHttpBody body;
  if (!read_message(payload, body) || body.data().empty()) return;
  const std::string_view data = body.data();
  inner_has_events_ = inner_has_events_ || data.find("data:") == 0 || data.find("\ndata:") != data.npos ||
                      body.content_type().find("event-stream") != std::string::npos;
  unused_.clear();
  inner_->feed(data, unused_);
  // A message of bare JSON ends its document; events bring their own line ends.
  if (!inner_has_events_) inner_->feed("\n\n", unused_);
  first_token_ = first_token_ || !inner_has_events_ || inner_->first_token_seen();
}

const Usage* GrpcResponse::usage() const {
  if (inner_ != nullptr) return inner_->usage();
  return has_usage_ ? &usage_ : nullptr;
}

uint64_t GrpcResponse::events() const {
  if (inner_ == nullptr) return events_;
  return inner_has_events_ ? inner_->events() : 0;
}

}  // namespace penstock::protocol
