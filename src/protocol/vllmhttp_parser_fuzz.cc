// First byte: vLLM's or SGLang's generate. Rest: the body.

#include "protocol/parser_fuzzing.h"
#include "protocol/sglanghttp_parser.h"
#include "protocol/vllmhttp_parser.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace penstock::protocol;
  if (size == 0) return 0;
  static const VllmHttpParser vllm;
  static const SglangHttpParser sglang;
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  if (data[0] % 2 == 0) {
    check_parser(vllm, "/inference/v1/generate", text);
  } else {
    check_parser(sglang, "/generate", text);
  }
  return 0;
}
