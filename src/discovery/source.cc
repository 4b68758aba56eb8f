#include "discovery/source.h"

#include "telemetry/log.h"

namespace penstock::discovery {

void PoolSink::endpoints(std::string_view source, const std::vector<DiscoveredEndpoint>& all) {
  std::vector<std::string> problems;
  for (Pool* pool : pools_) {
    for (std::string& problem : pool->apply(source, all)) problems.push_back(std::move(problem));
  }
  if (problems != last_problems_) {
    for (const std::string& problem : problems)
      telemetry::log_warn("endpoint left out", {{"source", source}, {"reason", problem}});
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
