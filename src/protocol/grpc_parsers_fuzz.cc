// First byte: the method. Rest: the payload of one message, or, with the high bit set, the whole body.

#include "protocol/grpc_testing.h"
#include "protocol/parser_fuzzing.h"
#include "protocol/vertexai_parser.h"
#include "protocol/vllmgrpc_parser.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace penstock::protocol;
  if (size == 0) return 0;
  static const VllmGrpcParser vllm;
  static const VertexAiParser vertex;
  const std::string_view rest(reinterpret_cast<const char*>(data) + 1, size - 1);
  const std::string body = (data[0] & 0x80U) != 0 ? std::string(rest) : grpc_frame(rest);
  switch (data[0] % 5) {
    case 0:
      check_parser(vllm, "/vllm.grpc.engine.VllmEngine/Generate", body);
      break;
    case 1:
      check_parser(vllm, "/vllm.grpc.engine.VllmEngine/Embed", body);
      break;
    case 2:
      check_parser(vertex, "/google.cloud.aiplatform.v1beta1.PredictionService/ChatCompletions", body);
      break;
    case 3:
      check_parser(vertex, "/google.cloud.aiplatform.v1beta1.PredictionService/RawPredict", body);
      break;
    default:
      check_parser(vertex, "/google.cloud.aiplatform.v1beta1.PredictionService/StreamRawPredict", body);
  }
  return 0;
}
