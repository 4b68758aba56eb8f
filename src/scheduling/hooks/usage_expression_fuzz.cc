// The whole input is an expression.

#include "scheduling/hooks/usage_expression.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace penstock::scheduling;
  const auto compiled = UsageExpression::compile({reinterpret_cast<const char*>(data), size});
  if (compiled.ok()) (void)compiled->evaluate({10, 5, 15, 3});
  return 0;
}
