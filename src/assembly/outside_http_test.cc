#include "assembly/outside_http.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <thread>

#include "io/http_server.h"
#include "io/run_on.h"

namespace penstock::assembly {
namespace {

using std::chrono::hours;

// Takes whatever it is sent with 202, and never answers /hang.
class OutsideHttpTest : public ::testing::Test {
 protected:
  OutsideHttpTest() {
    others.start();
    server.emplace(
        others, io::HttpServerOptions{},
        io::HttpServer::handler_of([this](io::HttpExchange& exchange) { return serve(exchange); }));
    const auto bound = server->listen(*io::SocketAddress::parse("127.0.0.1:0"));
    EXPECT_TRUE(bound.ok());
    if (bound.ok()) url = "http://" + bound->to_string();
    loops.start();
  }
  io::Task<void> serve(io::HttpExchange& exchange) {
    auto body = co_await exchange.read_all(1000);
    if (body.ok()) got.assign(body->begin(), body->end());
    came = true;
    if (exchange.request().path == "/hang") {
      (void)co_await io::Loop::current()->sleep(hours(1), exchange.cancel_token());
      co_return;
    }
    (void)co_await exchange.respond(202, "text/plain", "");
  }
  void on_loop(std::function<void()> run) {
    EXPECT_TRUE(io::run_on(loops.at(0), [run = std::move(run)]() -> Result<bool> {
                  run();
                  return true;
                }).ok());
  }

  std::string got;
  std::atomic<bool> came{false};
  std::string url;
  io::LoopGroup others{1};
  std::optional<io::HttpServer> server;
  io::LoopGroup loops{1};
  OutsideHttp outside{loops};
};

TEST_F(OutsideHttpTest, WhatATimerSendsWhenTheLoopsEndArrives) {
  Outside::Answer answer;
  on_loop([&] {
    outside.after(hours(1), [&] {
      outside.post(url + "/last", "words", hours(1), 1000,
                   [&](Outside::Answer received) { answer = std::move(received); });
    });
  });
  loops.stop();
  EXPECT_EQ(answer.status, 202) << answer.error;
  EXPECT_EQ(got, "words");
}

TEST_F(OutsideHttpTest, ACallUnderWayWhenTheLoopsEndIsOver) {
  std::optional<Outside::Answer> answer;
  on_loop([&] {
    outside.post(url + "/hang", "?", hours(1), 1000,
                 [&](Outside::Answer received) { answer = std::move(received); });
  });
  while (!came) std::this_thread::yield();
  loops.stop(hours(1));
  ASSERT_TRUE(answer.has_value());
  EXPECT_EQ(answer->status, 0);
  EXPECT_NE(answer->error, "");
}

}  // namespace
}  // namespace penstock::assembly
