#include "discovery/source.h"

#include <algorithm>

#include "telemetry/log.h"

namespace penstock::discovery {

void PoolSink::endpoints(std::string_view source, const std::vector<DiscoveredEndpoint>& all) {
  std::vector<std::string> problems;
  for (Pool* pool : pools_) {
    for (std::string& problem : pool->apply(source, all)) problems.push_back(std::move(problem));
  }
  if (problems != last_problems_) {
    constexpr size_t kMaxTold = 10;
    const size_t told = std::min(problems.size(), kMaxTold);
    for (size_t i = 0; i < told; ++i)
      telemetry::log_warn("endpoint left out", {{"source", source}, {"reason", problems[i]}});
    if (told < problems.size())
      telemetry::log_warn("more endpoints left out", {{"source", source}, {"count", problems.size() - told}});
  }
  last_problems_ = std::move(problems);
}

DiscoveredEndpoint from_entry(const config::EndpointEntry& entry) {
  DiscoveredEndpoint out;
  out.ns = entry.ns;
  out.name = entry.name;
  out.address = entry.address;
  if (entry.port != 0) out.port = entry.port;
  out.tls = entry.tls;
  out.labels = entry.labels;
  out.draining = entry.draining;
  return out;
}

}  // namespace penstock::discovery
