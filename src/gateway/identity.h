#pragma once

#include <string>
#include <string_view>

#include "base/result.h"
#include "config/api_keys.h"
#include "io/http.h"

namespace penstock::gateway {

// Who is calling, by the key in `authorization: Bearer …` or, without such, `x-api-key`. The name
// lives as long as `keys`. Errors: kUnauthorized, in words that tell nothing about which keys exist.
Result<std::string_view> identify(const config::ApiKeys& keys, const io::HeaderFields& fields);

}  // namespace penstock::gateway
