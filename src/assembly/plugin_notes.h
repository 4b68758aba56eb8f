#pragma once

#include <span>
#include <string_view>

namespace penstock::assembly {

// What the page of a plugin type says beside its summary and parameters, as Markdown: formula, worked
// example, and one configuration (in a "```yaml" block) that loads with it. It stands beside the plugin's
// source, in <type with _ for ->.md, and is put into the program when that is built.
struct PluginNotes {
  std::string_view type;
  std::string_view text;
};

// All there are, in no order.
std::span<const PluginNotes> plugin_notes();

// Empty: the type has none.
std::string_view notes_of(std::string_view type);

}  // namespace penstock::assembly
