#include <benchmark/benchmark.h>

#include <fstream>
#include <sstream>
#include <string>

#include "signals/page_reader.h"
#include "signals/signal_table.h"

// 100 endpoints scraped each second may cost 3 % of a core, at 50 ms 50 %: 300 µs and 250 µs a scrape, of
// which most is the exchange itself. These are the parts on top of it.
namespace penstock::signals {
namespace {

std::string page() {
  const char* root = std::getenv("PENSTOCK_SOURCE_DIR");
  std::ifstream in(
      std::string(root == nullptr ? "." : root) + "/tests/vectors/vllm-0.32.0/metrics/after_load.txt",
      std::ios::binary);
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}

// The recorded vLLM page in pieces of 16 KiB, as a socket gives it.
void ScanPage(benchmark::State& state) {
  const std::string text = page();
  if (text.empty()) return state.SkipWithError("run in the source folder");
  const CompiledEngines engines(
      EngineTable::build({}, kDefaultEngine, kEngineLabel, SeriesMode::kCompatible).value());
  PageReader reader(engines);
  const EngineMapping* known = state.range(0) != 0 ? engines.table().find("vllm") : nullptr;
  constexpr size_t kPiece = 16384;
  for (auto _ : state) {
    reader.begin(known);
    for (size_t at = 0; at < text.size(); at += kPiece)
      reader.feed(std::string_view(text).substr(at, kPiece));
    benchmark::DoNotOptimize(reader.finish().at(Signal::kWaitingRequests).value);
  }
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations()) * static_cast<int64_t>(text.size()));
}
BENCHMARK(ScanPage)->ArgName("engine_known")->Arg(1)->Arg(0);

PoolSnapshot pool_of(size_t endpoints) {
  PoolSnapshot pool;
  pool.epoch = 1;
  for (size_t i = 0; i < endpoints; ++i) {
    auto e = std::make_shared<Endpoint>();
    e->slot = static_cast<EndpointSlot>(i);
    pool.endpoints.push_back(std::move(e));
  }
  return pool;
}

// What a decision pays when nothing moved.
void RefreshUnmoved(benchmark::State& state) {
  const PoolSnapshot pool = pool_of(static_cast<size_t>(state.range(0)));
  SignalTable table;
  FrameReader reader(table, std::chrono::seconds(2));
  SignalView view;
  const TimePoint now{std::chrono::seconds(1000)};
  for (auto _ : state) {
    reader.refresh(pool, view, now);
    benchmark::DoNotOptimize(view.epoch);
  }
}
BENCHMARK(RefreshUnmoved)->Arg(100)->Arg(1000);

// What a loop pays for one publication: every endpoint was scraped since.
void RefreshAllMoved(benchmark::State& state) {
  const auto count = static_cast<size_t>(state.range(0));
  const PoolSnapshot pool = pool_of(count);
  SignalTable table{Duration(0)};
  std::vector<SignalTable::Ticket> tickets;
  TimePoint now{std::chrono::seconds(1000)};
  for (size_t i = 0; i < count; ++i) tickets.push_back(table.attach(static_cast<EndpointSlot>(i), now));
  SignalRow row;
  row.at(Signal::kWaitingRequests) = {1, now, SignalState::kFresh};
  row.lora.running_count = 4;
  FrameReader reader(table, std::chrono::seconds(2));
  SignalView view;
  for (auto _ : state) {
    state.PauseTiming();
    now += std::chrono::milliseconds(10);
    for (const auto& ticket : tickets) table.write(ticket, row, now);
    state.ResumeTiming();
    reader.refresh(pool, view, now);
    benchmark::DoNotOptimize(view.epoch);
  }
}
BENCHMARK(RefreshAllMoved)->Arg(100)->Arg(1000);

}  // namespace
}  // namespace penstock::signals
