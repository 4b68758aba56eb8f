#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "config/settings.h"
#include "telemetry/tracer.h"

namespace penstock::assembly {

// What tracing is from all that may say something of it. A setting wins over the environment
// (telemetry::tracing_from_environment()), which wins over `defaults`; OTEL_SDK_DISABLED=true wins over all.
telemetry::TracingOptions tracing_options(const config::TracingSettings& settings,
                                          telemetry::TracingOptions defaults,
                                          const char* (*variable)(const char* name),
                                          std::vector<std::string>& warnings);

// The process's tracer, or nullptr when nothing switches tracing on; says in the log what it does. `penstock
// serve` has no exporter in its defaults, `penstock epp --tracing` the console, as the reference.
Result<std::unique_ptr<telemetry::Tracer>> start_tracing(const config::TracingSettings& settings,
                                                         telemetry::TracingOptions defaults,
                                                         const Clock& clock,
                                                         telemetry::MetricRegistry& metrics);

}  // namespace penstock::assembly
