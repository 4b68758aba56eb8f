#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "assembly/assembly.h"
#include "assembly/notifications.h"
#include "base/result.h"
#include "config/manifests.h"
#include "config/settings.h"
#include "director/director.h"
#include "discovery/dns_discovery.h"
#include "discovery/file_discovery.h"
#include "discovery/object_feed.h"
#include "discovery/registry.h"
#include "discovery/scraper_feed.h"
#include "discovery/source.h"
#include "io/loop.h"
#include "io/tls.h"
#include "sharing/replicas.h"
#include "sharing/shared_pool.h"
#include "signals/pool_metrics.h"
#include "signals/scraper.h"
#include "signals/signal_table.h"
#include "telemetry/metrics.h"

namespace penstock::assembly {

// What all pools of a process share. Everything outlives the pools.
struct SharedKnowledge {
  io::LoopGroup& loops;
  telemetry::MetricRegistry& metrics;
  const Clock& clock;
  discovery::SlotAllocator& slots;
  signals::SignalTable& signals;
  signals::PoolMetrics& pool_metrics;
  director::RequestMetrics& request_metrics;
  Outside* outside = nullptr;             // nullptr: plugins do without services
  sharing::Replicas* replicas = nullptr;  // nullptr: nothing is shared with other replicas
  // What of these is the pool's alone: ends after it.
  std::shared_ptr<void> own = nullptr;
};

// One pool as configured: Penstock's settings for it, and what an InferencePool manifest says.
struct PoolSpec {
  config::PoolSettings settings;
  config::LabelMap selector;           // empty: every endpoint
  std::vector<uint16_t> target_ports;  // for endpoints that name no port
  std::string app_protocol;            // of the manifest; empty: not said
  // Somebody else tells its endpoints: a configuration that names a discovery can't be used.
  bool told_endpoints = false;
  // A Kubernetes API is asked for the pool, unless its configuration names a discovery: then objects that its
  // plugins are told of are followed there (follow_objects()).
  bool api_server = false;
};

// The rules of one pool out of all manifests. Objects that name another pool are left out.
std::shared_ptr<const director::PoolRules> pool_rules(const config::Manifests& manifests, std::string_view ns,
                                                      std::string_view name);

// One running pool: its policy, its members from every discovery source, their signals by scraping. Makes
// what a front door needs to decide (`pool()`, `members()`); knows nothing of front doors.
//
// Life: create(), start() with the loops running, stop() before they end. reload() and rollback() one at a
// time.
class PoolRuntime final : private discovery::EndpointListener {
 public:
  // Assembles the policy and checks everything that can be checked without the network. `decisions`: size
  // of the pool's decision log.
  static Result<std::unique_ptr<PoolRuntime>> create(const SharedKnowledge& shared, PoolSpec spec,
                                                     int64_t decisions);
  ~PoolRuntime() override;
  PoolRuntime(const PoolRuntime&) = delete;
  PoolRuntime& operator=(const PoolRuntime&) = delete;

  // Discovery and scraping begin. An endpoints file that can't be read is an error.
  Status start();
  void stop();

  // Takes new settings of the same pool: a new policy epoch (unless it would be the same), selector and
  // ports, credentials and scrape settings. All or nothing: on error everything stays as it was. Sources of
  // discovery themselves don't change.
  Status reload(PoolSpec spec);
  // Takes the picker configuration that was in force before the one that is, as a new policy epoch; once more
  // leads forward again. The next reload takes what the files say. kNotFound: there was no other.
  Status rollback();
  // Reads the files of discovery again and asks DNS. On error that source's last good set stays.
  Status refresh_discovery();
  void set_rules(std::shared_ptr<const director::PoolRules> rules);
  // Follows the objects of an API server that the policy's sources want, this one's and later ones'. It
  // outlives the pool's stop(), or the pool where that was never started.
  void follow_objects(discovery::ObjectFollower& cluster);
  // What an InferencePool that came after create() says; any thread. A reload takes its spec's again.
  void set_app_protocol(std::string_view protocol);

  director::Pool& pool() { return pool_; }
  discovery::Pool& members() { return members_; }
  const config::PoolSettings& settings() const { return spec_.settings; }
  telemetry::MetricRegistry& metrics() { return shared_.metrics; }
  // TLS towards https engines; null when no endpoint needs it before the first one is seen.
  const std::shared_ptr<io::TlsClientContext>& engine_tls() const { return engine_tls_; }
  std::shared_ptr<const director::Policy> policy() const { return pool_.policy.get(); }
  Duration freshness_budget() const { return spec_.settings.metrics.staleness; }

  // What pages say of a plugin of this pool, JSON; nothing: it has no state. Any thread.
  std::optional<std::string> plugin_state(const Plugin& plugin) const;
  // Every source told what it knows and every endpoint was scraped once, well or not.
  bool ready() const;
  // False where the manifest says appProtocol http and a parser's requests are gRPC.
  bool protocol_ok() const;

 private:
  PoolRuntime(const SharedKnowledge& shared, PoolSpec spec, int64_t decisions);

  // A picker configuration as it was read, with what it needs to be assembled again.
  struct Document {
    std::optional<config::Node> inline_node;  // else `text`
    std::string text;
    std::string source;
    bool allow_experimental = false;
  };
  static Result<Document> read_document(const config::PoolSettings& settings);
  Result<Assembly> assemble_policy(const Document& document, const config::PoolSettings& settings,
                                   uint64_t epoch);
  // Makes new settings and a policy made for them the pool's. On error everything stays as it was.
  Status take(PoolSpec spec, Document document, Assembly assembly);
  Status publish(Assembly assembly);
  void configure_pool();
  // Has the policy's producers tell other replicas, and learn from them.
  void share_prefixes(const std::shared_ptr<const director::Policy>& policy) const;
  void objects_changed();
  Status make_scraper(const director::Policy& policy);
  // What a policy's data sources want fetched.
  struct ScrapePlan {
    std::optional<signals::EngineTable> engines;  // of the source with the load signals; none: there is none
    signals::ScrapeSettings main;
    std::vector<signals::ScrapeSettings> extra;  // pages for extractors alone
  };
  ScrapePlan scrape_plan(const director::Policy& policy) const;
  std::unique_ptr<signals::Scraper> new_scraper(signals::EngineTable engines,
                                                signals::ScrapeSettings settings);
  Status make_extra_scrapers(std::vector<signals::ScrapeSettings> wanted);
  void listen_for_extra_scrapers();
  void drop_extra_scrapers();

  void endpoint_added(const std::shared_ptr<const Endpoint>& endpoint) override;
  void endpoint_updated(const std::shared_ptr<const Endpoint>& before,
                        const std::shared_ptr<const Endpoint>& after) override;
  void endpoint_removed(const std::shared_ptr<const Endpoint>& endpoint) override;

  SharedKnowledge shared_;
  PoolSpec spec_;                   // written by reload(): other threads use pool_.name
  Document document_;               // of the policy in force
  std::optional<Document> former_;  // of the one before it
  uint64_t epoch_ = 0;
  WarmState warm_;  // what the pool's plugins learned, across policy epochs
  std::shared_ptr<io::TlsClientContext> engine_tls_;
  director::Pool pool_;
  discovery::Pool members_;
  discovery::PoolSink sink_;
  std::unique_ptr<signals::Scraper> scraper_;  // null: the configuration has no metrics source
  std::unique_ptr<discovery::ScraperFeed> feed_;
  struct ExtraScraper {
    std::unique_ptr<signals::Scraper> scraper;
    std::unique_ptr<discovery::ScraperFeed> feed;
  };
  std::vector<ExtraScraper> extra_scrapers_;  // one for each source whose pages hold no load signals
  std::vector<std::unique_ptr<discovery::FileDiscovery>> files_;
  std::unique_ptr<discovery::DnsDiscovery> dns_;
  std::shared_ptr<sharing::SharedPool> shared_pool_;  // null: nothing is shared
  std::atomic<bool> started_{false};
  std::atomic<bool> plain_http_{false};  // appProtocol is http

  // Policies that requests may still use: all of them hear that an endpoint left, and of objects.
  std::mutex epochs_mutex_;
  std::vector<std::weak_ptr<const director::Policy>> epochs_;
  ObjectFeeds objects_;  // the last member: it has them told
};

}  // namespace penstock::assembly
