#include "discovery/kubernetes_objects.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <optional>

#include "base/eventually.h"
#include "kubernetes/testing.h"

namespace penstock::discovery {
namespace {

using kubernetes::testing::FakeAnswer;
using kubernetes::testing::FakeServer;
using std::chrono::milliseconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr std::string_view kWidgets =
    R"({"resources":[
      {"name":"widgets/status","kind":"Widget","namespaced":true,"verbs":["get","list","watch"]},
      {"name":"widgets","kind":"Widget","namespaced":true,"verbs":["get","list","watch"]},
      {"name":"racks","kind":"Rack","namespaced":false,"verbs":["list","watch"]},
      {"name":"wishes","kind":"Wish","namespaced":true,"verbs":["create"]}]})";

// A server of the group example.com with the objects of one resource. Watches end at once, so that the next
// one tells what has happened meanwhile.
class Group {
 public:
  explicit Group(std::string_view resources = kWidgets)
      : resources_(resources),
        server_(std::make_unique<FakeServer>([this](const auto& request) { return answer(request); })) {}

  void put(const std::string& name, int size, std::string_view status = "", std::string_view ns = "a") {
    const std::lock_guard lock(mutex_);
    objects_[name] = fmt::format(
        R"({{"metadata":{{"name":"{}","namespace":"{}","resourceVersion":"{}","managedFields":[{{"a":1}}]}},)"
        R"("spec":{{"size":{},"note":"{}"}},"status":{{"word":"{}"}}}})",
        name, ns, ++version_, size, std::string(100, 'n'), status);
    events_ += fmt::format("{{\"type\":\"MODIFIED\",\"object\":{}}}\n", objects_[name]);
  }
  void remove(const std::string& name) {
    const std::lock_guard lock(mutex_);
    events_ += fmt::format("{{\"type\":\"DELETED\",\"object\":{}}}\n", objects_[name]);
    objects_.erase(name);
    ++version_;
  }
  // The history is gone, and what happens within `quietly` was never told.
  template <typename Change>
  void forget(Change quietly) {
    quietly();
    const std::lock_guard lock(mutex_);
    events_ = "{\"type\":\"ERROR\",\"object\":{\"kind\":\"Status\",\"code\":410,\"reason\":\"Expired\"}}\n";
  }
  void serve(std::string_view resources) {
    const std::lock_guard lock(mutex_);
    resources_ = resources;
  }
  void allow(bool allowed) {
    const std::lock_guard lock(mutex_);
    allowed_ = allowed;
  }
  void stop() { server_->stop(); }
  kubernetes::ClusterConfig config() const { return server_->config(); }
  // Streaming lists that were asked for, and the last one's path.
  int lists() const {
    const std::lock_guard lock(mutex_);
    return lists_;
  }
  std::string path() const {
    const std::lock_guard lock(mutex_);
    return path_;
  }

 private:
  FakeAnswer answer(const FakeServer::Request& request) {
    const std::lock_guard lock(mutex_);
    const std::string path = request.target.substr(0, request.target.find('?'));
    if (path == "/apis/example.com/v1")
      return resources_.empty() ? FakeAnswer(404, R"({"reason":"NotFound"})") : FakeAnswer(200, resources_);
    if (!allowed_) return {403, R"({"kind":"Status","reason":"Forbidden","code":403,"message":"no"})"};
    if (request.target.find("watch=1") == std::string::npos) return FakeAnswer(200, list());
    if (request.target.find("sendInitialEvents=true") == std::string::npos)
      return FakeAnswer::stream({std::exchange(events_, "")});
    ++lists_;
    path_ = path;
    events_.clear();
    std::string out;
    for (const auto& [name, object] : objects_)
      out += fmt::format("{{\"type\":\"ADDED\",\"object\":{}}}\n", object);
    out += fmt::format(
        R"({{"type":"BOOKMARK","object":{{"metadata":{{"resourceVersion":"{}","annotations":{{"k8s.io/initial-events-end":"true"}}}}}}}})"
        "\n",
        version_);
    return FakeAnswer::stream({out});
  }

  std::string list() const {
    std::string items;
    for (const auto& [name, object] : objects_) items += (items.empty() ? "" : ",") + object;
    return fmt::format(R"({{"metadata":{{"resourceVersion":"{}"}},"items":[{}]}})", version_, items);
  }

  mutable std::mutex mutex_;
  std::map<std::string, std::string> objects_;
  std::string events_;  // since the last watch ended
  std::string resources_;
  int version_ = 10;
  bool allowed_ = true;
  int lists_ = 0;
  std::string path_;
  std::unique_ptr<FakeServer> server_;  // the last member: it answers
};

class KubernetesObjectsTest : public ::testing::Test {
 protected:
  void start() {
    api_ = *kubernetes::ApiClient::create(loops_.at(0), group_.config(), metrics_);
    KubernetesObjects::Options options;
    options.watch.retry_base = milliseconds(1);
    options.watch.retry_cap = milliseconds(5);
    options.watch.refused_cap = milliseconds(5);
    options.watch.steady_after = milliseconds(1);
    options.watch.check_interval = check_interval_;
    options.watch.check_grace = milliseconds(1);
    options.look_again = milliseconds(5);
    options.gather = milliseconds(1);
    objects_.emplace(*api_, metrics_, options, [this] { ++states_; });
    loops_.start();
  }
  void TearDown() override { loops_.stop(); }

  static ObjectQuery widgets(std::vector<std::string> fields = {"spec.size"}) {
    ObjectQuery out;
    out.kind = {"example.com", "v1", "Widget"};
    out.ns = "a";
    out.fields = std::move(fields);
    return out;
  }
  std::unique_ptr<ObjectFeed> follow(ObjectQuery query) {
    return objects_->follow(std::move(query), [this] { ++told_; });
  }
  // "<namespace>/<name>=<object as JSON>", as it is told.
  static std::vector<std::string> texts(const ObjectFeed& feed) {
    std::vector<std::string> out;
    const auto all = feed.objects();
    if (all == nullptr) return {"unknown"};
    for (const auto& one : *all) out.push_back(one->ns + "/" + one->name + "=" + one->object.to_json());
    return out;
  }
  static std::vector<std::string> names(const ObjectFeed& feed) {
    std::vector<std::string> out = texts(feed);
    for (std::string& text : out) text = text.substr(0, text.find('='));
    return out;
  }
  static bool says(const ObjectFeed& feed, std::string_view text) {
    return feed.state_json().find(text) != std::string::npos;
  }

  Group group_;
  Duration check_interval_ = Duration::zero();
  telemetry::MetricRegistry metrics_;
  io::LoopGroup loops_{1};
  std::unique_ptr<kubernetes::ApiClient> api_;
  std::optional<KubernetesObjects> objects_;
  std::atomic<int> told_{0};
  std::atomic<int> states_{0};
};

TEST_F(KubernetesObjectsTest, ObjectsOfAnyKindAreToldWholeWithTheFieldsThatWereAskedFor) {
  group_.put("b", 2);
  group_.put("a", 1);
  start();
  const auto feed = follow(widgets());
  ASSERT_TRUE(eventually([&] { return feed->objects() != nullptr && told_ >= 1; }));
  EXPECT_EQ(group_.path(), "/apis/example.com/v1/namespaces/a/widgets");
  const std::string_view form =
      R"(a/{}={{"apiVersion":"example.com/v1","kind":"Widget","metadata":{{"name":"{}","namespace":"a"}},"spec":{{"size":{}}}}})";
  EXPECT_THAT(texts(*feed), ElementsAre(fmt::format(fmt::runtime(form), "a", "a", 1),
                                        fmt::format(fmt::runtime(form), "b", "b", 2)));
  EXPECT_THAT(feed->state_json(), HasSubstr(R"("source":"example.com/v1/Widget in a","resource":"widgets")"));
  EXPECT_TRUE(says(*feed, R"("state":"followed","objects":2)"));
  EXPECT_TRUE(objects_->settled());
  EXPECT_THAT(
      metrics_.render(),
      HasSubstr(
          R"(penstock_kubernetes_objects{resource="widgets",notification_source="example.com/v1/Widget in a"} 2)"));
  group_.remove("a");
  EXPECT_TRUE(eventually([&] { return names(*feed) == std::vector<std::string>{"a/b"}; }));
}

TEST_F(KubernetesObjectsTest, WithoutFieldsAllOfAnObjectIsKeptButWhoManagesIt) {
  group_.put("a", 1, "fine");
  start();
  const auto feed = follow(widgets({}));
  ASSERT_TRUE(eventually([&] { return feed->objects() != nullptr; }));
  const std::vector<std::string> all = texts(*feed);
  EXPECT_THAT(all, ElementsAre(HasSubstr(R"("status":{"word":"fine"})")));
  EXPECT_THAT(all.front(), Not(HasSubstr("managedFields")));
}

TEST_F(KubernetesObjectsTest, AChangeThatNobodyReadsIsNone) {
  group_.put("a", 1, "waits");
  start();
  const auto feed = follow(widgets());
  ASSERT_TRUE(eventually([&] { return told_ == 1; }));
  const auto before = feed->objects();
  group_.put("a", 1, "works");
  group_.put("b", 7);
  ASSERT_TRUE(eventually([&] { return names(*feed).size() == 2; }));
  EXPECT_EQ(before->front(), feed->objects()->front()) << "the same object, as it was";
}

TEST_F(KubernetesObjectsTest, EqualQueriesAreOneWatchUntilTheLastOneEnds) {
  group_.put("a", 1);
  start();
  std::atomic<int> told_to_second{0};
  auto first = follow(widgets());
  auto second = objects_->follow(widgets(), [&] { ++told_to_second; });
  ASSERT_TRUE(eventually([&] { return first->objects() != nullptr; }));
  EXPECT_EQ(first->objects(), second->objects());
  EXPECT_EQ(group_.lists(), 1);
  first.reset();
  const int told = told_;
  const int to_second = told_to_second;
  group_.put("b", 2);
  ASSERT_TRUE(eventually([&] { return names(*second).size() == 2 && told_to_second > to_second; }));
  EXPECT_EQ(told_, told) << "who has left is not told";
  auto others = follow(widgets({"status.word"}));
  EXPECT_TRUE(eventually([&] { return group_.lists() == 2; })) << "other fields, another picture";
  EXPECT_THAT(objects_->state_json(), HasSubstr("Widget in a #2"));
  others.reset();
  second.reset();
  EXPECT_THAT(objects_->state_json(), IsEmpty());
  EXPECT_TRUE(eventually([&] { return metrics_.render().find("notification_source") == std::string::npos; }));
  const auto again = follow(widgets());
  EXPECT_TRUE(eventually([&] { return names(*again).size() == 2; }));
}

TEST_F(KubernetesObjectsTest, AKindThatIsNotThereIsSaidAndFoundWhenItComes) {
  group_.serve("");
  group_.put("a", 1);
  start();
  const auto feed = follow(widgets());
  ASSERT_TRUE(eventually([&] { return says(*feed, R"("state":"absent")"); }));
  EXPECT_TRUE(objects_->settled()) << "nothing waits for it";
  EXPECT_EQ(feed->objects(), nullptr) << "nobody says that there are none";
  EXPECT_EQ(told_, 0);
  group_.serve(kWidgets);
  EXPECT_TRUE(eventually([&] { return names(*feed) == std::vector<std::string>{"a/a"}; }));
}

TEST_F(KubernetesObjectsTest, WhoMayNotReadIsToldTheVerbAndTriesAgain) {
  group_.allow(false);
  group_.put("a", 1);
  start();
  const auto feed = follow(widgets());
  ASSERT_TRUE(eventually([&] {
    return says(*feed, R"(forbidden: watch widgets.example.com in namespace \"a\": no)");
  })) << feed->state_json();
  EXPECT_TRUE(objects_->settled());
  group_.allow(true);
  ASSERT_TRUE(eventually([&] { return says(*feed, R"("state":"followed")"); }));
  group_.allow(false);
  ASSERT_TRUE(eventually([&] { return says(*feed, R"("state":"stale")"); }));
  EXPECT_THAT(names(*feed), ElementsAre("a/a")) << "the last picture stays";
}

TEST_F(KubernetesObjectsTest, AKindThatCanNotBeWatchedIsNoKindToFollow) {
  start();
  ObjectQuery query = widgets();
  query.kind.kind = "Wish";
  const auto feed = follow(query);
  ASSERT_TRUE(eventually([&] { return says(*feed, "example.com/v1/Wish can't be listed and watched"); }));
  EXPECT_TRUE(says(*feed, R"("state":"absent")"));
}

TEST_F(KubernetesObjectsTest, ObjectsOfNoNamespaceAreThoseOfTheCluster) {
  group_.put("r", 1, "", "");
  start();
  ObjectQuery query = widgets();
  query.kind.kind = "Rack";
  const auto feed = follow(query);
  EXPECT_TRUE(eventually([&] { return names(*feed) == std::vector<std::string>{"/r"}; }));
  EXPECT_EQ(group_.path(), "/apis/example.com/v1/racks");
  query = widgets();
  query.ns.clear();
  const auto everywhere = follow(query);
  EXPECT_TRUE(eventually([&] { return group_.path() == "/apis/example.com/v1/widgets"; }));
  EXPECT_THAT(everywhere->state_json(), HasSubstr(R"("source":"example.com/v1/Widget",)"));
}

TEST_F(KubernetesObjectsTest, AHistoryThatWasForgottenIsReadAgain) {
  group_.put("a", 1);
  group_.put("b", 1);
  start();
  const auto feed = follow(widgets());
  ASSERT_TRUE(eventually([&] { return names(*feed).size() == 2; }));
  group_.forget([&] {
    group_.remove("a");
    group_.put("c", 3);
  });
  EXPECT_TRUE(eventually([&] { return names(*feed) == std::vector<std::string>{"a/b", "a/c"}; }));
}

TEST_F(KubernetesObjectsTest, WithoutTheServerTheLastPictureStaysAndSaysSo) {
  group_.put("a", 1);
  start();
  const auto feed = follow(widgets());
  ASSERT_TRUE(eventually([&] { return feed->objects() != nullptr; }));
  group_.stop();
  ASSERT_TRUE(eventually([&] { return says(*feed, R"("state":"stale")"); }));
  EXPECT_TRUE(says(*feed, R"("reason":"unreachable")"));
  EXPECT_THAT(names(*feed), ElementsAre("a/a"));
}

TEST_F(KubernetesObjectsTest, WhatIsBeyondALimitIsLeftOutUntilThereIsRoom) {
  group_.put("a", 1);
  group_.put("b", 1);
  group_.put("c", 1);
  start();
  ObjectQuery query = widgets();
  query.max_objects = 2;
  const auto few = follow(query);
  ASSERT_TRUE(eventually([&] { return says(*few, R"("state":"partial","objects":2)"); }));
  query = widgets();
  query.max_bytes = 3000;
  const auto small = follow(query);
  ASSERT_TRUE(eventually([&] { return says(*small, R"("state":"partial")"); })) << small->state_json();
  const size_t there = names(*small).size();
  EXPECT_LT(there, 3U);
  EXPECT_GE(there, 1U);
}

TEST_F(KubernetesObjectsTest, OnceThereIsRoomWhatWasLeftOutIsRead) {
  group_.put("a", 1);
  group_.put("b", 1);
  group_.put("c", 1);
  group_.put("d", 1);
  group_.put("e", 1);
  check_interval_ = milliseconds(20);
  start();
  ObjectQuery query = widgets();
  query.max_objects = 4;
  const auto feed = follow(query);
  ASSERT_TRUE(eventually([&] { return says(*feed, R"("state":"partial","objects":4)"); }));
  group_.remove("a");
  group_.remove("b");
  group_.remove("c");
  EXPECT_TRUE(eventually([&] { return names(*feed) == std::vector<std::string>{"a/d", "a/e"}; }));
  EXPECT_TRUE(eventually([&] { return says(*feed, R"("state":"followed","objects":2)"); }));
}

}  // namespace
}  // namespace penstock::discovery
