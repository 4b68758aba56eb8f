#include "config/endpoints_file.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <span>

#include "base/strings.h"
#include "config/decode.h"
#include "config/files.h"

namespace penstock::config {

namespace {

bool is_ip_literal(const std::string& address) {
  unsigned char buffer[sizeof(in6_addr)];
  return inet_pton(AF_INET, address.c_str(), buffer) == 1 ||
         inet_pton(AF_INET6, address.c_str(), buffer) == 1;
}

// RFC 1123 name: labels of letters, digits and inner hyphens, 253 characters in all. A name of digits and
// dots only would be a broken IPv4 address.
bool is_host_name(std::string_view text) {
  if (text.empty() || text.size() > 253) return false;
  bool letters = false;
  for (const std::string_view label : split(text, '.')) {
    if (label.empty() || label.size() > 63 || label.front() == '-' || label.back() == '-') return false;
    for (const char c : label) {
      const char low = ascii_lower(c);
      const bool letter = low >= 'a' && low <= 'z';
      letters = letters || letter || c == '-' || c == '_';
      if (!letter && (c < '0' || c > '9') && c != '-' && c != '_') return false;
    }
  }
  return letters;
}

std::optional<uint16_t> parse_port(std::string_view text) {
  const std::optional<uint64_t> port = parse_u64(text);
  if (!port || *port < 1 || *port > 65535) return std::nullopt;
  return static_cast<uint16_t>(*port);
}

std::string default_name(const EndpointEntry& entry) {
  std::string name = entry.port == 0 ? entry.address : fmt::format("{}-{}", entry.address, entry.port);
  std::replace(name.begin(), name.end(), ':', '-');
  return name;
}

Status apply_url(std::string_view url, EndpointEntry& entry) {
  Result<EndpointEntry> parsed = parse_endpoint_url(url);
  if (!parsed) return parsed.error();
  entry.address = parsed->address;
  entry.port = parsed->port;
  entry.tls = parsed->tls;
  return {};
}

Status decode_labels(const Node* node, EndpointEntry& entry) {
  if (node == nullptr) return {};
  if (!node->is_map())
    return invalid_config(fmt::format("labels: expected object, got {}", shown_with_kind(*node)));
  for (const auto& [key, value] : node->members) {
    if (value.kind != Node::Kind::kString) {
      return invalid_config(fmt::format("labels.{}: expected string, got {}", key, shown_with_kind(value)));
    }
    entry.labels.insert_or_assign(key, value.text);
  }
  return {};
}

Status decode_text(const Node& item, std::string_view field, std::string& out) {
  const Node* node = item.find(field);
  if (node == nullptr || node->is_null()) return {};
  if (node->kind != Node::Kind::kString) {
    return invalid_config(fmt::format("{}: expected string, got {}", field, shown_with_kind(*node)));
  }
  out = node->text;
  return {};
}

Status decode_address(const Node& item, EndpointEntry& entry) {
  std::string url;
  if (Status s = decode_text(item, "url", url); !s.ok()) return s;
  if (Status s = decode_text(item, "address", entry.address); !s.ok()) return s;
  const Node* port = item.find("port");
  if (!url.empty()) {
    if (!entry.address.empty() || port != nullptr) {
      return invalid_config("url stands for address and port: give one or the other");
    }
    return apply_url(url, entry);
  }
  if (!is_address(entry.address)) return invalid_config(fmt::format("invalid address \"{}\"", entry.address));
  if (port == nullptr || port->is_null()) return {};
  const bool scalar = port->kind == Node::Kind::kString || port->kind == Node::Kind::kInt;
  const std::optional<uint16_t> number = scalar ? parse_port(port->text) : std::nullopt;
  if (!number) {
    return invalid_config(fmt::format("invalid port \"{}\"", scalar ? port->text : port->to_json()));
  }
  entry.port = *number;
  return {};
}

Status decode_entry(const Node& item, EndpointEntry& entry) {
  if (!item.is_map()) {
    return invalid_config(fmt::format("expected object, got {}", shown_with_kind(item)));
  }
  if (Status s = decode_text(item, "name", entry.name); !s.ok()) return s;
  if (Status s = decode_text(item, "namespace", entry.ns); !s.ok()) return s;
  if (entry.ns.empty()) entry.ns = "default";
  if (Status s = decode_address(item, entry); !s.ok()) return s;
  if (Status s = decode_labels(item.find("labels"), entry); !s.ok()) return s;
  const Node* draining = item.find("draining");
  if (draining != nullptr && !draining->is_null()) {
    if (draining->kind != Node::Kind::kBool)
      return invalid_config(fmt::format("draining: expected bool, got {}", shown_with_kind(*draining)));
    entry.draining = draining->boolean;
  }
  if (entry.name.empty()) entry.name = default_name(entry);
  return {};
}

constexpr std::array<std::string_view, 1> kDocumentFields{"endpoints"};
constexpr std::array<std::string_view, 7> kEntryFields{"name",   "namespace", "address", "port",
                                                       "labels", "url",       "draining"};

// "unknown field "zone" (line 2)" for each.
std::vector<std::string> unknown_fields(const Node& object, std::span<const std::string_view> known) {
  std::vector<std::string> out;
  for (const auto& [key, value] : object.members) {
    if (std::find(known.begin(), known.end(), key) == known.end())
      out.push_back(fmt::format("unknown field \"{}\" (line {})", key, value.key_line));
  }
  return out;
}

// The list of a document, which has to be there: a file that doesn't name it isn't one that lists nothing.
Result<const Node*> endpoint_list(const Node& document, std::string_view source) {
  if (document.is_null()) {
    return invalid_config(
        fmt::format("{}: the file is empty; \"endpoints: []\" says that there are none", source));
  }
  if (!document.is_map()) {
    return invalid_config(fmt::format("{}: expected object with \"endpoints\", got {} (line {})", source,
                                      shown_with_kind(document), document.line));
  }
  const Node* list = document.find("endpoints");
  if (list == nullptr) {
    const std::vector<std::string> unknown = unknown_fields(document, kDocumentFields);
    return invalid_config(fmt::format("{}: \"endpoints\" is missing{}{}", source, unknown.empty() ? "" : ": ",
                                      fmt::join(unknown, ", ")));
  }
  if (list->is_null()) {
    return invalid_config(
        fmt::format("{}: endpoints: nothing is listed; \"endpoints: []\" says that there are none (line {})",
                    source, list->key_line));
  }
  return list;
}

using IndexById = std::map<std::string, size_t, std::less<>>;

void add_entry(EndpointsFile& file, IndexById& ids, EndpointEntry entry) {
  const std::string id = entry.id();
  const auto [known, fresh] = ids.emplace(id, file.endpoints.size());
  if (fresh) {
    file.endpoints.push_back(std::move(entry));
    return;
  }
  EndpointEntry& same = file.endpoints[known->second];
  file.warnings.push_back(
      fmt::format("endpoint \"{}\" of line {} replaces the one of line {}", id, entry.line, same.line));
  same = std::move(entry);
}

// One server under two names is scraped twice and takes twice its share.
void warn_of_shared_addresses(EndpointsFile& file) {
  std::map<std::pair<std::string_view, uint16_t>, const EndpointEntry*> seen;
  for (const EndpointEntry& entry : file.endpoints) {
    const auto [known, fresh] = seen.try_emplace({entry.address, entry.port}, &entry);
    if (fresh) continue;
    file.warnings.push_back(fmt::format("endpoint \"{}\" of line {} has the address of \"{}\" of line {}",
                                        entry.id(), entry.line, known->second->id(), known->second->line));
  }
}

}  // namespace

bool is_address(const std::string& text) {
  return is_ip_literal(text) || is_host_name(text);
}

Result<EndpointsFile> decode_endpoints(std::string_view text, std::string_view source) {
  Result<Node> document = parse_document(text, source, ParseLimits{.max_bytes = kMaxEndpointsFileBytes});
  if (!document) return std::move(document).error();
  EndpointsFile file;
  IndexById ids;
  Errors errors;
  const Result<const Node*> list = endpoint_list(*document, source);
  if (!list) return list.error();
  for (const std::string& unknown : unknown_fields(*document, kDocumentFields))
    file.warnings.push_back(unknown + " is ignored");
  if ((*list)->is_list() && (*list)->items.empty())
    file.warnings.push_back(fmt::format("endpoints: the list is empty (line {})", (*list)->line));
  for_each_item(*list, "endpoints", errors, [&](const Node& item, const std::string& path) {
    EndpointEntry entry;
    entry.line = item.line;
    if (Status s = decode_entry(item, entry); !s.ok()) {
      errors.add(entry.name.empty() ? path : fmt::format("{}: endpoint \"{}\"", path, entry.name),
                 s.error().message, item.line);
      return;
    }
    for (const std::string& unknown : unknown_fields(item, kEntryFields))
      file.warnings.push_back(fmt::format("{}: {} is ignored", path, unknown));
    add_entry(file, ids, std::move(entry));
  });
  if (!errors.empty()) return errors.joined().wrap(source);
  warn_of_shared_addresses(file);
  return file;
}

Result<EndpointsFile> load_endpoints(const std::string& path) {
  Result<std::string> text = read_file(path, kMaxEndpointsFileBytes);
  if (!text) return std::move(text).error();
  return decode_endpoints(*text, path);
}

Result<EndpointEntry> parse_endpoint_url(std::string_view url) {
  const auto fail = [&](std::string_view why) {
    return invalid_config(fmt::format("invalid endpoint \"{}\": {}", url, why));
  };
  EndpointEntry entry;
  std::string_view rest = url;
  bool has_scheme = true;
  if (rest.starts_with("http://")) {
    rest.remove_prefix(7);
  } else if (rest.starts_with("https://")) {
    rest.remove_prefix(8);
    entry.tls = true;
  } else if (rest.find("://") != std::string_view::npos) {
    return fail("the scheme must be http or https");
  } else {
    has_scheme = false;
  }
  if (rest.ends_with('/')) rest.remove_suffix(1);
  if (rest.find_first_of("/?#@") != std::string_view::npos)
    return fail("only scheme, host and port belong here");

  std::string_view port;
  if (rest.starts_with('[')) {
    const size_t close = rest.find(']');
    if (close == std::string_view::npos) return fail("\"]\" is missing");
    entry.address = std::string(rest.substr(1, close - 1));
    rest.remove_prefix(close + 1);
    if (!rest.empty() && rest.front() != ':') return fail("a port is expected after \"]\"");
    port = rest.empty() ? rest : rest.substr(1);
    if (!is_ip_literal(entry.address) || entry.address.find(':') == std::string::npos) {
      return fail("not an IPv6 address");
    }
  } else {
    const size_t colon = rest.rfind(':');
    entry.address = std::string(rest.substr(0, colon));
    if (colon != std::string_view::npos) port = rest.substr(colon + 1);
    if (entry.address.find(':') != std::string::npos) return fail("an IPv6 address needs brackets");
    if (!is_address(entry.address)) return fail("invalid host");
  }
  if (port.empty()) {
    if (!has_scheme) return fail("the port is missing");
    entry.port = entry.tls ? 443 : 80;
  } else if (const std::optional<uint16_t> number = parse_port(port)) {
    entry.port = *number;
  } else {
    return fail("invalid port");
  }
  entry.name = default_name(entry);
  return entry;
}

}  // namespace penstock::config
