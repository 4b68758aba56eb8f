#include <algorithm>
#include <cstdio>
#include <fstream>
#include <iterator>

#include "assembly/check.h"
#include "cli/commands.h"
#include "config/api_keys.h"
#include "config/endpoints_file.h"
#include "config/manifests.h"
#include "config/settings.h"
#include "telemetry/log.h"
#include "telemetry/metrics.h"

namespace penstock::cli {

namespace {

struct CheckFlags {
  std::string config_file;
  std::string config_text;
  std::string settings_file;
  std::string manifests;
  bool allow_experimental = false;
};

int check_config(std::string_view text, std::string_view source, bool allow_experimental) {
  telemetry::MetricRegistry metrics;
  const SystemClock clock;
  assembly::AssemblyOptions options{.tables = assembly::builtin_tables(), .metrics = metrics, .clock = clock};
  options.allow_experimental = allow_experimental;
  const auto assembly = assembly::assemble(text, source, options);
  if (!assembly.ok()) {
    complain(std::string(source) + ": " + assembly.error().message);
    return kFailed;
  }
  std::fputs(assembly::render_check(*assembly).c_str(), stdout);
  return kOk;
}

int check_file(const std::string& path, bool allow_experimental) {
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    complain("failed to load config from a file '" + path + "'");
    return kFailed;
  }
  const std::string text(std::istreambuf_iterator<char>(file), {});
  return check_config(text, path, allow_experimental);
}

int check(const CheckFlags& flags) {
  if (!flags.config_file.empty() && !flags.config_text.empty()) {
    complain("both the \"config-file\" and \"config-text\" flags cannot be set at the same time");
    return kUsage;
  }
  int result = kOk;
  bool checked = false;
  const auto check_manifests = [&](const std::string& path) {
    checked = true;
    const auto manifests = config::load_manifests(path);
    if (!manifests.ok()) {
      complain(manifests.error().message);
      result = kFailed;
    } else {
      std::printf("%s: %zu pools, %zu routes, %zu gateways, %zu objectives, %zu model rewrites\n",
                  path.c_str(), manifests->pools.size(), manifests->routes.size(), manifests->gateways.size(),
                  manifests->objectives.size(), manifests->rewrites.size());
      for (const std::string& warning : manifests->warnings) std::printf("warning: %s\n", warning.c_str());
    }
  };
  if (!flags.manifests.empty()) check_manifests(flags.manifests);
  if (!flags.settings_file.empty()) {
    checked = true;
    const auto settings = config::load_settings(flags.settings_file);
    if (!settings.ok()) {
      complain(settings.error().message);
      return kFailed;
    }
    std::printf("%s: %zu listeners, %zu pools\n", flags.settings_file.c_str(), settings->listeners.size(),
                settings->pools.size());
    for (const std::string& warning : settings->warnings) std::printf("warning: %s\n", warning.c_str());
    if (!settings->manifests.empty()) check_manifests(settings->manifests);
    for (const config::ListenerSettings& listener : settings->listeners) {
      if (listener.api_keys_file.empty()) continue;
      const auto keys = config::ApiKeys::load(listener.api_keys_file);
      if (!keys.ok()) {
        complain(keys.error().message);
        result = kFailed;
      }
    }
    for (const config::PoolSettings& pool : settings->pools) {
      if (!pool.discovery.file.empty()) {
        const auto endpoints = config::load_endpoints(pool.discovery.file);
        if (!endpoints.ok()) {
          complain(endpoints.error().message);
          result = kFailed;
        }
      }
      std::printf("\npool %s/%s\n", pool.ns.c_str(), pool.name.c_str());
      int one = kOk;
      if (pool.config_inline) {
        one =
            check_config(pool.config_inline->to_json(), "pool " + pool.name, pool.allow_experimental_plugins);
      } else if (!pool.config_file.empty()) {
        one = check_file(pool.config_file, pool.allow_experimental_plugins);
      } else {
        one = check_config("", "built-in configuration", pool.allow_experimental_plugins);
      }
      if (one != kOk) result = one;
    }
  }
  if (!flags.config_file.empty())
    return std::max(result, check_file(flags.config_file, flags.allow_experimental));
  if (!flags.config_text.empty())
    return std::max(result, check_config(flags.config_text, "--config-text", flags.allow_experimental));
  return checked ? result : check_config("", "built-in configuration", flags.allow_experimental);
}

}  // namespace

void add_check(CLI::App& app, int& exit_code) {
  auto* command =
      app.add_subcommand("check",
                         "Load a configuration as serve would, without serving: prints the effective "
                         "configuration, what was added "
                         "by default, and warnings; or what is wrong, with field, value and line.");
  auto flags = std::make_shared<CheckFlags>();
  command->add_option("--config-file", flags->config_file, "EndpointPickerConfig to check");
  command->add_option("--config-text", flags->config_text, "The same as text");
  command->add_option("--settings", flags->settings_file,
                      "Penstock settings to check, with the configurations of their pools");
  command->add_option("--manifests", flags->manifests, "File or folder of manifests to check");
  command->add_flag("--allow-experimental-plugins", flags->allow_experimental,
                    "Take plugins of stability Alpha");
  command->footer(
      "Without anything to check it prints the built-in configuration. Exit code 1: it would not load.");
  command->callback([flags, &exit_code] {
    telemetry::init_logging(telemetry::LogLevel::kWarn);
    exit_code = check(*flags);
    telemetry::flush_logs();
  });
}

}  // namespace penstock::cli
