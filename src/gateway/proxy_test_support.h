#pragma once

// A gateway on loopback with one pool of scripted engines.

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "director/testing.h"
#include "gateway/gateway.h"
#include "gateway/testing.h"

namespace penstock::gateway::testing {

using director::testing::TestPolicy;

inline constexpr std::string_view kBody = R"({"model":"m","prompt":"hello"})";

inline std::string post(std::string_view body, std::string_view fields = "",
                        std::string_view path = "/v1/completions") {
  return "POST " + std::string(path) +
         " HTTP/1.1\r\nhost: gw\r\ncontent-type: application/json\r\ncontent-length: " +
         std::to_string(body.size()) + "\r\n" + std::string(fields) + "\r\n" + std::string(body);
}

class ProxyTest : public ::testing::Test {
 protected:
  ~ProxyTest() override {
    if (gateway != nullptr) gateway->stop(Duration::zero());
    loops.stop(std::chrono::seconds(5));
    gateway.reset();
    std::fclose(access_log_file);
  }
  void keep_access_log() {
    access_log = std::make_unique<director::AccessLog>(
        director::AccessLog::Options{.loops = 1, .fd = ::fileno(access_log_file)});
  }
  // The access log's line of a request, which ended before.
  std::string logged(std::string_view request_id) {
    const std::string mark = "\"request_id\":\"" + std::string(request_id) + "\"";
    std::string line;
    EXPECT_TRUE(eventually([&] {
      std::string text(static_cast<size_t>(::lseek(::fileno(access_log_file), 0, SEEK_END)), '\0');
      const ssize_t got = ::pread(::fileno(access_log_file), text.data(), text.size(), 0);
      text.resize(got < 0 ? 0 : static_cast<size_t>(got));
      const size_t at = text.find(mark);
      if (at == std::string::npos || text.find('\n', at) == std::string::npos) return false;
      const size_t begin = text.rfind('\n', at) + 1;
      line = text.substr(begin, text.find('\n', at) - begin);
      return true;
    })) << mark;
    return line;
  }

  void add_engine(ScriptedEngine::Serve serve) {
    engines.push_back(std::make_unique<ScriptedEngine>(std::move(serve)));
    add_endpoint(engines.back()->port());
  }
  void add_endpoint(uint16_t port) {
    discovery::DiscoveredEndpoint endpoint;
    endpoint.name = "e" + std::to_string(discovered.size());
    endpoint.address = "127.0.0.1";
    endpoint.port = port;
    discovered.push_back(std::move(endpoint));
  }
  // Endpoint `index` has the shortest queue.
  void favour(size_t index) {
    const auto snapshot = members.snapshot();
    for (size_t i = 0; i < snapshot->endpoints.size(); ++i) {
      const auto ticket = signals.attach(snapshot->endpoints[i]->slot, clock.now());
      signals::SignalRow row;
      row.at(Signal::kWaitingRequests) = {i == index ? 0.0 : 5.0, clock.now(), SignalState::kFresh};
      ASSERT_TRUE(signals.write(ticket, row, clock.now()));
    }
  }
  void start(config::Manifests manifests = {}, std::optional<size_t> default_pool = 0) {
    members.apply("test", discovered);
    pool.policy.publish(policy.policy);
    config::OutlierDetectionSettings health;
    health.enabled = true;
    pool.health.configure(health);
    GatewayPool served;
    served.pool = &pool;
    served.members = &members;
    served.signals = &signals;
    served.freshness_budget = std::chrono::hours(1);
    served.upstream = std::make_shared<UpstreamSettings>(upstream);
    gateway = std::make_unique<Gateway>(loops, registry, clock, access_log.get(), options,
                                        std::vector<GatewayPool>{served}, services);
    std::vector<std::string> warnings;
    ASSERT_TRUE(gateway->set_routes(manifests, default_pool, warnings).ok());
    loops.start();
    listener.settings.name = "test";
    listener.address = *io::SocketAddress::parse("127.0.0.1:0");
    auto bound = gateway->listen(listener);
    ASSERT_TRUE(bound.ok()) << bound.error().message;
    port = bound->port();
    favour(0);
  }
  Message exchange(const std::string& request, bool* complete = nullptr) {
    Connection client = Connection::to(port);
    EXPECT_TRUE(client.send(request));
    return read_message(client, complete);
  }
  // Everything that is counted while a request runs is back where it was.
  bool at_rest() {
    return eventually([this] {
      if (gateway->stats().active_requests != 0 || gateway->stats().buffered_bytes != 0) return false;
      for (const auto& endpoint : members.snapshot()->endpoints) {
        if (endpoint->live->load != 0) return false;
      }
      return true;
    });
  }

  SystemClock clock;
  telemetry::MetricRegistry registry;
  director::RequestMetrics metrics{registry};
  director::Pool pool{"pool", "default", metrics, {1, 64}};
  TestPolicy policy;
  discovery::SlotAllocator slots;
  discovery::Pool members{{.name = "pool"}, slots, clock};
  signals::SignalTable signals{Duration::zero()};
  UpstreamSettings upstream;
  GatewayOptions options;
  std::vector<GatewayService> services;
  GatewayListener listener;
  std::vector<std::unique_ptr<ScriptedEngine>> engines;
  std::vector<discovery::DiscoveredEndpoint> discovered;
  io::LoopGroup loops{1};
  std::FILE* access_log_file = std::tmpfile();
  std::unique_ptr<director::AccessLog> access_log;  // nullptr: no lines
  std::unique_ptr<Gateway> gateway;
  uint16_t port = 0;
};

inline bool echo_ok(Connection& to, const Message& request) {
  return to.send(answer(200, R"({"echo":)" + request.body + "}"));
}

}  // namespace penstock::gateway::testing
