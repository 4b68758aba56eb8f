#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "base/clock.h"

namespace penstock::kubernetes {

// RFC 3339 as the API writes it: "2026-11-29T23:11:43Z", with a fraction of up to nine digits, with an
// offset. Nothing when it is no such time, or lies outside of the years 1970 to 2200.
std::optional<WallTime> parse_time(std::string_view text);
// metav1.Time, whole seconds: "2026-11-29T23:11:43Z".
std::string format_time(WallTime time);
// metav1.MicroTime, exactly six digits of a fraction as the API demands: "2026-11-29T23:11:43.000000Z".
std::string format_micro_time(WallTime time);

}  // namespace penstock::kubernetes
