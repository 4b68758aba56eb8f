#include <benchmark/benchmark.h>

#include <sys/resource.h>

#include <fstream>
#include <future>
#include <sstream>
#include <string>
#include <thread>

#include "base/source_path_testing.h"
#include "io/http_server.h"
#include "signals/page_reader.h"
#include "signals/scraper.h"
#include "signals/signal_table.h"

// 100 endpoints scraped each second may cost 3 % of a core, at 50 ms 50 %: 300 µs and 250 µs a scrape, of
// which most is the exchange itself.
namespace penstock::signals {
namespace {

std::string page() {
  std::ifstream in(source_path("tests/vectors/vllm-0.32.0/metrics/after_load.txt"), std::ios::binary);
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}

// The recorded vLLM page in pieces of 16 KiB, as a socket gives it.
void ScanPage(benchmark::State& state) {
  const std::string text = page();
  if (text.empty()) return state.SkipWithError("the recorded page is not where this was built from");
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

double thread_cpu_seconds() {
  rusage usage{};
  getrusage(RUSAGE_THREAD, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

double cpu_seconds_of(io::Loop& loop) {
  std::promise<double> answer;
  loop.post([&answer] { answer.set_value(thread_cpu_seconds()); });
  return answer.get_future().get();
}

// 100 endpoints on one loop at 50 ms, each a real HTTP exchange of the recorded page; counts the CPU time of
// the scraping loop's thread alone.
void ScrapeHundredEndpoints(benchmark::State& state) {
  constexpr int kEndpoints = 100;
  const std::string text = page();
  if (text.empty()) return state.SkipWithError("the recorded page is not where this was built from");
  io::LoopGroup engine_loops(1);
  io::HttpServer server(engine_loops, io::HttpServerOptions{},
                        io::HttpServer::handler_of([&text](io::HttpExchange& exchange) {
                          return [](const std::string& body, io::HttpExchange& ex) -> io::Task<void> {
                            (void)co_await ex.respond(200, "text/plain", body);
                          }(text, exchange);
                        }));
  engine_loops.start();
  io::LoopGroup loops(1);
  loops.start();
  SystemClock clock;
  SignalTable table;
  telemetry::MetricRegistry metrics;
  ScrapeSettings settings;
  settings.interval = std::chrono::milliseconds(50);
  Scraper scraper("p", loops, table, metrics, clock,
                  EngineTable::build({}, kDefaultEngine, kEngineLabel, SeriesMode::kCompatible).value(),
                  settings);
  for (int i = 0; i < kEndpoints; ++i) {
    const std::string ip = "127.0.1." + std::to_string(i + 1);
    const auto address = server.listen(*io::SocketAddress::from_ip(ip, 0));
    if (!address.ok()) return state.SkipWithError("no loopback address");
    auto e = std::make_shared<Endpoint>();
    e->slot = static_cast<EndpointSlot>(i);
    e->id = "default/e" + std::to_string(i);
    e->address = ip;
    e->metrics_host = address->to_string();
    scraper.add(e);
  }
  while (!scraper.all_tried()) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  auto& durations =
      metrics.histogram({.name = "penstock_scrape_duration_seconds", .help = "", .labels = {"pool"}})
          .with({"p"});
  double cpu = 0;
  double scrapes = 0;
  for (auto _ : state) {
    const double before = cpu_seconds_of(loops.at(0));
    const uint64_t count = durations.count();
    std::this_thread::sleep_for(std::chrono::seconds(3));
    cpu += cpu_seconds_of(loops.at(0)) - before;
    scrapes += static_cast<double>(durations.count() - count);
  }
  const double us = 1e6 * cpu / scrapes;
  state.counters["us_per_scrape"] = us;
  state.counters["scrapes_per_s"] = scrapes / (3 * static_cast<double>(state.iterations()));
  state.counters["core_pct_at_1s"] = us * kEndpoints / 1e4;
  state.counters["core_pct_at_50ms"] = us * kEndpoints * 20 / 1e4;
  scraper.stop();
  server.stop();
  loops.stop();
  engine_loops.stop();
}
BENCHMARK(ScrapeHundredEndpoints)->Iterations(1)->UseRealTime()->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace penstock::signals
