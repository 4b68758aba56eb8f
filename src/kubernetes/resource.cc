#include "kubernetes/resource.h"

#include <fmt/format.h>

namespace penstock::kubernetes {

namespace {

// RFC 3986: everything but unreserved characters.
void append_encoded(std::string& out, std::string_view text) {
  static constexpr char kHex[] = "0123456789ABCDEF";
  for (const char c : text) {
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                       c == '-' || c == '.' || c == '_' || c == '~';
    if (plain) {
      out += c;
      continue;
    }
    const auto byte = static_cast<unsigned char>(c);
    out += '%';
    out += kHex[byte >> 4U];
    out += kHex[byte & 15U];
  }
}

}  // namespace

std::string full_name(const Resource& resource) {
  return resource.group.empty() ? std::string(resource.plural)
                                : fmt::format("{}.{}", resource.plural, resource.group);
}

std::string api_version(const Resource& resource) {
  return resource.group.empty() ? std::string(resource.version)
                                : fmt::format("{}/{}", resource.group, resource.version);
}

std::string discovery_path(std::string_view group, std::string_view version) {
  return group.empty() ? fmt::format("/api/{}", version) : fmt::format("/apis/{}/{}", group, version);
}

std::string collection_path(const Resource& resource, std::string_view ns) {
  std::string path = discovery_path(resource.group, resource.version);
  if (!ns.empty()) {
    path += "/namespaces/";
    append_encoded(path, ns);
  }
  path += '/';
  path += resource.plural;
  return path;
}

std::string object_path(const Resource& resource, std::string_view ns, std::string_view name,
                        std::string_view subresource) {
  std::string path = collection_path(resource, ns);
  path += '/';
  append_encoded(path, name);
  if (!subresource.empty()) {
    path += '/';
    path += subresource;
  }
  return path;
}

void add_query(std::string& target, std::string_view key, std::string_view value) {
  target += target.find('?') == std::string::npos ? '?' : '&';
  target += key;
  target += '=';
  append_encoded(target, value);
}

}  // namespace penstock::kubernetes
