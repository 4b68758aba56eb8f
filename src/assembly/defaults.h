#pragma once

#include "assembly/instances.h"
#include "base/result.h"
#include "config/endpoint_picker_config.h"

namespace penstock::assembly {

// What a configuration leaves unsaid, filled in as the reference does: profile, handler and picker (in strict
// mode near-tie-picker); the flow-control policies; parsers; the saturation detector; metrics source and
// extractor, in this order. Injected plugins are created and appended to `config.plugins`. Deterministic
// where the reference follows map order: the order of the configuration decides. Two of its flaws are not
// taken over: a name taken by another type is an error instead of an overwrite, and a metrics source under
// another name is recognised by its type, so that endpoints are not scraped twice. Errors begin with "failed
// to apply <area> defaults: ".
Status apply_system_defaults(config::EndpointPickerConfig& config, Instances& instances);

}  // namespace penstock::assembly
