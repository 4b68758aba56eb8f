#include "io/loop.h"

#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <random>
#include <string>
#include <thread>

#include "io/detail/timer_wheel.h"

namespace penstock::io {
namespace {

using std::chrono::milliseconds;

TEST(TimerWheel, EveryTimerFiresAtItsTickWhateverTheOrderOfArming) {
  Loop loop;
  detail::TimerWheel wheel;
  std::mt19937_64 random(7);
  uint64_t now = 1'000'000;
  struct Probe {
    explicit Probe(Loop& l) : timer(l) {}
    Timer timer;
    uint64_t due = 0;
    uint64_t* now = nullptr;
    uint64_t fired_at = 0;
  };
  std::vector<std::unique_ptr<Probe>> probes;
  for (int i = 0; i < 3000; ++i) {
    auto probe = std::make_unique<Probe>(loop);
    probe->due = now + 1 + random() % (uint64_t{1} << (1 + random() % 25));
    probe->now = &now;
    detail::TimerWheel::set_function(
        probe->timer,
        [](void* self) {
          auto& p = *static_cast<Probe*>(self);
          p.fired_at = *p.now;
        },
        probe.get());
    wheel.add(probe->timer, probe->due, now);
    probes.push_back(std::move(probe));
    if (i % 7 == 3) {
      const size_t victim = random() % probes.size();
      if (probes[victim]->timer.armed()) {
        wheel.remove(probes[victim]->timer);
        probes[victim]->due = 0;
      }
    }
    if (i % 11 == 5) {
      now += random() % 50;
      // Time passes between armings, as it does on a loop: event by event.
      const uint64_t until = now;
      for (uint64_t next = wheel.next_event(); next <= until; next = wheel.next_event()) {
        now = next;
        wheel.advance(now);
      }
      now = until;
      wheel.advance(now);
    }
  }
  while (!wheel.empty()) {
    const uint64_t next = wheel.next_event();
    ASSERT_NE(next, detail::TimerWheel::kNoTick);
    ASSERT_GE(next, now);
    now = next;
    wheel.advance(now);
  }
  for (const auto& probe : probes) EXPECT_EQ(probe->fired_at, probe->due);
}

TEST(Timer, FiresNotBeforeItsTimeAndNotAfterDisarming) {
  Loop loop;
  Timer late(loop);
  Timer never(loop);
  const TimePoint start = loop.now();
  TimePoint fired{};
  struct Context {
    Loop* loop;
    TimePoint* fired;
  } context{&loop, &fired};
  loop.post([&] {
    never.arm(milliseconds(1), [](void*) { FAIL() << "a disarmed timer fired"; }, nullptr);
    never.disarm();
    late.arm(
        milliseconds(20),
        [](void* c) {
          auto& self = *static_cast<Context*>(c);
          *self.fired = self.loop->now();
          self.loop->stop();
        },
        &context);
  });
  loop.run();
  EXPECT_GE(fired - start, milliseconds(20));
}

Task<int> ready_value(int value) {
  co_return value;
}

Task<int> sum_of(int count) {
  int sum = 0;
  for (int i = 0; i < count; ++i) sum += co_await ready_value(1);
  co_return sum;
}

TEST(Task, AMillionReadyAwaitsNeedNoStack) {
  Loop loop;
  EXPECT_EQ(block_on(loop, sum_of(1'000'000)), 1'000'000);
}

Task<int> throwing() {
  throw std::runtime_error("from below");
  co_return 1;
}

TEST(Task, AnExceptionReachesTheAwaiter) {
  Loop loop;
  auto outer = []() -> Task<std::string> {
    try {
      co_await throwing();
    } catch (const std::exception& e) {
      co_return std::string(e.what());
    }
    co_return std::string();
  };
  EXPECT_EQ(block_on(loop, outer()), "from below");
}

TEST(Loop, SleepEndsAtItsTimeOrWhenCancelled) {
  Loop loop;
  CancelSource source;
  auto sleeper = [&]() -> Task<std::pair<bool, bool>> {
    const bool slept = co_await loop.sleep(milliseconds(5), source.token());
    spawn(loop, [](Loop& l, CancelSource& s) -> Task<void> {
      co_await l.sleep(milliseconds(5));
      s.cancel();
    }(loop, source));
    const bool slept_long = co_await loop.sleep(std::chrono::hours(1), source.token());
    co_return std::pair<bool, bool>(slept, slept_long);
  };
  const auto [slept, slept_long] = block_on(loop, sleeper());
  EXPECT_TRUE(slept);
  EXPECT_FALSE(slept_long);
}

TEST(Loop, ManySleepersWakeInTheOrderOfTheirTimes) {
  Loop loop;
  std::vector<int> order;
  auto all = [&]() -> Task<void> {
    for (const int ms : {30, 10, 20, 0, 40}) {
      spawn(loop, [](Loop& l, std::vector<int>& out, int delay) -> Task<void> {
        co_await l.sleep(milliseconds(delay));
        out.push_back(delay);
      }(loop, order, ms));
    }
    co_await loop.sleep(milliseconds(60));
  };
  block_on(loop, all());
  EXPECT_EQ(order, (std::vector<int>{0, 10, 20, 30, 40}));
}

TEST(Loop, TasksThatYieldTakeTurnsAndTimersGoOn) {
  Loop loop;
  std::string order;
  const auto writer = [](Loop& on, std::string& out, char letter) -> Task<void> {
    for (int i = 0; i < 3; ++i) {
      out += letter;
      co_await on.yield();
    }
  };
  const auto all = [&]() -> Task<void> {
    spawn(loop, writer(loop, order, 'a'));
    spawn(loop, writer(loop, order, 'b'));
    bool fired = false;
    Timer timer(loop);
    timer.arm(std::chrono::milliseconds(1), [](void* flag) { *static_cast<bool*>(flag) = true; }, &fired);
    while (!fired) co_await loop.yield();
  };
  block_on(loop, all());
  EXPECT_EQ(order, "ababab");
}

TEST(Loop, AWaitThatIsDestroyedBeforeItsTurnDoesNotKeepTheTurnFromEnding) {
  Loop loop;
  bool posted = false;
  const auto killer = [](Loop& on, std::optional<Task<void>>& victim, const bool& end) -> Task<void> {
    co_await on.yield();
    victim.reset();
    while (!end) co_await on.yield();
  };
  const auto yielder = [](Loop& on) -> Task<void> { co_await on.yield(); };
  std::optional<Task<void>> victim(yielder(loop));
  const auto all = [&]() -> Task<void> {
    spawn(loop, killer(loop, victim, posted));
    victim->await_suspend(std::noop_coroutine());  // started: the last of the queue
    loop.post([&] { posted = true; });
    while (!posted) (void)co_await loop.sleep(std::chrono::milliseconds(1));
  };
  block_on(loop, all());
  EXPECT_FALSE(victim.has_value());
}

TEST(Loop, WhatWasPostedAndNeverRanGoesWhileThereIsALoopToLeave) {
  auto timer = std::make_shared<std::unique_ptr<Timer>>();
  {
    Loop loop;
    *timer = std::make_unique<Timer>(loop);
    (*timer)->arm(std::chrono::hours(1), [](void*) {}, nullptr);
    loop.post([owned = std::move(*timer)] {});
    // And what is posted by what goes.
    struct Poster {
      explicit Poster(Loop& to) : loop(&to) {}
      Poster(Poster&& other) noexcept : loop(std::exchange(other.loop, nullptr)) {}
      ~Poster() {
        if (loop == nullptr) return;
        auto late = std::make_unique<Timer>(*loop);
        late->arm(std::chrono::hours(1), [](void*) {}, nullptr);
        loop->post([late = std::move(late)] {});
      }
      Loop* loop;
    };
    loop.post([poster = Poster(loop)] {});
  }
  EXPECT_EQ(*timer, nullptr);
}

TEST(Event, WakesEveryWaiterAndKnowsDeadlinesAndTokens) {
  Loop loop;
  auto test = [&]() -> Task<void> {
    Event event(loop);
    CancelSource source;
    int woken = 0;
    for (int i = 0; i < 3; ++i) {
      spawn(loop, [](Event& e, int& n) -> Task<void> {
        if ((co_await e.wait()).ok()) ++n;
      }(event, woken));
    }
    Status timed_out = co_await event.wait(milliseconds(3));
    EXPECT_FALSE(timed_out.ok());
    EXPECT_EQ(timed_out.error().code, ErrorCode::kRequestTimeout);
    source.cancel();
    Status cancelled = co_await event.wait(Duration::zero(), source.token());
    EXPECT_EQ(cancelled.error().code, ErrorCode::kCancelled);
    event.set();
    EXPECT_EQ(woken, 0);
    co_await loop.sleep(milliseconds(1));
    EXPECT_EQ(woken, 3);
    EXPECT_TRUE((co_await event.wait()).ok());
  };
  block_on(loop, test());
}

TEST(Cancel, FollowersFireAndTokensOutliveTheirSource) {
  CancelToken kept;
  {
    CancelSource parent;
    CancelSource child;
    child.follow(parent.token());
    int fired = 0;
    CancelCallback callback(child.token(), [](void* n) { ++*static_cast<int*>(n); }, &fired);
    CancelCallback dropped(child.token(), [](void* n) { *static_cast<int*>(n) += 100; }, &fired);
    dropped.disarm();
    parent.cancel();
    parent.cancel();
    EXPECT_EQ(fired, 1);
    kept = child.token();
    child.reset();
    EXPECT_FALSE(child.cancelled());
  }
  EXPECT_TRUE(kept.cancelled());
}

TEST(Loop, BlockingWorkRunsElsewhereAndComesBack) {
  Loop loop;
  auto test = [&]() -> Task<void> {
    const auto home = std::this_thread::get_id();
    auto elsewhere = [home] { return std::this_thread::get_id() != home; };
    auto result = co_await run_blocking(loop, elsewhere);
    EXPECT_TRUE(result.ok() && *result);
    EXPECT_EQ(std::this_thread::get_id(), home);
    auto gate = std::make_shared<std::atomic<bool>>(false);
    auto blocked = [gate] {
      gate->wait(false);
      return 1;
    };
    auto late = co_await run_blocking(loop, blocked, milliseconds(5));
    EXPECT_EQ(late.error().code, ErrorCode::kRequestTimeout);
    gate->store(true);
    gate->notify_all();
  };
  block_on(loop, test());
}

TEST(LoopGroup, StopFiresTheShutdownTokenAndWaitsForTasks) {
  LoopGroup loops(2);
  loops.start();
  std::atomic<int> ended{0};
  for (size_t i = 0; i < loops.size(); ++i) {
    spawn(loops.at(i), [](Loop& loop, std::atomic<int>& count) -> Task<void> {
      co_await loop.sleep(std::chrono::hours(1), loop.shutdown_token());
      ++count;
    }(loops.at(i), ended));
  }
  // A task that was posted counts as spawned at once, so stop() can't miss it.
  loops.stop();
  EXPECT_EQ(ended.load(), 2);
}

TEST(LoopGroup, StopWaitsForTasksOfWhatWasPostedBeforeItToo) {
  LoopGroup loops(2);
  std::atomic<bool> told{false};
  std::atomic<bool> ended{false};
  // The second loop is told of its end last, and only then lets the first one get to what was posted there.
  const auto tell = [](void* flag) {
    *static_cast<std::atomic<bool>*>(flag) = true;
    static_cast<std::atomic<bool>*>(flag)->notify_all();
  };
  CancelCallback second(loops.at(1).shutdown_token(), tell, &told);
  loops.at(0).post([&] { told.wait(false); });
  loops.at(0).post([&] {
    spawn(loops.at(0), [](Loop& loop, std::atomic<bool>& flag) -> Task<void> {
      (void)co_await loop.sleep(std::chrono::hours(1), loop.shutdown_token());
      (void)co_await loop.sleep(milliseconds(1));  // it takes its time to end
      flag = true;
    }(loops.at(0), ended));
  });
  loops.start();
  loops.stop();
  EXPECT_TRUE(ended.load());
}

}  // namespace
}  // namespace penstock::io
