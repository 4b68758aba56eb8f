#pragma once

#include <cstdint>
#include <string>

#include "base/clock.h"

namespace penstock::scheduling {

// The shortest decimal text that reads back as the same number: "0.3", "4", "1e-07". Not a JSON number
// for infinities ("inf"); callers that write JSON check first.
void append_number(std::string& out, double value);
void append_number(std::string& out, uint64_t value);
// For people: at most so many decimals, "0.94", "12.5", "580".
void append_rounded(std::string& out, double value, int decimals = 2);
// Whole milliseconds, rounded down: "41 ms".
void append_millis(std::string& out, Duration duration);

}  // namespace penstock::scheduling
