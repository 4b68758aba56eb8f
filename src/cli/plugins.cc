#include <algorithm>
#include <cstdio>

#include "assembly/assembly.h"
#include "assembly/known_types.h"
#include "assembly/plugin_notes.h"
#include "base/spelling.h"
#include "cli/commands.h"
#include "scheduling/reference.h"

namespace penstock::cli {

namespace {

std::vector<PluginDescriptor> all_plugins() {
  std::vector<PluginDescriptor> out;
  for (const auto table : assembly::builtin_tables()) out.insert(out.end(), table.begin(), table.end());
  std::sort(out.begin(), out.end(), [](const auto& a, const auto& b) { return a.type < b.type; });
  return out;
}

int plugins(const std::string& type) {
  const std::vector<PluginDescriptor> all = all_plugins();
  if (type.empty()) {
    size_t width = 0;
    for (const PluginDescriptor& plugin : all) width = std::max(width, plugin.type.size());
    for (const PluginDescriptor& plugin : all) {
      const std::string_view stability = plugin.stability == Stability::kAlpha  ? "alpha"
                                         : plugin.stability == Stability::kBeta ? "beta"
                                                                                : "stable";
      std::printf("%-*.*s  %-7.*s %.*s%s%.*s\n", static_cast<int>(width),
                  static_cast<int>(plugin.type.size()), plugin.type.data(),
                  static_cast<int>(stability.size()), stability.data(),
                  static_cast<int>(plugin.summary.size()), plugin.summary.data(),
                  plugin.replaced_by.empty() ? "" : " Deprecated: use ",
                  static_cast<int>(plugin.replaced_by.size()), plugin.replaced_by.data());
    }
    return kOk;
  }
  const auto found =
      std::find_if(all.begin(), all.end(), [&](const auto& plugin) { return plugin.type == type; });
  if (found == all.end() && assembly::find_known_type(type) != nullptr) {
    complain("plugin type '" + type + "' is known to llm-d-router but not part of this build");
    return kFailed;
  }
  if (found == all.end()) {
    std::vector<std::string_view> types;
    for (const PluginDescriptor& plugin : all) types.push_back(plugin.type);
    const std::string_view nearest = nearest_word(type, types);
    complain(
        "there is no plugin type '" + type + "'; " +
        (nearest.empty() ? "`penstock plugins` lists them" : "did you mean '" + std::string(nearest) + "'?"));
    return kFailed;
  }
  std::fputs(scheduling::render_plugin_page(*found, assembly::notes_of(found->type)).c_str(), stdout);
  return kOk;
}

}  // namespace

void add_plugins(CLI::App& app, int& exit_code) {
  auto* command = app.add_subcommand(
      "plugins", "List the plugin types of this build, or explain one and its parameters.");
  auto type = std::make_shared<std::string>();
  command->add_option("type", *type, "Plugin type to explain");
  command->footer("Example: penstock plugins approx-prefix-cache-producer");
  command->callback([type, &exit_code] { exit_code = plugins(*type); });
}

}  // namespace penstock::cli
