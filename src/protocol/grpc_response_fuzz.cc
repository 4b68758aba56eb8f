// First byte: API and size of the pieces. Rest: the answer. Whole and in pieces must read alike.

#include <cstdlib>

#include "protocol/grpc_response.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace penstock;
  if (size == 0) return 0;
  constexpr ApiKind kApis[] = {ApiKind::kVllmGrpcGenerate, ApiKind::kVllmGrpcEmbed,
                               ApiKind::kVertexChatCompletions, ApiKind::kVertexRawPredict};
  const ApiKind api = kApis[data[0] % 4];
  const size_t step = 1 + data[0] / 4;
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  protocol::GrpcResponse whole(api, 16 * 1024);
  protocol::GrpcResponse split(api, 16 * 1024);
  whole.feed(bytes);
  for (size_t at = 0; at < bytes.size(); at += step) split.feed(bytes.substr(at, step));
  whole.finish();
  split.finish();
  const auto require = [](bool condition) {
    if (!condition) std::abort();
  };
  require((whole.usage() == nullptr) == (split.usage() == nullptr));
  require(whole.events() == split.events());
  require(whole.first_token_seen() == split.first_token_seen());
  if (whole.usage() != nullptr) {
    require(whole.usage()->prompt_tokens == split.usage()->prompt_tokens);
    require(whole.usage()->total_tokens == split.usage()->total_tokens);
    require(whole.usage()->cached_tokens == split.usage()->cached_tokens);
  }
  return 0;
}
