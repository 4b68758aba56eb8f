#include <algorithm>
#include <cstdlib>

#include "base/escapes.h"
#include "base/strings.h"
#include "telemetry/tracer.h"

namespace penstock::telemetry {

namespace {

using Exporter = TracingOptions::Exporter;
using Sampler = TracingOptions::Sampler;

class Environment {
 public:
  Environment(const char* (*variable)(const char*), std::vector<std::string>& warnings)
      : variable_(variable), warnings_(warnings) {}

  // Nothing when unset or empty, which the specification treats alike.
  std::optional<std::string> get(const std::string& name) const {
    const char* value = variable_(name.c_str());
    if (value == nullptr || *value == '\0') return std::nullopt;
    return std::string(trim(value));
  }
  // OTEL_EXPORTER_OTLP_TRACES_<name>, else OTEL_EXPORTER_OTLP_<name>.
  std::optional<std::string> otlp(const std::string& name) const {
    auto own = get("OTEL_EXPORTER_OTLP_TRACES_" + name);
    return own ? own : get("OTEL_EXPORTER_OTLP_" + name);
  }
  void warn(const std::string& name, const std::string& value, const std::string& why) const {
    warnings_.push_back(name + "='" + value + "' is ignored: " + why);
  }

  void number(const std::string& name, size_t& out, size_t least) const {
    const auto text = get(name);
    if (!text) return;
    const auto value = parse_u64(*text);
    if (!value || *value < least) {
      warn(name, *text, "not a number of at least " + std::to_string(least));
    } else {
      out = *value;
    }
  }
  void milliseconds(const std::string& name, const std::optional<std::string>& text, Duration& out) const {
    if (!text) return;
    const auto value = parse_u64(*text);
    if (!value || *value == 0 || *value > 86'400'000) {
      warn(name, *text, "not a number of milliseconds");
    } else {
      out = std::chrono::milliseconds(*value);
    }
  }
  static bool is_true(const std::optional<std::string>& text) { return text && ascii_iequals(*text, "true"); }

  // "key=value,key2=value2", values percent-encoded. What is malformed is left out.
  TracingOptions::Pairs pairs(const std::string& name, const std::string& text) const {
    TracingOptions::Pairs out;
    for (const std::string_view part : split(text, ',')) {
      if (trim(part).empty()) continue;
      const size_t equals = part.find('=');
      const std::string_view key = trim(part.substr(0, equals));
      if (equals == part.npos || key.empty()) {
        // The value may be a secret.
        warnings_.push_back(name + ": an entry that is no key=value is left out");
        continue;
      }
      out.emplace_back(key, percent_decode(trim(part.substr(equals + 1))));
    }
    return out;
  }

 private:
  const char* (*variable_)(const char*);
  std::vector<std::string>& warnings_;
};

bool is_otlp(Exporter exporter) {
  return exporter == Exporter::kOtlpGrpc || exporter == Exporter::kOtlpHttp;
}

// What is fixed, else what `found` is, else "".
std::string_view decided(std::string_view fixed, const std::optional<std::string>& found) {
  return fixed.empty() && found ? std::string_view(*found) : fixed;
}

void read_exporter(const Environment& env, const FixedExport& fixed, TracingOptions& out) {
  const auto exporters = env.get("OTEL_TRACES_EXPORTER");
  const std::string_view name = decided(fixed.exporter, exporters);
  if (name == "none") {
    out.exporter = Exporter::kNone;
  } else if (name == "console") {
    out.exporter = Exporter::kConsole;
  } else if (name == "otlp") {
    if (!is_otlp(out.exporter)) out.exporter = Exporter::kOtlpGrpc;
  } else if (!name.empty()) {
    env.warn("OTEL_TRACES_EXPORTER", std::string(name), "not one of otlp, console, none");
  }
  if (!is_otlp(out.exporter)) return;
  const auto protocols = env.otlp("PROTOCOL");
  const std::string_view protocol = decided(fixed.protocol, protocols);
  if (protocol == "grpc") {
    out.exporter = Exporter::kOtlpGrpc;
  } else if (protocol == "http/protobuf") {
    out.exporter = Exporter::kOtlpHttp;
  } else if (!protocol.empty()) {
    env.warn("OTEL_EXPORTER_OTLP_PROTOCOL", std::string(protocol), "not grpc or http/protobuf");
  }
}

void read_endpoint(const Environment& env, TracingOptions& out) {
  const bool http = out.exporter == Exporter::kOtlpHttp;
  if (auto own = env.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")) {
    out.endpoint = std::move(*own);
  } else if (auto common = env.get("OTEL_EXPORTER_OTLP_ENDPOINT")) {
    out.endpoint = std::move(*common);
    // The common endpoint is the base that a signal's path is put to; gRPC has no path.
    if (http) {
      while (out.endpoint.ends_with('/')) out.endpoint.pop_back();
      out.endpoint += "/v1/traces";
    }
  }
  // gRPC's targets may have no scheme: TLS unless said otherwise.
  if (!out.endpoint.empty() && out.endpoint.find("://") == std::string::npos) {
    const bool insecure = Environment::is_true(env.otlp("INSECURE"));
    out.endpoint = (http || insecure ? "http://" : "https://") + out.endpoint;
  }
  if (auto file = env.otlp("CERTIFICATE")) out.ca_file = std::move(*file);
  if (auto file = env.otlp("CLIENT_CERTIFICATE")) out.client_certificate_file = std::move(*file);
  if (auto file = env.otlp("CLIENT_KEY")) out.client_key_file = std::move(*file);
  if (const auto headers = env.otlp("HEADERS")) {
    out.headers = env.pairs("OTEL_EXPORTER_OTLP_HEADERS", *headers);
    for (auto& [name, value] : out.headers) name = ascii_lower(name);
  }
  env.milliseconds("OTEL_EXPORTER_OTLP_TIMEOUT", env.otlp("TIMEOUT"), out.timeout);
  if (const auto compression = env.otlp("COMPRESSION"); compression && *compression != "none")
    env.warn("OTEL_EXPORTER_OTLP_COMPRESSION", *compression, "exports are sent uncompressed");
}

void read_sampler(const Environment& env, TracingOptions& out) {
  struct Known {
    std::string_view name;
    Sampler sampler;
    bool parent_based;
  };
  static constexpr std::array<Known, 6> kKnown = {{
      {"parentbased_traceidratio", Sampler::kRatio, true},
      {"traceidratio", Sampler::kRatio, false},
      {"parentbased_always_on", Sampler::kAlwaysOn, true},
      {"always_on", Sampler::kAlwaysOn, false},
      {"parentbased_always_off", Sampler::kAlwaysOff, true},
      {"always_off", Sampler::kAlwaysOff, false},
  }};
  if (const auto name = env.get("OTEL_TRACES_SAMPLER")) {
    const auto known =
        std::find_if(kKnown.begin(), kKnown.end(), [&](const Known& k) { return k.name == *name; });
    if (known == kKnown.end()) {
      env.warn("OTEL_TRACES_SAMPLER", *name, "not a known sampler");
    } else {
      out.sampler = known->sampler;
      out.parent_based = known->parent_based;
    }
  }
  if (const auto text = env.get("OTEL_TRACES_SAMPLER_ARG")) {
    const auto ratio = parse_double(*text);
    if (!ratio || !(*ratio >= 0 && *ratio <= 1)) {
      env.warn("OTEL_TRACES_SAMPLER_ARG", *text, "not a number from 0 to 1");
    } else {
      out.ratio = *ratio;
    }
  }
}

}  // namespace

const char* environment_variable(const char* name) {
  return std::getenv(name);
}

TracingOptions tracing_from_environment(TracingOptions base, const FixedExport& fixed,
                                        const char* (*variable)(const char* name),
                                        std::vector<std::string>& warnings) {
  const Environment env(variable, warnings);
  read_exporter(env, fixed, base);
  if (Environment::is_true(env.get("OTEL_SDK_DISABLED"))) base.exporter = Exporter::kNone;
  if (base.exporter == Exporter::kNone) return base;
  read_endpoint(env, base);
  read_sampler(env, base);
  if (const auto attributes = env.get("OTEL_RESOURCE_ATTRIBUTES")) {
    for (auto& [key, value] : env.pairs("OTEL_RESOURCE_ATTRIBUTES", *attributes)) {
      if (key == "service.name") {
        base.service_name = value;
      } else {
        base.resource_attributes.emplace_back(key, value);
      }
    }
  }
  if (auto name = env.get("OTEL_SERVICE_NAME")) base.service_name = std::move(*name);
  env.milliseconds("OTEL_BSP_SCHEDULE_DELAY", env.get("OTEL_BSP_SCHEDULE_DELAY"), base.schedule_delay);
  env.number("OTEL_BSP_MAX_QUEUE_SIZE", base.max_queue_spans, 1);
  env.number("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", base.max_batch_spans, 1);
  return base;
}

}  // namespace penstock::telemetry
