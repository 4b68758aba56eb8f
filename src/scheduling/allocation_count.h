#pragma once

#include <cstdint>

namespace penstock::scheduling {

// Calls of operator new in this process so far. Test programs only: linking allocation_count_test.cc
// replaces the global operator.
uint64_t allocations();

}  // namespace penstock::scheduling
