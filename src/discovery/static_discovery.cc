#include "discovery/static_discovery.h"

#include <fmt/format.h>

#include <algorithm>

namespace penstock::discovery {

Result<std::vector<DiscoveredEndpoint>> static_endpoints(const std::vector<std::string>& urls,
                                                         std::string_view tls_name) {
  std::vector<DiscoveredEndpoint> out;
  for (const std::string& url : urls) {
    auto entry = config::parse_endpoint_url(url);
    if (!entry.ok()) return std::move(entry).error();
    DiscoveredEndpoint endpoint = from_entry(*entry);
    if (endpoint.tls) endpoint.tls_name = tls_name;
    const bool known = std::any_of(out.begin(), out.end(),
                                   [&](const DiscoveredEndpoint& e) { return e.name == endpoint.name; });
    if (known) return invalid_config(fmt::format("endpoint \"{}\" is given twice", url));
    out.push_back(std::move(endpoint));
  }
  return out;
}

}  // namespace penstock::discovery
