#pragma once

#include <string>
#include <vector>

#include "base/result.h"
#include "discovery/source.h"

namespace penstock::discovery {

// Endpoints named once, by URL: `--model-server http://127.0.0.1:8001` and `discovery.static`. Nobody has
// to answer yet: the scraper and the proxy find out. `tls_name` is the server name for https ones, "" the
// host. Errors name the URL; a repeated one is an error.
Result<std::vector<DiscoveredEndpoint>> static_endpoints(const std::vector<std::string>& urls,
                                                         std::string_view tls_name = {});

}  // namespace penstock::discovery
