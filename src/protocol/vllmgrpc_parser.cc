#include "protocol/vllmgrpc_parser.h"

#include <vllm/grpc/engine/vllm_engine.pb.h>

#include <algorithm>
#include <limits>

#include "protocol/body_members.h"
#include "protocol/grpc_message.h"
#include "protocol/prompt_estimate.h"

namespace penstock::protocol {
namespace {

namespace engine = vllm::grpc::engine;

constexpr std::string_view kSuffixes[] = {"vllm.grpc.engine.VllmEngine/Generate",
                                          "vllm.grpc.engine.VllmEngine/Embed"};
constexpr std::string_view kBroken = "invalid or unsupported gRPC payload";

template <typename Message>
bool read_message(const PaddedBody& body, Message& message) {
  const Result<std::string_view> payload = first_grpc_message(body.view());
  return payload.ok() && payload->size() <= static_cast<size_t>(std::numeric_limits<int>::max()) &&
         message.ParseFromArray(payload->data(), static_cast<int>(payload->size()));
}

std::span<const uint32_t> copy_ids(const engine::TokenizedInput& input, Arena& arena) {
  std::span<uint32_t> ids = arena.make_span<uint32_t>(static_cast<size_t>(input.input_ids_size()));
  std::copy(input.input_ids().begin(), input.input_ids().end(), ids.begin());
  return ids;
}

std::span<const MultiModalFeature> copy_features(const engine::MultimodalInputs& inputs, Arena& arena) {
  std::span<MultiModalFeature> out =
      arena.make_filled<MultiModalFeature>(static_cast<size_t>(inputs.mm_placeholders_size()));
  for (int i = 0; i < inputs.mm_placeholders_size(); ++i) {
    const engine::PlaceholderRange& range = inputs.mm_placeholders(i);
    const std::string_view hash =
        i < inputs.mm_hashes_size() ? arena.copy(inputs.mm_hashes(i)) : std::string_view();
    out[static_cast<size_t>(i)] = {"image", hash, range.offset(), range.length()};
  }
  return out;
}

std::span<const TokenizedPrompt> one_prompt(const TokenizedPrompt& prompt, Arena& arena) {
  return arena.make_filled<TokenizedPrompt>(1, prompt);
}

Result<ParsedBody> parse_generate(const PaddedBody& body, Arena& arena) {
  engine::GenerateRequest request;
  if (!read_message(body, request)) return bad_request(std::string(kBroken));
  ParsedBody out;
  out.api = ApiKind::kVllmGrpcGenerate;
  out.streaming = request.stream();
  if (request.sampling_params().has_max_tokens())
    out.max_output_tokens = request.sampling_params().max_tokens();
  switch (request.input_case()) {
    case engine::GenerateRequest::kText: {
      PromptStream stream(arena);
      stream.text(arena.copy(request.text()));
      const PromptStream* const parts[] = {&stream};
      out.prompts = one_prompt(PromptStream::assemble(parts, arena), arena);
      out.prompts_are_estimated = true;
      return out;
    }
    case engine::GenerateRequest::kTokenized:
      out.prompts = one_prompt(
          {copy_ids(request.tokenized(), arena), copy_features(request.mm_inputs(), arena)}, arena);
      return out;
    default:
      return bad_request("not supported request inputType");
  }
}

Result<ParsedBody> parse_embed(const PaddedBody& body, Arena& arena) {
  engine::EmbedRequest request;
  if (!read_message(body, request)) return bad_request(std::string(kBroken));
  if (!request.has_tokenized()) return bad_request("missing tokenized input in EmbedRequest");
  ParsedBody out;
  out.api = ApiKind::kVllmGrpcEmbed;
  out.prompts = one_prompt({copy_ids(request.tokenized(), arena), {}}, arena);
  return out;
}

}  // namespace

std::span<const std::string_view> VllmGrpcParser::path_suffixes() const {
  return kSuffixes;
}

Result<ParsedBody> VllmGrpcParser::parse(std::string_view path, std::span<const HeaderField>,
                                         const PaddedBody& body, Arena& arena) const {
  if (path.ends_with(kSuffixes[0])) return parse_generate(body, arena);
  if (path.ends_with(kSuffixes[1])) return parse_embed(body, arena);
  ParsedBody unread;
  unread.skip_response = true;
  return unread;
}

}  // namespace penstock::protocol
