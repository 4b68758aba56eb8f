#include "kubernetes/reflector.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "kubernetes/testing.h"

namespace penstock::kubernetes {
namespace {

using std::chrono::milliseconds;
using testing::FakeAnswer;
using testing::FakeServer;
using testing::recorded;

std::string object(std::string_view name, int version, std::string_view note = "") {
  return fmt::format(R"({{"metadata":{{"name":"{}","resourceVersion":"{}"}},"note":"{}"}})", name, version,
                     note);
}
std::string event(std::string_view type, std::string_view object) {
  return fmt::format("{{\"type\":\"{}\",\"object\":{}}}\n", type, object);
}
std::string bookmark(int version, bool end = false) {
  return fmt::format(
      "{{\"type\":\"BOOKMARK\",\"object\":{{\"metadata\":{{\"resourceVersion\":\"{}\"{}}}}}}}\n", version,
      end ? R"(,"annotations":{"k8s.io/initial-events-end":"true"})" : "");
}
std::string page(std::vector<std::string> objects, int version, std::string_view next = "") {
  std::string items;
  for (const std::string& one : objects) items += (items.empty() ? "" : ",") + one;
  return fmt::format(R"({{"metadata":{{"resourceVersion":"{}","continue":"{}"}},"items":[{}]}})", version,
                     next, items);
}
bool streams(const FakeServer::Request& request) {
  return request.target.find("sendInitialEvents=true") != std::string::npos;
}
bool watches(const FakeServer::Request& request) {
  return request.target.find("watch=1") != std::string::npos;
}
bool has(const FakeServer::Request& request, std::string_view part) {
  return request.target.find(part) != std::string::npos;
}

ReflectorOptions quick() {
  ReflectorOptions options;
  options.resource = kPods;
  options.ns = "a";
  options.retry_base = milliseconds(1);
  options.retry_cap = milliseconds(5);
  options.refused_cap = milliseconds(5);
  options.steady_after = milliseconds(1);
  options.silence = std::chrono::seconds(20);
  options.check_interval = Duration::zero();
  return options;
}

// A reflector of notes by name, which runs until `done` says so of what it has told; fails after ten seconds.
struct Bed {
  using Notes = std::map<std::string, std::string>;

  explicit Bed(FakeServer::Script script) : server(std::move(script)) {}

  void run(const std::function<bool()>& done, ReflectorOptions options = quick()) {
    telemetry::MetricRegistry metrics_registry;
    Metrics metrics(metrics_registry);
    io::Loop loop;
    auto client = ApiClient::create(loop, server.config(), metrics_registry);
    ASSERT_TRUE(client.ok());
    io::CancelSource cancel;
    Store<std::string> store(
        [](Json json) -> Result<std::string> {
          if (json["note"].text() == "bad") return Error{ErrorCode::kBadGateway, "bad note"};
          return std::string(json["note"].text());
        },
        [&] {
          Notes now;
          store_.load()->for_each([&](const std::string& key, const std::string& note) { now[key] = note; });
          told.push_back(std::move(now));
        });
    store_ = &store;
    Reflector reflector(**client, std::move(options), store, metrics);
    reflector_ = &reflector;
    bool in_time = true;
    const auto wait = [](io::Loop& on, const std::function<bool()>& until, io::CancelSource& stop,
                         bool& fine) -> io::Task<void> {
      const TimePoint deadline = on.now() + std::chrono::seconds(10);
      while (!until() && (fine = on.now() < deadline)) (void)co_await on.sleep(milliseconds(1));
      stop.cancel();
    };
    const io::CancelToken token = cancel.token();
    loop.post([&] { io::spawn(loop, wait(loop, done, cancel, in_time)); });
    io::block_on(loop, reflector.run(token));
    EXPECT_TRUE(in_time);
    state = reflector.state();
    page_text = metrics_registry.render();
    reflector_ = nullptr;
  }
  const Notes& now() const {
    static const Notes kNone;
    return told.empty() ? kNone : told.back();
  }
  bool metric(std::string_view line) const { return page_text.find(line) != std::string::npos; }

  FakeServer server;
  std::vector<Notes> told;
  ReflectorState state;
  std::string page_text;
  std::atomic<Store<std::string>*> store_{nullptr};
  Reflector* reflector_ = nullptr;
};

using Notes = Bed::Notes;

TEST(Reflector, AStreamingListIsTheFirstPictureAndEventsChangeIt) {
  Bed bed([](const FakeServer::Request& request) {
    if (!streams(request)) return FakeAnswer(500, "{}");
    return FakeAnswer::stream(
        {event("ADDED", object("x", 5)), event("ADDED", object("y", 3)), bookmark(7, true),
         event("MODIFIED", object("x", 8, "new")), event("DELETED", object("y", 9))},
        true);
  });
  bed.run([&] { return bed.now() == Notes{{"x", "new"}}; });
  // Nothing is told before the list is whole.
  for (const Notes& notes : bed.told) EXPECT_TRUE(notes.contains("x"));
  EXPECT_TRUE(bed.state.complete);
  EXPECT_EQ(bed.state.objects, 1U);
  EXPECT_TRUE(bed.metric("penstock_kubernetes_synced{resource=\"pods\"} 1"));
}

TEST(Reflector, AnEmptyListIsAPictureToo) {
  Bed bed([](const FakeServer::Request&) { return FakeAnswer::stream({bookmark(7, true)}, true); });
  bed.run([&] { return !bed.told.empty(); });
  EXPECT_TRUE(bed.now().empty());
  EXPECT_TRUE(bed.state.complete);
}

TEST(Reflector, WithoutStreamingListsItReadsPages) {
  Bed bed([](const FakeServer::Request& request) {
    if (streams(request)) {
      const testing::Recorded refused = recorded("watchlist-missing-match-422.http");
      return FakeAnswer(refused.status, refused.body);
    }
    if (watches(request)) return FakeAnswer::stream({event("ADDED", object("z", 9))}, true);
    if (has(request, "continue=more")) return FakeAnswer(200, page({object("y", 3)}, 7));
    return FakeAnswer(200, page({object("x", 5)}, 7, "more"));
  });
  bed.run([&] { return bed.now().size() == 3; });
  EXPECT_EQ(bed.told.front(), (Notes{{"x", ""}, {"y", ""}}));
  const auto asked = bed.server.requests();
  EXPECT_TRUE(has(asked[3], "resourceVersion=7&timeoutSeconds"));
}

TEST(Reflector, AServerThatDoesNotKnowStreamingListsIsNoticedByItsSilence) {
  Bed bed([](const FakeServer::Request& request) {
    if (streams(request)) return FakeAnswer::stream({event("ADDED", object("old", 1))}, true);
    if (watches(request)) return FakeAnswer::stream({}, true);
    return FakeAnswer(200, page({object("x", 5)}, 7));
  });
  ReflectorOptions options = quick();
  options.initial_silence = milliseconds(20);
  bed.run([&] { return !bed.told.empty(); }, options);
  EXPECT_EQ(bed.now(), (Notes{{"x", ""}}));
}

TEST(Reflector, AServerThatDoesNotKnowStreamingListsIsNoticedByItsBookmarks) {
  Bed bed([](const FakeServer::Request& request) {
    // A busy one is never silent.
    if (streams(request)) return FakeAnswer::stream({event("ADDED", object("old", 1)), bookmark(3)}, true);
    if (watches(request)) return FakeAnswer::stream({}, true);
    return FakeAnswer(200, page({object("x", 5)}, 7));
  });
  bed.run([&] { return !bed.told.empty(); });
  EXPECT_EQ(bed.now(), (Notes{{"x", ""}}));
}

TEST(Reflector, AStreamingListThatTheServerEndsEarlyIsReadInPages) {
  Bed bed([](const FakeServer::Request& request) {
    if (streams(request)) return FakeAnswer::stream({event("ADDED", object("old", 1))});
    if (watches(request)) return FakeAnswer::stream({}, true);
    return FakeAnswer(200, page({object("x", 5)}, 7));
  });
  bed.run([&] { return !bed.told.empty(); });
  EXPECT_EQ(bed.now(), (Notes{{"x", ""}}));
}

TEST(Reflector, AttemptsThatAreNeverAnyGoodWaitLongerHoweverLongTheyLast) {
  Bed bed([](const FakeServer::Request&) {
    const testing::Recorded gone = recorded("list-continue-410-expired.http");
    return FakeAnswer(gone.status, gone.body);
  });
  ReflectorOptions options = quick();
  options.healthy_after = Duration(1);
  // Told as trouble once an earlier attempt is remembered.
  bed.run([&] { return bed.reflector_ != nullptr && bed.reflector_->state().reason == Reason::kExpired; },
          options);
  EXPECT_NE(bed.state.trouble_at, kNever);
}

TEST(Reflector, AListThatExpiresInItsMiddleIsBegunAgain) {
  int expired = 0;
  Bed bed([&](const FakeServer::Request& request) {
    if (streams(request)) return FakeAnswer(400, "{}");
    if (watches(request)) return FakeAnswer::stream({}, true);
    if (has(request, "continue=more") && ++expired == 1) {
      const testing::Recorded gone = recorded("list-continue-410-expired.http");
      return FakeAnswer(gone.status, gone.body);
    }
    if (has(request, "continue=more")) return FakeAnswer(200, page({object("y", 3)}, 8));
    return FakeAnswer(200, page({object(expired == 0 ? "gone" : "x", 5)}, 8, "more"));
  });
  bed.run([&] { return !bed.told.empty(); });
  EXPECT_EQ(bed.now(), (Notes{{"x", ""}, {"y", ""}}));
}

TEST(Reflector, AfterACutItGoesOnFromTheLastVersion) {
  int streams_seen = 0;
  Bed bed([&](const FakeServer::Request& request) {
    if (streams(request)) {
      ++streams_seen;
      FakeAnswer answer =
          FakeAnswer::stream({event("ADDED", object("x", 5)), bookmark(7, true), bookmark(9)});
      answer.cut = true;
      return answer;
    }
    return FakeAnswer::stream({event("ADDED", object("y", 12))}, true);
  });
  bed.run([&] { return bed.now().size() == 2; });
  EXPECT_EQ(streams_seen, 1);
  EXPECT_TRUE(has(bed.server.requests().back(), "resourceVersion=9"));
}

TEST(Reflector, AVersionThatIsTooOldMeansReadingAllAgainWithoutForgettingMeanwhile) {
  int round = 0;
  Bed bed([&](const FakeServer::Request& request) {
    if (!streams(request)) return FakeAnswer(500, "{}");
    if (++round == 1) {
      return FakeAnswer::stream({event("ADDED", object("x", 5)), event("ADDED", object("y", 5)),
                                 bookmark(7, true), recorded("watch-410-too-old.http").body + "\n"});
    }
    return FakeAnswer::stream(
        {event("ADDED", object("x", 15)), event("ADDED", object("z", 20)), bookmark(21, true)}, true);
  });
  bed.run([&] { return bed.now() == Notes{{"x", ""}, {"z", ""}}; });
  EXPECT_EQ(bed.told.size(), 2U);  // from one whole picture to the next
  EXPECT_TRUE(bed.metric("penstock_kubernetes_relists_total{resource=\"pods\",reason=\"expired\"} 1"));
}

TEST(Reflector, WhileTheServerIsAwayTheLastPictureStaysAndStateSaysSo) {
  bool away = false;
  Bed bed([&](const FakeServer::Request& request) {
    if (away) return FakeAnswer(503, "no");
    if (!streams(request)) return FakeAnswer(500, "{}");
    away = true;
    return FakeAnswer::stream({event("ADDED", object("x", 5)), bookmark(7, true)});
  });
  bed.run([&] {
    return bed.reflector_ != nullptr && bed.reflector_->state().reason == Reason::kServer &&
           bed.server.count() > 3;
  });
  EXPECT_EQ(bed.now(), (Notes{{"x", ""}}));
  EXPECT_TRUE(bed.state.complete);
  EXPECT_NE(bed.state.trouble_at, kNever);
  EXPECT_TRUE(bed.metric("penstock_kubernetes_synced{resource=\"pods\"} 0"));
  EXPECT_TRUE(bed.metric("penstock_kubernetes_objects{resource=\"pods\"} 1"));
}

TEST(Reflector, WhenItIsFollowedAgainStateSaysSo) {
  int round = 0;
  Bed bed([&](const FakeServer::Request& request) {
    ++round;
    if (streams(request)) return FakeAnswer::stream({event("ADDED", object("x", 5)), bookmark(7, true)});
    if (round < 4) return FakeAnswer(503, "no");
    return FakeAnswer::stream({}, true);  // quiet, but there
  });
  bed.run([&] {
    return bed.server.count() >= 4 && bed.reflector_ != nullptr &&
           bed.reflector_->state().trouble_at == kNever;
  });
  EXPECT_TRUE(bed.metric("penstock_kubernetes_synced{resource=\"pods\"} 1"));
}

TEST(Reflector, AMissingVerbIsAMessageThatNamesIt) {
  Bed bed([](const FakeServer::Request&) {
    const testing::Recorded refused = recorded("list-403-serviceaccount.http");
    return FakeAnswer(refused.status, refused.body);
  });
  bed.run([&] { return bed.reflector_ != nullptr && bed.reflector_->state().reason == Reason::kForbidden; });
  EXPECT_TRUE(bed.state.message.starts_with("forbidden: watch pods in namespace \"a\": "))
      << bed.state.message;
}

TEST(Reflector, AServerThatIsBackAndRefusesAtFirstIsAskedAgainSoon) {
  int round = 0;
  Bed bed([&](const FakeServer::Request&) {
    if (++round <= 30) {
      FakeAnswer gone = FakeAnswer::stream({});
      gone.cut = true;
      return gone;
    }
    if (round <= 32) {
      const testing::Recorded refused = recorded("list-403-serviceaccount.http");
      return FakeAnswer(refused.status, refused.body);
    }
    return FakeAnswer::stream({event("ADDED", object("x", 5)), bookmark(7, true)}, true);
  });
  ReflectorOptions options = quick();
  // After thirty failures a refused one would wait for minutes.
  options.refused_cap = std::chrono::hours(1);
  bed.run([&] { return bed.now() == Notes{{"x", ""}}; }, options);
}

TEST(Reflector, AResourceThatIsNotThereIsAskedForUntilItIs) {
  Bed bed([n = 0](const FakeServer::Request&) mutable {
    if (++n < 3) {
      const testing::Recorded refused = recorded("get-404.http");
      return FakeAnswer(refused.status, refused.body);
    }
    return FakeAnswer::stream({event("ADDED", object("x", 5)), bookmark(7, true)}, true);
  });
  bed.run([&] { return !bed.told.empty(); });
  EXPECT_FALSE(bed.state.absent);
}

TEST(Reflector, AnObjectThatCannotBeReadKeepsItsLastGoodVersion) {
  Bed bed([](const FakeServer::Request&) {
    return FakeAnswer::stream(
        {event("ADDED", object("x", 5, "good")), event("ADDED", object("y", 5, "bad")), bookmark(7, true),
         event("MODIFIED", object("x", 8, "bad")), event("ADDED", object("z", 9, "last"))},
        true);
  });
  bed.run([&] { return bed.now().contains("z"); });
  EXPECT_EQ(bed.now(), (Notes{{"x", "good"}, {"z", "last"}}));
  EXPECT_TRUE(bed.metric("penstock_kubernetes_unreadable_objects_total{resource=\"pods\"} 2"));
}

TEST(Reflector, MoreObjectsThanItsBoundAreLeftOut) {
  Bed bed([](const FakeServer::Request&) {
    return FakeAnswer::stream(
        {event("ADDED", object("x", 5)), event("ADDED", object("y", 6)), event("ADDED", object("z", 6)),
         bookmark(7, true), event("MODIFIED", object("x", 8, "new")), event("DELETED", object("y", 9)),
         event("ADDED", object("w", 10))},
        true);
  });
  ReflectorOptions options = quick();
  options.max_objects = 2;
  bed.run([&] { return bed.now() == Notes{{"x", "new"}, {"w", ""}}; }, options);
  for (const Notes& notes : bed.told) EXPECT_FALSE(notes.contains("z"));
  EXPECT_TRUE(bed.metric("penstock_kubernetes_unreadable_objects_total{resource=\"pods\"} 1"));
}

TEST(Reflector, AWatchThatStallsIsBegunAgain) {
  Bed bed([](const FakeServer::Request& request) {
    if (streams(request))
      return FakeAnswer::stream({event("ADDED", object("x", 5)), bookmark(7, true)}, true);
    return FakeAnswer::stream({event("ADDED", object("y", 8))}, true);
  });
  ReflectorOptions options = quick();
  options.silence = milliseconds(50);
  bed.run([&] { return bed.now().size() == 2; }, options);
}

TEST(Reflector, AnEventThatWasLostIsFoundByTheCheck) {
  int round = 0;
  Bed bed([&](const FakeServer::Request& request) {
    if (has(request, "limit=500")) return FakeAnswer(200, page({object("x", 5), object("lost", 6)}, 9));
    if (!streams(request)) return FakeAnswer(500, "{}");
    if (++round == 1) return FakeAnswer::stream({event("ADDED", object("x", 5)), bookmark(7, true)}, true);
    return FakeAnswer::stream(
        {event("ADDED", object("x", 5)), event("ADDED", object("lost", 6)), bookmark(9, true)}, true);
  });
  ReflectorOptions options = quick();
  options.check_interval = milliseconds(10);
  options.check_grace = milliseconds(5);
  bed.run([&] { return bed.now().size() == 2; }, options);
  EXPECT_TRUE(bed.metric("penstock_kubernetes_inconsistencies_total{resource=\"pods\"} 1"));
  EXPECT_TRUE(bed.metric("penstock_kubernetes_relists_total{resource=\"pods\",reason=\"inconsistent\"} 1"));
}

}  // namespace
}  // namespace penstock::kubernetes
