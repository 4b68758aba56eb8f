#include <fmt/format.h>

#include <algorithm>
#include <cstdio>

#include "assembly/check.h"
#include "assembly/differences.h"
#include "assembly/notifications.h"
#include "cli/commands.h"
#include "cli/config_map.h"
#include "config/api_keys.h"
#include "config/endpoints_file.h"
#include "config/files.h"
#include "config/manifests.h"
#include "config/objects_file.h"
#include "config/settings.h"
#include "discovery/plugins.h"
#include "gateway/route_table.h"
#include "io/http_client.h"
#include "io/net.h"
#include "io/tls.h"
#include "sharing/store_address.h"
#include "sharing/store_connection.h"
#include "telemetry/log.h"
#include "telemetry/metrics.h"

namespace penstock::cli {

namespace {

struct CheckFlags {
  std::string config_file;
  std::string config_text;
  std::string settings_file;
  std::string manifests;
  std::string config_map;
  std::string kubeconfig;
  std::string shared_state_url;
  std::string shared_state_password_file;
  std::string shared_state_ca;
  bool allow_experimental = false;
  bool differences = false;
};

// How to look at one configuration.
struct Look {
  bool allow_experimental = false;
  bool differences = false;
  assembly::ApiServer api_server = assembly::ApiServer::kUnknown;
};

// "1 pool", "2 pools".
template <typename List>
std::string count(const List& list, std::string_view what) {
  return fmt::format("{} {}{}", list.size(), what, list.size() == 1 ? "" : "s");
}

// `assemble(options)` reads the document; `source` names it.
template <typename Assemble>
int check_assembly(Assemble&& assemble, std::string_view source, Look look) {
  telemetry::MetricRegistry metrics;
  const SystemClock clock;
  assembly::AssemblyOptions options{.tables = assembly::builtin_tables(), .metrics = metrics, .clock = clock};
  options.allow_experimental = look.allow_experimental;
  options.api_server = look.api_server;
  Result<assembly::Assembly> assembly = assemble(options);
  if (!assembly.ok()) {
    complain(std::string(source) + ": " + assembly.error().message);
    return kFailed;
  }
  // Files belong to where the configuration will run: not to be found here is worth a warning.
  const auto* discovery = dynamic_cast<const discovery::FileDiscoveryPlugin*>(assembly->policy->discovery);
  if (discovery != nullptr) {
    if (const auto file = config::load_endpoints(discovery->params().path); !file.ok())
      assembly->policy->warnings.push_back(discovery->typed_name() + ": " + file.error().message);
  }
  for (const assembly::ObjectSource& source : assembly::object_sources(assembly->policy->plugins)) {
    const discovery::ObjectSourcePlugin& objects = *source.source;
    if (objects.params().path.empty()) continue;
    if (const auto file = config::load_objects(objects.params().path); !file.ok())
      assembly->policy->warnings.push_back(objects.typed_name() + ": " + file.error().message);
  }
  std::fputs(assembly::render_check(*assembly).c_str(), stdout);
  if (look.differences) {
    std::puts("different from llm-d-router (docs/compatibility.md):");
    for (const std::string& line : assembly::differences(*assembly)) std::printf("  %s\n", line.c_str());
  }
  std::fflush(stdout);
  return kOk;
}

int check_config(std::string_view text, std::string_view source, Look look) {
  return check_assembly(
      [&](const assembly::AssemblyOptions& options) { return assembly::assemble(text, source, options); },
      source, look);
}

void print_manifests(const std::string& path, const config::Manifests& manifests) {
  std::printf("%s: %s, %s, %s, %s, %s\n", path.c_str(), count(manifests.pools, "pool").c_str(),
              count(manifests.routes, "route").c_str(), count(manifests.gateways, "gateway").c_str(),
              count(manifests.objectives, "objective").c_str(),
              count(manifests.rewrites, "model rewrite").c_str());
  for (const std::string& warning : manifests.warnings) std::printf("warning: %s\n", warning.c_str());
}

Result<std::shared_ptr<io::TlsServerContext>> load_certificate(const std::string& cert_file,
                                                               const std::string& key_file) {
  io::TlsServerOptions tls;
  tls.certificates.push_back({cert_file, key_file});
  return io::TlsServerContext::create(tls);
}

// Certificates that the Gateways name.
int check_gateways(const config::Manifests& manifests) {
  int result = kOk;
  for (const config::Gateway& gateway : manifests.gateways) {
    for (const config::Gateway::Listener& listener : gateway.listeners) {
      if (listener.cert_file.empty()) continue;
      const auto loaded = load_certificate(listener.cert_file, listener.key_file);
      if (loaded.ok()) continue;
      complain(fmt::format("Gateway {}/{}, listener {}: {}", gateway.meta.ns, gateway.meta.name,
                           listener.name, loaded.error().message));
      result = kFailed;
    }
  }
  return result;
}

// What the routes lead to: the pools of both documents, and services.
int check_routes(const config::Manifests& manifests, const config::Settings& settings) {
  std::vector<gateway::RouteTable::Target> pools;
  for (const config::PoolSettings& pool : settings.pools) pools.push_back({pool.ns, pool.name});
  for (const config::InferencePool& pool : manifests.pools) pools.push_back({pool.meta.ns, pool.meta.name});
  std::vector<gateway::RouteTable::Target> services;
  for (const config::ServiceSettings& service : settings.services)
    services.push_back({service.ns, service.name});
  std::vector<std::string> warnings;
  const auto routes = gateway::RouteTable::compile(manifests, pools, services, std::nullopt, warnings);
  for (const std::string& warning : warnings) std::printf("warning: %s\n", warning.c_str());
  if (routes.ok()) return kOk;
  complain(routes.error().message);
  return kFailed;
}

// What serve would make of the manifests with these settings.
int check_manifests(const config::Manifests& manifests, const config::Settings& settings) {
  // Listeners of the settings come in place of the Gateways'.
  const int gateways = settings.listeners.empty() ? check_gateways(manifests) : kOk;
  return std::max(gateways, check_routes(manifests, settings));
}

int check_file(const std::string& path, Look look) {
  const auto text = config::load_config_text(path);
  if (!text.ok()) {
    complain(text.error().message);
    return kFailed;
  }
  return check_config(*text, path, look);
}

// Every configuration of a cluster's ConfigMap.
int check_config_map(const CheckFlags& flags) {
  const auto files = read_config_map(flags.config_map, flags.kubeconfig);
  if (!files.ok()) {
    complain("--config-map: " + files.error().message);
    return kFailed;
  }
  int result = kOk;
  for (const ConfigMapFile& file : *files) {
    std::printf("%s%s\n", &file == files->data() ? "" : "\n", file.source.c_str());
    std::fflush(stdout);
    result = std::max(result, check_config(file.text, file.source,
                                           {flags.allow_experimental, true, assembly::ApiServer::kAsked}));
  }
  return result;
}

// "settings.yaml: pools[0].config (line 7)".
std::string place_of(std::string_view path, const config::Settings& settings, const std::string& field) {
  const auto line = settings.lines.find(field);
  return fmt::format("{}: {}{}", path, field,
                     line == settings.lines.end() ? "" : fmt::format(" (line {})", line->second));
}

// The store of shared state as settings and flags name it, but for whether it answers.
int check_shared_state(const CheckFlags& flags, const config::Settings& settings) {
  int result = kOk;
  const auto take = [&](const std::string& flag, const std::string& setting) {
    return flag.empty() ? setting : flag;
  };
  const auto note = [&](const Status& status, const std::string& flag, const char* flag_name,
                        const char* field) {
    if (status.ok()) return;
    const std::string place = flag.empty() ? place_of(flags.settings_file, settings, field) : flag_name;
    complain(place + ": " + status.error().message);
    result = kFailed;
  };
  const config::SharedStateSettings& shared = settings.shared_state;
  const std::string url = take(flags.shared_state_url, shared.url);
  if (url.empty()) {
    for (const auto& [value, name] :
         {std::pair(&flags.shared_state_password_file, "--shared-state-password-file"),
          std::pair(&flags.shared_state_ca, "--shared-state-ca-file")}) {
      note(value->empty() ? Status() : invalid_config("there is no store that it is for"), *value, name, "");
    }
    return result;
  }
  const auto store = sharing::parse_store_url(url);
  note(store.ok() ? Status() : Status(store.error()), flags.shared_state_url, "--shared-state-url",
       "sharedState.url");
  const std::string ca_file = take(flags.shared_state_ca, shared.ca_file);
  if (store.ok() && store->tls && !ca_file.empty()) {
    const auto tls = io::TlsClientContext::create({.ca_file = ca_file});
    note(tls.ok() ? Status() : Status(tls.error()), flags.shared_state_ca, "--shared-state-ca-file",
         "sharedState.caFile");
  }
  sharing::StoreOptions options;
  options.password_file = take(flags.shared_state_password_file, shared.password_file);
  if (!options.password_file.empty()) {
    const auto password = sharing::read_password(options);
    Status usable = password.ok() ? Status() : Status(password.error());
    if (password.ok() && password->empty())
      usable = invalid_config("the password: '" + options.password_file + "' is empty");
    note(usable, flags.shared_state_password_file, "--shared-state-password-file",
         "sharedState.passwordFile");
  }
  if (result == kOk) std::printf("shared state: %s\n", store->shown().c_str());
  return result;
}

// The settings document with what it names: every file is read as serve reads it.
class SettingsCheck {
 public:
  SettingsCheck(std::string path, const config::Settings& settings, bool differences)
      : path_(std::move(path)), settings_(settings), differences_(differences) {}

  int run() {
    if (!settings_.manifests.empty()) {
      const auto manifests = config::load_manifests(settings_.manifests);
      note(manifests, "manifests");
      if (manifests.ok()) {
        print_manifests(settings_.manifests, *manifests);
        result_ = check_manifests(*manifests, settings_);
      }
    }
    for (size_t i = 0; i < settings_.listeners.size(); ++i) {
      check_listener(settings_.listeners[i], fmt::format("listeners[{}]", i));
    }
    if (!settings_.admin_address.empty())
      note(io::SocketAddress::parse(settings_.admin_address), "admin.address");
    const config::TracingSettings& tracing = settings_.telemetry.tracing;
    if (!tracing.endpoint.empty() && (tracing.exporter.empty() || tracing.exporter == "otlp"))
      note(io::parse_url(tracing.endpoint), "telemetry.tracing.endpoint");
    for (size_t i = 0; i < settings_.pools.size(); ++i) {
      check_pool(settings_.pools[i], fmt::format("pools[{}]", i));
    }
    return result_;
  }

 private:
  template <typename T>
  void note(const Result<T>& outcome, const std::string& field) {
    if (outcome.ok()) return;
    complain(fmt::format("{}: {}", place_of(path_, settings_, field), outcome.error().message));
    result_ = kFailed;
  }

  void check_listener(const config::ListenerSettings& listener, const std::string& field) {
    note(io::SocketAddress::parse(listener.address), field + ".address");
    if (listener.tls()) {
      const auto context = load_certificate(listener.cert_file, listener.key_file);
      // The message names the file that can't be used.
      const bool of_key = !context.ok() && context.error().message.find(
                                               fmt::format("'{}'", listener.cert_file)) == std::string::npos;
      note(context, field + (of_key ? ".tls.keyFile" : ".tls.certFile"));
    }
    if (!listener.api_keys_file.empty())
      note(config::ApiKeys::load(listener.api_keys_file), field + ".apiKeysFile");
  }

  void check_pool(const config::PoolSettings& pool, const std::string& field) {
    if (!pool.discovery.file.empty())
      note(config::load_endpoints(pool.discovery.file), field + ".discovery.file");
    if (!pool.engine.ca_file.empty())
      note(io::TlsClientContext::create({.ca_file = pool.engine.ca_file}), field + ".engine.tls.caFile");
    if (!pool.discovery.given() && pool.config_file.empty() && !pool.config_inline) {
      complain(fmt::format("{}: {}.discovery: the pool has no way to find its endpoints", path_, field));
      result_ = kFailed;
    }
    std::printf("\npool %s/%s\n", pool.ns.c_str(), pool.name.c_str());
    std::fflush(stdout);
    int one = kOk;
    // `epp --settings` asks an API server where they name no discovery.
    const Look look{pool.allow_experimental_plugins, differences_,
                    pool.discovery.given() ? assembly::ApiServer::kNone : assembly::ApiServer::kUnknown};
    if (pool.config_inline) {
      one = check_assembly(
          [&](const assembly::AssemblyOptions& options) {
            return assembly::assemble(*pool.config_inline, options);
          },
          path_ + ": " + field + ".config", look);
    } else if (pool.config_file.empty()) {
      one = check_config("", "built-in configuration", look);
    } else if (const auto text = config::load_config_text(pool.config_file); text.ok()) {
      one = check_config(*text, pool.config_file, look);
    } else {
      note(text, field + ".config");
    }
    result_ = std::max(result_, one);
  }

  std::string path_;
  const config::Settings& settings_;
  const bool differences_;
  int result_ = kOk;
};

int check(const CheckFlags& flags) {
  if (!flags.config_file.empty() && !flags.config_text.empty()) {
    complain("both the \"config-file\" and \"config-text\" flags cannot be set at the same time");
    return kUsage;
  }
  int result = kOk;
  bool checked = false;
  auto settings = flags.settings_file.empty() ? Result<config::Settings>(config::Settings{})
                                              : config::load_settings(flags.settings_file);
  if (!flags.manifests.empty()) {
    checked = true;
    const auto manifests = config::load_manifests(flags.manifests);
    if (manifests.ok()) {
      print_manifests(flags.manifests, *manifests);
      // Pools, services and listeners of settings count, too; what is wrong with those is told below.
      if (settings.ok()) result = check_manifests(*manifests, *settings);
    } else {
      complain("--manifests: " + manifests.error().message);
      result = kFailed;
    }
  }
  if (!flags.settings_file.empty()) {
    checked = true;
    if (!settings.ok()) {
      complain(settings.error().message);
      return kFailed;
    }
    std::printf("%s: %s, %s\n", flags.settings_file.c_str(), count(settings->listeners, "listener").c_str(),
                count(settings->pools, "pool").c_str());
    for (const std::string& warning : settings->warnings) std::printf("warning: %s\n", warning.c_str());
    if (settings->pools.empty() && settings->manifests.empty() && flags.manifests.empty())
      std::printf("warning: there is nothing to serve: neither pools nor manifests are named\n");
    // The flag's come in place of the settings', as serve takes them.
    if (!flags.manifests.empty()) settings->manifests.clear();
    for (config::PoolSettings& pool : settings->pools) {
      pool.allow_experimental_plugins = pool.allow_experimental_plugins || flags.allow_experimental;
    }
    result = std::max(result, SettingsCheck(flags.settings_file, *settings, flags.differences).run());
  }
  checked = checked || !flags.shared_state_url.empty() || !flags.shared_state_password_file.empty() ||
            !flags.shared_state_ca.empty();
  result = std::max(result, check_shared_state(flags, *settings));
  if (!flags.config_map.empty()) {
    checked = true;
    result = std::max(result, check_config_map(flags));
  }
  const Look look{flags.allow_experimental, flags.differences};
  if (!flags.config_file.empty()) return std::max(result, check_file(flags.config_file, look));
  if (!flags.config_text.empty())
    return std::max(result, check_config(flags.config_text, "--config-text", look));
  return checked ? result : check_config("", "built-in configuration", look);
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
  command->add_option("--config-map", flags->config_map,
                      "[NAMESPACE/]NAME[:FILE] of a ConfigMap in a cluster, whose EndpointPickerConfigs to "
                      "check, with --differences");
  command->add_option("--kubeconfig", flags->kubeconfig,
                      "Which cluster --config-map means; empty: KUBECONFIG, the pod's service account, or "
                      "~/.kube/config");
  command->add_option("--shared-state-url", flags->shared_state_url,
                      "Store of shared state as epp takes it, over that of --settings; is not asked");
  command->add_option("--shared-state-password-file", flags->shared_state_password_file,
                      "File with its password");
  command->add_option("--shared-state-ca-file", flags->shared_state_ca, "PEM certificates to trust with it");
  command->add_flag("--differences", flags->differences,
                    "Also print what the configuration means otherwise than to llm-d-router");
  command->add_flag("--allow-experimental-plugins", flags->allow_experimental,
                    "Take plugins of stability Alpha");
  command->footer(
      "Without anything to check it prints the built-in configuration. Exit code 1: it would not load, or "
      "a file that it names can't be used.");
  command->callback([flags, &exit_code] {
    telemetry::init_logging(telemetry::LogLevel::kWarn);
    exit_code = check(*flags);
    telemetry::flush_logs();
  });
}

}  // namespace penstock::cli
