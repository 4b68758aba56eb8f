#include "cli/epp_plan.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <set>
#include <utility>

#include "base/strings.h"
#include "base/units.h"
#include "cli/process.h"
#include "config/settings.h"
#include "io/net.h"
#include "signals/scraper.h"

namespace penstock::cli {

namespace {

// Whether a flag is on the command line.
struct Given {
  const CLI::App& command;
  bool operator()(const char* flag) const { return command.get_option(flag)->count() != 0; }
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
Status check_pools(const EppFlags& flags, const Given& given) {
  if (!flags.many()) {
    if (flags.all_namespaces) return invalid_config("all-namespaces goes with all-pools or pool-selector");
    if (!flags.pool_ports.empty()) return invalid_config("pool-ports goes with all-pools or pool-selector");
    if (given("--pool-linger")) return invalid_config("pool-linger goes with all-pools or pool-selector");
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

// Flags that exclude or need each other, in the reference's words.
Status check_combinations(const EppFlags& flags) {
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

// The settings document, and the times that it and flags know.
Status take_times(const EppFlags& flags, const Given& given, EppPlan& plan) {
  config::MetricsSettings& metrics = plan.options.pool.metrics;
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
  metrics.interval = *interval;
  metrics.staleness = *staleness;
  if (!flags.settings_file.empty()) {
    if (Status status = take_settings(flags.settings_file, plan); !status.ok()) return status;
    if (given("--drain-timeout")) plan.drain_timeout = *drain;
    if (given("--refresh-metrics-interval")) metrics.interval = *interval;
    if (given("--metrics-staleness-threshold")) metrics.staleness = *staleness;
  }
  if (metrics.staleness < metrics.interval) {
    plan.warnings.push_back("--metrics-staleness-threshold " + format_duration(metrics.staleness) +
                            " is below --refresh-metrics-interval " + format_duration(metrics.interval) +
                            ": every signal will be stale");
  }
  return {};
}

Status take_pool(const EppFlags& flags, config::PoolSettings& pool) {
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
  if (Status status = check_model_servers(flags.model_servers); !status.ok()) return status;
  if (!flags.model_servers.empty()) pool.discovery.static_urls = flags.model_servers;
  if (flags.allow_experimental) pool.allow_experimental_plugins = true;
  return {};
}

Status take_cluster(const EppFlags& flags, extproc::EppOptions& options) {
  extproc::ClusterOptions& cluster = options.cluster;
  cluster.kubeconfig = flags.kubeconfig;
  cluster.pool_group = flags.pool_group;
  cluster.selector = flags.endpoint_selector;
  cluster.leader_election = flags.leader_election;
  for (const std::string& port : flags.endpoint_ports) {
    const auto number = static_cast<uint16_t>(parse_u64(port).value_or(0));
    auto& ports = cluster.target_ports;
    if (std::find(ports.begin(), ports.end(), number) == ports.end()) ports.push_back(number);
  }
  if (!flags.many()) return {};
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
  cluster.many = true;
  cluster.pool_selector = flags.pool_selector;
  cluster.all_namespaces = flags.all_namespaces;
  cluster.linger = *linger;
  cluster.first_pool_port = ports->first;
  cluster.last_pool_port = ports->second;
  return {};
}

Status take_shared_state(const EppFlags& flags, const Given& given, config::SharedStateSettings& shared) {
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
  return {};
}

Status take_door(const EppFlags& flags, const Given& given, extproc::DoorOptions& door) {
  door.emit_scores = flags.emit_scores;
  door.subset_filter = !flags.no_subset_filter;
  door.stream_metrics = flags.stream_metrics;
  door.response_metrics = flags.response_metrics;
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
  return {};
}

Status take_listeners(const EppFlags& flags, EppPlan& plan) {
  extproc::EppOptions& options = plan.options;
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
  return {};
}

}  // namespace

Result<EppPlan> plan_of(const EppFlags& flags, const CLI::App& command) {
  EppPlan plan;
  extproc::EppOptions& options = plan.options;
  const Given given{command};
  for (const auto& check : {check_combinations(flags), check_pools(flags, given), check_pool(flags),
                            check_log_level(flags.zap_log_level)}) {
    if (!check.ok()) return check.error();
  }
  // The settings document first: flags that are given overrule it.
  if (Status status = take_times(flags, given, plan); !status.ok()) return status.error();
  if (Status status = take_pool(flags, options.pool); !status.ok()) return status.error();
  if (Status status = take_cluster(flags, options); !status.ok()) return status.error();
  if (!flags.manifests.empty()) options.manifests = flags.manifests;
  if (flags.loops >= 0) options.loops = flags.loops;
  if (!flags.access_log.empty()) options.telemetry.access_log = flags.access_log == "on";
  options.tracing = flags.tracing;
  // The reference has no such thing: its choices stay what they are unless somebody asks for it.
  std::optional<bool>& detects = options.pool.outlier_detection.enabled;
  if (given("--outlier-detection") || !detects) detects = flags.outlier_detection;
  if (Status status = take_shared_state(flags, given, options.shared_state); !status.ok())
    return status.error();
  if (Status status = take_door(flags, given, options.door); !status.ok()) return status.error();
  if (Status status = take_listeners(flags, plan); !status.ok()) return status.error();
  plan.log_level = flags.settings_file.empty() || given("--v") || given("--zap-log-level")
                       ? level_of(flags)
                       : options.telemetry.log_level;
  return plan;
}

}  // namespace penstock::cli
