#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "assembly/instances.h"
#include "base/result.h"
#include "config/endpoint_picker_config.h"

namespace penstock::assembly {

// The line of what names a plugin; where a default does, of the plugin that has the default's name. 0:
// neither is in the document.
int line_of(const config::EndpointPickerConfig& config, std::string_view path, std::string_view plugin);

// Before anything is created: types are given and registered, names are unique.
Status validate_plugins(const config::EndpointPickerConfig& config, const Instances& instances);

// In which order to create the plugins: those that others' parameters refer to first, else as configured.
// Numbers into config.plugins. Errors begin with "failed to build plugin dependency graph: ".
Result<std::vector<size_t>> creation_order(const config::EndpointPickerConfig& config,
                                           const Instances& instances);

// After defaults: profiles, detector and parsers name existing plugins.
Status validate_references(const config::EndpointPickerConfig& config, const Instances& instances);

// What is allowed and has no effect, or likely not the wanted one: useless plugins in profiles, weights of
// nothing, zero and negative weights, plugins nobody uses, settings behind a closed gate.
std::vector<std::string> find_useless(const config::EndpointPickerConfig& config, const Instances& instances,
                                      bool flow_control_on);

}  // namespace penstock::assembly
