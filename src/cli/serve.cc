#include <cstdio>

#include "admin/admin_server.h"
#include "cli/commands.h"
#include "cli/process.h"
#include "config/settings.h"
#include "gateway/serve_runtime.h"
#include "io/net.h"
#include "signals/scraper.h"
#include "telemetry/log.h"

namespace penstock::cli {

namespace {

struct ServeFlags {
  std::string settings_file;
  std::vector<std::string> listen;
  std::vector<std::string> model_servers;
  std::string config_file;
  std::string config_text;
  std::string manifests;
  std::string endpoints_file;
  std::string api_keys;
  std::string tls_cert;
  std::string tls_key;
  std::string admin;
  std::string log_level;
  std::string access_log;
  std::string metrics_interval;
  std::string drain_timeout;
  int64_t loops = -1;
  bool allow_experimental = false;
};

constexpr std::string_view kDefaultListen = ":8080";
constexpr std::string_view kDefaultAdmin = "127.0.0.1:9090";

// --listen in place of the settings' listeners, the first of which lends the rest.
Status take_listeners(const ServeFlags& flags, config::Settings& settings) {
  if (!flags.listen.empty()) {
    config::ListenerSettings like;
    if (!settings.listeners.empty()) like = settings.listeners.front();
    settings.listeners.clear();
    for (const std::string& address : flags.listen) {
      if (auto parsed = io::SocketAddress::parse(address); !parsed.ok())
        return parsed.error().wrap("--listen");
      config::ListenerSettings listener = like;
      listener.name = "listener-" + std::to_string(settings.listeners.size());
      listener.address = address;
      settings.listeners.push_back(std::move(listener));
    }
  }
  // A Gateway in the manifests may bring the listeners.
  if (settings.listeners.empty() && settings.manifests.empty()) {
    config::ListenerSettings listener;
    listener.name = "listener-0";
    listener.address = kDefaultListen;
    settings.listeners.push_back(std::move(listener));
  }
  for (config::ListenerSettings& listener : settings.listeners) {
    if (!flags.api_keys.empty()) listener.api_keys_file = flags.api_keys;
    if (!flags.tls_cert.empty()) listener.cert_file = flags.tls_cert;
    if (!flags.tls_key.empty()) listener.key_file = flags.tls_key;
    if (listener.cert_file.empty() != listener.key_file.empty()) {
      return invalid_config(listener.cert_file.empty() ? "--tls-key needs --tls-cert"
                                                       : "--tls-cert needs --tls-key");
    }
  }
  if (settings.listeners.empty() &&
      !(flags.api_keys.empty() && flags.tls_cert.empty() && flags.tls_key.empty())) {
    return invalid_config(
        "--api-keys, --tls-cert and --tls-key are for the listeners of --listen or --settings, and there is "
        "none: those of Gateway manifests don't take them");
  }
  return {};
}

// Loops, admin address, log, drain.
Status take_process(const ServeFlags& flags, config::Settings& settings) {
  if (flags.loops >= 0) settings.loops = flags.loops;
  if (!flags.admin.empty()) settings.admin_address = flags.admin == "off" ? "" : flags.admin;
  if (!settings.admin_address.empty() && !flags.admin.empty()) {
    if (auto parsed = io::SocketAddress::parse(settings.admin_address); !parsed.ok())
      return parsed.error().wrap("--admin");
  }
  if (flags.admin.empty() && flags.settings_file.empty()) settings.admin_address = kDefaultAdmin;
  if (!flags.log_level.empty()) settings.telemetry.log_level = flags.log_level;
  if (!flags.access_log.empty()) settings.telemetry.access_log = flags.access_log == "on";
  if (!flags.drain_timeout.empty()) {
    auto drain = duration_flag("--drain-timeout", flags.drain_timeout);
    if (!drain.ok()) return std::move(drain).error();
    settings.drain_timeout = *drain;
  }
  return {};
}

// The pool of the flags: the only one, or what pools of manifests start from.
Result<config::PoolSettings> pool_of(const ServeFlags& flags) {
  config::PoolSettings pool;
  pool.name = "default";
  if (Status status = check_model_servers(flags.model_servers); !status.ok()) return status.error();
  pool.discovery.static_urls = flags.model_servers;
  pool.discovery.file = flags.endpoints_file;
  pool.config_file = flags.config_file;
  pool.allow_experimental_plugins = flags.allow_experimental;
  if (!flags.config_file.empty() && !flags.config_text.empty()) {
    return invalid_config(
        "both the \"config-file\" and \"config-text\" flags cannot be set at the same time");
  }
  if (!flags.config_text.empty()) {
    auto node = config::parse_document(flags.config_text, "--config-text");
    if (!node.ok()) return std::move(node).error();
    pool.config_inline = std::move(*node);
  }
  return pool;
}

// What flags say of every pool: of `pool`, theirs, and of those of the settings.
Status take_pools(const ServeFlags& flags, config::Settings& settings, config::PoolSettings& pool) {
  for (config::PoolSettings& named : settings.pools) {
    named.allow_experimental_plugins = named.allow_experimental_plugins || flags.allow_experimental;
  }
  if (flags.metrics_interval.empty()) return {};
  auto interval = duration_flag("--metrics-interval", flags.metrics_interval);
  if (!interval.ok()) return std::move(interval).error();
  if (*interval < signals::kMinScrapeInterval) {
    return invalid_config("--metrics-interval " + flags.metrics_interval + " is less than 50ms");
  }
  pool.metrics.interval = *interval;
  for (config::PoolSettings& named : settings.pools) named.metrics.interval = *interval;
  return {};
}

// The settings document, with what flags add to it or change in it.
Result<gateway::ServeOptions> options_of(const ServeFlags& flags) {
  gateway::ServeOptions options;
  config::Settings& settings = options.settings;
  if (!flags.settings_file.empty()) {
    auto loaded = config::load_settings(flags.settings_file);
    if (!loaded.ok()) return std::move(loaded).error();
    settings = std::move(*loaded);
  }
  if (!flags.manifests.empty()) settings.manifests = flags.manifests;
  if (Status status = take_listeners(flags, settings); !status.ok()) return status.error();
  if (Status status = take_process(flags, settings); !status.ok()) return status.error();
  auto pool = pool_of(flags);
  if (!pool.ok()) return std::move(pool).error();
  if (Status status = take_pools(flags, settings, *pool); !status.ok()) return status.error();

  const bool flags_make_a_pool = !flags.model_servers.empty() || !flags.endpoints_file.empty() ||
                                 !flags.config_file.empty() || !flags.config_text.empty();
  if (flags_make_a_pool && !settings.pools.empty()) {
    return invalid_config(
        "--model-server, --endpoints-file, --config-file and --config-text make a pool of "
        "their own; the settings file already has pools");
  }
  if (flags_make_a_pool && settings.manifests.empty()) {
    settings.pools.push_back(std::move(*pool));
  } else {
    options.manifest_pool_defaults = std::move(*pool);
  }
  if (settings.pools.empty() && settings.manifests.empty()) {
    return invalid_config(
        "nothing to serve: name engines with --model-server URL (repeatable) or "
        "--endpoints-file FILE, or pools with --settings FILE or --manifests PATH");
  }
  return options;
}

int serve(const ServeFlags& flags) {
  auto options = options_of(flags);
  if (!options.ok()) {
    complain(options.error().message);
    return kFailed;
  }
  ProcessSignals signals;

  const config::Settings settings = options->settings;
  telemetry::init_logging(log_level(settings.telemetry.log_level));
  const auto fail = [](const Error& error) {
    telemetry::log_error("penstock can't start", {{"error", error.message}});
    telemetry::flush_logs();
    return kFailed;
  };
  auto created = gateway::ServeRuntime::create(std::move(*options));
  if (!created.ok()) return fail(created.error());
  gateway::ServeRuntime& runtime = **created;

  io::LoopGroup admin_loop(settings.admin_address.empty() ? 0 : 1);
  std::unique_ptr<admin::AdminServer> admin;
  if (!settings.admin_address.empty()) {
    auto address = io::SocketAddress::parse(settings.admin_address);
    if (!address.ok()) return fail(address.error().wrap("admin address"));
    admin_loop.start();
    admin = std::make_unique<admin::AdminServer>(admin_loop.at(0),
                                                 pages_of<gateway::Gateway::ExplainRequest>(runtime));
    auto bound = admin->listen(*address);
    if (!bound.ok()) return fail(bound.error().wrap("admin address " + settings.admin_address));
    telemetry::log_info("admin listening", {{"address", bound->to_string()}});
  }
  if (Status status = runtime.start(); !status.ok()) {
    if (admin) admin->stop();
    runtime.stop(Duration(0));
    return fail(status.error());
  }
  telemetry::log_info("penstock serves", {{"version", kVersion}});
  release_start_up_memory();

  for (;;) {
    const std::optional<int> number = signals.wait(std::chrono::hours(1));
    if (number == SIGTERM || number == SIGINT) break;
    if (number != SIGHUP) continue;
    telemetry::log_info("SIGHUP: reading files again");
    auto again = options_of(flags);
    if (again.ok()) {
      // What failed is in the log, part by part.
      static_cast<void>(runtime.reload(std::move(*again)));
    } else {
      telemetry::log_error("reload failed, the former state stays", {{"error", again.error().message}});
    }
  }

  telemetry::log_info("draining", {{"timeout_s", to_seconds(settings.drain_timeout)}});
  runtime.begin_drain();
  const bool hurried = drain(signals, settings.drain_timeout, [&] { return runtime.active_requests(); });
  // Its pages read what stop() takes apart.
  if (admin) admin->stop();
  admin_loop.stop();
  runtime.stop(hurried ? Duration(0) : std::chrono::milliseconds(100));
  telemetry::log_info("stopped");
  telemetry::flush_logs();
  return kOk;
}

}  // namespace

void add_serve(CLI::App& app, int& exit_code) {
  auto* command = app.add_subcommand(
      "serve",
      "Run the gateway: listen for clients, pick a replica for each request, proxy it, and say why.");
  auto flags = std::make_shared<ServeFlags>();
  command->add_option("--listen", flags->listen,
                      "Address clients connect to: ':8080', '127.0.0.1:8080', '[::]:8080'; repeatable "
                      "(default: what the settings or a Gateway of the manifests name, else :8080)");
  command->add_option("--model-server", flags->model_servers,
                      "URL of one engine, 'http://10.0.0.1:8000'; repeatable");
  command->add_option("--endpoints-file", flags->endpoints_file,
                      "File that lists engines; watched for changes");
  command->add_option("--config-file", flags->config_file,
                      "EndpointPickerConfig of the pool (default: queue 2, KV cache 2, prefix 3)");
  command->add_option("--config-text", flags->config_text, "The same as text");
  command->add_option("--manifests", flags->manifests,
                      "File or folder of InferencePool, HTTPRoute, Gateway, InferenceObjective and "
                      "InferenceModelRewrite objects");
  command->add_option("--settings", flags->settings_file,
                      "Penstock's own settings: listeners, pools, limits, TLS, telemetry");
  command->add_option("--api-keys", flags->api_keys,
                      "File of named, hashed API keys; without it everybody may come");
  command->add_option("--tls-cert", flags->tls_cert, "PEM certificate chain of the listeners");
  command->add_option("--tls-key", flags->tls_key, "PEM private key of the listeners");
  command->add_option("--admin", flags->admin,
                      "Address of /metrics, health and /debug, or 'off' (default 127.0.0.1:9090)");
  command->add_option("--loops", flags->loops, "Event loops, 0 for one per core")->check(CLI::Range(0, 256));
  command->add_option("--metrics-interval", flags->metrics_interval,
                      "How often engines are scraped (default 200ms, at least 50ms)");
  command->add_option("--drain-timeout", flags->drain_timeout,
                      "How long running requests may take after SIGTERM (default 30s)");
  command->add_option("--log-level", flags->log_level, "error, warn, info, debug or trace (default info)")
      ->check(CLI::IsMember({"error", "warn", "info", "debug", "trace"}));
  command->add_option("--access-log", flags->access_log, "One line a request: on or off (default on)")
      ->check(CLI::IsMember({"on", "off"}));
  command->add_flag("--allow-experimental-plugins", flags->allow_experimental,
                    "Take plugins of stability Alpha");
  command->footer(
      "SIGHUP reads files again; SIGTERM drains.\n"
      "Example: penstock serve --listen :8080 --model-server http://127.0.0.1:8001 --model-server "
      "http://127.0.0.1:8002");
  command->callback([flags, &exit_code] { exit_code = serve(*flags); });
}

}  // namespace penstock::cli
