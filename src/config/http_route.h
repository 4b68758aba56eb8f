#pragma once

#include <string>
#include <string_view>

#include "base/clock.h"
#include "base/result.h"
#include "config/decode.h"
#include "config/manifests.h"

namespace penstock::config {

// Decodes the spec of an HTTPRoute; `path` names the object in messages.
HttpRoute decode_http_route(const Node* spec, const std::string& path, const ObjectMeta& meta,
                            Errors& errors);

// The Gateway API's Hostname: lower case, maybe "*." in front, no port, no IP address.
bool is_route_hostname(std::string_view text);

// GEP-2257: up to four of "<1-5 digits><h|m|s|ms>", in any order: "1h30m", "500ms", "0s".
Result<Duration> parse_gateway_duration(std::string_view text);

}  // namespace penstock::config
