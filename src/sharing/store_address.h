#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.h"

namespace penstock::sharing {

// Where the store of shared state is: "redis://[user[:password]@]host[:port][/database]", with "rediss://"
// over TLS. Port 6379 and database 0 where none is named; user and password may be percent-encoded.
struct StoreAddress {
  std::string host;
  uint16_t port = 6379;
  bool tls = false;
  std::string user;
  std::string password;
  uint32_t database = 0;

  // "redis://host:port/database": without what is secret.
  std::string shown() const;
};

// kInvalidConfig; its text repeats nothing of what stands before an '@'.
Result<StoreAddress> parse_store_url(std::string_view url);

}  // namespace penstock::sharing
