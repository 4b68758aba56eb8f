#include "kubernetes/leader_election.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "kubernetes/access_review.h"
#include "kubernetes/testing.h"

namespace penstock::kubernetes {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::FakeAnswer;
using testing::FakeServer;
using testing::recorded;

FakeAnswer refusal(const std::string& name) {
  const testing::Recorded answer = recorded(name);
  return {answer.status, answer.body};
}

// One Lease as a server keeps it.
class LeaseServer {
 public:
  FakeAnswer answer(const FakeServer::Request& request) {
    if (away) return {503, "away"};
    if (request.method == "GET") return text.empty() ? refusal("get-404.http") : FakeAnswer(200, stored());
    if (request.method == "POST" && !text.empty()) return refusal("lease-create-409.http");
    JsonDocument document;
    const auto lease = document.parse(request.body);
    EXPECT_TRUE(lease.ok());
    if (request.method == "PUT" && (*lease)["metadata"]["resourceVersion"].text() != std::to_string(version))
      return refusal("lease-update-409-lost.http");
    ++version;
    text = (*lease)["spec"].to_string();
    holder = (*lease)["spec"]["holderIdentity"].text();
    return {200, stored()};
  }
  std::string stored() const {
    return fmt::format(R"({{"metadata":{{"name":"l","resourceVersion":"{}"}},"spec":{}}})", version, text);
  }
  std::atomic<bool> away{false};
  std::string text;
  std::string holder;
  int version = 1;
};

LeaderElectionOptions quick(std::string identity) {
  LeaderElectionOptions options;
  options.ns = "a";
  options.lease = "l";
  options.identity = std::move(identity);
  options.lease_duration = seconds(1);
  options.renew_deadline = milliseconds(300);
  options.retry_period = milliseconds(10);
  return options;
}

// Waits on the loop until it is so, ten seconds at most.
io::Task<bool> until(io::Loop& loop, std::function<bool()> so) {
  const TimePoint deadline = loop.now() + seconds(10);
  while (!so()) {
    if (loop.now() > deadline) co_return false;
    (void)co_await loop.sleep(milliseconds(1));
  }
  co_return true;
}

io::Task<void> run_and_note(LeaderElection& election, io::CancelToken token, bool& ended) {
  co_await election.run(token);
  ended = true;
}

TEST(LeaderElection, TheFirstLeadsUntilItReleasesAndThenTheNext) {
  LeaseServer lease;
  FakeServer server([&](const FakeServer::Request& request) { return lease.answer(request); });
  testing::with_client(server.config(), [&](ApiClient& api) -> io::Task<void> {
    LeaderElection first(api, quick("one"), [](bool) {});
    LeaderElection second(api, quick("two"), [](bool) {});
    io::CancelSource stop_first;
    io::CancelSource stop_second;
    bool first_ended = false;
    bool second_ended = false;
    io::spawn(api.loop(), run_and_note(first, stop_first.token(), first_ended));
    std::function<bool()> first_leads = [&] { return first.leader(); };
    EXPECT_TRUE(co_await until(api.loop(), first_leads));
    const size_t asked = server.count();
    io::spawn(api.loop(), run_and_note(second, stop_second.token(), second_ended));
    std::function<bool()> both_tried = [&] { return server.count() > asked + 10; };
    EXPECT_TRUE(co_await until(api.loop(), both_tried));
    EXPECT_FALSE(second.leader());
    stop_first.cancel();
    std::function<bool()> second_leads = [&] { return first_ended && second.leader(); };
    EXPECT_TRUE(co_await until(api.loop(), second_leads));
    EXPECT_FALSE(first.leader());
    stop_second.cancel();
    std::function<bool()> over = [&] { return second_ended; };
    EXPECT_TRUE(co_await until(api.loop(), over));
  });
  server.stop();
  EXPECT_EQ(lease.holder, "");
  EXPECT_NE(lease.text.find("\"leaseTransitions\":1"), std::string::npos) << lease.text;
}

TEST(LeaderElection, WhoCannotRenewStepsDownAndStandsAgain) {
  LeaseServer lease;
  FakeServer server([&](const FakeServer::Request& request) { return lease.answer(request); });
  testing::with_client(server.config(), [&](ApiClient& api) -> io::Task<void> {
    std::vector<bool> told;
    LeaderElection election(api, quick("one"), [&](bool leads) { told.push_back(leads); });
    io::CancelSource stop;
    bool ended = false;
    io::spawn(api.loop(), run_and_note(election, stop.token(), ended));
    std::function<bool()> leads = [&] { return election.leader(); };
    EXPECT_TRUE(co_await until(api.loop(), leads));
    lease.away = true;
    std::function<bool()> stepped_down = [&] { return !election.leader(); };
    EXPECT_TRUE(co_await until(api.loop(), stepped_down));
    lease.away = false;
    EXPECT_TRUE(co_await until(api.loop(), leads));
    EXPECT_EQ(told, (std::vector<bool>{true, false, true}));
    stop.cancel();
    std::function<bool()> over = [&] { return ended; };
    EXPECT_TRUE(co_await until(api.loop(), over));
  });
}

TEST(LeaderElection, AHolderThatIsSilentForItsTimeIsFollowed) {
  LeaseServer lease;
  lease.text = R"({"holderIdentity":"gone","leaseDurationSeconds":1,"leaseTransitions":4})";
  FakeServer server([&](const FakeServer::Request& request) { return lease.answer(request); });
  testing::with_client(server.config(), [&](ApiClient& api) -> io::Task<void> {
    LeaderElection election(api, quick("one"), [](bool) {});
    io::CancelSource stop;
    bool ended = false;
    const TimePoint began = api.loop().now();
    io::spawn(api.loop(), run_and_note(election, stop.token(), ended));
    std::function<bool()> leads = [&] { return election.leader(); };
    EXPECT_TRUE(co_await until(api.loop(), leads));
    EXPECT_GE(api.loop().now() - began, milliseconds(900));
    stop.cancel();
    std::function<bool()> over = [&] { return ended; };
    EXPECT_TRUE(co_await until(api.loop(), over));
  });
  server.stop();
  EXPECT_NE(lease.text.find("\"leaseTransitions\":5"), std::string::npos) << lease.text;
}

TEST(AccessReviews, AskOnceAndRemember) {
  FakeServer server([](const FakeServer::Request& request) {
    if (request.target.find("tokenreviews") != std::string::npos) {
      const bool known = request.body.find("\"token\":\"nobody\"") == std::string::npos;
      const std::string user =
          request.body.find("\"token\":\"reader\"") != std::string::npos ? "reader" : "other";
      return FakeAnswer(201, known ? R"({"status":{"authenticated":true,"user":{"username":")" + user +
                                         R"(","groups":["g"]}}})"
                                   : R"({"status":{"authenticated":false}})");
    }
    const bool allowed = request.body.find("\"user\":\"reader\",\"groups\":[\"g\"]") != std::string::npos &&
                         request.body.find("\"path\":\"/metrics\",\"verb\":\"get\"") != std::string::npos;
    return FakeAnswer(201, allowed ? R"({"status":{"allowed":true}})" : R"({"status":{"allowed":false}})");
  });
  testing::with_client(server.config(), [](ApiClient& api) -> io::Task<void> {
    AccessReviews reviews(api);
    for (int i = 0; i < 3; ++i) {
      EXPECT_EQ(co_await reviews.review("reader", "get", "/metrics", {}), Access::kAllowed);
      EXPECT_EQ(co_await reviews.review("other", "get", "/metrics", {}), Access::kDenied);
      EXPECT_EQ(co_await reviews.review("nobody", "get", "/metrics", {}), Access::kUnauthenticated);
      EXPECT_EQ(co_await reviews.review("", "get", "/metrics", {}), Access::kUnauthenticated);
    }
  });
  EXPECT_EQ(server.count(), 5U);
}

TEST(AccessReviews, WhoWasAllowedStaysSoForAWhileWithoutAnAnswer) {
  bool away = false;
  FakeServer server([&](const FakeServer::Request& request) {
    if (away) return FakeAnswer(503, "no");
    if (request.target.find("tokenreviews") != std::string::npos)
      return FakeAnswer(201, R"({"status":{"authenticated":true,"user":{"username":"u"}}})");
    const bool allowed = request.body.find("/metrics") != std::string::npos;
    return FakeAnswer(201, allowed ? R"({"status":{"allowed":true}})" : R"({"status":{"allowed":false}})");
  });
  testing::with_client(server.config(), [&](ApiClient& api) -> io::Task<void> {
    AccessReviewOptions options;
    options.allowed_for = options.refused_for = Duration::zero();  // asked each time
    AccessReviews reviews(api, options);
    AccessReviewOptions short_ones = options;
    short_ones.away_for = Duration::zero();
    AccessReviews forgetful(api, short_ones);
    EXPECT_EQ(co_await reviews.review("t", "get", "/metrics", {}), Access::kAllowed);
    EXPECT_EQ(co_await reviews.review("t", "get", "/debug", {}), Access::kDenied);
    EXPECT_EQ(co_await forgetful.review("t", "get", "/metrics", {}), Access::kAllowed);
    away = true;
    EXPECT_EQ(co_await reviews.review("t", "get", "/metrics", {}), Access::kAllowed);
    EXPECT_EQ(co_await reviews.review("t", "get", "/debug", {}), Access::kUnknown);
    EXPECT_EQ(co_await reviews.review("other", "get", "/metrics", {}), Access::kUnknown);
    EXPECT_EQ(co_await forgetful.review("t", "get", "/metrics", {}), Access::kUnknown);
  });
}

TEST(AccessReviews, BeyondABoundNobodyIsAskedFor) {
  FakeServer server([](const FakeServer::Request& request) {
    if (request.target.find("tokenreviews") != std::string::npos)
      return FakeAnswer(201, R"({"status":{"authenticated":true,"user":{"username":"u"}}})");
    return FakeAnswer(201, R"({"status":{"allowed":true}})");
  });
  testing::with_client(server.config(), [](ApiClient& api) -> io::Task<void> {
    AccessReviewOptions options;
    options.max_running = 1;
    AccessReviews reviews(api, options);
    Access first = Access::kUnknown;
    io::Event ended(api.loop());
    const auto ask = [](AccessReviews& of, Access& out, io::Event& over) -> io::Task<void> {
      out = co_await of.review("t", "get", "/metrics", {});
      over.set();
    };
    io::spawn(api.loop(), ask(reviews, first, ended));  // waits for the server when this returns
    EXPECT_EQ(co_await reviews.review("u", "get", "/metrics", {}), Access::kUnknown);
    (void)co_await ended.wait();
    EXPECT_EQ(first, Access::kAllowed);
    EXPECT_EQ(co_await reviews.review("u", "get", "/metrics", {}), Access::kAllowed);
  });
}

TEST(AccessReviews, WithoutAnAnswerNothingIsRemembered) {
  bool away = true;
  FakeServer server([&](const FakeServer::Request& request) {
    if (std::exchange(away, false)) return refusal("list-403-serviceaccount.http");
    if (request.target.find("tokenreviews") != std::string::npos)
      return FakeAnswer(201, R"({"status":{"authenticated":true,"user":{"username":"u"}}})");
    return FakeAnswer(201, R"({"status":{"allowed":true}})");
  });
  testing::with_client(server.config(), [](ApiClient& api) -> io::Task<void> {
    AccessReviews reviews(api);
    EXPECT_EQ(co_await reviews.review("t", "get", "/metrics", {}), Access::kUnknown);
    EXPECT_EQ(co_await reviews.review("t", "get", "/metrics", {}), Access::kAllowed);
  });
}

}  // namespace
}  // namespace penstock::kubernetes
