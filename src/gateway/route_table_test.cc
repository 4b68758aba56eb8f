#include "gateway/route_table.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace penstock::gateway {
namespace {

using config::Gateway;
using config::HttpRoute;
using config::Manifests;

// Backends are services v1, v2, v3; the answer of a match is the name of the one.
const std::vector<RouteTable::Target> kServices{{"default", "v1"}, {"default", "v2"}, {"default", "v3"}};
const std::vector<RouteTable::Target> kPools{{"default", "pool-a"}, {"default", "pool-b"}};

HttpRoute::Match prefix(std::string path) {
  HttpRoute::Match match;
  match.path = std::move(path);
  return match;
}
HttpRoute::Match exact(std::string path) {
  HttpRoute::Match match = prefix(std::move(path));
  match.path_kind = HttpRoute::PathKind::kExact;
  return match;
}
HttpRoute::Match with_header(HttpRoute::Match match, std::string name, std::string value) {
  match.headers.push_back({std::move(name), std::move(value), false});
  return match;
}
HttpRoute::Match with_query(HttpRoute::Match match, std::string name, std::string value) {
  match.query_params.push_back({std::move(name), std::move(value), false});
  return match;
}
HttpRoute::Match with_method(HttpRoute::Match match, std::string method) {
  match.method = std::move(method);
  return match;
}

HttpRoute::Rule rule(std::vector<HttpRoute::Match> matches, std::string service) {
  HttpRoute::Rule made;
  made.matches = std::move(matches);
  HttpRoute::BackendRef ref;
  ref.ns = "default";
  ref.name = std::move(service);
  made.backends.push_back(ref);
  return made;
}

HttpRoute route(std::string name, std::vector<std::string> hostnames, std::vector<HttpRoute::Rule> rules) {
  static uint64_t order = 0;
  HttpRoute made;
  made.meta.name = std::move(name);
  made.meta.creation_order = ++order;
  made.hostnames = std::move(hostnames);
  made.rules = std::move(rules);
  HttpRoute::ParentRef parent;
  parent.ns = "default";
  parent.name = "gw";
  made.parents.push_back(parent);
  return made;
}

Gateway gateway(std::vector<std::string> hostnames) {
  Gateway made;
  made.meta.name = "gw";
  for (size_t i = 0; i < hostnames.size(); ++i) {
    Gateway::Listener listener;
    listener.name = "l" + std::to_string(i);
    listener.port = 80;
    listener.hostname = hostnames[i];
    made.listeners.push_back(listener);
  }
  return made;
}

class Routes {
 public:
  explicit Routes(const Manifests& manifests, std::optional<size_t> default_pool = std::nullopt) {
    auto made = RouteTable::compile(manifests, kPools, kServices, default_pool, warnings);
    EXPECT_TRUE(made.ok());
    table = *made;
  }
  std::string match(std::string_view host, std::string_view target, std::vector<io::HeaderField> headers = {},
                    std::string_view method = "GET", std::string_view model = {}) const {
    RouteQuery query;
    query.port = 80;
    query.host = host;
    query.method = method;
    query.path = target.substr(0, target.find('?'));
    if (target.find('?') != std::string_view::npos) query.query = target.substr(target.find('?') + 1);
    query.headers = headers;
    query.model = model;
    const RouteRule* found = table->match(query);
    if (found == nullptr) return "404";
    const std::string& name = found->backends[0].name;
    return name.substr(name.find('/') + 1);
  }
  std::vector<std::string> warnings;
  std::shared_ptr<const RouteTable> table;
};

Manifests manifests(std::vector<Gateway> gateways, std::vector<HttpRoute> routes) {
  Manifests made;
  made.gateways = std::move(gateways);
  made.routes = std::move(routes);
  return made;
}

TEST(RouteTable, PrefixesMatchWholeSegmentsAndHeadersDecideWithinThem) {
  const Routes r(
      manifests({}, {route("r", {},
                           {rule({prefix("/"), with_header(prefix("/"), "version", "one")}, "v1"),
                            rule({prefix("/v2"), with_header(prefix("/"), "version", "two")}, "v2")})}));
  for (const char* path : {"/", "/example", "/v2example", "/foo/v2/example"})
    EXPECT_EQ(r.match("", path), "v1");
  for (const char* path : {"/v2", "/v2/", "/v2/example"}) EXPECT_EQ(r.match("", path), "v2");
  EXPECT_EQ(r.match("", "/", {{"version", "one"}}), "v1");
  EXPECT_EQ(r.match("", "/", {{"version", "two"}}), "v2");
}

TEST(RouteTable, ExactPathsBeatPrefixesAndLongerPrefixesShorterOnes) {
  const Routes r(manifests(
      {}, {route("r", {},
                 {rule({exact("/match")}, "v1"), rule({exact("/match/exact")}, "v2"),
                  rule({exact("/match/exact/one")}, "v3"), rule({prefix("/match/")}, "v3"),
                  rule({prefix("/match/prefix/")}, "v1"), rule({prefix("/match/prefix/one")}, "v2")})}));
  EXPECT_EQ(r.match("", "/match"), "v1");
  EXPECT_EQ(r.match("", "/match/exact"), "v2");
  EXPECT_EQ(r.match("", "/match/exact/one"), "v3");
  EXPECT_EQ(r.match("", "/match/any"), "v3");
  EXPECT_EQ(r.match("", "/match/prefix/any"), "v1");
  EXPECT_EQ(r.match("", "/match/prefix/one/any"), "v2");
  EXPECT_EQ(r.match("", "/Match"), "404");
  EXPECT_EQ(r.match("", "/"), "404");
}

TEST(RouteTable, TheMatchWithMoreHeadersWinsThenTheEarlierRule) {
  const Routes r(manifests(
      {},
      {route("r", {},
             {rule({with_header(prefix("/"), "version", "one")}, "v1"),
              rule({with_header(prefix("/"), "version", "two")}, "v2"),
              rule({with_header(with_header(prefix("/"), "version", "two"), "color", "orange")}, "v1"),
              rule({with_header(prefix("/"), "color", "blue"), with_header(prefix("/"), "color", "green")},
                   "v1"),
              rule({with_header(prefix("/"), "color", "red")}, "v2")})}));
  EXPECT_EQ(r.match("", "/", {{"version", "two"}, {"color", "orange"}}), "v1");
  EXPECT_EQ(r.match("", "/", {{"version", "two"}, {"color", "blue"}}), "v2");
  EXPECT_EQ(r.match("", "/", {{"color", "green"}}), "v1");
  EXPECT_EQ(r.match("", "/", {{"color", "orange"}}), "404");
}

TEST(RouteTable, QueriesAreComparedExactlyAndCountInPrecedence) {
  const Routes r(
      manifests({}, {route("r", {},
                           {rule({with_query(prefix("/"), "animal", "whale")}, "v1"),
                            rule({with_query(prefix("/"), "animal", "dolphin")}, "v2"),
                            rule({with_query(with_query(prefix("/"), "animal", "dolphin"), "color", "blue"),
                                  with_query(prefix("/"), "ANIMAL", "Whale")},
                                 "v3"),
                            rule({prefix("/path5")}, "v1")})}));
  EXPECT_EQ(r.match("", "/?animal=whale&otherparam=irrelevant"), "v1");
  EXPECT_EQ(r.match("", "/?animal=dolphin&color=blue"), "v3");
  EXPECT_EQ(r.match("", "/?animal=dolphin&color=yellow"), "v2");
  EXPECT_EQ(r.match("", "/?ANIMAL=Whale"), "v3");
  EXPECT_EQ(r.match("", "/path5?animal=hydra"), "v1");
  for (const char* target : {"/?color=blue", "/?animal=dog", "/?animal=whaledolphin", "/"}) {
    EXPECT_EQ(r.match("", target), "404");
  }
}

TEST(RouteTable, MethodsAreMatchedExactly) {
  const Routes r(manifests({}, {route("r", {},
                                      {rule({with_method(prefix("/"), "POST")}, "v1"),
                                       rule({with_method(prefix("/"), "GET")}, "v2")})}));
  EXPECT_EQ(r.match("", "/", {}, "POST"), "v1");
  EXPECT_EQ(r.match("", "/", {}, "GET"), "v2");
  EXPECT_EQ(r.match("", "/", {}, "HEAD"), "404");
}

TEST(RouteTable, HostnamesOfListenerAndRouteIntersect) {
  const Routes r(
      manifests({gateway({"very.specific.com", "*.wildcard.io", "*.anotherwildcard.io"})},
                {route("s1", {"non.matching.com", "*.nonmatchingwildcard.io", "very.specific.com"},
                       {rule({prefix("/s1")}, "v1")}),
                 route("s2", {"wildcard.io", "foo.wildcard.io", "bar.wildcard.io", "foo.bar.wildcard.io"},
                       {rule({prefix("/s2")}, "v2")}),
                 route("s3", {"non.matching.com", "*.specific.com"}, {rule({prefix("/s3")}, "v3")}),
                 route("s4", {"*.anotherwildcard.io"}, {rule({prefix("/s4")}, "v1")}),
                 route("s5", {"specific.but.wrong.com", "wildcard.io"}, {rule({prefix("/s5")}, "v1")})}));
  EXPECT_EQ(r.match("very.specific.com", "/s1"), "v1");
  EXPECT_EQ(r.match("very.specific.com:1234", "/s1"), "v1");
  EXPECT_EQ(r.match("VERY.specific.com", "/s1"), "v1");
  for (const char* host : {"non.matching.com", "foo.nonmatchingwildcard.io", "foo.wildcard.io"}) {
    EXPECT_EQ(r.match(host, "/s1"), "404");
  }
  for (const char* host : {"foo.wildcard.io", "bar.wildcard.io", "foo.bar.wildcard.io"}) {
    EXPECT_EQ(r.match(host, "/s2"), "v2");
  }
  for (const char* host : {"non.matching.com", "wildcard.io", "very.specific.com"}) {
    EXPECT_EQ(r.match(host, "/s2"), "404");
  }
  EXPECT_EQ(r.match("very.specific.com", "/s3"), "v3");
  EXPECT_EQ(r.match("foo.specific.com", "/s3"), "404");
  EXPECT_EQ(r.match("foo.bar.anotherwildcard.io", "/s4"), "v1");
  EXPECT_EQ(r.match("anotherwildcard.io", "/s4"), "404");
  EXPECT_EQ(r.match("wildcard.io", "/s5"), "404");
  EXPECT_TRUE(std::any_of(r.warnings.begin(), r.warnings.end(),
                          [](const std::string& w) { return w.find("s5") != std::string::npos; }));
}

TEST(RouteTable, OnlyTheMostSpecificListenerOfAPortIsAsked) {
  std::vector<HttpRoute> routes;
  const std::vector<std::string> paths{"/empty", "/wildcard", "/foo", "/abc"};
  for (size_t i = 0; i < paths.size(); ++i) {
    routes.push_back(route(paths[i], {}, {rule({prefix(paths[i])}, "v1")}));
    routes.back().parents[0].section_name = "l" + std::to_string(i);
  }
  const Routes r(manifests({gateway({"", "*.example.com", "*.foo.example.com", "abc.foo.example.com"})},
                           std::move(routes)));
  const std::vector<std::string> hosts{"bar.com", "bar.example.com", "bar.foo.example.com",
                                       "abc.foo.example.com"};
  for (size_t h = 0; h < hosts.size(); ++h) {
    for (size_t p = 0; p < paths.size(); ++p) {
      EXPECT_EQ(r.match(hosts[h], paths[p]), h == p ? "v1" : "404") << hosts[h] << paths[p];
    }
  }
}

TEST(RouteTable, TheModelOfTheBodyIsMatchedAndTheClientsHeaderIsNot) {
  HttpRoute::Rule a = rule({with_header(prefix("/"), "x-gateway-model-name", "llama")}, "pool-a");
  a.backends[0].kind = HttpRoute::BackendRef::Kind::kPool;
  HttpRoute::Rule b = rule({with_header(prefix("/"), "x-gateway-model-name", "qwen")}, "pool-b");
  b.backends[0].kind = HttpRoute::BackendRef::Kind::kPool;
  const Routes r(manifests({}, {route("r", {}, {a, b})}));
  EXPECT_TRUE(r.table->needs_model(80, "any"));
  EXPECT_EQ(r.match("", "/v1/completions", {}, "POST", "qwen"), "pool-b");
  EXPECT_EQ(r.match("", "/v1/completions", {{"x-gateway-model-name", "llama"}}, "POST", "qwen"), "pool-b");
  EXPECT_EQ(r.match("", "/v1/completions", {{"x-gateway-model-name", "llama"}}, "POST", ""), "404");
}

TEST(RouteTable, WhatNoRouteMatchesGoesToTheDefaultPoolWhereThereIsOne) {
  const Routes none(manifests({}, {}));
  EXPECT_EQ(none.match("", "/"), "404");
  const Routes some(manifests({}, {route("r", {}, {rule({exact("/a")}, "v1")})}), 1);
  EXPECT_EQ(some.match("", "/a"), "v1");
  EXPECT_NE(some.match("", "/b"), "404");
  EXPECT_FALSE(some.table->needs_model(80, ""));
}

TEST(RouteTable, AnUnknownBackendKeepsItsShareAndIsToldOf) {
  HttpRoute::Rule r = rule({prefix("/")}, "v1");
  r.backends.push_back(r.backends[0]);
  r.backends[1].name = "gone";
  const Routes routes(manifests({}, {route("r", {}, {r})}));
  ASSERT_EQ(routes.warnings.size(), 1U);
  EXPECT_NE(routes.warnings[0].find("gone"), std::string::npos);
  RouteQuery query;
  query.path = "/";
  const RouteRule* found = routes.table->match(query);
  Random random(3);
  int invalid = 0;
  for (int i = 0; i < 1000; ++i) {
    if (found->choose(random)->kind == RouteBackend::Kind::kInvalid) ++invalid;
  }
  EXPECT_NEAR(invalid, 500, 80);
}

TEST(RouteTable, RegularExpressionsMatchWholePathsOfBoundedLength) {
  HttpRoute::Match match = prefix("/v[0-9]+/chat/.*");
  match.path_kind = HttpRoute::PathKind::kRegex;
  const Routes r(manifests({}, {route("r", {}, {rule({match}, "v1")})}));
  EXPECT_EQ(r.match("", "/v1/chat/completions"), "v1");
  EXPECT_EQ(r.match("", "/x/v1/chat/completions"), "404");
  EXPECT_EQ(r.match("", "/v1/chat/" + std::string(2000, 'a')), "404");
  match.path = "(";
  std::vector<std::string> warnings;
  EXPECT_FALSE(RouteTable::compile(manifests({}, {route("r", {}, {rule({match}, "v1")})}), kPools, kServices,
                                   std::nullopt, warnings)
                   .ok());
}

TEST(Hostnames, AWildcardNeedsAtLeastOneMoreLabel) {
  EXPECT_TRUE(hostname_matches("*.example.com", "a.b.example.com"));
  EXPECT_FALSE(hostname_matches("*.example.com", "example.com"));
  std::string buffer;
  EXPECT_EQ(host_without_port("[::1]:8080", buffer), "[::1]");
  EXPECT_EQ(host_without_port("Example.COM", buffer), "example.com");
  EXPECT_EQ(intersect_hostnames("*.example.com", "*.foo.example.com"), "*.foo.example.com");
  EXPECT_EQ(intersect_hostnames("*.wildcard.io", "wildcard.io"), std::nullopt);
}

}  // namespace
}  // namespace penstock::gateway
