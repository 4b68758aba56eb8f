#pragma once

#include <span>
#include <string>

#include "inference/plugin.h"

namespace penstock::scheduling {

std::string_view stability_name(Stability stability);

// The plugin reference as Markdown: a table of all types, then one section each. Generated from the
// registry lines and from the same bind() functions that decode the parameters.
std::string render_plugin_reference(std::span<const PluginDescriptor> plugins);

// One type's section: summary, stability, replacement if deprecated, table of parameters.
std::string render_plugin_page(const PluginDescriptor& plugin);

}  // namespace penstock::scheduling
