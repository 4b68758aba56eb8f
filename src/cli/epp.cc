#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <set>
#include <utility>

#include "admin/admin_server.h"
#include "base/strings.h"
#include "base/units.h"
#include "cli/commands.h"
#include "cli/process.h"
#include "config/settings.h"
#include "extproc/epp_runtime.h"
#include "io/net.h"
#include "signals/scraper.h"
#include "telemetry/log.h"

namespace penstock::cli {

namespace {

// A group of flags: the reference has them, this build has no use for them.
constexpr const char* kNoEffect = "Accepted without effect";

// Names and defaults are llm-d-router's; the second half is Penstock's own.
struct EppFlags {
  int64_t grpc_port = 9002;
  int64_t health_port = 9003;
  int64_t metrics_port = 9090;
  bool leader_election = false;
  std::string drain_timeout = "30s";
  std::string max_receive;
  std::string max_send;
  std::string pool_group = "inference.networking.k8s.io";
  std::string pool_namespace;
  std::string pool_name;
  std::string endpoint_selector;
  std::vector<std::string> endpoint_ports;
  std::string kubeconfig;
  bool no_subset_filter = false;
  bool emit_scores = false;
  std::string metrics_interval = "50ms";
  std::string prometheus_interval = "5s";
  std::string staleness = "2s";
  int64_t verbosity = 2;
  std::string zap_log_level;
  std::string ignored_text;
  bool ignored_flag = false;
  bool tracing = true;
  bool health_checking = false;
  bool pprof = true;
  std::string cert_path;
  bool cert_reload = false;
  bool secure = true;
  std::string tls_min_version;
  std::vector<std::string> tls_ciphers;
  bool metrics_auth = true;
  std::string metrics_client_ca;
  std::string metrics_certs;
  bool stream_metrics = false;
  std::string config_file;
  std::string config_text;
  bool allow_experimental = false;

  std::string settings_file;
  std::string endpoints_file;
  std::vector<std::string> model_servers;
  std::string manifests;
  std::string bind_address;
  int64_t loops = -1;
  std::string piece_bytes = "62000";
  std::string response_phase = "always";
  bool response_metrics = true;
  bool outlier_detection = false;
  std::string error_format = "text";
  std::string body_timeout = "60s";
  std::string access_log;
  std::string shared_state_url;
  std::string shared_state_user;
  std::string shared_state_password_file;
  std::string shared_state_ca;
  std::string shared_state_staleness = "1s";
  bool all_pools = false;
  std::string pool_selector;
  bool all_namespaces = false;
  std::string pool_linger = "5m";
  std::string pool_ports;

  bool many() const { return all_pools || !pool_selector.empty(); }
};

struct EppPlan {
  extproc::EppOptions options;
  std::string admin_address;
  std::string metrics_certs;
  std::string metrics_client_ca;
  std::string log_level = "info";
  Duration drain_timeout{0};
  std::vector<std::string> warnings;
};

// A Kubernetes quantity with an optional B behind it; 0 when empty.
Result<int64_t> message_size(std::string_view flag, std::string_view text) {
  if (text.empty()) return int64_t{0};
  const bool bytes = text.back() == 'B' || text.back() == 'b';
  auto value = parse_quantity(text.substr(0, text.size() - (bytes ? 1 : 0)));
  if (!value.ok() || *value < 0) {
    return invalid_config("--" + std::string(flag) + " '" + std::string(text) + "' is no size such as 10MiB");
  }
  return value;
}

// Of several pools: what else is given has to go with it.
Status check_pools(const EppFlags& flags) {
  if (!flags.many()) {
    if (flags.all_namespaces) return invalid_config("all-namespaces goes with all-pools or pool-selector");
    if (!flags.pool_ports.empty()) return invalid_config("pool-ports goes with all-pools or pool-selector");
    return {};
  }
  if (flags.all_pools && !flags.pool_selector.empty())
    return invalid_config("either all-pools or pool-selector may be set, not both");
  if (!flags.pool_name.empty() || !flags.endpoint_selector.empty())
    return invalid_config("all-pools and pool-selector go without pool-name and endpoint-selector");
  if (!flags.endpoints_file.empty() || !flags.model_servers.empty())
    return invalid_config(
        "all-pools and pool-selector take endpoints from the cluster: no endpoints-file, no model-server");
  return {};
}

// "9100-9199", or one port; nothing: 0 and 0.
Result<std::pair<uint16_t, uint16_t>> port_range(const std::string& text) {
  if (text.empty()) return std::pair<uint16_t, uint16_t>(0, 0);
  const size_t dash = text.find('-');
  const auto first = parse_u64(std::string_view(text).substr(0, dash));
  const auto last = dash == std::string::npos ? first : parse_u64(std::string_view(text).substr(dash + 1));
  if (!first || !last || *first < 1 || *last > 65535 || *first > *last)
    return invalid_config("--pool-ports '" + text + "' is no range of ports such as 9100-9199");
  return std::pair<uint16_t, uint16_t>(*first, *last);
}

Status check_pool(const EppFlags& flags) {
  if (flags.many()) return {};
  if (flags.pool_name.empty() && flags.endpoint_selector.empty())
    return invalid_config("either pool-name or endpoint-selector must be set");
  if (!flags.pool_name.empty() && !flags.endpoint_selector.empty())
    return invalid_config("either pool-name or endpoint-selector must be set, not both");
  std::set<std::string> ports;
  for (const std::string& port : flags.endpoint_ports) {
    const auto number = parse_u64(port);
    if (!number || *number < 1 || *number > 65535)
      return invalid_config("endpoint-target-ports: '" + port + "' is no port");
    ports.insert(port);
  }
  if (!flags.endpoint_selector.empty() && (ports.empty() || ports.size() > 8)) {
    return invalid_config("endpoint-selector needs endpoint-target-ports, 1 to 8 distinct ports");
  }
  return {};
}

Status check_unsupported(const EppFlags& flags) {
  if (!flags.config_file.empty() && !flags.config_text.empty()) {
    return invalid_config(
        "both the \"config-file\" and \"config-text\" flags cannot be set at the same time");
  }
  if (!flags.metrics_client_ca.empty() && flags.metrics_certs.empty()) {
    return invalid_config("\"metrics-client-ca-file\" requires \"metrics-cert-dir\"");
  }
  if (!flags.metrics_certs.empty() && flags.metrics_client_ca.empty() && !flags.metrics_auth) {
    return invalid_config(
        "\"metrics-cert-dir\" enables metrics TLS without authentication; set \"metrics-client-ca-file\" or "
        "\"metrics-endpoint-auth\"");
  }
  return {};
}

// As zap takes it: a level's name or a number above 0; warn and trace are ours.
Status check_log_level(const std::string& text) {
  static constexpr std::array<std::string_view, 6> kNames{"debug", "info", "warn", "error", "panic", "trace"};
  const auto number = parse_i64(text);
  if (text.empty() || (number && *number > 0) ||
      std::find(kNames.begin(), kNames.end(), text) != kNames.end()) {
    return {};
  }
  return invalid_config("--zap-log-level '" + text +
                        "' is not debug, info, warn, error, panic, trace or a "
                        "number above 0");
}

std::string level_of(const EppFlags& flags) {
  if (!flags.zap_log_level.empty()) {
    const auto number = parse_i64(flags.zap_log_level);
    if (!number) return flags.zap_log_level == "panic" ? "error" : flags.zap_log_level;
    return *number >= 5 ? "trace" : *number >= 4 ? "debug" : "info";
  }
  return flags.verbosity >= 5 ? "trace" : flags.verbosity == 4 ? "debug" : "info";
}

// Where metrics, health and ext-proc listen: everywhere, as the reference does, unless told otherwise.
std::string address(const EppFlags& flags, int64_t port) {
  const bool v6 = flags.bind_address.find(':') != std::string::npos && !flags.bind_address.starts_with('[');
  return (v6 ? "[" + flags.bind_address + "]" : flags.bind_address) + ":" + std::to_string(port);
}

// The Deployment of a pod "<deployment>-<hash>-<hash>", which names a stand-alone pool in the reference; of
// other pods the whole name, and "" of none.
std::string deployment_of(const char* pod) {
  if (pod == nullptr) return {};
  const std::string_view name = pod;
  const size_t second = name.rfind('-');
  if (second == std::string_view::npos || second == 0) return std::string(name);
  const size_t first = name.rfind('-', second - 1);
  if (first == std::string_view::npos || first == 0) return std::string(name);
  return std::string(name.substr(0, first));
}

// What Penstock's settings document says for this command: its only pool and listener, limits, telemetry.
Status take_settings(const std::string& path, EppPlan& plan) {
  extproc::EppOptions& options = plan.options;
  auto settings = config::load_settings(path);
  if (!settings.ok()) return std::move(settings).error();
  plan.warnings.insert(plan.warnings.end(), settings->warnings.begin(), settings->warnings.end());
  if (settings->pools.size() > 1 || settings->listeners.size() > 1 || !settings->services.empty()) {
    return invalid_config(path + ": a picker has one pool, and at most one listener for its limits");
  }
  if (!settings->pools.empty()) options.pool = settings->pools.front();
  if (!settings->listeners.empty()) {
    const config::ListenerSettings& listener = settings->listeners.front();
    if (!listener.api_keys_file.empty()) {
      return invalid_config(path +
                            ": listeners[].apiKeys: clients are known to the data plane, not to its picker");
    }
    options.limits = listener.limits;
    options.door.body_timeout = listener.body_timeout;
    options.door.body_total_timeout = listener.body_total_timeout;
    options.door.body_bytes = listener.limits.body_bytes;
    options.door.header_bytes = listener.limits.header_bytes;
    options.max_receive_message_bytes = static_cast<size_t>(listener.limits.body_bytes) + (1 << 20);
  }
  options.door.buffered_bytes = settings->buffered_bytes;
  options.door.streams = settings->streams;
  if (!settings->listeners.empty()) {
    options.door.streams = std::min(options.door.streams, options.limits.streams);
  }
  options.door.trust_request_id = settings->telemetry.trust_request_id;
  options.telemetry = settings->telemetry;
  options.shared_state = settings->shared_state;
  options.loops = settings->loops;
  options.manifests = settings->manifests;
  plan.drain_timeout = settings->drain_timeout;
  return {};
}

Result<EppPlan> plan_of(const EppFlags& flags, const CLI::App& command) {
  EppPlan plan;
  extproc::EppOptions& options = plan.options;
  const auto given = [&](const char* name) { return command.get_option(name)->count() != 0; };
  for (const auto& check : {check_unsupported(flags), check_pools(flags), check_pool(flags),
                            check_log_level(flags.zap_log_level)}) {
    if (!check.ok()) return check.error();
  }
  auto drain = duration_flag("--drain-timeout", flags.drain_timeout);
  if (!drain.ok()) return std::move(drain).error();
  plan.drain_timeout = *drain;
  // The reference scrapes every 50 ms; so does who takes its place.
  auto interval = duration_flag("--refresh-metrics-interval", flags.metrics_interval);
  if (!interval.ok()) return std::move(interval).error();
  if (*interval < signals::kMinScrapeInterval) {
    plan.warnings.push_back("--refresh-metrics-interval '" + flags.metrics_interval +
                            "' is less than 50ms; 50ms is used");
    *interval = signals::kMinScrapeInterval;
  }
  auto staleness = duration_flag("--metrics-staleness-threshold", flags.staleness);
  if (!staleness.ok()) return std::move(staleness).error();
  options.pool.metrics.interval = *interval;
  options.pool.metrics.staleness = *staleness;
  if (!flags.settings_file.empty()) {
    if (Status status = take_settings(flags.settings_file, plan); !status.ok()) return status.error();
    if (given("--drain-timeout")) plan.drain_timeout = *drain;
    if (given("--refresh-metrics-interval")) options.pool.metrics.interval = *interval;
    if (given("--metrics-staleness-threshold")) options.pool.metrics.staleness = *staleness;
  }

  if (options.pool.metrics.staleness < options.pool.metrics.interval) {
    plan.warnings.push_back("--metrics-staleness-threshold " +
                            format_duration(options.pool.metrics.staleness) +
                            " is below --refresh-metrics-interval " +
                            format_duration(options.pool.metrics.interval) + ": every signal will be stale");
  }

  config::PoolSettings& pool = options.pool;
  if (!flags.pool_name.empty()) pool.name = flags.pool_name;
  if (pool.name.empty()) pool.name = deployment_of(std::getenv("POD_NAME"));
  if (pool.name.empty()) pool.name = "default";
  const char* environment = std::getenv("NAMESPACE");
  if (!flags.pool_namespace.empty()) {
    pool.ns = flags.pool_namespace;
  } else if (environment != nullptr && *environment != '\0') {
    pool.ns = environment;
  }
  if (!flags.config_file.empty()) pool.config_file = flags.config_file;
  if (!flags.config_text.empty()) {
    auto node = config::parse_document(flags.config_text, "--config-text");
    if (!node.ok()) return std::move(node).error();
    pool.config_inline = std::move(*node);
  }
  if (!flags.endpoints_file.empty()) pool.discovery.file = flags.endpoints_file;
  if (Status status = check_model_servers(flags.model_servers); !status.ok()) return status.error();
  if (!flags.model_servers.empty()) pool.discovery.static_urls = flags.model_servers;
  if (flags.allow_experimental) pool.allow_experimental_plugins = true;
  if (!flags.manifests.empty()) options.manifests = flags.manifests;
  options.cluster.kubeconfig = flags.kubeconfig;
  options.cluster.pool_group = flags.pool_group;
  options.cluster.selector = flags.endpoint_selector;
  options.cluster.leader_election = flags.leader_election;
  if (flags.many()) {
    auto linger = duration_flag("--pool-linger", flags.pool_linger);
    if (!linger.ok()) return std::move(linger).error();
    auto ports = port_range(flags.pool_ports);
    if (!ports.ok()) return std::move(ports).error();
    for (const int64_t taken : {flags.grpc_port, flags.health_port, flags.metrics_port}) {
      if (ports->first != 0 && taken >= ports->first && taken <= ports->second)
        return invalid_config("--pool-ports '" + flags.pool_ports + "' holds port " + std::to_string(taken) +
                              ", which all pools share");
    }
    if (options.pool.discovery.given())
      return invalid_config(
          "all-pools and pool-selector take endpoints from the cluster: no discovery in --settings");
    options.cluster.many = true;
    options.cluster.pool_selector = flags.pool_selector;
    options.cluster.all_namespaces = flags.all_namespaces;
    options.cluster.linger = *linger;
    options.cluster.first_pool_port = ports->first;
    options.cluster.last_pool_port = ports->second;
  }
  for (const std::string& port : flags.endpoint_ports) {
    const auto number = static_cast<uint16_t>(parse_u64(port).value_or(0));
    auto& ports = options.cluster.target_ports;
    if (std::find(ports.begin(), ports.end(), number) == ports.end()) ports.push_back(number);
  }
  if (flags.loops >= 0) options.loops = flags.loops;
  if (!flags.access_log.empty()) options.telemetry.access_log = flags.access_log == "on";
  options.tracing = flags.tracing;

  config::SharedStateSettings& shared = options.shared_state;
  if (!flags.shared_state_url.empty()) shared.url = flags.shared_state_url;
  if (!flags.shared_state_user.empty()) shared.user = flags.shared_state_user;
  if (!flags.shared_state_password_file.empty()) shared.password_file = flags.shared_state_password_file;
  if (!flags.shared_state_ca.empty()) shared.ca_file = flags.shared_state_ca;
  if (given("--shared-state-staleness")) {
    auto bound = duration_flag("--shared-state-staleness", flags.shared_state_staleness);
    if (!bound.ok()) return std::move(bound).error();
    shared.staleness = *bound;
  }
  if (const std::string problem = config::shared_state_problem(shared); !problem.empty())
    return invalid_config("--shared-state-staleness: " + problem);

  extproc::DoorOptions& door = options.door;
  door.emit_scores = flags.emit_scores;
  door.subset_filter = !flags.no_subset_filter;
  door.stream_metrics = flags.stream_metrics;
  door.response_metrics = flags.response_metrics;
  // The reference has no such thing: its choices stay what they are unless somebody asks for it.
  std::optional<bool>& detects = pool.outlier_detection.enabled;
  if (given("--outlier-detection") || !detects) detects = flags.outlier_detection;
  door.json_errors = flags.error_format == "json";
  door.response_phase = flags.response_phase == "never"  ? extproc::ResponsePhase::kNever
                        : flags.response_phase == "auto" ? extproc::ResponsePhase::kAuto
                                                         : extproc::ResponsePhase::kAlways;
  auto piece = parse_quantity(flags.piece_bytes);
  if (!piece.ok() || *piece < (4 << 10) || *piece > (4 << 20)) {
    return invalid_config("--body-piece-bytes '" + flags.piece_bytes + "' is not between 4Ki and 4Mi");
  }
  door.piece_bytes = static_cast<size_t>(*piece);
  if (given("--request-body-timeout") || flags.settings_file.empty()) {
    auto timeout = duration_flag("--request-body-timeout", flags.body_timeout);
    if (!timeout.ok()) return std::move(timeout).error();
    door.body_timeout = *timeout;
  }

  if (!flags.bind_address.empty()) {
    if (const auto parsed = io::SocketAddress::parse(address(flags, 0)); !parsed.ok())
      return invalid_config("--bind-address '" + flags.bind_address + "' is no IP address");
  }
  options.grpc_address = address(flags, flags.grpc_port);
  options.health_address = address(flags, flags.health_port);
  plan.admin_address = address(flags, flags.metrics_port);
  options.health_on_grpc = flags.health_checking;
  options.secure = flags.secure;
  options.cert_folder = flags.cert_path;
  if (!flags.secure && !flags.cert_path.empty())
    plan.warnings.push_back("--cert-path has no effect with --secure-serving=false");
  if (flags.cert_reload && (!flags.secure || flags.cert_path.empty())) {
    plan.warnings.push_back(std::string("--enable-cert-reload has no effect ") +
                            (flags.secure ? "without --cert-path" : "with --secure-serving=false"));
  }
  options.cert_reload = flags.cert_reload;
  options.tls12_ciphers = flags.tls_ciphers;
  options.allow_tls12 = flags.tls_min_version != "VersionTLS13";
  auto receive = message_size("grpc-max-recv-msg-size", flags.max_receive);
  if (!receive.ok()) return std::move(receive).error();
  if (*receive > 0) options.max_receive_message_bytes = static_cast<size_t>(*receive);
  auto send = message_size("grpc-max-send-msg-size", flags.max_send);
  if (!send.ok()) return std::move(send).error();
  options.max_send_message_bytes = static_cast<size_t>(*send);
  plan.metrics_certs = flags.metrics_certs;
  plan.metrics_client_ca = flags.metrics_client_ca;
  plan.log_level = flags.settings_file.empty() || given("--v") || given("--zap-log-level")
                       ? level_of(flags)
                       : options.telemetry.log_level;
  return plan;
}

Result<std::shared_ptr<io::TlsServerContext>> metrics_tls(const EppPlan& plan) {
  if (plan.metrics_certs.empty()) return std::shared_ptr<io::TlsServerContext>();
  io::TlsServerOptions options;
  options.certificates.push_back({plan.metrics_certs + "/tls.crt", plan.metrics_certs + "/tls.key"});
  options.client_ca_file = plan.metrics_client_ca;
  options.require_client_certificate = !plan.metrics_client_ca.empty();
  auto context = io::TlsServerContext::create(options);
  if (!context.ok()) return context.error().wrap("metrics TLS cert file unreadable");
  return context;
}

// 0 where the cluster says that the bearer of this token may use the page.
io::Task<int> refusal(discovery::KubernetesDiscovery& cluster, io::HttpExchange& exchange) {
  const io::RequestHead& request = exchange.request();
  std::string_view token = request.fields.get("authorization");
  constexpr std::string_view kScheme = "bearer ";
  if (!ascii_iequals(token.substr(0, kScheme.size()), kScheme)) co_return 401;
  token = trim(token.substr(kScheme.size()));
  const kubernetes::Access access =
      co_await cluster.review(exchange.loop(), std::string(token), ascii_lower(request.method),
                              std::string(request.path), exchange.cancel_token());
  switch (access) {
    case kubernetes::Access::kAllowed:
      co_return 0;
    case kubernetes::Access::kUnauthenticated:
      co_return 401;
    case kubernetes::Access::kDenied:
      co_return 403;
    case kubernetes::Access::kUnknown:
      break;
  }
  co_return 503;
}

// Flags about a cluster that this picker asks nothing.
void warn_of_cluster_flags(const EppFlags& flags, const CLI::App& command, bool asks) {
  const auto warn = [&](const char* name, std::string_view why) {
    if (command.get_option(name)->count() == 0) return;
    telemetry::log_warn("a flag has no effect", {{"flag", name}, {"why", why}});
  };
  if (asks) {
    if (!flags.endpoint_selector.empty()) warn("--pool-group", "--endpoint-selector needs no InferencePool");
    return;
  }
  for (const char* name : {"--pool-group", "--endpoint-selector", "--endpoint-target-ports", "--kubeconfig",
                           "--ha-enable-leader-election"}) {
    warn(name, "endpoints are named without a cluster");
  }
}

int epp(const EppFlags& flags, const CLI::App& command) {
  auto plan = plan_of(flags, command);
  if (!plan.ok()) {
    complain(plan.error().message);
    return kFailed;
  }
  ProcessSignals signals;
  telemetry::init_logging(log_level(plan->log_level));
  for (const std::string& warning : plan->warnings) telemetry::log_warn(warning);
  const auto fail = [](const Error& error) {
    telemetry::log_error("penstock can't start", {{"error", error.message}});
    telemetry::flush_logs();
    return kFailed;
  };
  for (const CLI::Option* option : command.get_options()) {
    if (option->get_group() != kNoEffect || option->count() == 0) continue;
    telemetry::log_warn("a flag is accepted without effect",
                        {{"flag", option->get_name()}, {"why", option->get_description()}});
  }
  auto tls = metrics_tls(*plan);
  if (!tls.ok()) return fail(tls.error());
  auto created = extproc::EppRuntime::create(plan->options);
  if (!created.ok()) return fail(created.error());
  extproc::EppRuntime& runtime = **created;
  warn_of_cluster_flags(flags, command, runtime.cluster() != nullptr);

  io::LoopGroup admin_loop(1);
  admin_loop.start();
  admin::AdminPages pages = pages_of<extproc::Door::ExplainRequest>(runtime);
  if (flags.metrics_auth && runtime.cluster() != nullptr) {
    pages.refuse = [cluster = runtime.cluster()](io::HttpExchange& exchange) {
      return refusal(*cluster, exchange);
    };
  } else if (flags.metrics_auth && plan->metrics_client_ca.empty()) {
    telemetry::log_info("metrics-endpoint-auth: there is no Kubernetes API to ask, /metrics is open");
  }
  admin::AdminServer admin(admin_loop.at(0), std::move(pages));
  auto metrics_address = io::SocketAddress::parse(plan->admin_address);
  if (!metrics_address.ok()) return fail(metrics_address.error().wrap("metrics address"));
  auto bound = admin.listen(*metrics_address, *tls);
  if (!bound.ok()) return fail(bound.error().wrap("metrics address " + plan->admin_address));
  telemetry::log_info("admin listening", {{"address", bound->to_string()}});
  if (Status status = runtime.start(); !status.ok()) {
    admin.stop();
    runtime.stop();
    return fail(status.error());
  }
  telemetry::log_info("penstock picks", {{"version", kVersion}});
  release_start_up_memory();

  for (;;) {
    const std::optional<int> number = signals.wait(std::chrono::milliseconds(500));
    if (number == SIGTERM || number == SIGINT) break;
    runtime.tick();
    if (number != SIGHUP) continue;
    telemetry::log_info("SIGHUP: reading files again");
    auto again = plan_of(flags, command);
    if (again.ok()) {
      for (const std::string& warning : again->warnings) telemetry::log_warn(warning);
      plan->drain_timeout = again->drain_timeout;
      // What failed is in the log, part by part.
      static_cast<void>(runtime.reload(std::move(again->options)));
    } else {
      telemetry::log_error("reload failed, the former state stays", {{"error", again.error().message}});
    }
  }

  telemetry::log_info("draining", {{"timeout_s", to_seconds(plan->drain_timeout)}});
  runtime.begin_drain();
  // Data planes go on sending until they see that health says NOT_SERVING, and silence does not tell that
  // they have: an idle one may send its next request here.
  if (!drain(signals, plan->drain_timeout, [] { return 1; })) {
    telemetry::log_info("closing", {{"requests", runtime.active_requests()}});
    runtime.close_door();
    drain(signals, plan->drain_timeout, [&] { return runtime.active_requests(); });
  }
  // Its pages read what stop() takes apart.
  admin.stop();
  admin_loop.stop();
  runtime.stop();
  telemetry::log_info("stopped");
  telemetry::flush_logs();
  return kOk;
}

void add_reference_flags(CLI::App& command, EppFlags& flags) {
  constexpr const char* kGroup = "As in llm-d-router's picker";
  const auto port = CLI::Range(0, 65535);
  const auto option = [&](const char* name, auto& value, const char* text) {
    return command.add_option(name, value, text)->capture_default_str()->group(kGroup);
  };
  const auto flag = [&](const char* name, bool& value, const char* text) {
    CLI::Option* option = command.add_flag(name, value, text)->group(kGroup);
    option->default_str(value ? "true" : "false");
    return option;
  };
  option("--grpc-port", flags.grpc_port, "Port of ext-proc")->check(port);
  option("--grpc-health-port", flags.health_port, "Port of gRPC health, always plain")->check(port);
  option("--metrics-port", flags.metrics_port, "Port of /metrics, /healthz, /readyz and /debug")->check(port);
  option("--pool-name", flags.pool_name,
         "Name of the InferencePool; where endpoints are named otherwise: of the pool in metrics and rules");
  option("--pool-group", flags.pool_group,
         "API group of the InferencePool: inference.networking.k8s.io (v1), or "
         "inference.networking.x-k8s.io (v1alpha2)");
  option("--endpoint-selector", flags.endpoint_selector,
         "Instead of --pool-name, without CRDs: label selector of the pods");
  command
      .add_option("--endpoint-target-ports", flags.endpoint_ports,
                  "With it: 1 to 8 ports, each of which is an endpoint of every pod")
      ->delimiter(',')
      ->group(kGroup);
  option("--kubeconfig", flags.kubeconfig,
         "How to reach the cluster (default: KUBECONFIG, the pod's service account, ~/.kube/config)");
  option("--pool-namespace", flags.pool_namespace,
         "Its namespace (default: the environment's NAMESPACE, else 'default')");
  option("--config-file", flags.config_file, "EndpointPickerConfig (default: queue 2, KV cache 2, prefix 3)");
  option("--config-text", flags.config_text, "The same as text");
  flag("--allow-experimental-plugins", flags.allow_experimental, "Take plugins of stability Alpha");
  flag("--disable-endpoint-subset-filter", flags.no_subset_filter,
       "Ignore the data plane's list of allowed endpoints");
  flag("--emit-endpoint-scores", flags.emit_scores, "Tell every endpoint's score in the dynamic metadata");
  option("--refresh-metrics-interval", flags.metrics_interval,
         "How often engines are scraped; less than 50ms counts as 50ms");
  option("--metrics-staleness-threshold", flags.staleness, "Age at which a signal is stale");
  flag("--secure-serving", flags.secure, "TLS on the ext-proc port; without --cert-path self-signed");
  option("--cert-path", flags.cert_path, "Folder with tls.crt and tls.key");
  flag("--enable-cert-reload", flags.cert_reload, "Take them again when they change");
  option("--tls-min-version", flags.tls_min_version, "VersionTLS12 or VersionTLS13")
      ->check(CLI::IsMember({"", "VersionTLS10", "VersionTLS11", "VersionTLS12", "VersionTLS13"}));
  option("--tls-cipher-suites", flags.tls_ciphers, "Cipher suites of TLS 1.2, by their IANA names")
      ->delimiter(',');
  flag("--health-checking", flags.health_checking, "gRPC health on the ext-proc port too");
  option("--grpc-max-recv-msg-size", flags.max_receive,
         "Largest message, a quantity such as 10MiB (default: 65 MiB)");
  option("--grpc-max-send-msg-size", flags.max_send, "Largest answer (default: no limit)");
  option("--drain-timeout", flags.drain_timeout,
         "How long to serve on after SIGTERM (a second one ends it), and then to wait for open streams");
  flag("--enable-grpc-stream-metrics", flags.stream_metrics, "The llm_d_epp_extproc_* metrics");
  flag("--ha-enable-leader-election", flags.leader_election,
       "Of several pickers one leads, and only that one is ready (without it all of them pick)");
  flag("--metrics-endpoint-auth", flags.metrics_auth,
       "In a cluster: /metrics and /debug need a token whose bearer may get that path (TokenReview, "
       "SubjectAccessReview)");
  option("--metrics-cert-dir", flags.metrics_certs, "Folder with tls.crt and tls.key of the metrics port");
  option("--metrics-client-ca-file", flags.metrics_client_ca,
         "CA that clients of the metrics port must have");
  // Go's flags take -v=4 as well.
  option("-v,--v", flags.verbosity, "Log verbosity: 4 debug, 5 trace")->transform([](std::string text) {
    return text.starts_with('=') ? text.substr(1) : text;
  });
  option("--zap-log-level", flags.zap_log_level,
         "debug, info, warn, error, panic (as error), trace, or a number as for -v");
  flag("--tracing", flags.tracing,
       "Traces, as settings and the OTEL_* environment say; else to standard output");

  const auto ignored = [&](const char* name, auto& value, const char* text) {
    if constexpr (std::is_same_v<std::remove_reference_t<decltype(value)>, bool>) {
      command.add_flag(name, value, text)->group(kNoEffect);
    } else {
      command.add_option(name, value, text)->group(kNoEffect);
    }
  };
  ignored("--enable-pprof", flags.pprof, "There is no Go profiler");
  ignored("--refresh-prometheus-metrics-interval", flags.prometheus_interval,
          "Pool metrics are computed when they are asked for");
  ignored("--zap-devel", flags.ignored_flag, "Logs are JSON lines");
  for (const char* name : {"--zap-encoder", "--zap-stacktrace-level", "--zap-time-encoding"}) {
    ignored(name, flags.ignored_text, "Logs are JSON lines");
  }
  constexpr const char* kRefused = "Refused";
  for (const std::string name :
       {"total-queued-requests-metric", "total-running-requests-metric", "kv-cache-usage-percentage-metric",
        "lora-info-metric", "cache-info-metric"}) {
    command
        .add_option_function<std::string>(
            "--" + name,
            [name](const std::string&) {
              throw CLI::ValidationError(
                  "flag \"" + name +
                  "\" is deprecated and cannot be used; configure metrics via engineConfigs in "
                  "EndpointPickerConfig instead");
            },
            "Use engineConfigs in the configuration")
        ->group(kRefused);
  }
}

void add_own_flags(CLI::App& command, EppFlags& flags) {
  constexpr const char* kGroup = "Penstock's own";
  const auto option = [&](const char* name, auto& value, const char* text) {
    return command.add_option(name, value, text)->capture_default_str()->group(kGroup);
  };
  option("--endpoints-file", flags.endpoints_file, "File that lists engines; watched for changes");
  option("--model-server", flags.model_servers, "URL of one engine, 'http://10.0.0.1:8000'; repeatable");
  option("--manifests", flags.manifests,
         "File or folder of InferencePool, InferenceObjective and InferenceModelRewrite objects");
  option("--settings", flags.settings_file,
         "Penstock's settings: one pool, limits (of one listener), telemetry");
  option("--bind-address", flags.bind_address, "Address of all three ports (default: every interface)");
  command.add_option("--loops", flags.loops, "Event loops, 0 for one per core")
      ->check(CLI::Range(0, 256))
      ->group(kGroup);
  option("--body-piece-bytes", flags.piece_bytes, "Most of a body in one answer, 4Ki to 4Mi");
  option("--response-phase", flags.response_phase,
         "always: read answers as they pass; never: leave the stream after the request; auto: leave where "
         "nothing needs the answer")
      ->check(CLI::IsMember({"always", "auto", "never"}));
  command
      .add_flag("--response-metrics", flags.response_metrics,
                "Measure answers; for --response-phase auto, false: they are not needed for that")
      ->default_str("true")
      ->group(kGroup);
  command
      .add_flag("--outlier-detection", flags.outlier_detection,
                "Leave endpoints out for a while that fail requests; bounds: outlierDetection in --settings")
      ->capture_default_str()
      ->group(kGroup);
  command
      .add_flag("--all-pools", flags.all_pools,
                "Instead of --pool-name: every InferencePool of the namespace, as they come and go")
      ->group(kGroup);
  option("--pool-selector", flags.pool_selector,
         "The same of those whose labels match: 'team=a,env in (x,y)'");
  command
      .add_flag("--all-namespaces", flags.all_namespaces,
                "With either: InferencePools of all namespaces; needs to read them in the whole cluster")
      ->group(kGroup);
  option("--pool-linger", flags.pool_linger,
         "With either: how long an InferencePool that was deleted serves on");
  option("--pool-ports", flags.pool_ports,
         "With either: ports that pools may have for themselves, '9100-9199'; the endpointPickerRef of a "
         "pool says "
         "which");
  option("--error-format", flags.error_format,
         "text: as llm-d-router's picker; json: in the shape of the client's SDK")
      ->check(CLI::IsMember({"text", "json"}));
  option("--request-body-timeout", flags.body_timeout,
         "Longest silence before a request is complete; then 408");
  option("--shared-state-url", flags.shared_state_url,
         "Redis or Valkey through which pickers of a pool tell each other load and prefixes, "
         "'redis://host:6379/0' or 'rediss://…' (default: nothing is shared)");
  option("--shared-state-user", flags.shared_state_user, "User of that store (default: its default user)");
  option("--shared-state-password-file", flags.shared_state_password_file,
         "File with its password (default: the variable PENSTOCK_SHARED_STATE_PASSWORD)");
  option("--shared-state-ca-file", flags.shared_state_ca,
         "PEM certificates to trust with rediss:// (default: the system's)");
  option("--shared-state-staleness", flags.shared_state_staleness,
         "Age from which what another picker told of its load counts as nothing");
  option("--access-log", flags.access_log, "One line a request: on or off (default on)")
      ->check(CLI::IsMember({"on", "off"}));
}

}  // namespace

void add_epp(CLI::App& app, int& exit_code) {
  auto* command = app.add_subcommand(
      "epp",
      "Run the endpoint picker: tell Envoy, by external processing, which replica serves each request.");
  auto flags = std::make_shared<EppFlags>();
  add_reference_flags(*command, *flags);
  add_own_flags(*command, *flags);
  command->footer(
      "SIGHUP reads files again; SIGTERM drains.\n"
      "Example: penstock epp --pool-name llama --secure-serving=false --model-server http://127.0.0.1:8001 "
      "--model-server http://127.0.0.1:8002");
  command->callback([flags, command, &exit_code] { exit_code = epp(*flags, *command); });
}

}  // namespace penstock::cli
