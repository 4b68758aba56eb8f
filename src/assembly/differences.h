#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "assembly/assembly.h"

namespace penstock::assembly {

// How a configuration that loads means something else here than to llm-d-router, on purpose: one sentence for
// each of its plugins and members that docs/compatibility.md has more to say of, in that page's order.
std::vector<std::string> differences(const Assembly& assembly);
// Types of plugins that it has a sentence for.
std::vector<std::string_view> difference_types();

}  // namespace penstock::assembly
