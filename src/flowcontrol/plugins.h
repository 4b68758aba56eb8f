#pragma once

#include <span>

#include "inference/plugin.h"

namespace penstock::flowcontrol {

// The flow-control plugins of this build, one line each.
std::span<const PluginDescriptor> flowcontrol_plugins();

}  // namespace penstock::flowcontrol
