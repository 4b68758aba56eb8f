#include <cstdint>
#include <cstdlib>
#include <string>

#include "io/detail/http1_codec.h"

namespace {

struct Outcome {
  std::string body;
  size_t consumed = 0;
  bool done = false;
  bool error = false;
};

Outcome decode(std::string bytes, size_t step) {
  penstock::io::detail::ChunkDecoder decoder;
  Outcome out;
  size_t have = 0;
  while (!out.done && !out.error) {
    if (have == bytes.size() && out.consumed == have) break;
    have = std::min(have + step, bytes.size());
    const auto result = decoder.decode(bytes.data() + out.consumed, have - out.consumed, 512);
    if (result.consumed > have - out.consumed) std::abort();
    out.body += result.payload;
    out.consumed += result.consumed;
    out.done = result.done;
    out.error = result.error;
    if (result.consumed == 0 && have == bytes.size() && !out.done && !out.error) std::abort();
  }
  return out;
}

}  // namespace

// The body is the same whether the bytes come at once or split.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  const Outcome whole = decode(bytes, bytes.size() + 1);
  const Outcome split = decode(bytes, 1 + data[0] % 17);
  if (whole.error != split.error || whole.done != split.done || whole.body != split.body) std::abort();
  if (whole.done && whole.consumed != split.consumed) std::abort();
  return 0;
}
