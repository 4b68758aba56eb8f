#include "sharing/store_address.h"

#include <fmt/format.h>

#include "base/escapes.h"
#include "base/strings.h"
#include "io/net.h"

namespace penstock::sharing {

namespace {

constexpr uint32_t kMaxDatabase = 65535;

bool is_percent_encoded(std::string_view text) {
  for (size_t i = text.find('%'); i != std::string_view::npos; i = text.find('%', i + 1)) {
    if (text.size() - i < 3 || hex_digit(text[i + 1]) < 0 || hex_digit(text[i + 2]) < 0) return false;
  }
  return true;
}

}  // namespace

std::string StoreAddress::shown() const {
  return fmt::format("{}://{}/{}", tls ? "rediss" : "redis", io::join_host_port(host, port), database);
}

Result<StoreAddress> parse_store_url(std::string_view url) {
  StoreAddress out;
  std::string_view rest = url;
  if (rest.starts_with("redis://")) {
    rest.remove_prefix(8);
  } else if (rest.starts_with("rediss://")) {
    rest.remove_prefix(9);
    out.tls = true;
  } else {
    return invalid_config("the URL of the shared state begins with neither redis:// nor rediss://");
  }
  if (rest.find_first_of("?#") != std::string_view::npos) {
    return invalid_config("the URL of the shared state takes no parameters");
  }
  if (const size_t at = rest.rfind('@'); at != std::string_view::npos) {
    const std::string_view credentials = rest.substr(0, at);
    rest.remove_prefix(at + 1);
    const size_t colon = credentials.find(':');
    if (!is_percent_encoded(credentials)) {
      return invalid_config("the user or password in the URL of the shared state is not percent-encoded");
    }
    out.user = percent_decode(credentials.substr(0, colon));
    if (colon != std::string_view::npos) out.password = percent_decode(credentials.substr(colon + 1));
  }
  std::string_view database;
  if (const size_t slash = rest.find('/'); slash != std::string_view::npos) {
    database = rest.substr(slash + 1);
    rest = rest.substr(0, slash);
  }
  auto host = io::parse_host_port(rest, 6379);
  if (!host.ok() || host->host.empty() || host->port == 0) {
    return invalid_config(fmt::format("'{}' in the URL of the shared state is no host and port", rest));
  }
  out.host = host->host;
  out.port = host->port;
  if (!database.empty()) {
    const auto number = parse_u64(database);
    if (!number || *number > kMaxDatabase) {
      return invalid_config(
          fmt::format("'{}' in the URL of the shared state is no database, 0 to {}", database, kMaxDatabase));
    }
    out.database = static_cast<uint32_t>(*number);
  }
  return out;
}

}  // namespace penstock::sharing
