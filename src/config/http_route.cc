#include "config/http_route.h"

#include <arpa/inet.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "base/strings.h"

namespace penstock::config {

namespace {

constexpr std::string_view kGatewayGroup = "gateway.networking.k8s.io";
constexpr std::string_view kPoolGroup = "inference.networking.k8s.io";
constexpr std::string_view kLegacyPoolGroup = "inference.networking.x-k8s.io";

bool is_alnum(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
}

bool is_field_name(std::string_view name) {
  constexpr std::string_view kOthers = "!#$%&'*+-.^_`|~";
  return !name.empty() && name.size() <= 256 && std::all_of(name.begin(), name.end(), [&](char c) {
    return is_alnum(c) || kOthers.find(c) != std::string_view::npos;
  });
}

// What is wrong with an Exact or PathPrefix value, or "".
std::string_view path_problem(std::string_view path) {
  constexpr std::string_view kOthers = "-._~!$&'()*+,;=:@/";
  if (path.size() > 1024) return "is longer than 1024 characters";
  if (!path.starts_with('/')) return "must start with '/'";
  for (const std::string_view bad : {"//", "/./", "/../", "%2f", "%2F", "#"}) {
    if (path.find(bad) != std::string_view::npos) return "must not contain //, /./, /../, %2f or #";
  }
  if (path.ends_with("/..") || path.ends_with("/.")) return "must not end with /.. or /.";
  const auto hex = [&](size_t i) {
    return i < path.size() && is_alnum(path[i]) && ascii_lower(path[i]) <= 'f';
  };
  for (size_t i = 0; i < path.size(); ++i) {
    const bool escape = path[i] == '%' && hex(i + 1) && hex(i + 2);
    if (!escape && !is_alnum(path[i]) && kOthers.find(path[i]) == std::string_view::npos) {
      return "holds a character that a path can't";
    }
  }
  return "";
}

struct RuleNodes {
  const Node* matches = nullptr;
  const Node* filters = nullptr;
  const Node* backends = nullptr;
  const Node* timeouts = nullptr;
};

class RouteDecoder {
 public:
  RouteDecoder(const ObjectMeta& meta, Errors& errors) : meta_(meta), errors_(errors) {}

  HttpRoute decode(const Node* spec, const std::string& path) {
    HttpRoute route;
    route.meta = meta_;
    const Node* parents = nullptr;
    const Node* rules = nullptr;
    decode_object(spec, path, errors_, [&](Binder& b) {
      b.node("parentRefs", parents, "");
      b.field("hostnames", route.hostnames, "", "");
      b.node("rules", rules, "");
    });
    for_each_item(parents, path + ".parentRefs", errors_,
                  [&](const Node& item, const std::string& item_path) {
                    route.parents.push_back(parent(item, item_path));
                  });
    for (const std::string& host : route.hostnames) {
      if (!is_route_hostname(host)) {
        errors_.add(path + ".hostnames", fmt::format("\"{}\" is not a host name", host), spec->line);
      }
    }
    for_each_item(rules, path + ".rules", errors_, [&](const Node& item, const std::string& item_path) {
      route.rules.push_back(rule(item, item_path));
    });
    if (route.rules.empty()) route.rules.push_back(HttpRoute::Rule{"", {HttpRoute::Match{}}, {}, {}, {}});
    check_sizes(route, path);
    return route;
  }

 private:
  void check_sizes(const HttpRoute& route, const std::string& path) {
    const auto check = [&](std::string_view what, size_t size, size_t max) {
      if (size > max) {
        errors_.add(join_path(path, what), fmt::format("{} entries, more than the {} allowed", size, max),
                    meta_.line);
      }
    };
    check("parentRefs", route.parents.size(), 32);
    check("hostnames", route.hostnames.size(), 16);
    check("rules", route.rules.size(), 16);
    size_t matches = 0;
    for (const HttpRoute::Rule& rule : route.rules) {
      matches += rule.matches.size();
      check("rules[].matches", rule.matches.size(), 64);
      check("rules[].backendRefs", rule.backends.size(), 16);
    }
    check("rules", matches, 128);
  }

  HttpRoute::ParentRef parent(const Node& item, const std::string& path) {
    HttpRoute::ParentRef ref;
    ref.ns = meta_.ns;
    std::optional<int64_t> port;
    decode_object(&item, path, errors_, [&](Binder& b) {
      b.field("group", ref.group, "", "");
      b.field("kind", ref.kind, "", "");
      b.field("namespace", ref.ns, "", "");
      b.field("name", ref.name, "", "");
      b.field("sectionName", ref.section_name, "", "");
      b.field("port", port, "", "");
    });
    if (ref.group != kGatewayGroup || ref.kind != "Gateway") {
      errors_.add(path, fmt::format("\"{}/{}\" is not supported, only Gateways", ref.group, ref.kind),
                  item.line);
    }
    if (ref.name.empty()) errors_.add(path + ".name", "is required", item.line);
    if (port) ref.port = checked_port(*port, path + ".port", item.line);
    return ref;
  }

  uint16_t checked_port(int64_t port, const std::string& path, int line) {
    if (port < 1 || port > 65535) errors_.add(path, fmt::format("{} is not in 1..65535", port), line);
    return static_cast<uint16_t>(port);
  }

  HttpRoute::Rule rule(const Node& item, const std::string& path) {
    HttpRoute::Rule rule;
    RuleNodes nodes;
    decode_object(&item, path, errors_, [&](Binder& b) {
      b.field("name", rule.name, "", "");
      b.node("matches", nodes.matches, "");
      b.node("filters", nodes.filters, "");
      b.node("backendRefs", nodes.backends, "");
      b.node("timeouts", nodes.timeouts, "");
    });
    refuse_filters(nodes.filters, path + ".filters");
    for_each_item(nodes.matches, path + ".matches", errors_,
                  [&](const Node& entry, const std::string& p) { rule.matches.push_back(match(entry, p)); });
    if (rule.matches.empty()) rule.matches.emplace_back();
    for_each_item(
        nodes.backends, path + ".backendRefs", errors_,
        [&](const Node& entry, const std::string& p) { rule.backends.push_back(backend(entry, p)); });
    timeouts(nodes.timeouts, path + ".timeouts", rule);
    return rule;
  }

  void refuse_filters(const Node* filters, const std::string& path) {
    for_each_item(filters, path, errors_, [&](const Node& item, const std::string& item_path) {
      const Node* type = item.find("type");
      errors_.add(
          item_path + ".type",
          fmt::format("filter \"{}\" is not supported by this build", type != nullptr ? type->text : ""),
          type != nullptr ? type->line : item.line);
    });
  }

  HttpRoute::Match match(const Node& item, const std::string& path) {
    HttpRoute::Match match;
    const Node* path_match = nullptr;
    const Node* headers = nullptr;
    const Node* params = nullptr;
    decode_object(&item, path, errors_, [&](Binder& b) {
      b.node("path", path_match, "");
      b.node("headers", headers, "");
      b.node("queryParams", params, "");
      b.field("method", match.method, "", "");
    });
    decode_path(path_match, path + ".path", match);
    values(headers, path + ".headers", 4096, match.headers);
    for (HttpRoute::ValueMatch& header : match.headers) header.name = ascii_lower(header.name);
    keep_first(match.headers);
    values(params, path + ".queryParams", 1024, match.query_params);
    keep_first(match.query_params);
    static constexpr std::array<std::string_view, 9> kMethods{"GET",     "HEAD",    "POST",  "PUT",  "DELETE",
                                                              "CONNECT", "OPTIONS", "TRACE", "PATCH"};
    const bool known = std::find(kMethods.begin(), kMethods.end(), match.method) != kMethods.end();
    if (!match.method.empty() && !known) {
      errors_.add(path + ".method", fmt::format("\"{}\" is not a method", match.method), item.line);
    }
    return match;
  }

  static void keep_first(std::vector<HttpRoute::ValueMatch>& list) {
    std::vector<HttpRoute::ValueMatch> kept;
    for (HttpRoute::ValueMatch& entry : list) {
      const bool again =
          std::any_of(kept.begin(), kept.end(), [&](const auto& other) { return other.name == entry.name; });
      if (!again) kept.push_back(std::move(entry));
    }
    list = std::move(kept);
  }

  void decode_path(const Node* node, const std::string& path, HttpRoute::Match& match) {
    if (node == nullptr) return;
    std::string type = "PathPrefix";
    decode_object(node, path, errors_, [&](Binder& b) {
      b.field("type", type, "", "");
      b.field("value", match.path, "", "");
    });
    if (type == "Exact") {
      match.path_kind = HttpRoute::PathKind::kExact;
    } else if (type == "RegularExpression") {
      match.path_kind = HttpRoute::PathKind::kRegex;
      if (match.path.empty() || match.path.size() > 1024) {
        errors_.add(path + ".value", "1 to 1024 characters are required", node->line);
      }
      return;
    } else if (type != "PathPrefix") {
      errors_.add(path + ".type", fmt::format("\"{}\" is not Exact, PathPrefix or RegularExpression", type),
                  node->line);
    }
    const std::string_view problem = path_problem(match.path);
    if (!problem.empty())
      errors_.add(path + ".value", fmt::format("\"{}\" {}", match.path, problem), node->line);
  }

  void values(const Node* list, const std::string& path, size_t max_value,
              std::vector<HttpRoute::ValueMatch>& out) {
    for_each_item(list, path, errors_, [&](const Node& item, const std::string& item_path) {
      HttpRoute::ValueMatch value;
      std::string type = "Exact";
      decode_object(&item, item_path, errors_, [&](Binder& b) {
        b.field("type", type, "", "");
        b.field("name", value.name, "", "");
        b.field("value", value.value, "", "");
      });
      value.regex = type == "RegularExpression";
      if (!value.regex && type != "Exact") {
        errors_.add(item_path + ".type", fmt::format("\"{}\" is not Exact or RegularExpression", type),
                    item.line);
      }
      if (!is_field_name(value.name)) {
        errors_.add(item_path + ".name", fmt::format("\"{}\" is not a name", value.name), item.line);
      }
      if (value.value.empty() || value.value.size() > max_value) {
        errors_.add(item_path + ".value", fmt::format("1 to {} characters are required", max_value),
                    item.line);
      }
      out.push_back(std::move(value));
    });
    if (out.size() > 16)
      errors_.add(path, fmt::format("{} entries, more than the 16 allowed", out.size()), list->line);
  }

  HttpRoute::BackendRef backend(const Node& item, const std::string& path) {
    HttpRoute::BackendRef ref;
    ref.ns = meta_.ns;
    ref.line = item.line;
    std::string group;
    std::string kind = "Service";
    std::optional<int64_t> port;
    int64_t weight = 1;
    const Node* filters = nullptr;
    decode_object(&item, path, errors_, [&](Binder& b) {
      b.field("group", group, "", "");
      b.field("kind", kind, "", "");
      b.field("name", ref.name, "", "");
      b.field("namespace", ref.ns, "", "");
      b.field("port", port, "", "");
      b.field("weight", weight, "", "");
      b.node("filters", filters, "");
    });
    refuse_filters(filters, path + ".filters");
    if (ref.name.empty()) errors_.add(path + ".name", "is required", item.line);
    if (weight < 0 || weight > 1000000) {
      errors_.add(path + ".weight", fmt::format("{} is not in 0..1000000", weight), item.line);
    }
    ref.weight = static_cast<uint32_t>(weight);
    if ((group == kPoolGroup || group == kLegacyPoolGroup) && kind == "InferencePool") {
      ref.kind = HttpRoute::BackendRef::Kind::kPool;
    } else if (group.empty() && kind == "Service") {
      if (port) {
        ref.port = checked_port(*port, path + ".port", item.line);
      } else {
        errors_.add(path + ".port", "is required for a Service", item.line);
      }
    } else {
      errors_.add(path,
                  fmt::format("\"{}/{}\" is not supported, only InferencePool and Service", group, kind),
                  item.line);
    }
    return ref;
  }

  void timeouts(const Node* node, const std::string& path, HttpRoute::Rule& rule) {
    if (node == nullptr) return;
    std::optional<std::string> request;
    std::optional<std::string> backend_request;
    decode_object(node, path, errors_, [&](Binder& b) {
      b.field("request", request, "", "");
      b.field("backendRequest", backend_request, "", "");
    });
    const auto read = [&](const std::optional<std::string>& text, std::string_view name) {
      std::optional<Duration> out;
      if (!text) return out;
      const Result<Duration> parsed = parse_gateway_duration(*text);
      if (parsed) {
        out = *parsed;
      } else {
        errors_.add(join_path(path, name), parsed.error().message, node->line);
      }
      return out;
    };
    rule.request_timeout = read(request, "request");
    rule.backend_timeout = read(backend_request, "backendRequest");
    if (rule.request_timeout && rule.backend_timeout && rule.request_timeout->count() != 0 &&
        *rule.backend_timeout > *rule.request_timeout) {
      errors_.add(path, "backendRequest must not be longer than request", node->line);
    }
  }

  const ObjectMeta& meta_;
  Errors& errors_;
};

}  // namespace

HttpRoute decode_http_route(const Node* spec, const std::string& path, const ObjectMeta& meta,
                            Errors& errors) {
  return RouteDecoder(meta, errors).decode(spec, path + ": spec");
}

bool is_route_hostname(std::string_view text) {
  if (text.empty() || text.size() > 253) return false;
  if (text.starts_with("*.")) text.remove_prefix(2);
  in_addr ip{};
  if (inet_pton(AF_INET, std::string(text).c_str(), &ip) == 1) return false;
  for (const std::string_view label : split(text, '.')) {
    if (label.empty() || label.front() == '-' || label.back() == '-') return false;
    for (const char c : label) {
      if ((c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '-') return false;
    }
  }
  return true;
}

Result<Duration> parse_gateway_duration(std::string_view text) {
  const auto fail = [&] {
    return invalid_config(fmt::format("\"{}\" is not a duration such as \"1h30m\" or \"500ms\"", text));
  };
  std::string_view rest = text;
  Duration total{};
  int parts = 0;
  while (!rest.empty()) {
    size_t digits = 0;
    while (digits < rest.size() && rest[digits] >= '0' && rest[digits] <= '9') ++digits;
    const auto number = parse_u64(rest.substr(0, digits));
    if (!number || digits > 5 || ++parts > 4) return fail();
    rest.remove_prefix(digits);
    if (rest.starts_with("ms")) {
      total += std::chrono::milliseconds(*number);
      rest.remove_prefix(2);
      continue;
    }
    if (rest.starts_with('h')) {
      total += std::chrono::hours(*number);
    } else if (rest.starts_with('m')) {
      total += std::chrono::minutes(*number);
    } else if (rest.starts_with('s')) {
      total += std::chrono::seconds(*number);
    } else {
      return fail();
    }
    rest.remove_prefix(1);
  }
  if (parts == 0) return fail();
  return total;
}

}  // namespace penstock::config
