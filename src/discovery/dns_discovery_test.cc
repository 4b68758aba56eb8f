#include "discovery/dns_discovery.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>

namespace penstock::discovery {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::ElementsAre;

io::SocketAddress ip(std::string_view text) {
  return *io::SocketAddress::from_ip(text, 8000);
}

// Answers look-ups in order; the last answer is repeated. Its coroutine holds the script by pointer.
class Script {
 public:
  using Answer = Result<std::vector<io::SocketAddress>>;
  void push(Answer answer) {
    const std::lock_guard lock(mutex_);
    answers_.push_back(std::move(answer));
  }
  DnsDiscovery::Resolve resolver() {
    return [this](io::Loop&, std::string host, uint16_t, Duration, io::CancelToken) {
      return answer(this, std::move(host));
    };
  }
  bool wait_for_look_ups(int n) {
    std::unique_lock lock(mutex_);
    return asked_.wait_for(lock, seconds(20), [&] { return look_ups_ >= n; });
  }
  std::string last_host() {
    const std::lock_guard lock(mutex_);
    return host_;
  }

 private:
  static io::Task<Answer> answer(Script* self, std::string host) {
    const std::lock_guard lock(self->mutex_);
    self->host_ = std::move(host);
    ++self->look_ups_;
    self->asked_.notify_all();
    Answer out = self->answers_.front();
    if (self->answers_.size() > 1) self->answers_.pop_front();
    co_return out;
  }
  std::mutex mutex_;
  std::condition_variable asked_;
  std::deque<Answer> answers_;
  int look_ups_ = 0;
  std::string host_;
};

class Recorder final : public EndpointSink {
 public:
  void endpoints(std::string_view source, const std::vector<DiscoveredEndpoint>& all) override {
    const std::lock_guard lock(mutex_);
    source_ = source;
    all_ = all;
    ++calls_;
    changed_.notify_all();
  }
  std::vector<DiscoveredEndpoint> wait_for_call(int n) {
    std::unique_lock lock(mutex_);
    EXPECT_TRUE(changed_.wait_for(lock, seconds(20), [&] { return calls_ >= n; }));
    return all_;
  }
  int calls() {
    const std::lock_guard lock(mutex_);
    return calls_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::string source_;
  std::vector<DiscoveredEndpoint> all_;
  int calls_ = 0;
};

TEST(DnsDiscoveryTest, EachAddressIsAnEndpointThatKeepsTheNameForTls) {
  const DnsDiscoveryOptions options{.name = "engines.example.com", .port = 8000, .tls = true};
  const auto all = endpoints_of(options, {ip("fd00::2"), ip("10.0.0.2"), ip("10.0.0.1"), ip("10.0.0.2")});
  ASSERT_EQ(all.size(), 3U);
  EXPECT_EQ(all[0].name, "10.0.0.1-8000");
  EXPECT_EQ(all[0].address, "10.0.0.1");
  EXPECT_EQ(all[0].port, 8000);
  EXPECT_EQ(all[0].tls_name, "engines.example.com");
  EXPECT_EQ(all[2].name, "fd00--2-8000");
  EXPECT_EQ(all[2].address, "fd00::2");
}

TEST(DnsDiscoveryTest, BoundsTheAddresses) {
  DnsDiscoveryOptions options{.name = "n", .port = 1, .max_addresses = 1};
  EXPECT_EQ(endpoints_of(options, {ip("10.0.0.2"), ip("10.0.0.1")}).size(), 1U);
}

TEST(DnsDiscoveryTest, FollowsAnswersAndKeepsTheLastGoodSetOverFailures) {
  io::LoopGroup loops(1);
  loops.start();
  Script script;
  Recorder sink;
  script.push(std::vector{ip("10.0.0.1")});
  script.push(Error{ErrorCode::kIo, "no such host"});
  script.push(std::vector<io::SocketAddress>{});
  script.push(std::vector{ip("10.0.0.1"), ip("10.0.0.2")});
  {
    DnsDiscovery discovery(
        {.name = "engines", .port = 8000, .interval = milliseconds(5), .retry = milliseconds(1)}, loops.at(0),
        sink, script.resolver());
    discovery.start();
    const auto all = sink.wait_for_call(2);
    ASSERT_EQ(all.size(), 2U);
    EXPECT_EQ(all[1].address, "10.0.0.2");
    EXPECT_TRUE(script.wait_for_look_ups(4)) << "two failures told the sink nothing";
    EXPECT_EQ(script.last_host(), "engines");
  }
  loops.stop();
}

TEST(DnsDiscoveryTest, ARefreshAsksAtOnceAndStoppingEndsALongPause) {
  io::LoopGroup loops(1);
  loops.start();
  Script script;
  Recorder sink;
  script.push(std::vector{ip("10.0.0.1")});
  DnsDiscovery discovery({.name = "engines", .port = 8000, .interval = std::chrono::hours(1)}, loops.at(0),
                         sink, script.resolver());
  discovery.start();
  sink.wait_for_call(1);
  discovery.refresh();
  sink.wait_for_call(2);
  discovery.stop();
  EXPECT_EQ(sink.calls(), 2);
  loops.stop();
}

}  // namespace
}  // namespace penstock::discovery
