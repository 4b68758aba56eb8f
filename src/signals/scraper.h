#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/random.h"
#include "base/result.h"
#include "inference/endpoint.h"
#include "io/loop.h"
#include "io/tls.h"
#include "signals/page_reader.h"
#include "signals/page_sink.h"
#include "signals/plugins.h"
#include "signals/signal_table.h"
#include "telemetry/metrics.h"

namespace penstock::signals {

inline constexpr Duration kMinScrapeInterval = std::chrono::milliseconds(50);

// How a pool's endpoints are scraped. Changes take effect with each endpoint's next scrape.
struct ScrapeSettings {
  Duration interval = std::chrono::milliseconds(200);  // raised to kMinScrapeInterval
  double jitter = 0.1;                                 // each pause is drawn from interval × (1 ± jitter)
  Duration deadline = std::chrono::seconds(1);         // of one scrape, from connecting to its last byte
  Duration max_backoff = std::chrono::seconds(5);      // pause between scrapes of an endpoint that fails
  uint32_t down_after = 3;                             // failures in a row until signals read endpoint_down
  size_t max_page_bytes = 8UL * 1024 * 1024;
  // Adapters stay "running" for so long after the engine stopped naming them; 0: not at all.
  Duration adapter_memory{0};
  MetricsSourceParams source;
  std::string source_type = "metrics-data-source";
  std::string extractor_type = "core-metrics-extractor";
  // Added to each scrape: the pool's credentials towards its engines.
  std::vector<std::pair<std::string, std::string>> headers;
  // Ask engines whose page doesn't tell whether they sleep (signals/sleep_probe.h), once a second.
  bool sleep_probe = false;
  // Get each whole page too.
  std::vector<std::shared_ptr<PageSink>> sinks;
  // False: the pages are for the sinks only, no signal is read from them or written.
  bool writes_signals = true;
  // For https endpoints when the source says nothing about TLS itself.
  std::shared_ptr<io::TlsClientContext> engine_tls;
  std::string tls_name;  // server name where the endpoint has none; "" its address
};

// When an endpoint is scraped next. A pure function of its outcomes.
class ScrapePace {
 public:
  // The pause before the first scrape: somewhere within min(interval, 50 ms), so that the endpoints of a
  // new pool don't all answer at once.
  static Duration first(const ScrapeSettings& settings, Random& random);
  // The pause until the next scrape begins, counted from the beginning of the last one: the jittered
  // interval; after `down_after` failures it doubles with each further one up to max_backoff.
  static Duration next(const ScrapeSettings& settings, uint32_t failures, Random& random);
};

// Scrapes every endpoint of one pool and writes its row of the SignalTable. Each endpoint has one task, on
// one loop, and at most one scrape under way; connections are kept alive. A hung or failing engine delays
// nobody but itself: its values keep their times, so they go stale, and after `down_after` failures in a
// row its signals read endpoint_down - one failed scrape flips nothing.
//
// Keeps EndpointLive::asleep: what the page says, or the probe where it is asked for; false while neither
// tells, and once the endpoint is down.
//
// Logs each endpoint's failure once (with its reason) and its recovery, and each required name that the
// engine doesn't export, once.
// Thread-safe. The loops run while endpoints are added, and outlive the scraper.
class Scraper {
 public:
  // REQUIRES: everything referred to outlives the scraper.
  Scraper(std::string pool, io::LoopGroup& loops, SignalTable& table, telemetry::MetricRegistry& metrics,
          const Clock& clock, EngineTable engines, ScrapeSettings settings);
  ~Scraper();  // stop()
  Scraper(const Scraper&) = delete;
  Scraper& operator=(const Scraper&) = delete;

  // TLS files of `settings.source` are read here, so not on a loop; errors name the file. Also what the
  // constructor's settings go through: call check() once before.
  Status configure(EngineTable engines, ScrapeSettings settings);
  // The constructor's settings could be used.
  Status check() const;

  void add(const std::shared_ptr<const Endpoint>& endpoint);
  // Follows an address, port or label; the row starts over when the scraped address changed.
  void update(const std::shared_ptr<const Endpoint>& before, const std::shared_ptr<const Endpoint>& after);
  void remove(const Endpoint& endpoint);
  // Ends every task and waits for that, up to 5 s. From outside the loops.
  void stop();

  // Every endpoint added so far was scraped once, well or not: what readiness may wait for.
  bool all_tried() const;
  // The name of the engine an endpoint turned out to run; "" before its first good scrape.
  std::string engine_of(EndpointSlot slot) const;
  // Endpoints being scraped.
  size_t size() const;

 private:
  struct Config;
  struct Shared;
  struct Shard;
  struct Target;

  static Result<std::shared_ptr<const Config>> make_config(EngineTable engines, ScrapeSettings settings);

  const std::string pool_;
  io::LoopGroup& loops_;
  SignalTable& table_;
  const Clock& clock_;
  Status checked_;
  std::shared_ptr<Shared> shared_;
  mutable std::mutex mutex_;
  std::unordered_map<EndpointSlot, std::shared_ptr<Target>> targets_;
};

}  // namespace penstock::signals
