#include "cli/admin_client.h"

#include <nlohmann/json.hpp>

namespace penstock::cli {

std::string admin_base(std::string_view text) {
  std::string base(text);
  if (base.find("://") == std::string::npos) base = "http://" + base;
  while (base.ends_with('/')) base.pop_back();
  return base;
}

std::string percent_encode(std::string_view text) {
  static constexpr char kHex[] = "0123456789ABCDEF";
  std::string out;
  for (const char c : text) {
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                       c == '/' || c == '-' || c == '_' || c == '.' || c == '~';
    if (plain) {
      out += c;
    } else {
      out += '%';
      out += kHex[static_cast<unsigned char>(c) >> 4U];
      out += kHex[static_cast<unsigned char>(c) & 0xFU];
    }
  }
  return out;
}

std::string reason_of(std::string_view body) {
  using Json = nlohmann::json;
  const Json page = Json::parse(body, nullptr, false);
  const Json error = page.is_object() ? page.value("error", Json()) : Json();
  const Json message = error.is_object() && error.size() == 1 ? error.value("message", Json()) : Json();
  return message.is_string() ? message.get<std::string>() : "";
}

}  // namespace penstock::cli
