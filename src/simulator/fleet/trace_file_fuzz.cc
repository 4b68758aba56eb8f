#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "simulator/fleet/trace_file.h"

// The whole input is a trace. A trace that is taken is in order of time and its prompts are as long as they
// say.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace penstock::simulator;
  const auto trace = parse_trace({reinterpret_cast<const char*>(data), size}, "fuzz", size % 2 == 0);
  if (!trace.ok()) return 0;
  penstock::Duration before{};
  for (const FleetRequest& request : trace->requests) {
    if (request.at < before || request.input_tokens == 0 || request.output_tokens == 0) std::abort();
    before = request.at;
    uint64_t sum = 0;
    for (uint32_t i = 0; i < request.pieces; ++i) sum += trace->pieces.at(request.first_piece + i).tokens;
    if (sum != request.input_tokens) std::abort();
  }
  return 0;
}
