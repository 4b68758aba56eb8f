#include "gateway/identity.h"

#include "base/strings.h"

namespace penstock::gateway {

Result<std::string_view> identify(const config::ApiKeys& keys, const io::HeaderFields& fields) {
  constexpr size_t kScheme = 7;  // "bearer "
  std::string_view presented;
  if (const auto authorization = fields.find("authorization")) {
    if (authorization->size() > kScheme && ascii_iequals(authorization->substr(0, kScheme), "bearer ")) {
      presented = trim(authorization->substr(kScheme));
    }
  }
  // Another scheme beside a key is somebody else's: a proxy's, or the engine's.
  if (presented.empty()) presented = trim(fields.get("x-api-key"));
  if (presented.empty()) {
    return Error{ErrorCode::kUnauthorized,
                 "no API key was given: send 'Authorization: Bearer <key>' or 'x-api-key: <key>'"};
  }
  const std::string* name = keys.find(presented);
  if (name == nullptr) return Error{ErrorCode::kUnauthorized, "the API key is not valid"};
  return std::string_view(*name);
}

}  // namespace penstock::gateway
