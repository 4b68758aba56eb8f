#pragma once

#include "assembly/assembly.h"
#include "assembly/instances.h"
#include "base/result.h"
#include "config/endpoint_picker_config.h"

namespace penstock::assembly {

// Defaults, checks and references of the flowControl section. Errors begin with
// "failed to load flow control config: ". REQUIRES: the section is there (defaults are applied).
Result<FlowControlPlan> plan_flow_control(const config::EndpointPickerConfig& document,
                                          const Instances& instances);

}  // namespace penstock::assembly
