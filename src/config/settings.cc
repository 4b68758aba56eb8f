#include "config/settings.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <set>

#include "base/strings.h"
#include "base/units.h"
#include "config/decode.h"
#include "config/endpoints_file.h"
#include "config/files.h"

namespace penstock::config {

namespace {

constexpr size_t kMaxFileBytes = 4 << 20;

// --- one bind function per object: decodes it and documents it ---

struct TopNodes {
  const Node* listeners = nullptr;
  const Node* pools = nullptr;
  const Node* services = nullptr;
  const Node* routing = nullptr;
  const Node* admin = nullptr;
  const Node* telemetry = nullptr;
  const Node* shared_state = nullptr;
  const Node* limits = nullptr;
};

void bind_top(Binder& b, Settings& s, TopNodes& n) {
  b.node("listeners", n.listeners, "Where clients connect.");
  b.field("loops", s.loops, "threads", "Event loops; 0: one per core.");
  b.node("pools", n.pools, "The pools: picker configuration, endpoints and engine access of each.");
  b.node("services", n.services, "Where the plain Services are that HTTPRoutes name.");
  b.field("manifests", s.manifests, "",
          "File or folder of InferencePool, InferenceObjective, InferenceModelRewrite, Gateway and HTTPRoute "
          "objects. Creation order is file name, then position in the file.");
  b.node("routing", n.routing, "What happens where no route is configured.");
  b.node("admin", n.admin, "The listener for metrics, health and debugging.");
  b.node("telemetry", n.telemetry, "Logs and decision records.");
  b.node("sharedState", n.shared_state, "What replicas of this process tell each other.");
  b.node("limits", n.limits, "Limits over all listeners.");
  b.field("drainTimeout", s.drain_timeout, "",
          "After SIGTERM: how long requests in flight may go on before they are cut.");
}

struct ListenerNodes {
  const Node* tls = nullptr;
  const Node* limits = nullptr;
  const Node* timeouts = nullptr;
};

void bind_listener(Binder& b, ListenerSettings& l, ListenerNodes& n) {
  b.field("name", l.name, "",
          "Name in logs and metrics; default "
          "\"listener-<n>\".");
  b.field("address", l.address, "", "\"host:port\", \":port\" or \"[ipv6]:port\".");
  b.field("gatewayPort", l.gateway_port, "",
          "Port by which Gateway manifests mean this listener; 0: the port of the address.");
  b.node("tls", n.tls, "Certificate; present: the listener speaks TLS.");
  b.field("apiKeysFile", l.api_keys_file, "",
          "File of hashed API keys (`keys: [{name, sha256}]`); empty: everybody is let in. Read again on "
          "SIGHUP.");
  b.field("http2", l.http2, "",
          "Whether HTTP/2 is served beside HTTP/1: by ALPN with TLS, with prior knowledge without.");
  b.field(
      "trustFairnessHeader", l.trust_fairness_header, "",
      "Whether a caller with an API key may name another flow than its own by "
      "x-llm-d-inference-fairness-id: for a trusted proxy that speaks for others. Otherwise the key's name "
      "is the fairness id.");
  b.node("limits", n.limits, "Limits of this listener.");
  b.node("timeouts", n.timeouts, "Deadlines towards clients.");
}

void bind_listener_tls(Binder& b, ListenerSettings& l) {
  b.field("certFile", l.cert_file, "", "PEM certificate chain. Read again on SIGHUP.");
  b.field("keyFile", l.key_file, "", "PEM private key.");
}

void bind_listener_limits(Binder& b, ListenerLimits& l) {
  b.quantity("bodyBytes", l.body_bytes, "bytes", "Longest request body; longer: 413.");
  b.quantity("headerBytes", l.header_bytes, "bytes", "Longest request head; longer: 431.");
  b.quantity("connections", l.connections, "connections",
             "Connections at once; more are closed as they come.");
  b.quantity("streams", l.streams, "requests", "Requests being served at once; more: 503.");
  b.quantity("streamsPerConnection", l.streams_per_connection, "requests",
             "Streams at once of one HTTP/2 connection; more are refused.");
  b.quantity(
      "queuedBytes", l.queued_bytes, "bytes",
      "Answers that are kept for HTTP/2 clients that don't take them yet, all connections together, an "
      "equal share for each loop; beyond, an answer waits for its client.");
}

void bind_listener_timeouts(Binder& b, ListenerSettings& l) {
  b.field("header", l.header_timeout, "", "From the first byte of a request to the end of its head.");
  b.field("body", l.body_timeout, "", "Longest silence inside a request body; then 408.");
  b.field("bodyTotal", l.body_total_timeout, "",
          "Longest time for all of a request body that is read before it is sent on (those for pools); then "
          "408. Bodies for plain services pass as they come and have no such limit.");
  b.field("keepAlive", l.keep_alive, "", "Longest idle time of a connection between requests.");
  b.field("write", l.write_timeout, "", "Longest time a client takes no byte of an answer.");
  b.field("connectionAge", l.connection_age, "",
          "HTTP/2 connections older than this are asked to come again (GOAWAY); 0s: never.");
}

struct PoolNodes {
  const Node* config = nullptr;
  const Node* discovery = nullptr;
  const Node* engine = nullptr;
  const Node* metrics = nullptr;
  const Node* deadlines = nullptr;
  const Node* retries = nullptr;
  const Node* outlier_detection = nullptr;
  const Node* sticky_responses = nullptr;
};

void bind_pool(Binder& b, PoolSettings& p, PoolNodes& n) {
  b.field("name", p.name, "", "Name of the pool; of the InferencePool manifest where there is one.");
  b.field("namespace", p.ns, "", "Its namespace.");
  b.node("config", n.config, "EndpointPickerConfig: a file name, or the document inline. Default: built in.");
  b.node("discovery", n.discovery, "Where the pool's endpoints come from; the sources add up.");
  b.node("engine", n.engine, "How requests and scrapes reach the engines.");
  b.node("metrics", n.metrics, "How signals are scraped.");
  b.node("deadlines", n.deadlines, "Deadlines of one try towards an engine; 0s: none.");
  b.node("retries", n.retries, "When a request is tried again elsewhere.");
  b.node("outlierDetection", n.outlier_detection,
         "When an endpoint that fails requests gets none for a while.");
  b.node("stickyResponses", n.sticky_responses,
         "How long is remembered which endpoint made which stored response (/v1/responses).");
  b.field("allowExperimentalPlugins", p.allow_experimental_plugins, "", "Whether Alpha plugins may be used.");
}

void bind_discovery(Binder& b, DiscoverySettings& d, const Node*& dns) {
  b.field("static", d.static_urls, "", "Endpoints as URLs: \"http://10.0.0.1:8000\".");
  b.field("file", d.file, "",
          "Endpoints file (`endpoints: [{name, namespace, address, port, labels, draining}]`, or `url` "
          "in place of address and port).");
  b.field("watchFile", d.watch_file, "", "Whether changes of the file are followed.");
  b.field("filePoll", d.file_poll, "", "How often the file is looked at where the system can't watch it.");
  b.node("dns", dns, "One endpoint per address of a name.");
}

void bind_dns(Binder& b, DnsSettings& d, int64_t& port) {
  b.field("name", d.name, "", "Host name whose A and AAAA records are the endpoints.");
  b.field("port", port, "", "Port of each endpoint.");
  b.field("tls", d.tls, "", "Whether the endpoints speak https.");
  b.field("interval", d.interval, "", "How often the name is resolved.");
  b.field("timeout", d.timeout, "", "Longest time of one resolution; the last good answer stays in force.");
}

struct EngineNodes {
  const Node* authorization = nullptr;
  const Node* tls = nullptr;
};

void bind_engine(Binder& b, EngineSettings& e, EngineNodes& n) {
  b.node("authorization", n.authorization, "Where the Authorization header for engines comes from.");
  b.field("forwardClientAuthorization", e.forward_client_authorization, "",
          "Passes a client's authorization, x-api-key and api-key on to the engines. Never those of a "
          "listener with API keys; authorization only where the pool has none of its own.");
  b.field("http2", e.http2, "",
          "Requests go to the engines over HTTP/2: with prior knowledge to http ones, by ALPN to https ones. "
          "Scrapes stay with HTTP/1.1.");
  b.node("tls", n.tls, "Verification of https engines.");
  b.quantity("idleConnections", e.idle_connections, "connections",
             "Idle connections kept per endpoint and event loop.");
  b.field("idleTimeout", e.idle_timeout, "",
          "Age at which an idle connection is dropped; vLLM closes at 5s.");
}

void bind_authorization(Binder& b, EngineSettings& e) {
  b.field("env", e.authorization_env, "", "Environment variable that holds the header's value.");
  b.field("file", e.authorization_file, "", "File that holds it. Read again on SIGHUP.");
}

void bind_engine_tls(Binder& b, EngineSettings& e) {
  b.field("caFile", e.ca_file, "", "PEM certificates to trust; default: the system's.");
  b.field("skipVerify", e.skip_verify, "", "Trusts any certificate.");
  b.field("serverName", e.server_name, "", "Name to ask for and to verify; default: the endpoint's address.");
}

void bind_metrics(Binder& b, MetricsSettings& m) {
  b.field("interval", m.interval, "", "Time between scrapes of an endpoint, jittered.");
  b.field("timeout", m.timeout, "", "Longest time of one scrape.");
  b.field("staleness", m.staleness, "", "Age from which a signal is stale.");
  b.field(
      "sleepProbe", m.sleep_probe, "",
      "Asks GET /is_sleeping once a second of engines whose metrics page has no vllm:engine_sleep_state.");
}

void bind_deadlines(Binder& b, DeadlineSettings& d) {
  b.field("connect", d.connect, "", "To connect, TLS included.");
  b.field("firstByte", d.first_byte, "", "From the request sent to the answer's head.");
  b.field("idle", d.idle, "", "Longest silence inside an answer.");
  b.field("total", d.total, "", "From the decision to the end of the answer, retries included.");
}

void bind_retries(Binder& b, RetrySettings& r) {
  b.field("attempts", r.attempts, "tries", "Tries in all, 1 to 3.");
}

void bind_outlier_detection(Binder& b, OutlierDetectionSettings& o) {
  b.field("enabled", o.enabled, "", "Absent: true in `serve`; in `epp` what --outlier-detection says.");
  b.field("consecutiveFailures", o.consecutive_failures, "requests",
          "So many failed requests in a row eject an endpoint; 0: not looked at.");
  b.field("connectFailures", o.connect_failures, "requests",
          "The same where the last failure was a failed connect; 0: no bound of their own.");
  b.field("failureRatio", o.failure_ratio, "ratio",
          "So large a share of failed requests within the window ejects an endpoint; 0: not looked at.");
  b.field("minimumRequests", o.minimum_requests, "requests",
          "Requests within the window before the share counts.");
  b.field("window", o.window, "", "Time over which the share is taken.");
  b.field("baseEjection", o.base_ejection, "",
          "How long the first ejection lasts; each further one twice as long as the one before.");
  b.field("maxEjection", o.max_ejection, "",
          "Longest ejection. An endpoint that was healthy for so long starts over with baseEjection.");
  b.field("maxEjectedPercent", o.max_ejected_percent, "percent",
          "How much of the pool may be out, draining and sleeping endpoints not counted. Endpoints that "
          "nobody can connect to are ejected all the same.");
  b.field("firstTokenStall", o.first_token_stall, "",
          "A request for a stream that waits so long for its first output, while its endpoint sends none to "
          "anybody else, counts as failed; 0s: not looked at. It is not cut.");
}

void bind_sticky_responses(Binder& b, StickyResponsesSettings& r) {
  b.field(
      "entries", r.entries, "responses",
      "So many are remembered, those that were used last; 0: none, and previous_response_id works with one "
      "endpoint only.");
  b.field("expiry", r.expiry, "", "A response that nobody asks for so long is forgotten.");
}

void bind_service(Binder& b, ServiceSettings& s) {
  b.field("name", s.name, "", "Name of the Service.");
  b.field("namespace", s.ns, "", "Its namespace.");
  b.field("urls", s.urls, "", "Its addresses: \"http://10.0.0.9:8080\"; taken in turn.");
}

void bind_routing(Binder& b, Settings& s) {
  b.field(
      "defaultPool", s.default_pool, "",
      "Pool of requests that no route matches, \"<name>\" or \"<namespace>/<name>\". Default: the only pool "
      "where there are no routes.");
}

void bind_admin(Binder& b, Settings& s) {
  b.field("address", s.admin_address, "", "\"host:port\"; empty: no such listener.");
}

void bind_tracing(Binder& b, TracingSettings& t) {
  b.field(
      "exporter", t.exporter, "",
      "otlp, console (a line of JSON a span on standard output) or none; empty: what OTEL_TRACES_EXPORTER "
      "says, else none. Other fields left out come from the standard OTEL_* variables too.");
  b.field("protocol", t.protocol, "",
          "Of otlp: grpc or http/protobuf; empty: OTEL_EXPORTER_OTLP_PROTOCOL, else grpc.");
  b.field(
      "endpoint", t.endpoint, "",
      "URL of the collector, for http/protobuf with its whole path; empty: OTEL_EXPORTER_OTLP_ENDPOINT, else "
      "http://localhost:4317 or http://localhost:4318/v1/traces.");
  b.field("sampleRatio", t.sample_ratio, "ratio",
          "Share of the traces begun here that is recorded; absent: OTEL_TRACES_SAMPLER and its argument, "
          "else 0.1.");
  b.field("parentBased", t.parent_based, "",
          "Whether a caller's sampling decision holds; absent: OTEL_TRACES_SAMPLER, else true.");
  b.field("serviceName", t.service_name, "", "service.name; empty: OTEL_SERVICE_NAME, else penstock.");
}

void bind_telemetry(Binder& b, TelemetrySettings& t, const Node*& tracing) {
  b.field("logLevel", t.log_level, "", "error, warn, info, debug or trace.");
  b.field("accessLog", t.access_log, "", "One line per request.");
  b.quantity("decisions", t.decisions, "records", "Decision records kept for /debug/decisions.");
  b.field("trustRequestId", t.trust_request_id, "",
          "Whether a client's x-request-id is taken over; else a new one is made.");
  b.node("tracing", tracing, "Spans of requests, to an OpenTelemetry collector or the console.");
}

void bind_shared_state(Binder& b, SharedStateSettings& s) {
  b.field("url", s.url, "",
          "redis://[user[:password]@]host[:port][/database] of a Redis or Valkey, rediss:// over TLS; empty: "
          "nothing is shared.");
  b.field("user", s.user, "", "User to authenticate as; empty: the URL's, else the store's default user.");
  b.field("passwordFile", s.password_file, "",
          "File with the password, read with every connection; empty: the variable "
          "PENSTOCK_SHARED_STATE_PASSWORD, else the URL's.");
  b.field("caFile", s.ca_file, "", "PEM certificates to trust with rediss://; empty: the system's.");
  b.field("skipVerify", s.skip_verify, "", "Trust any certificate of the store: not for production.");
  b.field("replica", s.replica, "",
          "Name of this replica in metrics, logs and the store; empty: POD_NAME, else the host's name.");
  b.field("staleness", s.staleness, "",
          "Age from which what another replica told of its load is unknown and counts as nothing; at least "
          "four times the interval.");
  b.field("interval", s.interval, "", "Between two exchanges with the store, at least 10ms.");
  b.field("load", s.load, "", "Share requests and tokens in flight.");
  b.field("prefixes", s.prefixes, "", "Share which prefixes were sent where.");
  b.field("prefixBatches", s.prefix_batches, "batches",
          "Batches of prefixes that the store keeps of a pool, at most 32 KiB each or one prompt: what a "
          "replica that starts can learn.");
}

void bind_limits(Binder& b, Settings& s) {
  b.quantity("bufferedBytes", s.buffered_bytes, "bytes",
             "Memory that request bodies may take at once; more: 503. A body takes what has arrived of it, "
             "and up to 64 KiB or seven times as much of what it declares.");
  b.quantity("streams", s.streams, "requests", "Requests being served at once; more: 503.");
}

// --- checks ---

struct Bound {
  std::string_view field;
  int64_t value;
  int64_t min;
  int64_t max;
};

class SettingsDecoder {
 public:
  SettingsDecoder(const Node& document, const std::string& folder) : document_(document), folder_(folder) {}

  Result<Settings> decode() {
    TopNodes nodes;
    decode_object(&document_, "", errors_, [&](Binder& b) { bind_top(b, out_, nodes); });
    bounds("", document_, {{"loops", out_.loops, 0, 1024}});
    file(&document_, "", "manifests", out_.manifests);
    not_negative("drainTimeout", document_, out_.drain_timeout);
    for_each_item(nodes.listeners, "listeners", errors_,
                  [&](const Node& n, const std::string& p) { listener(n, p); });
    for_each_item(nodes.pools, "pools", errors_, [&](const Node& n, const std::string& p) { pool(n, p); });
    for_each_item(nodes.services, "services", errors_,
                  [&](const Node& n, const std::string& p) { service(n, p); });
    decode_object(nodes.routing, "routing", errors_, [&](Binder& b) { bind_routing(b, out_); });
    decode_object(nodes.admin, "admin", errors_, [&](Binder& b) { bind_admin(b, out_); });
    if (nodes.admin != nullptr) note_line(*nodes.admin, "admin", "address");
    if (!out_.admin_address.empty())
      check_address(out_.admin_address, "admin.address", line_of(*nodes.admin, "address"));
    telemetry(nodes.telemetry);
    if (nodes.shared_state != nullptr) shared_state(*nodes.shared_state);
    decode_object(nodes.limits, "limits", errors_, [&](Binder& b) { bind_limits(b, out_); });
    if (nodes.limits != nullptr) {
      bounds("limits", *nodes.limits,
             {{"bufferedBytes", out_.buffered_bytes, 1 << 20, INT64_MAX},
              {"streams", out_.streams, 1, 10000000}});
    }
    cross_checks(nodes);
    if (!errors_.empty()) return errors_.joined();
    return std::move(out_);
  }

 private:
  // Line of a field, or of its object where the field is absent.
  static int line_of(const Node& object, std::string_view field) {
    const Node* node = object.find(field);
    return node != nullptr ? node->line : object.line;
  }
  void note_line(const Node& object, const std::string& path, std::string_view field) {
    out_.lines[join_path(path, field)] = line_of(object, field);
  }
  // What names a file, made relative to the document's folder.
  void file(const Node* object, const std::string& path, std::string_view field, std::string& value) {
    if (object == nullptr || value.empty()) return;
    value = resolve_path(folder_, value);
    note_line(*object, path, field);
  }
  void bounds(const std::string& path, const Node& object, std::initializer_list<Bound> list) {
    for (const Bound& b : list) {
      if (b.value >= b.min && b.value <= b.max) continue;
      errors_.add(join_path(path, b.field),
                  b.max == INT64_MAX ? fmt::format("{} is less than {}", b.value, b.min)
                                     : fmt::format("{} is not in {}..{}", b.value, b.min, b.max),
                  line_of(object, b.field));
    }
  }
  // Whether a text was left out; of one that is no text the wrong type is told already.
  static bool left_out(const Node& object, std::string_view field, const std::string& value) {
    const Node* node = object.find(field);
    return value.empty() && (node == nullptr || node->is_null() || node->kind == Node::Kind::kString);
  }
  void required(const std::string& path, const Node& object, std::string_view field,
                const std::string& value) {
    if (left_out(object, field, value))
      errors_.add(join_path(path, field), "is required", line_of(object, field));
  }
  // `path` ends with the field's name in `object`.
  void not_negative(const std::string& path, const Node& object, Duration value) {
    if (value < Duration(0))
      errors_.add(path, format_duration(value) + " is negative", line_at(object, path));
  }
  void positive(const std::string& path, const Node& object, Duration value) {
    if (value <= Duration(0))
      errors_.add(path, format_duration(value) + " is not positive", line_at(object, path));
  }
  static int line_at(const Node& object, const std::string& path) {
    return line_of(object, std::string_view(path).substr(path.rfind('.') + 1));
  }
  // Of pools and services: as Kubernetes has them, and "_" besides.
  void check_name(const std::string& name, const std::string& path, int line) {
    const auto fits = [](char c) {
      return (c >= '0' && c <= '9') || (ascii_lower(c) >= 'a' && ascii_lower(c) <= 'z') || c == '-' ||
             c == '.' || c == '_';
    };
    if (name.size() <= 253 && std::all_of(name.begin(), name.end(), fits)) return;
    errors_.add(path,
                fmt::format("{} is no name: up to 253 letters, digits, \"-\", \".\" and \"_\"",
                            json_quote(name.substr(0, 253))),
                line);
  }
  // "host:port", ":port", "[v6]:port"; port 0 lets the system choose.
  void check_address(const std::string& address, const std::string& path, int line) {
    const size_t colon = address.rfind(':');
    const auto port = colon == std::string::npos ? std::nullopt : parse_u64(address.substr(colon + 1));
    const std::string host = colon == std::string::npos ? "" : address.substr(0, colon);
    const bool bracketed = host.starts_with('[') && host.ends_with(']');
    if (!port || *port > 65535 || (!bracketed && host.find(':') != std::string::npos)) {
      errors_.add(path, fmt::format("\"{}\" is not \"host:port\", \":port\" or \"[ipv6]:port\"", address),
                  line);
    }
  }

  void listener(const Node& node, const std::string& path) {
    ListenerSettings l;
    ListenerNodes nodes;
    decode_object(&node, path, errors_, [&](Binder& b) { bind_listener(b, l, nodes); });
    if (l.name.empty()) l.name = fmt::format("listener-{}", out_.listeners.size());
    required(path, node, "address", l.address);
    note_line(node, path, "address");
    if (!l.address.empty()) check_address(l.address, path + ".address", line_of(node, "address"));
    bounds(path, node, {{"gatewayPort", l.gateway_port, 0, 65535}});
    if (nodes.tls != nullptr) {
      decode_object(nodes.tls, path + ".tls", errors_, [&](Binder& b) { bind_listener_tls(b, l); });
      required(path + ".tls", *nodes.tls, "certFile", l.cert_file);
      required(path + ".tls", *nodes.tls, "keyFile", l.key_file);
    }
    file(nodes.tls, path + ".tls", "certFile", l.cert_file);
    file(nodes.tls, path + ".tls", "keyFile", l.key_file);
    file(&node, path, "apiKeysFile", l.api_keys_file);
    decode_object(nodes.limits, path + ".limits", errors_,
                  [&](Binder& b) { bind_listener_limits(b, l.limits); });
    if (nodes.limits != nullptr) {
      l.limits.streams_per_connection_given = nodes.limits->find("streamsPerConnection") != nullptr;
      bounds(path + ".limits", *nodes.limits,
             {{"bodyBytes", l.limits.body_bytes, 1, int64_t{4} << 30},
              {"headerBytes", l.limits.header_bytes, 1024, 16 << 20},
              {"connections", l.limits.connections, 1, 10000000},
              {"streams", l.limits.streams, 1, 10000000},
              {"streamsPerConnection", l.limits.streams_per_connection, 1, 1000000},
              {"queuedBytes", l.limits.queued_bytes, 1 << 20, int64_t{1} << 40}});
    }
    decode_object(nodes.timeouts, path + ".timeouts", errors_,
                  [&](Binder& b) { bind_listener_timeouts(b, l); });
    if (nodes.timeouts != nullptr) {
      positive(path + ".timeouts.header", *nodes.timeouts, l.header_timeout);
      positive(path + ".timeouts.body", *nodes.timeouts, l.body_timeout);
      positive(path + ".timeouts.bodyTotal", *nodes.timeouts, l.body_total_timeout);
      positive(path + ".timeouts.keepAlive", *nodes.timeouts, l.keep_alive);
      positive(path + ".timeouts.write", *nodes.timeouts, l.write_timeout);
      not_negative(path + ".timeouts.connectionAge", *nodes.timeouts, l.connection_age);
    }
    for (size_t i = 0; i < out_.listeners.size(); ++i) {
      const ListenerSettings& other = out_.listeners[i];
      if (other.name == l.name)
        errors_.add(path + ".name", fmt::format("\"{}\" is given twice", l.name), node.line);
      if (other.address == l.address && !l.address.empty() && !l.address.ends_with(":0")) {
        errors_.add(path + ".address",
                    fmt::format("\"{}\" is the address of listeners[{}] too", l.address, i),
                    line_of(node, "address"));
      }
    }
    out_.listeners.push_back(std::move(l));
  }

  void pool(const Node& node, const std::string& path) {
    PoolSettings p;
    PoolNodes nodes;
    decode_object(&node, path, errors_, [&](Binder& b) { bind_pool(b, p, nodes); });
    required(path, node, "name", p.name);
    if (p.ns.empty()) p.ns = "default";
    check_name(p.name, path + ".name", line_of(node, "name"));
    check_name(p.ns, path + ".namespace", line_of(node, "namespace"));
    if (nodes.config != nullptr) {
      if (nodes.config->kind == Node::Kind::kString) {
        p.config_file = nodes.config->text;
        file(&node, path, "config", p.config_file);
      } else if (nodes.config->is_map()) {
        p.config_inline = *nodes.config;
      } else {
        errors_.add(path + ".config",
                    "expected a file name or an EndpointPickerConfig, got " + shown_with_kind(*nodes.config),
                    nodes.config->line);
      }
    }
    discovery(nodes.discovery, path + ".discovery", p.discovery);
    engine(nodes.engine, path + ".engine", p.engine);
    decode_object(nodes.metrics, path + ".metrics", errors_, [&](Binder& b) { bind_metrics(b, p.metrics); });
    if (nodes.metrics != nullptr) {
      positive(path + ".metrics.timeout", *nodes.metrics, p.metrics.timeout);
      positive(path + ".metrics.staleness", *nodes.metrics, p.metrics.staleness);
      if (p.metrics.interval < std::chrono::milliseconds(10)) {
        errors_.add(path + ".metrics.interval",
                    fmt::format("{} is less than 10ms", format_duration(p.metrics.interval)),
                    line_of(*nodes.metrics, "interval"));
      }
      if (p.metrics.staleness > Duration(0) && p.metrics.staleness < p.metrics.interval) {
        errors_.add(path + ".metrics.staleness", "is below the interval: every signal would be stale",
                    line_of(*nodes.metrics, "staleness"));
      }
    }
    decode_object(nodes.deadlines, path + ".deadlines", errors_,
                  [&](Binder& b) { bind_deadlines(b, p.deadlines); });
    if (nodes.deadlines != nullptr) {
      not_negative(path + ".deadlines.connect", *nodes.deadlines, p.deadlines.connect);
      not_negative(path + ".deadlines.firstByte", *nodes.deadlines, p.deadlines.first_byte);
      not_negative(path + ".deadlines.idle", *nodes.deadlines, p.deadlines.idle);
      not_negative(path + ".deadlines.total", *nodes.deadlines, p.deadlines.total);
    }
    decode_object(nodes.retries, path + ".retries", errors_, [&](Binder& b) { bind_retries(b, p.retries); });
    if (nodes.retries != nullptr) {
      bounds(path + ".retries", *nodes.retries, {{"attempts", p.retries.attempts, 1, 3}});
    }
    outlier_detection(nodes.outlier_detection, path + ".outlierDetection", p.outlier_detection);
    decode_object(nodes.sticky_responses, path + ".stickyResponses", errors_,
                  [&](Binder& b) { bind_sticky_responses(b, p.sticky_responses); });
    if (nodes.sticky_responses != nullptr) {
      bounds(path + ".stickyResponses", *nodes.sticky_responses,
             {{"entries", p.sticky_responses.entries, 0, 10000000}});
      positive(path + ".stickyResponses.expiry", *nodes.sticky_responses, p.sticky_responses.expiry);
    }
    const bool twice = std::any_of(out_.pools.begin(), out_.pools.end(), [&](const PoolSettings& other) {
      return other.name == p.name && other.ns == p.ns;
    });
    if (twice) errors_.add(path + ".name", fmt::format("\"{}/{}\" is given twice", p.ns, p.name), node.line);
    out_.pools.push_back(std::move(p));
  }

  void outlier_detection(const Node* node, const std::string& path, OutlierDetectionSettings& o) {
    if (node == nullptr) return;
    decode_object(node, path, errors_, [&](Binder& b) { bind_outlier_detection(b, o); });
    bounds(path, *node,
           {{"consecutiveFailures", o.consecutive_failures, 0, 1000000},
            {"connectFailures", o.connect_failures, 0, 1000000},
            {"minimumRequests", o.minimum_requests, 1, 1000000},
            {"maxEjectedPercent", o.max_ejected_percent, 0, 100}});
    if (!(o.failure_ratio >= 0 && o.failure_ratio <= 1)) {
      errors_.add(path + ".failureRatio", fmt::format("{} is not in 0..1", o.failure_ratio),
                  line_of(*node, "failureRatio"));
    }
    positive(path + ".window", *node, o.window);
    positive(path + ".baseEjection", *node, o.base_ejection);
    if (o.max_ejection < o.base_ejection) {
      errors_.add(path + ".maxEjection", "is below baseEjection", line_of(*node, "maxEjection"));
    }
    not_negative(path + ".firstTokenStall", *node, o.first_token_stall);
  }

  void check_urls(const std::vector<std::string>& urls, const std::string& path, int line) {
    for (size_t i = 0; i < urls.size(); ++i) {
      if (const auto parsed = parse_endpoint_url(urls[i]); !parsed) {
        errors_.add(fmt::format("{}[{}]", path, i), parsed.error().message, line);
      }
    }
  }

  void discovery(const Node* node, const std::string& path, DiscoverySettings& d) {
    if (node == nullptr) return;
    const Node* dns = nullptr;
    decode_object(node, path, errors_, [&](Binder& b) { bind_discovery(b, d, dns); });
    check_urls(d.static_urls, path + ".static", line_of(*node, "static"));
    file(node, path, "file", d.file);
    positive(path + ".filePoll", *node, d.file_poll);
    if (dns == nullptr) return;
    int64_t port = 0;
    decode_object(dns, path + ".dns", errors_, [&](Binder& b) { bind_dns(b, d.dns, port); });
    bounds(path + ".dns", *dns, {{"port", port, 1, 65535}});
    d.dns.port = static_cast<uint16_t>(port);
    required(path + ".dns", *dns, "name", d.dns.name);
    positive(path + ".dns.interval", *dns, d.dns.interval);
    positive(path + ".dns.timeout", *dns, d.dns.timeout);
  }

  void engine(const Node* node, const std::string& path, EngineSettings& e) {
    if (node == nullptr) return;
    EngineNodes nodes;
    decode_object(node, path, errors_, [&](Binder& b) { bind_engine(b, e, nodes); });
    bounds(path, *node, {{"idleConnections", e.idle_connections, 0, 100000}});
    not_negative(path + ".idleTimeout", *node, e.idle_timeout);
    decode_object(nodes.tls, path + ".tls", errors_, [&](Binder& b) { bind_engine_tls(b, e); });
    file(nodes.tls, path + ".tls", "caFile", e.ca_file);
    if (nodes.authorization == nullptr) return;
    const std::string auth_path = path + ".authorization";
    decode_object(nodes.authorization, auth_path, errors_, [&](Binder& b) { bind_authorization(b, e); });
    if (e.authorization_env.empty() == e.authorization_file.empty()) {
      errors_.add(auth_path, "exactly one of env and file is required", nodes.authorization->line);
      return;
    }
    authorization(auth_path, nodes.authorization->line, e);
  }

  void authorization(const std::string& path, int line, EngineSettings& e) {
    std::string value;
    if (!e.authorization_env.empty()) {
      const char* found = std::getenv(e.authorization_env.c_str());
      if (found == nullptr) {
        errors_.add(path + ".env", fmt::format("environment variable {} is not set", e.authorization_env),
                    line);
        return;
      }
      value = found;
    } else {
      e.authorization_file = resolve_path(folder_, e.authorization_file);
      Result<std::string> text = read_file(e.authorization_file, 64 << 10);
      if (!text) {
        errors_.add(path + ".file", text.error().message, line);
        return;
      }
      value = std::move(text).value();
    }
    e.authorization = std::string(trim(value));
    const bool printable = std::all_of(e.authorization.begin(), e.authorization.end(),
                                       [](char c) { return c >= 0x20 && c < 0x7F; });
    if (e.authorization.empty() || !printable) {
      errors_.add(path, "the value is empty or holds control characters", line);
    }
  }

  void service(const Node& node, const std::string& path) {
    ServiceSettings s;
    decode_object(&node, path, errors_, [&](Binder& b) { bind_service(b, s); });
    required(path, node, "name", s.name);
    const Node* urls = node.find("urls");
    if (s.urls.empty() && (urls == nullptr || urls->is_null() || (urls->is_list() && urls->items.empty())))
      errors_.add(path + ".urls", "at least one is required", line_of(node, "urls"));
    check_name(s.name, path + ".name", line_of(node, "name"));
    check_name(s.ns, path + ".namespace", line_of(node, "namespace"));
    const bool twice = std::any_of(out_.services.begin(), out_.services.end(), [&](const auto& other) {
      return other.name == s.name && other.ns == s.ns;
    });
    if (twice) errors_.add(path + ".name", fmt::format("\"{}/{}\" is given twice", s.ns, s.name), node.line);
    check_urls(s.urls, path + ".urls", line_of(node, "urls"));
    out_.services.push_back(std::move(s));
  }

  void telemetry(const Node* node) {
    const Node* tracing = nullptr;
    decode_object(node, "telemetry", errors_, [&](Binder& b) { bind_telemetry(b, out_.telemetry, tracing); });
    if (node == nullptr) return;
    if (tracing != nullptr) this->tracing(*tracing);
    static constexpr std::array<std::string_view, 5> kLevels{"error", "warn", "info", "debug", "trace"};
    if (std::find(kLevels.begin(), kLevels.end(), out_.telemetry.log_level) == kLevels.end()) {
      errors_.add("telemetry.logLevel",
                  fmt::format("\"{}\" is not error, warn, info, debug or trace", out_.telemetry.log_level),
                  line_of(*node, "logLevel"));
    }
    bounds("telemetry", *node, {{"decisions", out_.telemetry.decisions, 0, 1000000}});
  }

  void shared_state(const Node& node) {
    SharedStateSettings& s = out_.shared_state;
    decode_object(&node, "sharedState", errors_, [&](Binder& b) { bind_shared_state(b, s); });
    file(&node, "sharedState", "passwordFile", s.password_file);
    file(&node, "sharedState", "caFile", s.ca_file);
    note_line(node, "sharedState", "url");
    bounds("sharedState", node, {{"prefixBatches", s.prefix_batches, 1, 1000000}});
    if (const std::string problem = shared_state_problem(s); !problem.empty())
      errors_.add("sharedState.staleness", problem, line_of(node, "staleness"));
    if (s.skip_verify) out_.warnings.push_back("sharedState.skipVerify trusts any certificate");
  }

  void tracing(const Node& node) {
    TracingSettings& t = out_.telemetry.tracing;
    decode_object(&node, "telemetry.tracing", errors_, [&](Binder& b) { bind_tracing(b, t); });
    note_line(node, "telemetry.tracing", "endpoint");
    const auto one_of = [&](std::string_view field, const std::string& value,
                            std::initializer_list<std::string_view> known) {
      if (value.empty() || std::find(known.begin(), known.end(), value) != known.end()) return;
      errors_.add(join_path("telemetry.tracing", field),
                  fmt::format("\"{}\" is not {}", value, fmt::join(known, " or ")), line_of(node, field));
    };
    one_of("exporter", t.exporter, {"otlp", "console", "none"});
    one_of("protocol", t.protocol, {"grpc", "http/protobuf"});
    if (t.sample_ratio && !(*t.sample_ratio >= 0 && *t.sample_ratio <= 1)) {
      errors_.add("telemetry.tracing.sampleRatio", fmt::format("{} is not in 0..1", *t.sample_ratio),
                  line_of(node, "sampleRatio"));
    }
  }

  void cross_checks(const TopNodes& nodes) {
    if (!out_.default_pool.empty()) {
      const bool known = std::any_of(out_.pools.begin(), out_.pools.end(), [&](const PoolSettings& p) {
        return out_.default_pool == p.name || out_.default_pool == p.ns + "/" + p.name;
      });
      if (!known && out_.manifests.empty() && !out_.pools.empty()) {
        errors_.add("routing.defaultPool", fmt::format("\"{}\" is not a pool", out_.default_pool),
                    nodes.routing->line);
      }
    }
    for (const PoolSettings& p : out_.pools) {
      const DiscoverySettings& d = p.discovery;
      if (d.static_urls.empty() && d.file.empty() && d.dns.name.empty()) {
        out_.warnings.push_back(fmt::format("pool {}/{} has no discovery: it will stay empty", p.ns, p.name));
      }
      if (p.engine.skip_verify) {
        out_.warnings.push_back(
            fmt::format("pool {}/{}: engine.tls.skipVerify trusts any certificate", p.ns, p.name));
      }
    }
  }

  const Node& document_;
  const std::string& folder_;
  Settings out_;
  Errors errors_;
};

}  // namespace

std::string shared_state_problem(const SharedStateSettings& s) {
  if (s.interval < std::chrono::milliseconds(10))
    return fmt::format("the interval of {} is below 10ms", format_duration(s.interval));
  if (s.staleness < 4 * s.interval || s.staleness > std::chrono::minutes(1)) {
    return fmt::format("{} is not between four times the interval of {} and 1m", format_duration(s.staleness),
                       format_duration(s.interval));
  }
  return {};
}

Result<Settings> decode_settings(std::string_view text, std::string_view source, const std::string& folder) {
  Result<Node> document = parse_document(text, source, ParseLimits{.max_bytes = kMaxFileBytes});
  if (!document) return std::move(document).error();
  Result<Settings> settings = SettingsDecoder(*document, folder).decode();
  if (!settings) return settings.error().wrap(source);
  return settings;
}

Result<Settings> load_settings(const std::string& path) {
  Result<std::string> text = read_file(path, kMaxFileBytes);
  if (!text) return std::move(text).error();
  return decode_settings(*text, path, folder_of(path));
}

std::vector<SettingsSection> describe_settings() {
  std::vector<SettingsSection> out;
  const auto add = [&](std::string_view path, std::string_view text, auto&& bind) {
    out.push_back({std::string(path), std::string(text), describe_params(bind)});
  };
  Settings s;
  TopNodes top;
  ListenerSettings listener;
  ListenerNodes listener_nodes;
  PoolSettings pool;
  PoolNodes pool_nodes;
  EngineNodes engine_nodes;
  ServiceSettings service;
  const Node* node = nullptr;
  int64_t port = 0;
  add("", "The document.", [&](Binder& b) { bind_top(b, s, top); });
  add("listeners[]", "Where clients connect.",
      [&](Binder& b) { bind_listener(b, listener, listener_nodes); });
  add("listeners[].tls", "", [&](Binder& b) { bind_listener_tls(b, listener); });
  add("listeners[].limits", "", [&](Binder& b) { bind_listener_limits(b, listener.limits); });
  add("listeners[].timeouts", "", [&](Binder& b) { bind_listener_timeouts(b, listener); });
  add("pools[]", "One InferencePool.", [&](Binder& b) { bind_pool(b, pool, pool_nodes); });
  add("pools[].discovery", "", [&](Binder& b) { bind_discovery(b, pool.discovery, node); });
  add("pools[].discovery.dns", "", [&](Binder& b) { bind_dns(b, pool.discovery.dns, port); });
  add("pools[].engine", "", [&](Binder& b) { bind_engine(b, pool.engine, engine_nodes); });
  add("pools[].engine.authorization", "", [&](Binder& b) { bind_authorization(b, pool.engine); });
  add("pools[].engine.tls", "", [&](Binder& b) { bind_engine_tls(b, pool.engine); });
  add("pools[].metrics", "", [&](Binder& b) { bind_metrics(b, pool.metrics); });
  add("pools[].deadlines", "", [&](Binder& b) { bind_deadlines(b, pool.deadlines); });
  add("pools[].retries",
      "Tried again: connecting failed, the engine answered 503 before any byte went to the client, or a "
      "reused "
      "connection closed before any answer.",
      [&](Binder& b) { bind_retries(b, pool.retries); });
  add("pools[].outlierDetection",
      "A failed request: no connection, a connection that broke before the answer's end, a status of 5xx "
      "other "
      "than 501, a deadline passed, or no output for firstTokenStall. When an ejection is over one request "
      "is "
      "let through; its first output brings the endpoint back, its failure means a longer ejection.",
      [&](Binder& b) { bind_outlier_detection(b, pool.outlier_detection); });
  add("pools[].stickyResponses",
      "A stored response is in the memory of the engine that made it: previous_response_id, and GET, DELETE "
      "and cancel of the response, go there. Learned from answers, by each process for itself.",
      [&](Binder& b) { bind_sticky_responses(b, pool.sticky_responses); });
  add("services[]", "A plain Service as HTTPRoutes name it.", [&](Binder& b) { bind_service(b, service); });
  add("routing", "", [&](Binder& b) { bind_routing(b, s); });
  add("admin", "", [&](Binder& b) { bind_admin(b, s); });
  add("telemetry", "", [&](Binder& b) { bind_telemetry(b, s.telemetry, node); });
  add("telemetry.tracing", "", [&](Binder& b) { bind_tracing(b, s.telemetry.tracing); });
  add("sharedState",
      "Requests and tokens in flight at each endpoint, and which prefixes were sent where, of all replicas "
      "that serve a pool of the same namespace and name. Decisions never wait for it.",
      [&](Binder& b) { bind_shared_state(b, s.shared_state); });
  add("limits", "", [&](Binder& b) { bind_limits(b, s); });
  return out;
}

}  // namespace penstock::config
