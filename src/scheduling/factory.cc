#include "scheduling/factory.h"

#include "telemetry/log.h"

namespace penstock::scheduling {

void warn_ignored_parameters(const PluginFactoryContext& context, std::string_view type) {
  telemetry::log_warn("plugin takes no parameters, those given are ignored",
                      {{"plugin", context.name}, {"type", type}, {"field", context.path}});
}

}  // namespace penstock::scheduling
