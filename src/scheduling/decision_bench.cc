// What one decision costs with the default configuration (queue-scorer 2, kv-cache-utilization-scorer 2,
// prefix-cache-scorer 3, max-score-picker) and its producers: hash the prompt, look it up, score, pick,
// record, note the choice in the index. Prompts repeat, so that look-ups are hits.
//
//   decision/default/endpoints:E/blocks:B    all of it; B prefix blocks of 64 tokens
//   decision/schedule/endpoints:E            from the filled columns to the record: filter, score, pick
//   decision/schedule_timed/endpoints:E      the same with plugin durations measured, as in production

#include <benchmark/benchmark.h>

#include <array>

#include "scheduling/test_support.h"

namespace penstock::scheduling {
namespace {

constexpr size_t kPrompts = 16;
constexpr size_t kBlockTokens = 64;

struct DefaultPolicy {
  DefaultPolicy(const SlotResolver& slots, telemetry::MetricRegistry* metrics, const Clock* clock) {
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
    scheduler = std::make_unique<Scheduler>(
        std::vector<Profile>{{"default", {}, {{queue, 2}, {kv, 2}, {prefix, 3}}, picker}}, handler, metrics,
        clock);
  }

  std::vector<std::unique_ptr<Plugin>> plugins;
  const DataProducer* tokens = nullptr;
  const DataProducer* approx = nullptr;
  const PreRequest* note = nullptr;
  std::unique_ptr<Scheduler> scheduler;
};

void load_signals(TestPool& pool) {
  Random random(42);
  for (size_t i = 0; i < pool.candidates.size(); ++i) {
    pool.set(Signal::kWaitingRequests, i, random.below(20));
    pool.set(Signal::kKvUsage, i, random.uniform());
  }
}

void decide_default(benchmark::State& state) {
  TestPool pool(static_cast<size_t>(state.range(0)));
  load_signals(pool);
  const DefaultPolicy policy(pool.slots, nullptr, nullptr);
  if (policy.approx == nullptr || policy.note == nullptr) {
    state.SkipWithError("approx-prefix-cache-producer is not registered");
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
    TokenizedPrompt* prompt = pool.arena.make<TokenizedPrompt>();
    prompt->token_ids = prompts[seed % kPrompts];
    pool.request.prompts = {prompt, 1};
    DecisionRecord record;
    (void)policy.tokens->produce(ctx);
    (void)policy.approx->produce(ctx);
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
BENCHMARK(decide_default)
    ->Name("decision/default")
    ->ArgNames({"endpoints", "blocks"})
    ->ArgsProduct({{10, 100, 1000}, {10, 1000}});

void schedule(benchmark::State& state, telemetry::MetricRegistry* metrics, const Clock* clock) {
  TestPool pool(static_cast<size_t>(state.range(0)));
  load_signals(pool);
  const DefaultPolicy policy(pool.slots, metrics, clock);
  const AttributeSlot slot = pool.slots.slot(data_keys::kPrefixMatch);
  uint64_t seed = 0;
  for (auto _ : state) {
    SchedulingContext& ctx = pool.restart(++seed);
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
void schedule_timed(benchmark::State& state) {
  telemetry::MetricRegistry metrics;
  const SystemClock clock;
  schedule(state, &metrics, &clock);
}
BENCHMARK(schedule_plain)->Name("decision/schedule")->ArgName("endpoints")->Arg(10)->Arg(100)->Arg(1000);
BENCHMARK(schedule_timed)
    ->Name("decision/schedule_timed")
    ->ArgName("endpoints")
    ->Arg(10)
    ->Arg(100)
    ->Arg(1000);

}  // namespace
}  // namespace penstock::scheduling
