#include <cstdlib>
#include <string_view>

#include "kubernetes/failure.h"

// Any body of a refusal gives a failure with a message of bounded length.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace penstock::kubernetes;
  const std::string_view body(reinterpret_cast<const char*>(data), size);
  for (const int status : {200, 403, 410, 500}) {
    const Failure failure = failure_of_body(body, status);
    if (failure.ok() || failure.message.size() > 2048 || failure.code < 100) std::abort();
  }
  return 0;
}
