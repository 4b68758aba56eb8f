#pragma once

#include <string>
#include <string_view>

// What subcommands share that ask the admin server of a running process.
namespace penstock::cli {

inline constexpr std::string_view kDefaultAdminUrl = "http://127.0.0.1:9090";

// "127.0.0.1:9090" and "http://127.0.0.1:9090/" are "http://127.0.0.1:9090".
std::string admin_base(std::string_view text);
// For a query parameter.
std::string percent_encode(std::string_view text);
// Why the admin server did not do it, which it tells as {"error":{"message": ...}} and no more. Empty: the
// answer is somebody else's.
std::string reason_of(std::string_view body);

}  // namespace penstock::cli
