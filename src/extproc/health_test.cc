#include "extproc/health.h"

#include <gmock/gmock.h>
#include <grpc/health/v1/health.pb.h>
#include <gtest/gtest.h>

#include <thread>

#include "io/detail/scripted_exchange.h"

namespace penstock::extproc {
namespace {

using io::testing::grpc_frame;
using io::testing::ScriptedExchange;
using ::testing::ElementsAre;
using ::testing::Pair;
using ::testing::UnorderedElementsAre;

constexpr HealthInputs kReady{.pool_known = true, .protocol_ok = true, .plugins_ready = true, .leader = true};

std::string request_for(std::string_view service) {
  grpc::health::v1::HealthCheckRequest request;
  request.set_service(std::string(service));
  return grpc_frame(request.SerializeAsString());
}

std::string response_of(ServingStatus status) {
  grpc::health::v1::HealthCheckResponse response;
  response.set_status(static_cast<grpc::health::v1::HealthCheckResponse::ServingStatus>(status));
  return grpc_frame(response.SerializeAsString());
}

struct Served {
  explicit Served(Health& health, std::string_view method, std::string message) : exchange(loop) {
    health.serve_on(router);
    path = "/grpc.health.v1.Health/" + std::string(method);
    exchange.head().path = path;
    exchange.give(std::move(message));
    exchange.half_close();
  }
  Served& run() {
    io::block_on(loop, router.handle(exchange));
    return *this;
  }
  io::Loop loop;
  io::GrpcRouter router;
  std::string path;
  ScriptedExchange exchange;
};

TEST(Health, FollowsTheTableWithoutLeaderElection) {
  Health health(Health::Kind::kPicker);
  for (const std::string_view service : {"", "readiness", "liveness", kExtProcService.data(), "anything"})
    EXPECT_EQ(health.status(service), ServingStatus::kNotServing) << service;
  HealthInputs inputs;
  inputs.pool_known = true;
  health.set(inputs);
  for (const std::string_view service : {"liveness", "inference-extension"})
    EXPECT_EQ(health.status(service), ServingStatus::kServing) << service;
  for (const std::string_view service : {"", "readiness", kExtProcService.data()})
    EXPECT_EQ(health.status(service), ServingStatus::kNotServing) << service;
  inputs.plugins_ready = true;
  health.set(inputs);
  for (const std::string_view service : {"", "readiness", "liveness", kExtProcService.data(), "anything"})
    EXPECT_EQ(health.status(service), ServingStatus::kServing) << service;
  inputs.protocol_ok = false;
  health.set(inputs);
  EXPECT_EQ(health.status("liveness"), ServingStatus::kNotServing);
  inputs.protocol_ok = true;
  inputs.draining = true;
  health.set(inputs);
  for (const std::string_view service : {"", "readiness", "liveness", kExtProcService.data(), "anything"})
    EXPECT_EQ(health.status(service), ServingStatus::kNotServing) << service;
}

TEST(Health, FollowsTheTableWithLeaderElection) {
  Health health(Health::Kind::kPicker, true);
  EXPECT_EQ(health.status("liveness"), ServingStatus::kServing);
  EXPECT_EQ(health.status("readiness"), ServingStatus::kNotServing);
  EXPECT_EQ(health.status("inference-extension"), ServingStatus::kServiceUnknown);
  HealthInputs inputs = kReady;
  health.set(inputs);
  for (const std::string_view service : {"", "readiness", "liveness", kExtProcService.data()})
    EXPECT_EQ(health.status(service), ServingStatus::kServing) << service;
  inputs.leader = false;
  health.set(inputs);
  EXPECT_EQ(health.status("liveness"), ServingStatus::kServing);
  for (const std::string_view service : {"", "readiness", kExtProcService.data()})
    EXPECT_EQ(health.status(service), ServingStatus::kNotServing) << service;
  inputs.leader = true;
  inputs.draining = true;
  health.set(inputs);
  EXPECT_EQ(health.status("liveness"), ServingStatus::kServing);
  EXPECT_EQ(health.status("readiness"), ServingStatus::kNotServing);
}

TEST(Health, StaticTableServesWhateverTheInputs) {
  Health health(Health::Kind::kStatic);
  EXPECT_EQ(health.status(""), ServingStatus::kServing);
  EXPECT_EQ(health.status(kExtProcService), ServingStatus::kServing);
  Served unknown(health, "Check", request_for("liveness"));
  EXPECT_EQ(unknown.run().exchange.field("grpc-status"), "5");
}

TEST(Health, ChecksOneService) {
  Health health(Health::Kind::kPicker);
  Served not_yet(health, "Check", request_for(kExtProcService));
  EXPECT_EQ(not_yet.run().exchange.body(), response_of(ServingStatus::kNotServing));
  health.set(kReady);
  Served ready(health, "Check", request_for(kExtProcService));
  EXPECT_EQ(ready.run().exchange.body(), response_of(ServingStatus::kServing));
  EXPECT_EQ(ready.exchange.trailer("grpc-status"), "0");
  Served garbage(health, "Check", grpc_frame("\x0a\xff"));
  EXPECT_EQ(garbage.run().exchange.field("grpc-status"), "13");
}

TEST(Health, ListsItsServices) {
  Health plain(Health::Kind::kPicker);
  EXPECT_THAT(plain.list(), ElementsAre(Pair(kExtProcService, ServingStatus::kNotServing)));
  Health elected(Health::Kind::kPicker, true);
  elected.set(kReady);
  Served served(elected, "List", grpc_frame(""));
  const std::string& body = served.run().exchange.body();
  grpc::health::v1::HealthListResponse list;
  ASSERT_TRUE(list.ParseFromString(body.substr(5)));
  std::vector<std::pair<std::string, int>> statuses;
  for (const auto& [name, response] : list.statuses()) statuses.emplace_back(name, response.status());
  EXPECT_THAT(statuses,
              UnorderedElementsAre(Pair(kExtProcService, 1), Pair("liveness", 1), Pair("readiness", 1)));
}

// Waits on the loop until what the client was sent has this length; the messages are two bytes and a prefix.
io::Task<void> wait_for_bytes(io::Loop& loop, const ScriptedExchange& exchange, size_t bytes) {
  for (int i = 0; i < 10'000 && exchange.body().size() < bytes; ++i)
    co_await loop.sleep(std::chrono::milliseconds(1));
  EXPECT_GE(exchange.body().size(), bytes);
}

TEST(Health, WatchPushesEachChangeFromAnotherThreadAndEndsWithItsClient) {
  Health health(Health::Kind::kPicker);
  Served served(health, "Watch", request_for("readiness"));
  const auto script = [&]() -> io::Task<void> {
    co_await wait_for_bytes(served.loop, served.exchange, 7);
    EXPECT_EQ(health.watchers(), 1U);
    std::thread([&] { health.set(kReady); }).join();
    co_await wait_for_bytes(served.loop, served.exchange, 14);
    // A change that makes no difference to the service is not sent.
    HealthInputs inputs = kReady;
    inputs.leader = false;
    health.set(inputs);
    inputs.draining = true;
    std::thread([&] { health.set(inputs); }).join();
    co_await wait_for_bytes(served.loop, served.exchange, 21);
    served.exchange.go_away();
  };
  served.loop.post([&] { io::spawn(served.loop, script()); });
  served.run();
  EXPECT_EQ(served.exchange.body(), response_of(ServingStatus::kNotServing) +
                                        response_of(ServingStatus::kServing) +
                                        response_of(ServingStatus::kNotServing));
  EXPECT_EQ(health.watchers(), 0U);
}

TEST(Health, WatchOfAnUnknownServiceSaysSoAndGoesOn) {
  Health health(Health::Kind::kStatic);
  Served served(health, "Watch", request_for("nobody"));
  const auto script = [&]() -> io::Task<void> {
    co_await wait_for_bytes(served.loop, served.exchange, 7);
    health.end_watches();
  };
  served.loop.post([&] { io::spawn(served.loop, script()); });
  served.run();
  EXPECT_EQ(served.exchange.body(), response_of(ServingStatus::kServiceUnknown));
  EXPECT_EQ(served.exchange.trailer("grpc-status"), "14");
}

TEST(HealthTest, OfSeveralPoolsEachHasANameOfItsOwn) {
  Health health(Health::Kind::kPicker);
  health.expect_pools();
  EXPECT_EQ(health.status("ns/a"), ServingStatus::kUnknown);
  HealthInputs unknown = kReady;
  unknown.pool_known = false;
  HealthInputs draining = kReady;
  draining.draining = true;
  health.set(kReady, {{"ns/a", kReady}, {"ns/b", unknown}, {"ns/c", draining}});
  EXPECT_EQ(health.status(""), ServingStatus::kServing);
  EXPECT_EQ(health.status("ns/a"), ServingStatus::kServing);
  EXPECT_EQ(health.status("ns/b"), ServingStatus::kNotServing);
  EXPECT_EQ(health.status("ns/c"), ServingStatus::kNotServing);
  EXPECT_EQ(health.status("ns/d"), ServingStatus::kUnknown);
  EXPECT_THAT(health.list(),
              ElementsAre(Pair(std::string(kExtProcService), ServingStatus::kServing),
                          Pair("ns/a", ServingStatus::kServing), Pair("ns/b", ServingStatus::kNotServing),
                          Pair("ns/c", ServingStatus::kNotServing)));
  health.set(kReady, {});
  EXPECT_EQ(health.status("ns/a"), ServingStatus::kUnknown);
}

TEST(HealthTest, OfOnePoolANameWithASlashIsANameAsAnyOther) {
  Health health(Health::Kind::kPicker);
  health.set(kReady);
  EXPECT_EQ(health.status("ns/a"), ServingStatus::kServing);
}

}  // namespace
}  // namespace penstock::extproc
