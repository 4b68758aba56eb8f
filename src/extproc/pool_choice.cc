#include "extproc/pool_choice.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/strings.h"

namespace penstock::extproc {

namespace {

constexpr size_t kMaxSaid = 256;  // bytes of what a stream says, in an error

std::string_view cut(std::string_view text) {
  return text.substr(0, kMaxSaid);
}

std::optional<uint16_t> port_of(std::string_view text) {
  const auto number = parse_u64(text);
  if (!number || *number < 1 || *number > 65535) return std::nullopt;
  return static_cast<uint16_t>(*number);
}

// A host with the labels of a Service's DNS name.
std::optional<ServiceName> service_of_host(std::string_view host) {
  const std::vector<std::string_view> labels = split(host, '.');
  if (labels.size() < 2 || labels[0].empty() || labels[1].empty()) return std::nullopt;
  if (labels.size() > 2 && labels[2] != "svc") return std::nullopt;
  ServiceName out;
  out.name = labels[0];
  out.ns = labels[1];
  out.certain = labels.size() > 2;
  return out;
}

}  // namespace

std::optional<ServiceName> service_of(std::string_view authority) {
  const std::string lower = ascii_lower(authority);
  std::string_view host = lower;
  std::optional<uint16_t> port;
  bool cluster = false;
  for (const std::string_view separator : {"|", "_."}) {
    if (!host.starts_with("outbound" + std::string(separator))) continue;
    // Istio's cluster: direction, port, subset, host.
    const size_t subset = host.find(separator, host.find(separator) + separator.size());
    const size_t end =
        subset == std::string_view::npos ? subset : host.find(separator, subset + separator.size());
    if (end == std::string_view::npos) return std::nullopt;
    const size_t begin = host.find(separator) + separator.size();
    port = port_of(host.substr(begin, subset - begin));
    if (!port) return std::nullopt;
    host = host.substr(end + separator.size());
    cluster = true;
    break;
  }
  if (const size_t colon = host.rfind(':'); !cluster && colon != std::string_view::npos) {
    port = port_of(host.substr(colon + 1));
    host = host.substr(0, colon);
    if (!port) return std::nullopt;
  }
  std::optional<ServiceName> out = service_of_host(host);
  if (out) {
    out->port = port;
    out->certain |= cluster;
  }
  return out;
}

PoolChoice::PoolChoice(std::vector<PoolNames> pools) : many_(true), pools_(std::move(pools)) {
  for (size_t i = 0; i < pools_.size(); ++i) {
    const PoolNames& pool = pools_[i];
    by_name_[pool.ns + "/" + pool.name].push_back(i);
    by_name_[pool.name].push_back(i);
    if (pool.service.empty()) continue;
    by_service_[pool.service + "." + pool.ns].push_back(i);
    if (pool.port) by_port_[*pool.port].push_back(i);
  }
}

PoolChoice::Answer PoolChoice::only(const Indexes& found, std::string_view what,
                                    std::string_view value) const {
  if (found.size() == 1) return Answer(found.front());
  std::string names;
  for (const size_t index : found) {
    names += (names.empty() ? "" : ", ") + pools_[index].ns + "/" + pools_[index].name;
    if (names.size() > kMaxSaid) break;
  }
  return {Failure::kAmbiguous, fmt::format("{} '{}' means several pools: {}", what, cut(value), names)};
}

PoolChoice::Answer PoolChoice::choose(const StreamNames& stream) const {
  if (!many_) return Answer(size_t{0});
  if (!stream.fields.empty()) {
    const std::string_view said = stream.fields.front();
    if (std::any_of(stream.fields.begin(), stream.fields.end(), [&](auto value) { return value != said; }))
      return {Failure::kAmbiguous, fmt::format("{} is given twice, with different pools", kPoolField)};
    const auto found = by_name_.find(said);
    if (found == by_name_.end())
      return {Failure::kUnknown, fmt::format("{}: no pool '{}' is served here", kPoolField, cut(said))};
    return only(found->second, kPoolField, said);
  }
  if (const auto service = service_of(stream.authority)) {
    Indexes named;
    if (const auto found = by_service_.find(service->name + "." + service->ns); found != by_service_.end()) {
      for (const size_t index : found->second) {
        if (!service->port || !pools_[index].port || service->port == pools_[index].port)
          named.push_back(index);
      }
    }
    // Pools of one Service, and it was said without its port: it came in at one.
    if (named.size() > 1 && stream.port != 0) {
      Indexes there;
      for (const size_t index : named) {
        if (pools_[index].port == stream.port) there.push_back(index);
      }
      if (!there.empty()) named = std::move(there);
    }
    if (!named.empty()) return only(named, ":authority", stream.authority);
    if (service->certain) {
      return {Failure::kUnknown,
              fmt::format(":authority '{}': no pool that is served here names this Service in "
                          "its endpointPickerRef",
                          cut(stream.authority))};
    }
  }
  if (stream.port != 0) {
    const auto found = by_port_.find(stream.port);
    const std::string port = std::to_string(stream.port);
    if (found == by_port_.end())
      return {Failure::kUnknown, fmt::format("port {} is no longer a pool's", port)};
    return only(found->second, "port", port);
  }
  return {
      Failure::kUnnamed,
      fmt::format("several pools are served here, and the stream names none: :authority '{}' is no Service "
                  "of a pool's endpointPickerRef, and there is no {}",
                  cut(stream.authority), kPoolField)};
}

std::string_view failure_name(PoolChoice::Failure failure) {
  switch (failure) {
    case PoolChoice::Failure::kUnknown:
      return "unknown";
    case PoolChoice::Failure::kAmbiguous:
      return "ambiguous";
    case PoolChoice::Failure::kUnnamed:
      break;
  }
  return "unnamed";
}

}  // namespace penstock::extproc
