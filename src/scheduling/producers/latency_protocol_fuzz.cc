#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "scheduling/producers/latency_protocol.h"

// An answer of a latency predictor to as many rows as the first byte says.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const size_t rows = data[0] % 8;
  const std::string_view body(reinterpret_cast<const char*>(data) + 1, size - 1);
  const auto times = penstock::scheduling::parse_predictions(body, rows);
  if (!times.ok()) return 0;
  if (times->size() != rows) std::abort();
  for (const penstock::scheduling::LatencyTimes& one : *times) {
    for (const double value : {one.ttft_ms, one.tpot_ms, one.ttft_error_ms, one.tpot_error_ms}) {
      if (!(value >= 0) || !std::isfinite(value)) std::abort();
    }
  }
  return 0;
}
