#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <regex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/random.h"
#include "base/result.h"
#include "config/manifests.h"
#include "io/http.h"

namespace penstock::gateway {

// The header under which HTTPRoutes match the model name of the body. A client's own value never counts.
inline constexpr std::string_view kModelNameHeader = "x-gateway-model-name";

// Where a matched request may go. `index` counts the pools or services given to compile().
struct RouteBackend {
  enum class Kind : uint8_t { kPool, kService, kInvalid };
  Kind kind = Kind::kInvalid;
  size_t index = 0;
  uint32_t weight = 1;
  std::string name;  // "<namespace>/<name>", for messages
};

// A rule of an HTTPRoute, as matched.
struct RouteRule {
  std::string route_name;  // "<namespace>/<name>"
  std::vector<RouteBackend> backends;
  uint64_t total_weight = 0;
  std::optional<Duration> request_timeout;  // zero: none
  std::optional<Duration> backend_timeout;

  // One backend by weight, invalid ones included (their share is answered with 500); nullptr: there is
  // none with a weight.
  const RouteBackend* choose(Random& random) const;
};

struct RouteQuery {
  uint16_t port = 0;
  std::string_view host;  // with or without port
  std::string_view method;
  std::string_view path;   // without the query
  std::string_view query;  // after '?'
  std::span<const io::HeaderField> headers;
  std::string_view model;  // of the body; stands for kModelNameHeader
};

// What a client is told whose request no route matches.
std::string no_route_text(const RouteQuery& query);

// The routes of all listeners, compiled from manifests: hostname, path, header, query and method matches
// with the Gateway API's precedence (https://gateway-api.sigs.k8s.io/reference/spec/, HTTPRouteRule).
// Regular expressions (ECMAScript, whole value) rank with prefixes of length 0 and are tried on values of
// up to 1 KiB. Immutable; shared by all loops.
class RouteTable {
 public:
  struct Target {
    std::string ns;
    std::string name;
  };

  // Everything goes to one pool.
  static std::shared_ptr<const RouteTable> single_pool(size_t pool_index);

  // Routes without a Gateway among the manifests attach to every listener. `default_pool`: where requests
  // go that no route matches; nothing: they are answered with 404. What could not be used (unknown parents
  // or backends) is told in `warnings`.
  static Result<std::shared_ptr<const RouteTable>> compile(const config::Manifests& manifests,
                                                           std::span<const Target> pools,
                                                           std::span<const Target> services,
                                                           std::optional<size_t> default_pool,
                                                           std::vector<std::string>& warnings);

  // The best rule, or nullptr.
  const RouteRule* match(const RouteQuery& query) const;
  // True when a route that a request for this port and host may meet looks at the model name: the body
  // has to be read first.
  bool needs_model(uint16_t port, std::string_view host) const;

 private:
  struct ValueTest {
    std::string name;
    std::string value;
    std::shared_ptr<const std::regex> regex;  // null: exact
    bool matches(std::string_view candidate) const;
  };
  struct Entry {
    std::string hostname;  // "" any, "*.x" wildcard
    config::HttpRoute::PathKind path_kind = config::HttpRoute::PathKind::kPrefix;
    std::string path;  // prefixes without a trailing slash
    std::shared_ptr<const std::regex> path_regex;
    std::string method;
    std::vector<ValueTest> headers;
    std::vector<ValueTest> queries;
    std::shared_ptr<const RouteRule> rule;
    uint64_t route_order = 0;
    std::string route_name;
    size_t position = 0;
  };
  struct Listener {
    uint16_t port = 0;  // 0: every port
    std::string hostname;
    bool needs_model = false;
    std::vector<Entry> entries;  // best first
  };

  static bool better(const Entry& a, const Entry& b);
  static bool matches(const Entry& entry, const RouteQuery& query, std::string_view host);
  const Listener* find_listener(uint16_t port, std::string_view host) const;
  static Result<std::vector<Entry>> entries_of(const config::HttpRoute& route,
                                               const std::string& listener_hostname,
                                               std::span<const Target> pools,
                                               std::span<const Target> services,
                                               std::vector<std::string>& warnings);

  std::vector<Listener> listeners_;
  std::shared_ptr<const RouteRule> default_rule_;
};

// The lower-case host without its port; IPv6 literals keep their brackets. `buffer` holds it.
std::string_view host_without_port(std::string_view authority, std::string& buffer);
// True for an exact name, or a name with at least one more label under "*.<suffix>"; "" matches all.
bool hostname_matches(std::string_view pattern, std::string_view host);
// The more specific of the two where they overlap, nothing where they don't.
std::optional<std::string> intersect_hostnames(std::string_view listener, std::string_view route);

}  // namespace penstock::gateway
