#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "config/node.h"
#include "config/outlier_detection.h"
#include "config/params.h"
#include "config/sticky_responses.h"

// Penstock's own settings for `penstock serve`: one YAML document, strictly decoded. Every field is listed
// by describe_settings(), from which the reference is generated. Relative paths are relative to the folder
// of the settings file.
namespace penstock::config {

struct ListenerLimits {
  int64_t body_bytes = 64 << 20;
  int64_t header_bytes = 64 << 10;
  int64_t connections = 20000;
  int64_t streams = 20000;                // requests being served at once
  int64_t streams_per_connection = 1024;  // of HTTP/2
  bool streams_per_connection_given = false;
  int64_t queued_bytes = 256 << 20;  // of answers that HTTP/2 clients have not taken yet

  bool operator==(const ListenerLimits&) const = default;
};

struct ListenerSettings {
  std::string name;          // default "listener-<n>"
  std::string address;       // "host:port", ":port", "[::]:port"
  int64_t gateway_port = 0;  // the port Gateway manifests know it by; 0: the address's
  std::string cert_file;
  std::string key_file;  // with cert_file: TLS
  std::string api_keys_file;
  bool http2 = true;
  bool trust_fairness_header = false;  // a caller with a key may name another flow than its own
  Duration header_timeout = std::chrono::seconds(15);  // from connect or the last answer's request to a head
  Duration body_timeout = std::chrono::seconds(60);    // longest silence inside a request body
  Duration body_total_timeout = std::chrono::minutes(5);  // all of a body that is read before it is sent on
  Duration keep_alive = std::chrono::seconds(75);         // idle connection between requests
  Duration write_timeout = std::chrono::seconds(60);      // longest time a client takes no byte of an answer
  Duration connection_age = Duration::zero();             // of HTTP/2; then GOAWAY. Zero: no such end
  ListenerLimits limits;

  bool tls() const { return !cert_file.empty(); }
  bool operator==(const ListenerSettings&) const = default;
};

struct DnsSettings {
  std::string name;  // "" off
  uint16_t port = 0;
  bool tls = false;
  Duration interval = std::chrono::seconds(30);
  Duration timeout = std::chrono::seconds(5);

  bool operator==(const DnsSettings&) const = default;
};

struct DiscoverySettings {
  std::vector<std::string> static_urls;
  std::string file;
  bool watch_file = true;
  Duration file_poll = std::chrono::seconds(1);  // where the system can't watch
  DnsSettings dns;

  // There is a way to find endpoints.
  bool given() const { return !static_urls.empty() || !file.empty() || !dns.name.empty(); }
  bool operator==(const DiscoverySettings&) const = default;
};

// How requests and scrapes reach the engines.
struct EngineSettings {
  std::string authorization;       // value of the Authorization header, already read from env or file
  std::string authorization_env;   // where it came from
  std::string authorization_file;  // read again on reload
  bool forward_client_authorization = false;
  bool http2 = false;  // requests, not scrapes
  std::string ca_file;
  bool skip_verify = false;
  std::string server_name;                          // SNI and name to verify; "" the endpoint's address
  int64_t idle_connections = 256;                   // kept per endpoint and loop
  Duration idle_timeout = std::chrono::seconds(4);  // vLLM closes after 5 s
};

struct MetricsSettings {
  Duration interval = std::chrono::milliseconds(200);
  Duration timeout = std::chrono::seconds(1);
  Duration staleness = std::chrono::seconds(2);
  bool sleep_probe = false;
};

// Zero: no such deadline.
struct DeadlineSettings {
  Duration connect = std::chrono::seconds(2);
  Duration first_byte = std::chrono::minutes(5);
  Duration idle = std::chrono::minutes(2);  // longest silence inside an answer
  Duration total = std::chrono::hours(1);
};

struct RetrySettings {
  int64_t attempts = 3;  // the first try included, 1..3
};

struct PoolSettings {
  std::string name;
  std::string ns = "default";
  // The EndpointPickerConfig: a file, or inline; neither: the built-in default.
  std::string config_file;
  std::optional<Node> config_inline;
  DiscoverySettings discovery;
  EngineSettings engine;
  MetricsSettings metrics;
  DeadlineSettings deadlines;
  RetrySettings retries;
  OutlierDetectionSettings outlier_detection;
  StickyResponsesSettings sticky_responses;
  bool allow_experimental_plugins = false;
};

// Where a plain Service of an HTTPRoute is, stand-alone.
struct ServiceSettings {
  std::string name;
  std::string ns = "default";
  std::vector<std::string> urls;
};

// What is empty or absent is taken from the OTEL_* variables, then from defaults.
struct TracingSettings {
  std::string exporter;  // "otlp", "console", "none", "": what OTEL_TRACES_EXPORTER says
  std::string protocol;  // of otlp: "grpc" or "http/protobuf"
  std::string endpoint;  // URL; with http/protobuf the whole path
  std::optional<double> sample_ratio;
  std::optional<bool> parent_based;
  std::string service_name;

  bool operator==(const TracingSettings&) const = default;
};

struct TelemetrySettings {
  std::string log_level = "info";  // error, warn, info, debug, trace
  bool access_log = true;
  int64_t decisions = 1024;  // records kept for /debug/decisions
  bool trust_request_id = true;
  TracingSettings tracing;

  bool operator==(const TelemetrySettings&) const = default;
};

// State shared with other replicas of this process, by Redis or Valkey.
struct SharedStateSettings {
  std::string url;            // "" nothing is shared
  std::string user;           // "" the URL's, else the store's default user
  std::string password_file;  // "" what the environment says (kSharedStatePassword), else the URL's
  std::string ca_file;        // of rediss://; "" the system's
  bool skip_verify = false;
  std::string replica;  // name of this one; "" the pod's or host's
  Duration staleness = std::chrono::seconds(1);
  Duration interval = std::chrono::milliseconds(50);
  bool load = true;
  bool prefixes = true;
  int64_t prefix_batches = 4096;  // that the store keeps of a pool

  bool operator==(const SharedStateSettings&) const = default;
};
// The variable that holds the store's password where no file does.
inline constexpr const char* kSharedStatePassword = "PENSTOCK_SHARED_STATE_PASSWORD";
// What is wrong with the times, "" nothing; the same rule for settings and flags.
std::string shared_state_problem(const SharedStateSettings& settings);

struct Settings {
  std::vector<ListenerSettings> listeners;
  int64_t loops = 0;  // event loops; 0: one per core
  std::vector<PoolSettings> pools;
  std::vector<ServiceSettings> services;
  std::string manifests;      // file or folder, "" none
  std::string default_pool;   // "<name>" or "<namespace>/<name>", "" none unless there is exactly one pool
  std::string admin_address;  // "" no admin listener
  TelemetrySettings telemetry;
  SharedStateSettings shared_state;
  int64_t buffered_bytes = int64_t{1} << 30;  // of request bodies in memory, all listeners
  int64_t streams = 100000;                   // requests being served at once, all listeners
  Duration drain_timeout = std::chrono::seconds(30);
  std::vector<std::string> warnings;
  // Lines of what only the machine can refuse: files and addresses, such as "listeners[0].tls.certFile".
  std::map<std::string, int, std::less<>> lines;
};

// `folder`: what relative paths are relative to, "" the working directory. Reads authorization from the
// environment and files. Defaults and cross checks are applied; that there are listeners and pools at all is
// the caller's to check, who may have more from flags.
Result<Settings> decode_settings(std::string_view text, std::string_view source, const std::string& folder);
Result<Settings> load_settings(const std::string& path);

// The documentation of one object of the settings document: path "", "listeners[]", "pools[].dns", ...
struct SettingsSection {
  std::string path;
  std::string text;
  std::vector<ParamDoc> fields;
};
std::vector<SettingsSection> describe_settings();

}  // namespace penstock::config
