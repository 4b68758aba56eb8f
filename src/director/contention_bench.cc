// Two loops deciding for one pool, as in production: each brings its picture up to date, decides with the
// default configuration (scores, approximate prefix index shared by both), reserves and lets go, while a
// third thread publishes rows of signals 2,000 times a second.
//
//   contention/threads:1, contention/threads:2   decisions/s of one loop and of two, by CPU time of the
//                                                loops, so that what other processes take counts less
//   contention_strict/...                        the same in strict mode: requests that no scrape has shown
//                                                count
//   failed_cas: of releases that met another thread (reserving is one addition); us_p99 of one decision;
//   updater_core_pct

#include <benchmark/benchmark.h>
#include <time.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <memory>
#include <thread>
#include <vector>

#include "base/random.h"
#include "director/load_guard.h"
#include "scheduling/test_support.h"
#include "signals/signal_table.h"

namespace penstock::director {
namespace {

constexpr size_t kLoops = 2;
constexpr size_t kEndpoints = 100;
constexpr size_t kPromptBlocks = 10;
constexpr size_t kBlockTokens = 64;
constexpr size_t kPrompts = 64;
constexpr auto kPublishEvery = std::chrono::microseconds(500);
constexpr auto kMeasureFor = std::chrono::milliseconds(1000);

double thread_cpu_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

// One policy, used by every loop.
struct Shared {
  Shared() {
    const auto make = [&]<typename Role>(const char* type, const Role*& role) {
      for (const PluginDescriptor& descriptor : scheduling::scheduling_plugins()) {
        if (descriptor.type != type) continue;
        const PluginFactoryContext context{type, nullptr, "", metrics, clock, kLoops};
        std::unique_ptr<Plugin> plugin = std::move(descriptor.create(context)).value();
        plugin->set_identity(type, type);
        plugin->bind_slots(membership.slots);
        role = dynamic_cast<const Role*>(plugin.get());
        plugins.push_back(std::move(plugin));
      }
    };
    make("queue-scorer", queue);
    make("kv-cache-utilization-scorer", kv);
    make("prefix-cache-scorer", prefix);
    make("max-score-picker", picker);
    make("single-profile-handler", handler);
    make("token-producer", tokens);
    make("approx-prefix-cache-producer", approx);
    note = dynamic_cast<const PreRequest*>(approx);
    scheduler = std::make_unique<scheduling::Scheduler>(
        std::vector<scheduling::Profile>{{"default", {}, {{queue, 2}, {kv, 2}, {prefix, 3}}, picker}},
        handler);
    Random random(7);
    for (auto& prompt : prompts) {
      prompt.resize(kPromptBlocks * kBlockTokens);
      for (uint32_t& token : prompt) token = random.next_u32();
    }
    for (size_t i = 0; i < kEndpoints; ++i) {
      tickets.push_back(table.attach(static_cast<EndpointSlot>(i), clock.now()));
      publish(i, random);
    }
  }
  void publish(size_t i, Random& random) {
    signals::SignalRow row;
    for (SignalValue& value : row.signals) value = {0, clock.now(), SignalState::kFresh};
    row.at(Signal::kWaitingRequests).value = random.below(20);
    row.at(Signal::kKvUsage).value = random.uniform();
    row.lora.state = SignalState::kFresh;
    row.lora.observed_at = clock.now();
    row.shown_round = membership.endpoint(i).live->unseen.begin_round();
    table.write(tickets[i], row, clock.now());
  }

  SystemClock clock;
  telemetry::MetricRegistry metrics;
  scheduling::TestPool membership{kEndpoints};
  std::vector<std::unique_ptr<Plugin>> plugins;
  const Scorer* queue = nullptr;
  const Scorer* kv = nullptr;
  const Scorer* prefix = nullptr;
  const Picker* picker = nullptr;
  const ProfileHandler* handler = nullptr;
  const DataProducer* tokens = nullptr;
  const DataProducer* approx = nullptr;
  const PreRequest* note = nullptr;
  std::unique_ptr<scheduling::Scheduler> scheduler;
  std::array<std::vector<uint32_t>, kPrompts> prompts;
  signals::SignalTable table;
  std::vector<signals::SignalTable::Ticket> tickets;
};

struct Loop {
  uint64_t decisions = 0;
  uint64_t failed_cas = 0;
  double cpu_seconds = 0;
  std::vector<float> cpu_us;  // of every eighth decision
};

void decide_for_a_while(Shared& shared, const Freshness* freshness, uint64_t seed,
                        const std::atomic<bool>& go, const std::atomic<bool>& stop, Loop& out) {
  Arena arena;
  SignalView view;
  signals::FrameReader frames(shared.table, std::chrono::seconds(2));
  const PoolSnapshot& pool = shared.membership.pool;
  InferenceRequest request;
  request.request_id = "r";
  request.target_model = "model";
  std::array<LoadGuard, 32> in_flight;
  out.cpu_us.reserve(1U << 20U);
  while (!go.load(std::memory_order_acquire)) std::this_thread::yield();
  const double begin = thread_cpu_seconds();
  for (uint64_t n = 0; !stop.load(std::memory_order_relaxed); ++n) {
    const bool timed = n % 8 == 0 && out.cpu_us.size() < out.cpu_us.capacity();
    const double before = timed ? thread_cpu_seconds() : 0;
    const TimePoint now = shared.clock.now();
    frames.refresh(pool, view, now);
    arena.reset();
    Random random(seed + n);
    AttributeTable attributes(arena, scheduling::TestPool::kSlots, kEndpoints);
    SchedulingContext ctx{request, pool, view, attributes, arena, random, now, shared.membership.candidates};
    ctx.freshness = freshness;
    auto* prompt = arena.make<TokenizedPrompt>();
    prompt->token_ids = shared.prompts[(seed + n * 13) % kPrompts];
    request.prompts = {prompt, 1};
    DecisionRecord record;
    (void)shared.tokens->produce(ctx);
    (void)shared.approx->produce(ctx);
    auto result = shared.scheduler->run(ctx, record);
    if (!result.ok()) break;
    LoadGuard& guard = in_flight[n % in_flight.size()];
    out.failed_cas += guard.release();
    guard = LoadGuard(pool.endpoints[result->primary->targets[0]], 100);
    (void)shared.note->pre_request(ctx, *result);
    benchmark::DoNotOptimize(record);
    ++out.decisions;
    if (timed) out.cpu_us.push_back(static_cast<float>((thread_cpu_seconds() - before) * 1e6));
  }
  out.cpu_seconds = thread_cpu_seconds() - begin;
}

void contend(benchmark::State& state, const Freshness* freshness) {
  const auto threads = static_cast<size_t>(state.range(0));
  for (auto _ : state) {
    Shared shared;
    std::vector<Loop> loops(threads);
    std::atomic<bool> go{false};
    std::atomic<bool> stop{false};
    uint64_t published = 0;
    double updater_cpu = 0;
    std::thread updater([&] {
      Random random(3);
      auto next = std::chrono::steady_clock::now();
      const double begin = thread_cpu_seconds();
      for (; !stop.load(std::memory_order_relaxed); ++published) {
        shared.publish(published % kEndpoints, random);
        next += kPublishEvery;
        std::this_thread::sleep_until(next);
      }
      updater_cpu = thread_cpu_seconds() - begin;
    });
    std::vector<std::thread> running;
    for (size_t t = 0; t < threads; ++t) {
      running.emplace_back(
          [&, t] { decide_for_a_while(shared, freshness, (t + 1) << 32U, go, stop, loops[t]); });
    }
    const auto begin = std::chrono::steady_clock::now();
    go.store(true, std::memory_order_release);
    std::this_thread::sleep_for(kMeasureFor);
    stop = true;
    for (std::thread& thread : running) thread.join();
    updater.join();
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    double rate = 0;
    double decisions = 0;
    double failed = 0;
    std::vector<float> all;
    for (const Loop& loop : loops) {
      rate += static_cast<double>(loop.decisions) / loop.cpu_seconds;
      decisions += static_cast<double>(loop.decisions);
      failed += static_cast<double>(loop.failed_cas);
      all.insert(all.end(), loop.cpu_us.begin(), loop.cpu_us.end());
    }
    std::sort(all.begin(), all.end());
    state.SetIterationTime(seconds);
    state.counters["decisions_per_cpu_second"] = rate;
    state.counters["decisions_per_second"] = decisions / seconds;
    state.counters["failed_cas"] = failed;
    state.counters["failed_cas_per_million"] = failed / decisions * 1e6;
    state.counters["us_p50"] = all[all.size() / 2];
    state.counters["us_p99"] = all[all.size() * 99 / 100];
    state.counters["publications_per_second"] = static_cast<double>(published) / seconds;
    state.counters["updater_core_pct"] = updater_cpu / seconds * 100;
  }
}
void contention(benchmark::State& state) {
  contend(state, nullptr);
}
void contention_strict(benchmark::State& state) {
  const Freshness freshness;
  contend(state, &freshness);
}
void by_threads(benchmark::internal::Benchmark* bench) {
  bench->ArgName("threads")->Arg(1)->Arg(2)->UseManualTime()->Iterations(1)->Unit(benchmark::kMillisecond);
}
BENCHMARK(contention)->Apply(by_threads);
BENCHMARK(contention_strict)->Apply(by_threads);

}  // namespace
}  // namespace penstock::director
