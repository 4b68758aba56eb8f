#pragma once

#include <string_view>
#include <vector>

#include "base/result.h"
#include "scheduling/filters/label_selector_filter.h"

namespace penstock::scheduling {

// A Kubernetes label selector as text: requirements between commas, "key=value", "key==value", "key!=value",
// "key in (a,b)", "key notin (a,b)", "key", "!key". "!=" and notin hold where the label is absent. An empty
// text selects everything. Errors name the requirement.
Result<std::vector<LabelRequirement>> parse_label_selector(std::string_view text);

}  // namespace penstock::scheduling
