#include "admin/admin_server.h"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <future>
#include <memory>
#include <span>
#include <string>
#include <thread>

#include "io/http_client.h"
#include "io/loop.h"

namespace penstock::admin {
namespace {

TEST(AdminServer, TakesChangesFromThisMachineOnly) {
  const auto taken = [](std::string_view ip) {
    const auto peer = io::SocketAddress::from_ip(ip, 4711);
    return peer && on_this_machine(*peer);
  };
  for (const std::string_view ip : {"127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1"})
    EXPECT_TRUE(taken(ip)) << ip;
  for (const std::string_view ip :
       {"10.0.0.1", "128.0.0.1", "192.0.2.127", "0.0.0.0", "::", "fe80::1", "::ffff:10.0.0.1", "1::1"})
    EXPECT_FALSE(taken(ip)) << ip;
}

class AdminServerTest : public ::testing::Test {
 protected:
  void serve(AdminPages pages) {
    loops.start();
    server = std::make_unique<AdminServer>(loops.at(0), std::move(pages));
    const auto bound = server->listen(*io::SocketAddress::parse("127.0.0.1:0"));
    ASSERT_TRUE(bound.ok());
    base = "http://" + bound->to_string();
  }
  // 0: no answer.
  int ask(std::string_view method, const std::string& path,
          std::span<const io::HeaderField> fields = {}) const {
    const auto answer = io::http_request_blocking(method, base + path, "", fields, std::chrono::seconds(30),
                                                  nullptr, 1 << 20);
    return answer.ok() ? answer->status : 0;
  }

  io::LoopGroup loops{1};
  std::unique_ptr<AdminServer> server;
  std::string base;
};

TEST_F(AdminServerTest, ARollbackIsAPostAndNotABrowsers) {
  std::atomic<int> rollbacks{0};
  AdminPages pages;
  pages.rollback = [&](std::string_view) -> Result<std::string> {
    ++rollbacks;
    return std::string("{}\n");
  };
  serve(std::move(pages));
  EXPECT_EQ(ask("GET", "/debug/rollback"), 405);
  const std::array<io::HeaderField, 1> from_a_page{{{"origin", "https://example.com"}}};
  EXPECT_EQ(ask("POST", "/debug/rollback", from_a_page), 403);
  EXPECT_EQ(rollbacks, 0);
  EXPECT_EQ(ask("POST", "/debug/rollback"), 200);
  EXPECT_EQ(rollbacks, 1);
}

TEST_F(AdminServerTest, StoppingWaitsForThePageThatIsBeingMade) {
  std::promise<void> begun;
  std::promise<void> may_end;
  std::atomic<bool> ended{false};
  AdminPages pages;
  pages.metrics = [&] {
    begun.set_value();
    may_end.get_future().wait();
    ended = true;
    return std::string();
  };
  serve(std::move(pages));
  std::thread client([&] { ask("GET", "/metrics"); });
  begun.get_future().wait();
  std::thread stopping([&] {
    server->stop();
    EXPECT_TRUE(ended) << "the page is still read";
  });
  client.join();  // its connection is cut
  may_end.set_value();
  stopping.join();
}

}  // namespace
}  // namespace penstock::admin
