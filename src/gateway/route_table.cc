#include "gateway/route_table.h"

#include <algorithm>

#include "base/strings.h"

namespace penstock::gateway {

namespace {

using config::Gateway;
using config::HttpRoute;

constexpr size_t kMaxRegexInput = 1024;

bool is_wildcard(std::string_view hostname) {
  return hostname.starts_with("*.");
}

// "/v2/" and "/v2" are the same prefix; "/" becomes "".
std::string_view without_trailing_slash(std::string_view path) {
  while (path.ends_with('/')) path.remove_suffix(1);
  return path;
}

bool prefix_matches(std::string_view prefix, std::string_view path) {
  if (!path.starts_with(prefix)) return false;
  return path.size() == prefix.size() || path[prefix.size()] == '/';
}

Result<std::shared_ptr<const std::regex>> compile_regex(const std::string& pattern,
                                                        const std::string& where) {
  try {
    return std::shared_ptr<const std::regex>(
        std::make_shared<std::regex>(pattern, std::regex::ECMAScript | std::regex::optimize));
  } catch (const std::regex_error& failure) {
    return invalid_config(where + ": \"" + pattern + "\" is no regular expression: " + failure.what());
  }
}

bool regex_matches(const std::regex& regex, std::string_view text) {
  if (text.size() > kMaxRegexInput) return false;
  try {
    return std::regex_match(text.begin(), text.end(), regex);
  } catch (const std::regex_error&) {
    return false;  // the pattern explodes on this text
  }
}

// The first value of a query parameter, as it stands in the target.
std::optional<std::string_view> find_query(std::string_view query, std::string_view name) {
  while (!query.empty()) {
    const size_t end = query.find('&');
    const std::string_view pair = query.substr(0, end);
    const size_t equals = pair.find('=');
    if (pair.substr(0, equals) == name) {
      return equals == std::string_view::npos ? std::string_view() : pair.substr(equals + 1);
    }
    if (end == std::string_view::npos) break;
    query.remove_prefix(end + 1);
  }
  return std::nullopt;
}

size_t find_target(std::span<const RouteTable::Target> targets, const HttpRoute::BackendRef& ref) {
  for (size_t i = 0; i < targets.size(); ++i) {
    if (targets[i].name == ref.name && targets[i].ns == ref.ns) return i;
  }
  return targets.size();
}

std::shared_ptr<const RouteRule> make_rule(const HttpRoute& route, const HttpRoute::Rule& rule,
                                           std::span<const RouteTable::Target> pools,
                                           std::span<const RouteTable::Target> services,
                                           std::vector<std::string>& warnings) {
  auto made = std::make_shared<RouteRule>();
  made->route_name = route.meta.full_name();
  made->request_timeout = rule.request_timeout;
  made->backend_timeout = rule.backend_timeout;
  for (const HttpRoute::BackendRef& ref : rule.backends) {
    const bool pool = ref.kind == HttpRoute::BackendRef::Kind::kPool;
    const std::span<const RouteTable::Target> known = pool ? pools : services;
    RouteBackend backend;
    backend.name = ref.ns + "/" + ref.name;
    backend.weight = ref.weight;
    backend.index = find_target(known, ref);
    if (backend.index == known.size()) {
      backend.kind = RouteBackend::Kind::kInvalid;
      warnings.push_back("HTTPRoute " + made->route_name + " names " +
                         (pool ? "InferencePool " : "Service ") + backend.name +
                         ", which is not known: its share of the requests is answered with 500");
    } else {
      backend.kind = pool ? RouteBackend::Kind::kPool : RouteBackend::Kind::kService;
    }
    made->total_weight += backend.weight;
    made->backends.push_back(std::move(backend));
  }
  return made;
}

}  // namespace

const RouteBackend* RouteRule::choose(Random& random) const {
  if (total_weight == 0) return nullptr;
  if (backends.size() == 1) return &backends[0];
  uint64_t left = random.below(static_cast<uint32_t>(total_weight));
  for (const RouteBackend& backend : backends) {
    if (left < backend.weight) return &backend;
    left -= backend.weight;
  }
  return &backends.back();
}

std::string_view host_without_port(std::string_view authority, std::string& buffer) {
  const size_t bracket = authority.rfind(']');
  const size_t colon = authority.rfind(':');
  if (colon != std::string_view::npos && (bracket == std::string_view::npos || colon > bracket)) {
    authority = authority.substr(0, colon);
  }
  buffer.assign(authority);
  for (char& c : buffer) c = ascii_lower(c);
  return buffer;
}

bool hostname_matches(std::string_view pattern, std::string_view host) {
  if (pattern.empty()) return true;
  if (!is_wildcard(pattern)) return pattern == host;
  const std::string_view suffix = pattern.substr(1);
  return host.size() > suffix.size() && host.ends_with(suffix);
}

std::optional<std::string> intersect_hostnames(std::string_view listener, std::string_view route) {
  if (listener.empty()) return std::string(route);
  if (route.empty()) return std::string(listener);
  if (listener == route) return std::string(route);
  if (!is_wildcard(listener) && !is_wildcard(route)) return std::nullopt;
  if (!is_wildcard(route)) {
    return hostname_matches(listener, route) ? std::optional<std::string>(route) : std::nullopt;
  }
  if (!is_wildcard(listener)) {
    return hostname_matches(route, listener) ? std::optional<std::string>(listener) : std::nullopt;
  }
  const std::string_view a = listener.substr(1);
  const std::string_view b = route.substr(1);
  if (b.ends_with(a)) return std::string(route);
  if (a.ends_with(b)) return std::string(listener);
  return std::nullopt;
}

bool RouteTable::ValueTest::matches(std::string_view candidate) const {
  return regex ? regex_matches(*regex, candidate) : candidate == value;
}

bool RouteTable::better(const Entry& a, const Entry& b) {
  const auto exact_host = [](const Entry& e) {
    return e.hostname.empty() || is_wildcard(e.hostname) ? size_t{0} : e.hostname.size();
  };
  if (exact_host(a) != exact_host(b)) return exact_host(a) > exact_host(b);
  if (a.hostname.size() != b.hostname.size()) return a.hostname.size() > b.hostname.size();
  const auto path_rank = [](const Entry& e) {
    return e.path_kind == HttpRoute::PathKind::kExact
               ? size_t{1} << 32U
               : (e.path_kind == HttpRoute::PathKind::kPrefix ? e.path.size() : size_t{0});
  };
  if (path_rank(a) != path_rank(b)) return path_rank(a) > path_rank(b);
  if (a.method.empty() != b.method.empty()) return b.method.empty();
  if (a.headers.size() != b.headers.size()) return a.headers.size() > b.headers.size();
  if (a.queries.size() != b.queries.size()) return a.queries.size() > b.queries.size();
  if (a.route_order != b.route_order) return a.route_order < b.route_order;
  if (a.route_name != b.route_name) return a.route_name < b.route_name;
  return a.position < b.position;
}

bool RouteTable::matches(const Entry& entry, const RouteQuery& query, std::string_view host) {
  if (!hostname_matches(entry.hostname, host)) return false;
  switch (entry.path_kind) {
    case HttpRoute::PathKind::kExact:
      if (query.path != entry.path) return false;
      break;
    case HttpRoute::PathKind::kPrefix:
      if (!prefix_matches(entry.path, query.path)) return false;
      break;
    case HttpRoute::PathKind::kRegex:
      if (!regex_matches(*entry.path_regex, query.path)) return false;
      break;
  }
  if (!entry.method.empty() && entry.method != query.method) return false;
  for (const ValueTest& test : entry.headers) {
    if (test.name == kModelNameHeader) {
      if (query.model.empty() || !test.matches(query.model)) return false;
      continue;
    }
    // Repeated fields count as one, joined by commas.
    std::string joined;
    const io::HeaderField* only = nullptr;
    for (const io::HeaderField& field : query.headers) {
      if (field.name != test.name) continue;
      if (only != nullptr) {
        if (joined.empty()) joined = only->value;
        joined += ',';
        joined += field.value;
      }
      only = &field;
    }
    if (only == nullptr || !test.matches(joined.empty() ? only->value : std::string_view(joined))) {
      return false;
    }
  }
  for (const ValueTest& test : entry.queries) {
    const auto value = find_query(query.query, test.name);
    if (!value || !test.matches(*value)) return false;
  }
  return true;
}

std::shared_ptr<const RouteTable> RouteTable::single_pool(size_t pool_index) {
  auto table = std::make_shared<RouteTable>();
  auto rule = std::make_shared<RouteRule>();
  rule->route_name = "default";
  rule->backends.push_back({RouteBackend::Kind::kPool, pool_index, 1, "default"});
  rule->total_weight = 1;
  table->default_rule_ = std::move(rule);
  return table;
}

Result<std::vector<RouteTable::Entry>> RouteTable::entries_of(const HttpRoute& route,
                                                              const std::string& listener_hostname,
                                                              std::span<const Target> pools,
                                                              std::span<const Target> services,
                                                              std::vector<std::string>& warnings) {
  std::vector<std::string> hostnames;
  if (route.hostnames.empty()) hostnames.push_back(listener_hostname);
  for (const std::string& hostname : route.hostnames) {
    if (auto both = intersect_hostnames(listener_hostname, hostname)) hostnames.push_back(*std::move(both));
  }
  std::vector<Entry> entries;
  size_t position = 0;
  for (size_t r = 0; r < route.rules.size(); ++r) {
    const HttpRoute::Rule& rule = route.rules[r];
    const std::string where = "HTTPRoute " + route.meta.full_name() + ": rules[" + std::to_string(r) + "]";
    const auto made = make_rule(route, rule, pools, services, warnings);
    for (const HttpRoute::Match& match : rule.matches) {
      Entry entry;
      entry.path_kind = match.path_kind;
      entry.method = match.method;
      entry.rule = made;
      entry.route_order = route.meta.creation_order;
      entry.route_name = route.meta.full_name();
      entry.position = position++;
      if (match.path_kind == HttpRoute::PathKind::kRegex) {
        auto regex = compile_regex(match.path, where);
        if (!regex.ok()) return std::move(regex).error();
        entry.path_regex = *regex;
      } else if (match.path_kind == HttpRoute::PathKind::kPrefix) {
        entry.path = without_trailing_slash(match.path);
      } else {
        entry.path = match.path;
      }
      for (const auto& [from, to] :
           {std::pair(&match.headers, &entry.headers), std::pair(&match.query_params, &entry.queries)}) {
        for (const HttpRoute::ValueMatch& value : *from) {
          ValueTest test{value.name, value.value, nullptr};
          if (value.regex) {
            auto regex = compile_regex(value.value, where);
            if (!regex.ok()) return std::move(regex).error();
            test.regex = *regex;
          }
          to->push_back(std::move(test));
        }
      }
      for (const std::string& hostname : hostnames) {
        entry.hostname = hostname;
        entries.push_back(entry);
      }
    }
  }
  return entries;
}

Result<std::shared_ptr<const RouteTable>> RouteTable::compile(const config::Manifests& manifests,
                                                              std::span<const Target> pools,
                                                              std::span<const Target> services,
                                                              std::optional<size_t> default_pool,
                                                              std::vector<std::string>& warnings) {
  std::shared_ptr<RouteTable> table = default_pool
                                          ? std::const_pointer_cast<RouteTable>(single_pool(*default_pool))
                                          : std::make_shared<RouteTable>();
  const auto attach = [&](const HttpRoute& route, Listener& listener) -> Status {
    std::vector<std::string> repeated;
    std::vector<std::string>& told = listener.entries.empty() ? warnings : repeated;
    auto entries = entries_of(route, listener.hostname, pools, services, told);
    if (!entries.ok()) return std::move(entries).error();
    for (Entry& entry : *entries) listener.entries.push_back(std::move(entry));
    return {};
  };

  if (manifests.gateways.empty()) {
    Listener everywhere;
    for (const HttpRoute& route : manifests.routes) {
      auto entries = entries_of(route, "", pools, services, warnings);
      if (!entries.ok()) return std::move(entries).error();
      for (Entry& entry : *entries) everywhere.entries.push_back(std::move(entry));
    }
    if (!everywhere.entries.empty()) table->listeners_.push_back(std::move(everywhere));
  }
  for (const Gateway& gateway : manifests.gateways) {
    for (const Gateway::Listener& from : gateway.listeners) {
      Listener listener;
      listener.port = from.port;
      listener.hostname = ascii_lower(from.hostname);
      for (const HttpRoute& route : manifests.routes) {
        const bool named =
            std::any_of(route.parents.begin(), route.parents.end(), [&](const HttpRoute::ParentRef& parent) {
              return parent.kind == "Gateway" && parent.name == gateway.meta.name &&
                     parent.ns == gateway.meta.ns &&
                     (parent.section_name.empty() || parent.section_name == from.name) &&
                     (!parent.port || *parent.port == from.port);
            });
        const bool allowed =
            from.routes_from == Gateway::RoutesFrom::kAll || route.meta.ns == gateway.meta.ns;
        if (!named || !allowed) continue;
        if (Status status = attach(route, listener); !status.ok()) return std::move(status).error();
      }
      table->listeners_.push_back(std::move(listener));
    }
  }
  if (!manifests.gateways.empty()) {
    for (const HttpRoute& route : manifests.routes) {
      const bool attached =
          std::any_of(table->listeners_.begin(), table->listeners_.end(), [&](const Listener& listener) {
            return std::any_of(listener.entries.begin(), listener.entries.end(), [&](const Entry& entry) {
              return entry.route_name == route.meta.full_name();
            });
          });
      if (!attached) {
        warnings.push_back("HTTPRoute " + route.meta.full_name() + " is attached to no listener");
      }
    }
  }
  for (Listener& listener : table->listeners_) {
    std::sort(listener.entries.begin(), listener.entries.end(), better);
    listener.needs_model =
        std::any_of(listener.entries.begin(), listener.entries.end(), [](const Entry& entry) {
          return std::any_of(entry.headers.begin(), entry.headers.end(),
                             [](const ValueTest& test) { return test.name == kModelNameHeader; });
        });
  }
  return std::shared_ptr<const RouteTable>(std::move(table));
}

const RouteTable::Listener* RouteTable::find_listener(uint16_t port, std::string_view host) const {
  const Listener* best = nullptr;
  for (const Listener& listener : listeners_) {
    if (listener.port != 0 && listener.port != port) continue;
    if (!hostname_matches(listener.hostname, host)) continue;
    const auto rank = [](const Listener& l) {
      const size_t exact = l.hostname.empty() || is_wildcard(l.hostname) ? 0 : size_t{1} << 32U;
      return exact + l.hostname.size();
    };
    if (best == nullptr || rank(listener) > rank(*best)) best = &listener;
  }
  return best;
}

const RouteRule* RouteTable::match(const RouteQuery& query) const {
  if (!listeners_.empty()) {
    std::string buffer;
    const std::string_view host = host_without_port(query.host, buffer);
    if (const Listener* listener = find_listener(query.port, host)) {
      for (const Entry& entry : listener->entries) {
        if (matches(entry, query, host)) return entry.rule.get();
      }
    }
  }
  return default_rule_.get();
}

bool RouteTable::needs_model(uint16_t port, std::string_view authority) const {
  if (listeners_.empty()) return false;
  std::string buffer;
  const Listener* listener = find_listener(port, host_without_port(authority, buffer));
  return listener != nullptr && listener->needs_model;
}

std::string no_route_text(const RouteQuery& query) {
  if (!query.model.empty()) {
    return "no route matches the request: the model `" + std::string(query.model) +
           "` does not exist behind " + std::string(query.path);
  }
  return "no route matches " + std::string(query.method) + " " + std::string(query.path);
}

}  // namespace penstock::gateway
