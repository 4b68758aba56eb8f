#include "assembly/instances.h"

#include <fmt/format.h>

#include <algorithm>

#include "assembly/known_types.h"
#include "base/spelling.h"

namespace penstock::assembly {

const PluginDescriptor* Instances::find_type(std::string_view type) const {
  for (const std::span<const PluginDescriptor> table : options_.tables) {
    for (const PluginDescriptor& descriptor : table) {
      if (descriptor.type == type) return &descriptor;
    }
  }
  return nullptr;
}

Error Instances::missing_type(std::string_view type, std::string_view unknown) const {
  if (find_known_type(type) != nullptr) {
    return invalid_config(
        fmt::format("plugin type '{}' is known to llm-d-router but not part of this build", type));
  }
  std::vector<std::string_view> types;
  for (const std::span<const PluginDescriptor> table : options_.tables) {
    for (const PluginDescriptor& descriptor : table) types.push_back(descriptor.type);
  }
  const std::string_view nearest = nearest_word(type, types);
  return invalid_config(fmt::format(fmt::runtime(unknown), type) +
                        (nearest.empty() ? std::string("; `penstock plugins` lists them")
                                         : fmt::format("; did you mean '{}'?", nearest)));
}

Status Instances::create(const config::PluginSpec& spec, const std::string& path) {
  const PluginDescriptor* descriptor = find_type(spec.type);
  const PluginFactoryContext context{
      .name = spec.name,
      .parameters = spec.parameters ? &*spec.parameters : nullptr,
      .path = path,
      .metrics = options_.metrics,
      .clock = options_.clock,
      .loops = options_.loops,
      .scrape_interval = scrape_interval_,
      .warm = options_.warm,
      .plugins = this,
      .outside = options_.outside,
  };
  Result<std::unique_ptr<Plugin>> made = descriptor->create(context);
  if (!made) return std::move(made).error();
  std::unique_ptr<Plugin> plugin = std::move(made).value();
  plugin->set_identity(spec.name, spec.type);
  by_name_.emplace(spec.name, plugin.get());
  plugins_.push_back(std::move(plugin));
  return {};
}

Plugin* Instances::find(std::string_view name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : found->second;
}

void Instances::set_order(const std::vector<std::string>& names) {
  order_ = names;
}

std::vector<const Plugin*> Instances::in_order() const {
  std::vector<const Plugin*> out;
  for (const std::string& name : order_) {
    if (const Plugin* plugin = find(name)) out.push_back(plugin);
  }
  for (const std::unique_ptr<Plugin>& plugin : plugins_) {
    if (std::find(out.begin(), out.end(), plugin.get()) == out.end()) out.push_back(plugin.get());
  }
  return out;
}

const PluginDescriptor& Instances::descriptor(const Plugin& plugin) const {
  return *find_type(plugin.type());
}

}  // namespace penstock::assembly
