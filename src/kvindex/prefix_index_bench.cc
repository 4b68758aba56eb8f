// The load of the peers' comparison: 1 M (block, endpoint) entries over 16 endpoints, prompts of 128
// blocks, either all different (uniq) or 16 prompts, one on each endpoint, sharing 96 blocks (share).
// Warm process, look-ups one by one in random order.
//
//   kvindex_bench --benchmark_filter=Prefix

#include <benchmark/benchmark.h>

#include <time.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <limits>
#include <numeric>
#include <thread>
#include <vector>

#include "base/random.h"
#include "kvindex/block_hash.h"
#include "kvindex/prefix_index.h"

namespace penstock::kvindex {
namespace {

using Hashes = std::vector<uint64_t>;

constexpr size_t kEndpoints = 16;
constexpr size_t kBlocks = 128;
constexpr size_t kPrompts = 1'000'000 / kBlocks;
constexpr size_t kShared = 96;

enum class Shape : int64_t { kUniq, kShare };

Hashes chain(uint64_t parent, uint64_t name, size_t blocks) {
  Hashes out;
  out.reserve(blocks);
  for (size_t i = 0; i < blocks; ++i) out.push_back(parent = chain_hash((name << 20U) + i, parent));
  return out;
}

Hashes continued(const Hashes& front, size_t shared, uint64_t name, size_t blocks) {
  Hashes out(front.begin(), front.begin() + static_cast<ptrdiff_t>(shared));
  const Hashes rest = chain(out.back(), name, blocks);
  out.insert(out.end(), rest.begin(), rest.end());
  return out;
}

std::vector<Hashes> make_prompts(Shape shape, uint64_t salt = 0) {
  std::vector<Hashes> prompts;
  for (size_t p = 0; p < kPrompts; ++p) {
    if (shape == Shape::kUniq || p % kEndpoints == 0)
      prompts.push_back(chain(salt + p, p, kBlocks));
    else
      prompts.push_back(continued(prompts[p / kEndpoints * kEndpoints], kShared, p, kBlocks - kShared));
  }
  return prompts;
}

std::unique_ptr<PrefixIndex> make_index(uint32_t capacity = 1U << 20U) {
  PrefixIndex::Options options;
  options.capacity_blocks = capacity;
  return std::move(PrefixIndex::create(options)).value();
}

void fill(PrefixIndex& index, const std::vector<Hashes>& prompts) {
  for (size_t p = 0; p < prompts.size(); ++p)
    index.insert({static_cast<EndpointSlot>(p % kEndpoints)}, prompts[p]);
}

void report_per_block(benchmark::State& state, const char* name) {
  state.counters[name] = benchmark::Counter(static_cast<double>(state.iterations() * kBlocks),
                                            benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
}

// What other processes take from the core is left out.
double thread_cpu_us() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) * 1e6 + static_cast<double>(now.tv_nsec) * 1e-3;
}

void PrefixInsert(benchmark::State& state) {
  const std::vector<Hashes> prompts = make_prompts(static_cast<Shape>(state.range(0)));
  double seconds = 0;
  double bytes_per_entry = 0;
  double used_per_entry = 0;
  for (auto _ : state) {
    const auto index = make_index();
    const double begin = thread_cpu_us();
    fill(*index, prompts);
    const double took = (thread_cpu_us() - begin) * 1e-6;
    state.SetIterationTime(took);
    seconds += took;
    const PrefixIndex::Stats stats = index->stats();
    bytes_per_entry = static_cast<double>(stats.bytes) / static_cast<double>(stats.entries);
    used_per_entry = static_cast<double>(stats.used_bytes) / static_cast<double>(stats.entries);
  }
  state.counters["ns_insert_block"] =
      seconds * 1e9 / static_cast<double>(state.iterations() * static_cast<int64_t>(kPrompts * kBlocks));
  state.counters["bytes_per_entry"] = bytes_per_entry;
  state.counters["used_bytes_per_entry"] = used_per_entry;
}
BENCHMARK(PrefixInsert)
    ->Arg(0)
    ->Arg(1)
    ->ArgName("share")
    ->UseManualTime()
    ->Iterations(5)
    ->Unit(benchmark::kMillisecond);

// Every insert evicts as much as it adds.
void PrefixInsertAndEvict(benchmark::State& state) {
  const std::vector<Hashes> prompts = make_prompts(static_cast<Shape>(state.range(0)));
  const std::vector<Hashes> others = make_prompts(static_cast<Shape>(state.range(0)), 1U << 30U);
  const auto index = make_index(static_cast<uint32_t>(kPrompts / kEndpoints * kBlocks));
  fill(*index, prompts);
  fill(*index, others);
  size_t p = 0;
  for (auto _ : state) {
    const Hashes& prompt = p < kPrompts ? prompts[p] : others[p - kPrompts];
    index->insert({static_cast<EndpointSlot>(p % kEndpoints)}, prompt);
    p = (p + 1) % (2 * kPrompts);
  }
  report_per_block(state, "ns_insert_block_steady");
}
BENCHMARK(PrefixInsertAndEvict)->Arg(0)->Arg(1)->ArgName("share");

using Timer = std::chrono::steady_clock;

double nanoseconds(Timer::duration d) {
  return std::chrono::duration<double, std::nano>(d).count();
}

double clock_overhead_ns() {
  std::vector<double> samples(1001);
  for (double& sample : samples) {
    const auto begin = Timer::now();
    sample = nanoseconds(Timer::now() - begin);
  }
  std::nth_element(samples.begin(), samples.begin() + 500, samples.end());
  return samples[500];
}

// The mean leaves out the slowest thousandth: interrupts and other processes.
void report(benchmark::State& state, std::vector<double>& samples) {
  std::sort(samples.begin(), samples.end());
  const size_t kept = std::max<size_t>(samples.size() - samples.size() / 1000, 1);
  const double mean = std::accumulate(samples.begin(), samples.begin() + static_cast<ptrdiff_t>(kept), 0.0) /
                      static_cast<double>(kept);
  state.counters["ns_block"] = mean / kBlocks;
  state.counters["ns_prompt"] = mean;
  state.counters["ns_p50"] = samples[samples.size() / 2];
  state.counters["ns_p99"] = samples[samples.size() * 99 / 100];
}

enum class Ask : int64_t { kHit, kHalf, kMiss };

void look_up(benchmark::State& state, Ask ask) {
  const std::vector<Hashes> prompts = make_prompts(static_cast<Shape>(state.range(0)));
  const auto index = make_index();
  fill(*index, prompts);
  std::vector<Hashes> asked = prompts;
  for (size_t p = 0; p < asked.size(); ++p) {
    if (ask == Ask::kHalf) asked[p] = continued(prompts[p], kBlocks / 2, p + (1U << 28U), kBlocks / 2);
    if (ask == Ask::kMiss) asked[p] = chain(p + (uint64_t{1} << 40U), p, kBlocks);
  }
  Random random(1);
  MatchResult result;
  Hashes prompt(kBlocks);
  const double overhead = clock_overhead_ns();
  std::vector<double> samples;
  for (auto _ : state) {
    // Copied as hashing would have left it: in the first-level cache.
    std::copy_n(asked[random.below(kPrompts)].begin(), kBlocks, prompt.begin());
    const auto begin = Timer::now();
    index->match(prompt, result);
    benchmark::DoNotOptimize(result);
    const double took = std::max(nanoseconds(Timer::now() - begin) - overhead, 1.0);
    state.SetIterationTime(took * 1e-9);
    samples.push_back(took);
  }
  report(state, samples);
}

void PrefixHit(benchmark::State& state) {
  look_up(state, Ask::kHit);
}
void PrefixHalf(benchmark::State& state) {
  look_up(state, Ask::kHalf);
}
void PrefixMiss(benchmark::State& state) {
  look_up(state, Ask::kMiss);
}
BENCHMARK(PrefixHit)->Arg(0)->Arg(1)->ArgName("share")->UseManualTime()->MinTime(0.2);
BENCHMARK(PrefixHalf)->Arg(0)->Arg(1)->ArgName("share")->UseManualTime()->MinTime(0.2);
BENCHMARK(PrefixMiss)->Arg(0)->Arg(1)->ArgName("share")->UseManualTime()->MinTime(0.2);

// The same with 96 MB written between two look-ups: the index and the page tables are out of every cache.
void PrefixHitCold(benchmark::State& state) {
  const std::vector<Hashes> prompts = make_prompts(static_cast<Shape>(state.range(0)));
  const auto index = make_index();
  fill(*index, prompts);
  std::vector<char> dirt(96 << 20);
  Random random(1);
  MatchResult result;
  Hashes prompt(kBlocks);
  const double overhead = clock_overhead_ns();
  std::vector<double> samples;
  for (auto _ : state) {
    std::fill(dirt.begin(), dirt.end(), static_cast<char>(samples.size()));
    benchmark::DoNotOptimize(dirt.data());
    std::copy_n(prompts[random.below(kPrompts)].begin(), kBlocks, prompt.begin());
    const auto begin = Timer::now();
    index->match(prompt, result);
    benchmark::DoNotOptimize(result);
    samples.push_back(std::max(nanoseconds(Timer::now() - begin) - overhead, 1.0));
  }
  report(state, samples);
}
BENCHMARK(PrefixHitCold)->Arg(0)->Arg(1)->ArgName("share")->Iterations(100)->Unit(benchmark::kMillisecond);

// One prompt of 1,000 blocks per endpoint, 750 of them shared by all.
void PrefixMatch1000(benchmark::State& state) {
  const auto endpoints = static_cast<size_t>(state.range(0));
  const auto index = make_index();
  std::vector<Hashes> prompts{chain(1, 1, 1000)};
  for (size_t e = 1; e < endpoints; ++e) prompts.push_back(continued(prompts[0], 750, e + 1, 250));
  for (size_t e = 0; e < endpoints; ++e) index->insert({static_cast<EndpointSlot>(e)}, prompts[e]);
  MatchResult result;
  size_t e = 0;
  std::vector<double> samples;
  const double overhead = clock_overhead_ns();
  for (auto _ : state) {
    const auto begin = Timer::now();
    index->match(prompts[e], result);
    benchmark::DoNotOptimize(result);
    samples.push_back(std::max(nanoseconds(Timer::now() - begin) - overhead, 1.0));
    e = (e + 7) % endpoints;
  }
  report(state, samples);
  state.counters.erase("ns_block");
  state.counters["us_match_1000_blocks"] = state.counters["ns_prompt"] / 1000;
}
BENCHMARK(PrefixMatch1000)->Arg(100)->Arg(1000)->ArgName("endpoints");

// A prompt that is held already: recency only.
void PrefixTouch(benchmark::State& state) {
  const std::vector<Hashes> prompts = make_prompts(static_cast<Shape>(state.range(0)));
  const auto index = make_index();
  fill(*index, prompts);
  Random random(1);
  for (auto _ : state) {
    const size_t p = random.below(kPrompts);
    index->insert({static_cast<EndpointSlot>(p % kEndpoints)}, prompts[p]);
  }
}
BENCHMARK(PrefixTouch)->Arg(0)->Arg(1)->ArgName("share");

// The longest an insert keeps its thread busy while another thread inserts too and everything grows from
// empty: nobody waits for the writer, nothing is rebuilt in one go. CPU time, which counts the kernel's
// interrupts too: idle is the longest of as many measurements of arithmetic that takes as long as an insert
// does at the median, so what an insert takes above that is the index. us_worst is the longest of all rounds,
// us_round the median of the rounds' longest, which one interrupt can't decide.
void PrefixTwoWritersStall(benchmark::State& state) {
  std::vector<double> all;
  std::vector<double> rounds;
  std::vector<double> idle_rounds;
  uint64_t queued = 0;
  uint64_t dropped = 0;
  const std::vector<Hashes> prompts = make_prompts(Shape::kUniq);
  for (auto _ : state) {
    PrefixIndex::Options options;
    options.queues = 2;
    options.capacity_blocks = 1U << 20U;
    const auto index = std::move(PrefixIndex::create(options)).value();
    std::atomic<bool> stop{false};
    std::thread other([&] {
      for (uint64_t i = 0; !stop.load(std::memory_order_relaxed); ++i)
        index->insert({1}, prompts[(i * 7) % kPrompts]);
    });
    std::vector<double> round;
    for (size_t p = 0; p < prompts.size(); ++p) {
      const double begin = thread_cpu_us();
      const auto outcome = index->insert({0}, prompts[p]);
      round.push_back(thread_cpu_us() - begin);
      queued += outcome.queued ? 1 : 0;
      dropped += outcome.dropped ? 1 : 0;
    }
    all.insert(all.end(), round.begin(), round.end());
    std::sort(round.begin(), round.end());
    rounds.push_back(round.back());
    const double typical = round[round.size() / 2];
    double worst_idle = 0;
    for (size_t p = 0; p < prompts.size(); ++p) {
      const double begin = thread_cpu_us();
      uint64_t x = p;
      double took = 0;
      while (took < typical) {
        for (size_t i = 0; i < 100; ++i) benchmark::DoNotOptimize(x = x * 6364136223846793005U + 1);
        took = thread_cpu_us() - begin;
      }
      worst_idle = std::max(worst_idle, took);
    }
    idle_rounds.push_back(worst_idle);
    stop = true;
    other.join();
  }
  for (std::vector<double>* sorted : {&all, &rounds, &idle_rounds}) std::sort(sorted->begin(), sorted->end());
  state.counters["us_worst"] = all.back();
  state.counters["us_round"] = rounds[rounds.size() / 2];
  state.counters["us_worst_idle"] = idle_rounds.back();
  state.counters["us_round_idle"] = idle_rounds[idle_rounds.size() / 2];
  state.counters["us_p999"] = all[all.size() - 1 - all.size() / 1000];
  state.counters["us_p50"] = all[all.size() / 2];
  state.counters["queued"] = static_cast<double>(queued);
  state.counters["dropped"] = static_cast<double>(dropped);
}
BENCHMARK(PrefixTwoWritersStall)->Iterations(9)->Unit(benchmark::kMillisecond);

// The longest insert of a growth from empty that is the code's own: one thread does the same inserts into a
// fresh index again and again, and the least time of each is without what the machine did meanwhile. Page
// faults are in it, as every index has its own memory.
void PrefixGrowthStep(benchmark::State& state) {
  PrefixIndex::Options options;
  options.queues = 2;
  options.capacity_blocks = 1U << 20U;
  const std::vector<Hashes> prompts = make_prompts(Shape::kUniq);
  std::vector<double> least(prompts.size(), std::numeric_limits<double>::infinity());
  for (auto _ : state) {
    const auto index = std::move(PrefixIndex::create(options)).value();
    for (size_t p = 0; p < prompts.size(); ++p) {
      const double begin = thread_cpu_us();
      index->insert({0}, prompts[p]);
      least[p] = std::min(least[p], thread_cpu_us() - begin);
    }
  }
  const auto longest = std::max_element(least.begin(), least.end());
  state.counters["us_longest_step"] = *longest;
  state.counters["at_insert"] = static_cast<double>(longest - least.begin());
}
BENCHMARK(PrefixGrowthStep)->Iterations(9)->Unit(benchmark::kMillisecond);

// The load of PrefixInsert into a budget of a quarter of what it needs: the oldest goes, the budget holds.
void PrefixByteBudget(benchmark::State& state) {
  const std::vector<Hashes> prompts = make_prompts(Shape::kUniq);
  PrefixIndex::Options options;
  options.capacity_blocks = 1U << 20U;
  options.max_bytes = size_t{4} << 20U;
  double held = 0;
  PrefixIndex::Stats stats;
  for (auto _ : state) {
    const auto index = std::move(PrefixIndex::create(options)).value();
    for (size_t p = 0; p < prompts.size(); ++p) {
      index->insert({static_cast<EndpointSlot>(p % kEndpoints)}, prompts[p]);
      held = std::max(held, static_cast<double>(index->bytes()));
    }
    stats = index->stats();
  }
  state.counters["budget_bytes"] = static_cast<double>(options.max_bytes);
  state.counters["most_bytes"] = held;
  state.counters["entries"] = static_cast<double>(stats.entries);
  state.counters["evicted"] = static_cast<double>(stats.evicted);
}
BENCHMARK(PrefixByteBudget)->Iterations(1)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace penstock::kvindex
