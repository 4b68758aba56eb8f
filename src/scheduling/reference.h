#pragma once

#include <span>
#include <string>

#include "inference/plugin.h"

namespace penstock::scheduling {

std::string_view stability_name(Stability stability);

// The Markdown that stands below a type's parameters; empty: none.
using NotesOf = std::string_view (*)(std::string_view type);

// The plugin reference as Markdown: a table of all types, then one section each. Generated from the
// registry lines, from the same bind() functions that decode the parameters, and from the types' notes.
std::string render_plugin_reference(std::span<const PluginDescriptor> plugins, NotesOf notes_of);

// One type's section: summary, stability, replacement if deprecated, table of parameters, notes.
std::string render_plugin_page(const PluginDescriptor& plugin, std::string_view notes);

}  // namespace penstock::scheduling
