#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>
#include <vector>

namespace penstock::cli {

// A group of flags: the reference has them, this build has no use for them.
inline constexpr const char* kNoEffect = "Accepted without effect";

// What `penstock epp` is told, as written. Names and defaults are llm-d-router's; the second half is
// Penstock's own.
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
  std::string staleness = "2s";
  int64_t verbosity = 2;
  std::string zap_log_level;
  std::string ignored_text;   // of every flag of kNoEffect that takes a value
  bool ignored_flag = false;  // of every other one
  bool tracing = true;
  bool health_checking = false;
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

  // Whether several pools are served.
  bool many() const { return all_pools || !pool_selector.empty(); }
};

// `flags` outlive parsing.
void add_epp_flags(CLI::App& command, EppFlags& flags);

}  // namespace penstock::cli
