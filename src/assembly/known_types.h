#pragma once

#include <span>
#include <string_view>

#include "inference/plugin.h"

namespace penstock::assembly {

// A plugin type that llm-d-router registers. Of those this build has, the registry's own line counts; the
// others are refused by name instead of as unknown.
struct KnownType {
  std::string_view type;
  Stability stability = Stability::kBeta;
  std::string_view replaced_by = {};  // deprecated there
};

// Ascending by type.
std::span<const KnownType> known_types();
const KnownType* find_known_type(std::string_view type);

}  // namespace penstock::assembly
