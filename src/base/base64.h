#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/arena.h"

namespace penstock {

// Standard base64 with padding (RFC 4648, section 4).
std::string base64_encode(std::string_view bytes);
// Nothing when the text is not exactly that. The result lies in the arena.
std::optional<std::string_view> base64_decode(std::string_view text, Arena& arena);

}  // namespace penstock
