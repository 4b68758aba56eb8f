#include "discovery/file_discovery.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "base/hash.h"
#include "base/strings.h"
#include "config/files.h"
#include "telemetry/log.h"

namespace penstock::discovery {

namespace {

constexpr size_t kDumpedEndpoints = 100;

// Where an endpoint's metrics are, by its labels; "" where they don't say.
Result<std::string> labelled_metrics_host(const config::EndpointEntry& entry) {
  const auto address = entry.labels.find("metricsAddress");
  if (address == entry.labels.end()) return std::string();
  const auto fail = [&](std::string_view label, const std::string& value) {
    return invalid_config(fmt::format("endpoint \"{}\": label {}: invalid value \"{}\" (line {})", entry.name,
                                      label, value, entry.line));
  };
  if (!config::is_address(address->second)) return fail("metricsAddress", address->second);
  std::optional<uint64_t> port = entry.port;
  if (const auto label = entry.labels.find("metricsPort"); label != entry.labels.end()) {
    port = parse_u64(label->second);
    if (!port || *port < 1 || *port > 65535) return fail("metricsPort", label->second);
  }
  if (*port == 0) return std::string();
  Endpoint where;
  where.address = address->second;
  return where.host_port_at(static_cast<uint16_t>(*port));
}

}  // namespace

FileDiscovery::FileDiscovery(FileDiscoveryOptions options, EndpointSink& sink)
    : options_(std::move(options)),
      source_("file " + options_.path),
      sink_(sink),
      watch_({options_.path, options_.poll_interval, options_.settle}, [this] {
        (void)load(false);  // says itself what is wrong
      }) {}

FileDiscovery::~FileDiscovery() {
  stop();
}

Status FileDiscovery::start() {
  if (Status status = load(true); !status.ok())
    return std::move(status).error().wrap("file-discovery: initial load failed");
  return options_.watch ? watch_.start() : Status{};
}

void FileDiscovery::stop() {
  watch_.stop();
}

Status FileDiscovery::reload() {
  return load(false);
}

Status FileDiscovery::load(bool first) {
  const std::lock_guard lock(mutex_);
  const auto fail = [&](Error error) -> Status {
    if (error.message != last_error_) {
      ++stats_.failures;
      last_error_ = error.message;
      if (!first) {
        telemetry::log_error("endpoints file can't be used, the last good endpoints stay",
                             {{"path", options_.path}, {"endpoints", ids_.size()}, {"error", error.message}});
      }
    }
    return error;
  };
  auto text = config::read_file(options_.path, config::kMaxEndpointsFileBytes);
  if (!text.ok()) return fail(std::move(text).error());
  const uint64_t hash = hash_of(*text);
  if (loaded_ && hash == content_hash_) {
    last_error_.clear();
    return {};
  }
  auto file = config::decode_endpoints(*text, options_.path);
  if (!file.ok()) return fail(std::move(file).error());

  std::vector<DiscoveredEndpoint> endpoints;
  for (const config::EndpointEntry& entry : file->endpoints) {
    DiscoveredEndpoint& endpoint = endpoints.emplace_back(from_entry(entry));
    if (endpoint.tls) endpoint.tls_name = options_.tls_name;
    if (!options_.metrics_labels) continue;
    Result<std::string> host = labelled_metrics_host(entry);
    if (!host.ok()) return fail(host.error().wrap(options_.path));
    endpoint.metrics_host = std::move(*host);
  }
  ids_.clear();
  for (const config::EndpointEntry& entry : file->endpoints) ids_.push_back(entry.id());
  std::sort(ids_.begin(), ids_.end());
  constexpr size_t kMaxTold = 10;
  for (size_t i = 0; i < file->warnings.size() && i < kMaxTold; ++i)
    telemetry::log_warn("endpoints file", {{"path", options_.path}, {"warning", file->warnings[i]}});
  if (file->warnings.size() > kMaxTold) {
    telemetry::log_warn("endpoints file has more warnings",
                        {{"path", options_.path}, {"count", file->warnings.size() - kMaxTold}});
  }
  loaded_ = true;
  content_hash_ = hash;
  last_error_.clear();
  ++stats_.loads;
  telemetry::log_info("endpoints file loaded", {{"path", options_.path}, {"endpoints", ids_.size()}});
  sink_.endpoints(source_, endpoints);
  return {};
}

FileDiscovery::Stats FileDiscovery::stats() const {
  const std::lock_guard lock(mutex_);
  return stats_;
}

std::string FileDiscovery::state_json() const {
  const std::lock_guard lock(mutex_);
  std::string out = "{\"endpoints\":[";
  for (size_t i = 0; i < std::min(ids_.size(), kDumpedEndpoints); ++i) {
    if (i > 0) out += ',';
    append_json_quoted(out, ids_[i]);
  }
  return out + fmt::format("],\"totalEndpoints\":{},\"maxEndpoints\":{}}}", ids_.size(), kDumpedEndpoints);
}

}  // namespace penstock::discovery
