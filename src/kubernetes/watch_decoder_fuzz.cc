#include "kubernetes/watch_decoder.h"

#include <cstdlib>

// However a body is cut, its events are the same; no line beyond the bound is kept.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace penstock::kubernetes;
  constexpr size_t kLimit = 4096;
  if (size < 1) return 0;
  const size_t step = 1 + data[0] % 64;
  const std::string_view body(reinterpret_cast<const char*>(data) + 1, size - 1);
  const auto read = [&](size_t piece) {
    WatchDecoder decoder(kLimit);
    std::string seen;
    for (size_t at = 0; at < body.size(); at += piece) {
      decoder.feed(body.substr(at, piece));
      while (const auto event = decoder.next()) {
        seen += std::to_string(static_cast<int>(event->type));
        seen += event->object["metadata"]["name"].text();
        seen += event->resource_version;
        seen += event->object.to_node().to_json();
      }
    }
    seen += reason_name(decoder.failure().reason);
    seen += decoder.failure().message;
    return seen;
  };
  if (body.find('\n') != std::string_view::npos && read(step) != read(body.size())) {
    // A long line that is not complete is refused as soon as that is known, which depends on the pieces.
    if (body.size() <= kLimit) std::abort();
  }
  return 0;
}
