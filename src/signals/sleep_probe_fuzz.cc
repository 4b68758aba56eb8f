#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "signals/sleep_probe.h"

// The answer of an engine. Whatever it is, an answer that says something names the member.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view body(reinterpret_cast<const char*>(data), size);
  const auto asleep = penstock::signals::parse_sleep_answer(body);
  if (asleep && size > penstock::signals::kMaxSleepAnswer) std::abort();
  return 0;
}
