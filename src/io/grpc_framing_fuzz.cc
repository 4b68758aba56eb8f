#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "base/escapes.h"
#include "io/grpc.h"

namespace {

using penstock::io::GrpcFrameDecoder;

// Messages, then how it ended: "more", "boundary" or the error's number.
std::vector<std::string> decode(std::string_view bytes, size_t step, GrpcFrameDecoder::Encoding encoding) {
  constexpr size_t kLimit = 64UL * 1024;
  GrpcFrameDecoder decoder(kLimit, encoding);
  std::vector<std::string> out;
  while (!bytes.empty()) {
    // A copy of its own, so that the sanitizer sees what is used for too long.
    const std::string piece(bytes.substr(0, step));
    bytes.remove_prefix(piece.size());
    decoder.feed(piece);
    for (;;) {
      const bool ready = decoder.ready();
      const auto message = decoder.next();
      if (ready != (!message.ok() || message->has_value())) std::abort();
      if (!message.ok()) {
        out.push_back(std::to_string(static_cast<int>(message.error().code)));
        return out;
      }
      if (!message->has_value()) break;
      if ((*message)->size() > kLimit) std::abort();
      out.emplace_back(**message);
    }
  }
  out.emplace_back(decoder.at_boundary() ? "boundary" : "more");
  return out;
}

}  // namespace

// First byte: encoding and how the rest is split. However it is split, the outcome is the same.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  const auto encoding = static_cast<GrpcFrameDecoder::Encoding>(data[0] % 3);
  const size_t step = 1 + data[0] / 4U % 16;
  if (decode(bytes, step, encoding) != decode(bytes, bytes.size(), encoding)) std::abort();
  (void)penstock::percent_decode(bytes);
  if (penstock::percent_decode(penstock::io::grpc_encode_message(bytes)) != bytes) std::abort();
  (void)penstock::io::parse_grpc_timeout(bytes);
  return 0;
}
