// What one decision costs with the default configuration (queue-scorer 2, kv-cache-utilization-scorer 2,
// prefix-cache-scorer 3, max-score-picker) and its producers: hash the prompt, look it up, score, pick,
// record, note the choice in the index. Prompts repeat, so that look-ups are hits.
//
//   decision/default/endpoints:E/blocks:B    all of it; B prefix blocks of 64 tokens
//   decision/default_strict/…                the same in strict mode, all signals fresh
//   decision/twelve/endpoints:E              the default producers and twelve scorers, prompts of 10 blocks
//   decision/schedule/endpoints:E            from the filled columns to the record: filter, score, pick
//   decision/schedule_strict/endpoints:E     the same in strict mode
//   decision/schedule_timed/endpoints:E      the same with plugin durations measured, as in production

#include <benchmark/benchmark.h>

#include <array>

#include "scheduling/test_support.h"

namespace penstock::scheduling {
namespace {

constexpr size_t kPrompts = 16;
constexpr size_t kBlockTokens = 64;

// Beyond the default ones; they read signals, loads, sessions, the prefix and the request.
constexpr std::pair<const char*, const char*> kNineMore[] = {
    {"running-requests-size-scorer", ""},
    {"load-aware-scorer", ""},
    {"lora-affinity-scorer", ""},
    {"active-request-scorer", ""},
    {"token-load-scorer", ""},
    {"no-hit-lru-scorer", ""},
    {"session-affinity-scorer", ""},
    {"header-label-affinity-scorer", "{headerName: x-team, labelKey: team}"},
    {"expected-ttft-scorer", ""},
};

struct DefaultPolicy {
  DefaultPolicy(const SlotResolver& slots, telemetry::MetricRegistry* metrics, const Clock* clock,
                bool twelve = false) {
    const auto make = [&]<typename Role>(const char* type, const Role*& role) {
      plugins.push_back(make_as(type, role, "", &slots));
    };
    const Scorer* queue = nullptr;
    const Scorer* kv = nullptr;
    const Scorer* prefix = nullptr;
    const Picker* picker = nullptr;
    const ProfileHandler* handler = nullptr;
    make("queue-scorer", queue);
    make("kv-cache-utilization-scorer", kv);
    make("prefix-cache-scorer", prefix);
    make("max-score-picker", picker);
    make("single-profile-handler", handler);
    make("token-producer", tokens);
    make("approx-prefix-cache-producer", approx);
    if (approx != nullptr) note = dynamic_cast<const PreRequest*>(approx);
    Profile profile{"default", {}, {{queue, 2}, {kv, 2}, {prefix, 3}}, picker};
    if (twelve) {
      make("inflight-load-producer", load);
      for (const auto& [type, parameters] : kNineMore) {
        const Scorer* scorer = nullptr;
        plugins.push_back(make_as(type, scorer, parameters, &slots));
        if (scorer != nullptr) profile.scorers.push_back({scorer, 1});
      }
    }
    scorers = profile.scorers.size();
    scheduler =
        std::make_unique<Scheduler>(std::vector<Profile>{std::move(profile)}, handler, metrics, clock);
  }

  std::vector<std::unique_ptr<Plugin>> plugins;
  const DataProducer* tokens = nullptr;
  const DataProducer* approx = nullptr;
  const PreRequest* note = nullptr;
  const DataProducer* load = nullptr;  // with twelve scorers
  size_t scorers = 0;
  std::unique_ptr<Scheduler> scheduler;
};

void load_signals(TestPool& pool) {
  Random random(42);
  for (size_t i = 0; i < pool.candidates.size(); ++i) {
    pool.set(Signal::kWaitingRequests, i, random.below(20));
    pool.set(Signal::kKvUsage, i, random.uniform());
  }
}

// In strict mode all signals are fresh, as usual: the oldest value of each is known.
void make_fresh(TestPool& pool) {
  pool.signals.oldest.fill(pool.now);
}

void run_decisions(benchmark::State& state, bool twelve, const Freshness* freshness) {
  TestPool pool(static_cast<size_t>(state.range(0)));
  load_signals(pool);
  make_fresh(pool);
  const DefaultPolicy policy(pool.slots, nullptr, nullptr, twelve);
  if (policy.approx == nullptr || policy.note == nullptr || (twelve && policy.scorers != 12)) {
    state.SkipWithError("a plugin is not registered");
    return;
  }
  std::array<std::vector<uint32_t>, kPrompts> prompts;
  Random random(7);
  for (auto& prompt : prompts) {
    prompt.resize(static_cast<size_t>(state.range(1)) * kBlockTokens);
    for (uint32_t& token : prompt) token = random.next_u32();
  }
  uint64_t seed = 0;
  uint64_t matched = 0;
  const auto decide = [&] {
    SchedulingContext& ctx = pool.restart(++seed);
    ctx.freshness = freshness;
    TokenizedPrompt* prompt = pool.arena.make<TokenizedPrompt>();
    prompt->token_ids = prompts[seed % kPrompts];
    pool.request.prompts = {prompt, 1};
    DecisionRecord record;
    (void)policy.tokens->produce(ctx);
    (void)policy.approx->produce(ctx);
    if (policy.load != nullptr) (void)policy.load->produce(ctx);
    auto result = policy.scheduler->run(ctx, record);
    if (!result.ok()) return false;
    (void)policy.note->pre_request(ctx, *result);
    const auto column = ctx.attributes.column<PrefixMatch>(pool.slots.slot(data_keys::kPrefixMatch));
    if (!column.empty()) matched += column[result->primary->targets[0]].match_blocks;
    benchmark::DoNotOptimize(record);
    return true;
  };
  for (size_t i = 0; i < 4 * kPrompts; ++i) decide();
  matched = 0;
  for (auto _ : state) {
    if (!decide()) state.SkipWithError("no decision");
  }
  state.counters["blocks_matched"] =
      benchmark::Counter(static_cast<double>(matched), benchmark::Counter::kAvgIterations);
}
void decide_default(benchmark::State& state) {
  run_decisions(state, false, nullptr);
}
void decide_strict(benchmark::State& state) {
  const Freshness freshness;
  run_decisions(state, false, &freshness);
}
void decide_twelve(benchmark::State& state) {
  run_decisions(state, true, nullptr);
}
BENCHMARK(decide_twelve)
    ->Name("decision/twelve")
    ->ArgNames({"endpoints", "blocks"})
    ->ArgsProduct({{10, 100, 1000}, {10}});
BENCHMARK(decide_strict)
    ->Name("decision/default_strict")
    ->ArgNames({"endpoints", "blocks"})
    ->ArgsProduct({{10, 100, 1000}, {10}});
BENCHMARK(decide_default)
    ->Name("decision/default")
    ->ArgNames({"endpoints", "blocks"})
    ->ArgsProduct({{10, 100, 1000}, {10, 1000}});

void schedule(benchmark::State& state, telemetry::MetricRegistry* metrics, const Clock* clock,
              const Freshness* freshness = nullptr) {
  TestPool pool(static_cast<size_t>(state.range(0)));
  load_signals(pool);
  make_fresh(pool);
  const DefaultPolicy policy(pool.slots, metrics, clock);
  const AttributeSlot slot = pool.slots.slot(data_keys::kPrefixMatch);
  uint64_t seed = 0;
  for (auto _ : state) {
    SchedulingContext& ctx = pool.restart(++seed);
    ctx.freshness = freshness;
    ctx.attributes.create<PrefixMatch>(slot)[seed % pool.candidates.size()] = {10, 10, 64, 10};
    DecisionRecord record;
    auto result = policy.scheduler->run(ctx, record);
    benchmark::DoNotOptimize(result);
    benchmark::DoNotOptimize(record);
  }
}
void schedule_plain(benchmark::State& state) {
  schedule(state, nullptr, nullptr);
}
void schedule_strict(benchmark::State& state) {
  const Freshness freshness;
  schedule(state, nullptr, nullptr, &freshness);
}
void schedule_timed(benchmark::State& state) {
  telemetry::MetricRegistry metrics;
  const SystemClock clock;
  schedule(state, &metrics, &clock);
}
BENCHMARK(schedule_plain)->Name("decision/schedule")->ArgName("endpoints")->Arg(10)->Arg(100)->Arg(1000);
BENCHMARK(schedule_strict)
    ->Name("decision/schedule_strict")
    ->ArgName("endpoints")
    ->Arg(10)
    ->Arg(100)
    ->Arg(1000);
BENCHMARK(schedule_timed)
    ->Name("decision/schedule_timed")
    ->ArgName("endpoints")
    ->Arg(10)
    ->Arg(100)
    ->Arg(1000);

}  // namespace
}  // namespace penstock::scheduling
