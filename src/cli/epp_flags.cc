#include "cli/epp_flags.h"

namespace penstock::cli {

namespace {

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
}

// Flags of the reference that are taken so that its command lines work here, and say nothing.
void add_ignored_flags(CLI::App& command, EppFlags& flags) {
  const auto flag = [&](const char* name, const char* text) {
    command.add_flag(name, flags.ignored_flag, text)->group(kNoEffect);
  };
  const auto option = [&](const char* name, const char* text) {
    command.add_option(name, flags.ignored_text, text)->group(kNoEffect);
  };
  flag("--enable-pprof", "There is no Go profiler");
  option("--refresh-prometheus-metrics-interval", "Pool metrics are computed when they are asked for");
  flag("--zap-devel", "Logs are JSON lines");
  for (const char* name : {"--zap-encoder", "--zap-stacktrace-level", "--zap-time-encoding"})
    option(name, "Logs are JSON lines");
}

// Flags of the reference that it refuses, in its words.
void add_refused_flags(CLI::App& command) {
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
  const auto flag = [&](const char* name, bool& value, const char* text) {
    return command.add_flag(name, value, text)->group(kGroup);
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
  flag("--response-metrics", flags.response_metrics,
       "Measure answers; for --response-phase auto, false: they are not needed for that")
      ->default_str("true");
  flag("--outlier-detection", flags.outlier_detection,
       "Leave endpoints out for a while that fail requests; bounds: outlierDetection in --settings")
      ->capture_default_str();
  flag("--all-pools", flags.all_pools,
       "Instead of --pool-name: every InferencePool of the namespace, as they come and go");
  option("--pool-selector", flags.pool_selector,
         "The same of those whose labels match: 'team=a,env in (x,y)'");
  flag("--all-namespaces", flags.all_namespaces,
       "With either: InferencePools of all namespaces; needs to read them in the whole cluster");
  option("--pool-linger", flags.pool_linger,
         "With either: how long an InferencePool that was deleted serves on");
  option("--pool-ports", flags.pool_ports,
         "With either: ports that pools may have for themselves, '9100-9199'; the endpointPickerRef of a "
         "pool says which");
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

void add_epp_flags(CLI::App& command, EppFlags& flags) {
  add_reference_flags(command, flags);
  add_ignored_flags(command, flags);
  add_refused_flags(command);
  add_own_flags(command, flags);
}

}  // namespace penstock::cli
