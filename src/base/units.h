#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "base/result.h"

namespace penstock {

// Go's duration text: "60s", "1m30s", "250ms", "1.5h", "0"; units ns us µs ms s m h. A bare number other
// than 0 is an error. https://pkg.go.dev/time#ParseDuration
Result<Duration> parse_duration(std::string_view text);
// As Go prints it: "30s", "1m0s", "2m30s", "200ms", "0s".
std::string format_duration(Duration d);
// A Kubernetes quantity as an integer, rounded up: "1Gi", "500Mi", "1k", "20M", "1024", "1e3".
// https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/quantity/
Result<int64_t> parse_quantity(std::string_view text);

}  // namespace penstock
