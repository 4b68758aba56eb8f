#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "telemetry/trace.h"

// A context that is taken is written as version 00 and read back the same.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  namespace telemetry = penstock::telemetry;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  if (telemetry::usable_tracestate(text) && text.find('\n') != text.npos) std::abort();
  const auto context = telemetry::parse_traceparent(text);
  if (!context) return 0;
  std::array<char, telemetry::kTraceparentSize> written{};
  telemetry::format_traceparent(*context, written);
  const std::string_view again(written.data(), written.size());
  if (again.substr(2) != text.substr(2, telemetry::kTraceparentSize - 2)) std::abort();
  const auto back = telemetry::parse_traceparent(again);
  if (!back || back->trace_id != context->trace_id || back->span_id != context->span_id ||
      back->flags != context->flags) {
    std::abort();
  }
  return 0;
}
