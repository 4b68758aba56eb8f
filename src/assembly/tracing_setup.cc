#include "assembly/tracing_setup.h"

#include "telemetry/log.h"

namespace penstock::assembly {

namespace {

using Exporter = telemetry::TracingOptions::Exporter;

std::string_view name_of(Exporter exporter) {
  switch (exporter) {
    case Exporter::kNone:
      return "none";
    case Exporter::kConsole:
      return "console";
    case Exporter::kOtlpGrpc:
      return "otlp/grpc";
    case Exporter::kOtlpHttp:
      return "otlp/http";
  }
  return "none";
}

}  // namespace

telemetry::TracingOptions tracing_options(const config::TracingSettings& settings,
                                          telemetry::TracingOptions defaults,
                                          const char* (*variable)(const char* name),
                                          std::vector<std::string>& warnings) {
  telemetry::TracingOptions options = telemetry::tracing_from_environment(
      std::move(defaults), {settings.exporter, settings.protocol}, variable, warnings);
  if (!settings.endpoint.empty()) options.endpoint = settings.endpoint;
  if (settings.sample_ratio) {
    options.sampler = telemetry::TracingOptions::Sampler::kRatio;
    options.ratio = *settings.sample_ratio;
  }
  if (settings.parent_based) options.parent_based = *settings.parent_based;
  if (!settings.service_name.empty()) options.service_name = settings.service_name;
  return options;
}

Result<std::unique_ptr<telemetry::Tracer>> start_tracing(const config::TracingSettings& settings,
                                                         telemetry::TracingOptions defaults,
                                                         const Clock& clock,
                                                         telemetry::MetricRegistry& metrics) {
  defaults.service_version = PENSTOCK_VERSION;
  if (defaults.commit.empty()) defaults.commit = "unknown";
  std::vector<std::string> warnings;
  const telemetry::TracingOptions options =
      tracing_options(settings, std::move(defaults), &telemetry::environment_variable, warnings);
  for (const std::string& warning : warnings) telemetry::log_warn(warning);
  auto tracer = telemetry::make_tracer(options, clock, metrics);
  if (tracer.ok() && *tracer != nullptr) {
    telemetry::log_info("tracing", {{"exporter", name_of(options.exporter)},
                                    {"endpoint", options.endpoint},
                                    {"service", options.service_name},
                                    {"ratio", options.ratio}});
  }
  return tracer;
}

}  // namespace penstock::assembly
