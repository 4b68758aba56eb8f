#include "scheduling/reference.h"

#include <algorithm>
#include <vector>

#include "config/reference_table.h"

namespace penstock::scheduling {

namespace {

std::string status(const PluginDescriptor& plugin) {
  std::string out(stability_name(plugin.stability));
  if (!plugin.replaced_by.empty()) out += ", deprecated: use `" + std::string(plugin.replaced_by) + "`";
  return out;
}

}  // namespace

std::string_view stability_name(Stability stability) {
  switch (stability) {
    case Stability::kAlpha:
      return "alpha";
    case Stability::kBeta:
      return "beta";
    case Stability::kStable:
      return "stable";
  }
  return "";
}

std::string render_plugin_page(const PluginDescriptor& plugin, std::string_view notes) {
  std::string out = "## `" + std::string(plugin.type) + "`\n\n" + std::string(plugin.summary) +
                    "\n\nStability: " + status(plugin) + ".\n\n";
  const std::string below = notes.empty() ? std::string() : "\n" + std::string(notes);
  const std::vector<config::ParamDoc> params =
      plugin.describe == nullptr ? std::vector<config::ParamDoc>() : plugin.describe();
  out += params.empty() ? "Takes no parameters.\n" : config::fields_table("parameter", params);
  return out + below;
}

std::string render_plugin_reference(std::span<const PluginDescriptor> plugins, NotesOf notes_of) {
  std::vector<const PluginDescriptor*> sorted;
  for (const PluginDescriptor& plugin : plugins) sorted.push_back(&plugin);
  std::sort(sorted.begin(), sorted.end(), [](const auto* a, const auto* b) { return a->type < b->type; });

  std::string out = "# Plugins\n\n| type | stability | what it does |\n|---|---|---|\n";
  for (const PluginDescriptor* plugin : sorted) {
    out += "| [`" + std::string(plugin->type) + "`](#" + std::string(plugin->type) + ") | " +
           status(*plugin) + " | " + config::table_cell(plugin->summary) + " |\n";
  }
  for (const PluginDescriptor* plugin : sorted)
    out += "\n" + render_plugin_page(*plugin, notes_of(plugin->type));
  return out;
}

}  // namespace penstock::scheduling
