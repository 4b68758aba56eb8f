#include <array>

#include "assembly/assembly.h"
#include "discovery/plugins.h"
#include "flowcontrol/plugins.h"
#include "protocol/parser.h"
#include "scheduling/scheduler.h"
#include "signals/plugins.h"

namespace penstock::assembly {

PluginTables builtin_tables() {
  static const std::array<std::span<const PluginDescriptor>, 5> kTables{
      scheduling::scheduling_plugins(), protocol::parser_plugins(), signals::signal_plugins(),
      flowcontrol::flowcontrol_plugins(), discovery::discovery_plugins()};
  return kTables;
}

}  // namespace penstock::assembly
