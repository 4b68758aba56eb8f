#pragma once

#include <array>
#include <string_view>

#include "base/random.h"

namespace penstock::director {

// True for the headers that speak to the picker or steer what runs beside an engine: a client's never reach
// an engine.
bool is_control_field(std::string_view lower_name);

// A client's x-request-id, when it can be passed on: 1..128 visible ASCII characters; else "".
std::string_view usable_request_id(std::string_view id);
// A version 4 UUID in text form.
void make_request_id(Random& random, std::array<char, 36>& out);

}  // namespace penstock::director
