#include <algorithm>

#include "assembly/plugin_notes.h"

namespace penstock::assembly {

std::string_view notes_of(std::string_view type) {
  const std::span<const PluginNotes> all = plugin_notes();
  const auto found =
      std::find_if(all.begin(), all.end(), [&](const auto& notes) { return notes.type == type; });
  return found == all.end() ? std::string_view() : found->text;
}

}  // namespace penstock::assembly
