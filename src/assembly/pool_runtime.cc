#include "assembly/pool_runtime.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "config/files.h"
#include "discovery/plugins.h"
#include "discovery/static_discovery.h"
#include "telemetry/log.h"

namespace penstock::assembly {

namespace {

// An engine names only adapters that have requests; for so long an idle one counts as loaded in strict mode.
constexpr Duration kStrictAdapterMemory = std::chrono::minutes(1);
// Between two fetches of a page that holds no load signals, where its source says nothing itself.
constexpr Duration kExtraInterval = std::chrono::seconds(1);

bool names_pool(const config::PoolRef& ref, const config::ObjectMeta& object, std::string_view ns,
                std::string_view name) {
  return ref.name == name && object.ns == ns;
}

director::RewriteObject rewrite_object(const config::InferenceModelRewrite& from) {
  director::RewriteObject out;
  out.name = from.meta.name;
  out.order = from.meta.creation_order;
  for (const auto& rule : from.rules) {
    director::RewriteObject::Rule to;
    to.models = rule.models;
    to.generic = rule.generic;
    for (const auto& target : rule.targets) to.targets.push_back({target.model, target.weight});
    out.rules.push_back(std::move(to));
  }
  return out;
}

template <typename T>
const T* find_plugin(const director::Policy& policy, std::string_view name) {
  for (const auto& plugin : policy.plugins) {
    if (plugin->name() == name) return dynamic_cast<const T*>(plugin.get());
  }
  return nullptr;
}

}  // namespace

std::shared_ptr<const director::PoolRules> pool_rules(const config::Manifests& manifests, std::string_view ns,
                                                      std::string_view name) {
  auto rules = std::make_shared<director::PoolRules>();
  std::vector<director::RewriteObject> rewrites;
  for (const auto& object : manifests.rewrites) {
    if (names_pool(object.pool, object.meta, ns, name)) rewrites.push_back(rewrite_object(object));
  }
  rules->rewrites = director::RewriteTable(std::move(rewrites));
  for (const auto& object : manifests.objectives) {
    if (names_pool(object.pool, object.meta, ns, name)) {
      rules->objective_priorities[object.meta.name] = object.priority.value_or(0);
    }
  }
  return rules;
}

PoolRuntime::PoolRuntime(const SharedKnowledge& shared, PoolSpec spec, int64_t decisions)
    : shared_(shared),
      spec_(std::move(spec)),
      pool_(spec_.settings.name, spec_.settings.ns, shared.request_metrics,
            director::DecisionLog::Options{shared.loops.size(), static_cast<size_t>(decisions)}),
      members_(
          discovery::PoolOptions{spec_.settings.name, spec_.settings.ns, spec_.selector, spec_.target_ports},
          shared.slots, shared.clock),
      sink_({&members_}),
      objects_(pool_.ns, [this] { objects_changed(); }) {}

Result<std::unique_ptr<PoolRuntime>> PoolRuntime::create(const SharedKnowledge& shared, PoolSpec spec,
                                                         int64_t decisions) {
  std::unique_ptr<PoolRuntime> runtime(new PoolRuntime(shared, std::move(spec), decisions));
  const config::EngineSettings& engine = runtime->spec_.settings.engine;
  io::TlsClientOptions tls;
  tls.verify = !engine.skip_verify;
  tls.ca_file = engine.ca_file;
  auto context = io::TlsClientContext::create(tls);
  if (!context.ok()) return context.error().wrap("pool " + runtime->spec_.settings.name);
  runtime->engine_tls_ = *context;
  runtime->pool_.rules.publish(std::make_shared<const director::PoolRules>());
  runtime->configure_pool();
  runtime->set_app_protocol(runtime->spec_.app_protocol);

  if (shared.replicas != nullptr) {
    runtime->shared_pool_ = shared.replicas->join(runtime->pool_.ns, runtime->pool_.name,
                                                  [pool = &runtime->members_] { return pool->snapshot(); });
  }
  auto document = read_document(runtime->spec_.settings);
  if (!document.ok()) return std::move(document).error();
  auto assembly = runtime->assemble_policy(*document, runtime->spec_.settings, 1);
  if (!assembly.ok()) return std::move(assembly).error();
  runtime->document_ = std::move(*document);
  const std::optional<config::DataLayerConfig> data_layer = assembly->effective.data_layer;
  if (Status status = runtime->publish(std::move(*assembly)); !status.ok()) return status.error();
  const std::shared_ptr<const director::Policy> policy = runtime->policy();
  if (Status status = runtime->make_scraper(*policy); !status.ok()) return status.error();

  // Discovery sources: those of the settings, and the one the configuration's data layer names.
  const config::DiscoverySettings& discovery = runtime->spec_.settings.discovery;
  if (!discovery.file.empty()) {
    discovery::FileDiscoveryOptions options;
    options.path = discovery.file;
    options.watch = discovery.watch_file;
    options.poll_interval = discovery.file_poll;
    options.tls_name = engine.server_name;
    runtime->files_.push_back(std::make_unique<discovery::FileDiscovery>(options, runtime->sink_));
  }
  if (data_layer && data_layer->discovery) {
    const auto* plugin = find_plugin<discovery::FileDiscoveryPlugin>(*policy, *data_layer->discovery);
    if (plugin == nullptr) {
      return invalid_config(
          fmt::format("discovery: no plugin found with name \"{}\"", *data_layer->discovery));
    }
    discovery::FileDiscoveryOptions options;
    options.path = plugin->params().path;
    options.watch = plugin->params().watch_file;
    options.metrics_labels = plugin->params().metrics_labels;
    runtime->files_.push_back(std::make_unique<discovery::FileDiscovery>(options, runtime->sink_));
  }
  if (!discovery.dns.name.empty()) {
    discovery::DnsDiscoveryOptions options;
    options.name = discovery.dns.name;
    options.port = discovery.dns.port;
    options.tls = discovery.dns.tls;
    options.tls_name = engine.server_name;
    options.ns = runtime->spec_.settings.ns;
    options.interval = discovery.dns.interval;
    options.timeout = discovery.dns.timeout;
    runtime->dns_ = std::make_unique<discovery::DnsDiscovery>(options, shared.loops.at(0), runtime->sink_);
  }
  return runtime;
}

PoolRuntime::~PoolRuntime() {
  stop();
}

Result<PoolRuntime::Document> PoolRuntime::read_document(const config::PoolSettings& settings) {
  Document document;
  document.allow_experimental = settings.allow_experimental_plugins;
  if (settings.config_inline) {
    document.inline_node = settings.config_inline;
    document.source = "config";
    return document;
  }
  document.source = settings.config_file.empty() ? "built-in configuration" : settings.config_file;
  if (settings.config_file.empty()) return document;
  auto loaded = config::load_config_text(settings.config_file);
  if (!loaded.ok()) return loaded.error().wrap(fmt::format("pool {}/{}", settings.ns, settings.name));
  document.text = std::move(*loaded);
  return document;
}

Result<Assembly> PoolRuntime::assemble_policy(const Document& document, const config::PoolSettings& settings,
                                              uint64_t epoch) {
  // The first policy is there before the client.
  const bool api_server = spec_.api_server && (epoch == 1 || objects_.uses_cluster());
  AssemblyOptions options{.tables = builtin_tables(),
                          .metrics = shared_.metrics,
                          .clock = shared_.clock,
                          .loops = shared_.loops.size(),
                          .allow_experimental = document.allow_experimental,
                          .scrape_interval = settings.metrics.interval,
                          .staleness = settings.metrics.staleness,
                          .epoch = epoch,
                          .warm = &warm_,
                          .outside = shared_.outside,
                          .told_endpoints = spec_.told_endpoints,
                          .api_server = api_server ? ApiServer::kAsked : ApiServer::kNone};
  auto assembly = document.inline_node ? assemble(*document.inline_node, options)
                                       : assemble(document.text, document.source, options);
  if (!assembly.ok()) {
    return assembly.error().wrap(fmt::format("pool {}/{}: {}", settings.ns, settings.name, document.source));
  }
  return assembly;
}

Status PoolRuntime::publish(Assembly assembly) {
  if (shared_pool_) {
    for (const auto& plugin : assembly.policy->plugins) {
      if (auto* producer = dynamic_cast<SharedPrefixes*>(plugin.get())) producer->tell(shared_pool_);
    }
  }
  std::shared_ptr<const director::Policy> policy = std::move(assembly.policy);
  for (const std::string& warning : policy->warnings) {
    telemetry::log_warn(warning, {{"pool", spec_.settings.name}});
  }
  for (const std::string& notice : assembly.notices) {
    telemetry::log_info(notice, {{"pool", spec_.settings.name}});
  }
  for (const AutoCreatedProducer& made : assembly.auto_created) {
    telemetry::log_info("auto-created default producer", {{"pool", spec_.settings.name},
                                                          {"producer", made.producer},
                                                          {"dataKey", made.data_key},
                                                          {"consumer", made.consumer}});
  }
  telemetry::log_info(
      "Instantiated all plugins and applied system defaults. Effective raw configuration",
      {{"pool", spec_.settings.name}, {"policy_epoch", policy->epoch}, {"config", policy->effective_config}});
  if (const auto* parser = policy->parsers->needs_http2();
      parser != nullptr && spec_.app_protocol == "http") {
    telemetry::log_warn(
        "the InferencePool says appProtocol http, and a parser's requests are gRPC: not healthy",
        {{"pool", spec_.settings.name}, {"parser", parser->name()}});
  }
  if (Status status = objects_.open(policy->plugins); !status.ok()) return status;
  epoch_ = policy->epoch;
  {
    const std::lock_guard lock(epochs_mutex_);
    std::erase_if(epochs_, [](const auto& weak) { return weak.expired(); });
    epochs_.push_back(policy);
    objects_.tell(policy->plugins);
    pool_.policy.publish(policy);
  }
  share_prefixes(policy);
  objects_.keep_only(policy->plugins);
  return {};
}

void PoolRuntime::share_prefixes(const std::shared_ptr<const director::Policy>& policy) const {
  if (!shared_pool_) return;
  std::vector<std::weak_ptr<const SharedPrefixes>> producers;
  for (const auto& plugin : policy->plugins) {
    if (const auto* producer = dynamic_cast<const SharedPrefixes*>(plugin.get()))
      producers.push_back(std::shared_ptr<const SharedPrefixes>(policy, producer));
  }
  shared_pool_->set_producers(std::move(producers));
}

void PoolRuntime::objects_changed() {
  const std::lock_guard lock(epochs_mutex_);
  for (const auto& weak : epochs_) {
    if (const auto policy = weak.lock()) objects_.tell(policy->plugins);
  }
}

void PoolRuntime::follow_objects(discovery::ObjectFollower& cluster) {
  objects_.use(cluster);
  const std::shared_ptr<const director::Policy> current = policy();
  static_cast<void>(objects_.open(current->plugins));  // files are open already
  const std::lock_guard lock(epochs_mutex_);
  objects_.tell(current->plugins);
}

std::optional<std::string> PoolRuntime::plugin_state(const Plugin& plugin) const {
  const auto* source = dynamic_cast<const discovery::ObjectSourcePlugin*>(&plugin);
  return source != nullptr ? objects_.state_json(*source) : plugin.dump_state();
}

PoolRuntime::ScrapePlan PoolRuntime::scrape_plan(const director::Policy& policy) const {
  const config::PoolSettings& settings = spec_.settings;
  signals::ScrapeSettings common;
  common.interval = settings.metrics.interval;
  common.deadline = settings.metrics.timeout;
  common.sleep_probe = settings.metrics.sleep_probe;
  if (!settings.engine.authorization.empty()) {
    common.headers.emplace_back("authorization", settings.engine.authorization);
  }
  common.engine_tls = engine_tls_;
  common.tls_name = settings.engine.server_name;
  ScrapePlan plan;
  plan.main = common;
  for (const director::Policy::MetricsSource& source : policy.sources) {
    const auto* metrics = dynamic_cast<const signals::MetricsDataSource*>(source.source);
    if (metrics == nullptr) continue;
    signals::ScrapeSettings scrape = common;
    scrape.source = metrics->params();
    scrape.source_type = metrics->type();
    if (scrape.source.interval > Duration(0)) scrape.interval = scrape.source.interval;
    const signals::CoreMetricsExtractor* core = nullptr;
    for (const Plugin* extractor : source.extractors) {
      if (const auto* pages = dynamic_cast<const signals::PageExtractor*>(extractor)) {
        scrape.sinks.push_back(pages->sink());
        scrape.extractor_type = pages->type();
      }
      if (const auto* c = dynamic_cast<const signals::CoreMetricsExtractor*>(extractor)) core = c;
    }
    if (core != nullptr && plan.engines) {
      telemetry::log_warn("a second metrics source is ignored: one page holds every signal of an endpoint",
                          {{"pool", settings.name}, {"source", source.source->name()}});
      if (const auto* pages = dynamic_cast<const signals::PageExtractor*>(core))
        std::erase(scrape.sinks, pages->sink());
      core = nullptr;
    }
    if (core != nullptr) {
      scrape.extractor_type = core->type();
      if (policy.strict) scrape.adapter_memory = kStrictAdapterMemory;
      plan.engines =
          core->engines(policy.strict ? signals::SeriesMode::kStrict : signals::SeriesMode::kCompatible);
      plan.main = std::move(scrape);
    } else if (!scrape.sinks.empty()) {
      if (scrape.source.interval <= Duration(0)) scrape.interval = std::max(scrape.interval, kExtraInterval);
      scrape.writes_signals = false;
      plan.extra.push_back(std::move(scrape));
    }
  }
  return plan;
}

std::unique_ptr<signals::Scraper> PoolRuntime::new_scraper(signals::EngineTable engines,
                                                           signals::ScrapeSettings settings) {
  return std::make_unique<signals::Scraper>(spec_.settings.name, shared_.loops, shared_.signals,
                                            shared_.metrics, shared_.clock, std::move(engines),
                                            std::move(settings));
}

Status PoolRuntime::make_extra_scrapers(std::vector<signals::ScrapeSettings> wanted) {
  for (signals::ScrapeSettings& settings : wanted) {
    auto none = signals::EngineTable::build({}, signals::kDefaultEngine, signals::kEngineLabel,
                                            signals::SeriesMode::kCompatible);
    if (!none.ok()) return std::move(none).error();
    auto scraper = new_scraper(std::move(none).value(), std::move(settings));
    if (Status status = scraper->check(); !status.ok()) return status;
    auto feed = std::make_unique<discovery::ScraperFeed>(*scraper);
    extra_scrapers_.push_back({std::move(scraper), std::move(feed)});
  }
  return {};
}

void PoolRuntime::listen_for_extra_scrapers() {
  for (ExtraScraper& extra : extra_scrapers_) members_.add_listener(extra.feed.get());
}

void PoolRuntime::drop_extra_scrapers() {
  for (ExtraScraper& extra : extra_scrapers_) {
    members_.remove_listener(extra.feed.get());
    extra.scraper->stop();
  }
  extra_scrapers_.clear();
}

Status PoolRuntime::make_scraper(const director::Policy& policy) {
  ScrapePlan plan = scrape_plan(policy);
  if (!plan.engines) {
    telemetry::log_info("No data sources configured; metrics collection is disabled",
                        {{"pool", spec_.settings.name}});
  } else {
    scraper_ = new_scraper(std::move(*plan.engines), std::move(plan.main));
    feed_ = std::make_unique<discovery::ScraperFeed>(*scraper_);
    if (Status status = scraper_->check(); !status.ok()) return status;
  }
  return make_extra_scrapers(std::move(plan.extra));
}

Status PoolRuntime::start() {
  started_ = true;
  members_.add_listener(this);
  if (feed_) members_.add_listener(feed_.get());
  listen_for_extra_scrapers();
  shared_.pool_metrics.add_pool(pool_.ns, pool_.name, [this] { return members_.snapshot(); });
  const config::DiscoverySettings& discovery = spec_.settings.discovery;
  if (!discovery.static_urls.empty()) {
    auto endpoints = discovery::static_endpoints(discovery.static_urls, spec_.settings.engine.server_name);
    if (!endpoints.ok()) return endpoints.error();
    sink_.endpoints("static", *endpoints);
  }
  for (const auto& file : files_) {
    if (Status status = file->start(); !status.ok()) return status;
  }
  if (dns_) dns_->start();
  return objects_.start();
}

void PoolRuntime::stop() {
  if (shared_pool_) shared_pool_->leave();
  if (!started_.exchange(false)) return;
  if (dns_) dns_->stop();
  for (const auto& file : files_) file->stop();
  objects_.close();
  shared_.pool_metrics.remove_pool(pool_.ns, pool_.name);
  if (feed_) members_.remove_listener(feed_.get());
  members_.remove_listener(this);
  if (scraper_) scraper_->stop();
  drop_extra_scrapers();
}

Status PoolRuntime::reload(PoolSpec spec) {
  auto document = read_document(spec.settings);
  if (!document.ok()) return std::move(document).error();
  auto assembly = assemble_policy(*document, spec.settings, epoch_ + 1);
  if (!assembly.ok()) return std::move(assembly).error();
  if (Status status = engine_tls_->reload(); !status.ok()) return status;
  return take(std::move(spec), std::move(*document), std::move(*assembly));
}

Status PoolRuntime::rollback() {
  if (!former_) {
    return Error{ErrorCode::kNotFound,
                 fmt::format("pool {}/{} has had no other configuration", pool_.ns, pool_.name)};
  }
  auto assembly = assemble_policy(*former_, spec_.settings, epoch_ + 1);
  if (!assembly.ok()) return std::move(assembly).error();
  const uint64_t was = epoch_;
  if (Status status = take(spec_, *former_, std::move(*assembly)); !status.ok()) return status;
  telemetry::log_warn("rolled back to the former configuration; the next reload takes what the files say",
                      {{"pool", pool_.name}, {"was", was}, {"policy_epoch", epoch_}});
  return {};
}

Status PoolRuntime::take(PoolSpec spec, Document document, Assembly assembly) {
  if (Status status = objects_.open(assembly.policy->plugins); !status.ok()) return status;
  const PoolSpec former = std::exchange(spec_, std::move(spec));
  // Where endpoints come from is part of a pool's identity: it stays as it was started.
  if (!(spec_.settings.discovery == former.settings.discovery)) {
    telemetry::log_warn("discovery has changed and is not taken by a reload; restart for it",
                        {{"pool", spec_.settings.name}});
  }
  spec_.settings.discovery = former.settings.discovery;
  spec_.api_server = former.api_server;
  set_app_protocol(spec_.app_protocol);
  configure_pool();
  ScrapePlan plan = scrape_plan(*assembly.policy);
  if (scraper_ && plan.engines) {
    if (Status status = scraper_->configure(std::move(*plan.engines), std::move(plan.main)); !status.ok()) {
      spec_ = former;
      set_app_protocol(spec_.app_protocol);
      configure_pool();
      return status;
    }
  }
  if (!plan.extra.empty() || !extra_scrapers_.empty()) {
    drop_extra_scrapers();
    if (Status status = make_extra_scrapers(std::move(plan.extra)); !status.ok()) {
      telemetry::log_error("a data source cannot be used",
                           {{"pool", spec_.settings.name}, {"error", status.error().message}});
    }
    listen_for_extra_scrapers();
  }
  // A policy that would be the same stays, with what its plugins have learnt.
  const bool another = assembly.policy->effective_config != policy()->effective_config;
  const bool retimed = spec_.settings.metrics.interval != former.settings.metrics.interval ||
                       spec_.settings.metrics.staleness != former.settings.metrics.staleness;
  if (another || retimed) {
    if (Status status = publish(std::move(assembly)); !status.ok()) return status;
    // Other times are no other configuration to go back to.
    if (another) former_ = std::exchange(document_, std::move(document));
  }
  if (spec_.selector != former.selector || spec_.target_ports != former.target_ports) {
    for (const std::string& problem : members_.reconfigure(spec_.selector, spec_.target_ports)) {
      telemetry::log_warn(problem, {{"pool", spec_.settings.name}});
    }
  }
  return {};
}

Status PoolRuntime::refresh_discovery() {
  Status first;
  for (const auto& file : files_) {
    if (Status status = file->reload(); !status.ok() && first.ok()) first = status;
  }
  if (Status status = objects_.reload(); !status.ok() && first.ok()) first = status;
  if (dns_) dns_->refresh();
  return first;
}

void PoolRuntime::configure_pool() {
  config::OutlierDetectionSettings settings = spec_.settings.outlier_detection;
  settings.enabled = settings.enabled.value_or(true);
  pool_.health.configure(settings);
  pool_.responses.configure(spec_.settings.sticky_responses);
}

void PoolRuntime::set_rules(std::shared_ptr<const director::PoolRules> rules) {
  for (const std::string_view model : rules->rewrites.model_names()) shared_.request_metrics.pin_model(model);
  if (rules->rewrites.has_mixed_weights()) {
    telemetry::log_warn(
        "model rewrite target weights are mixed; targets without weights will not be selected",
        {{"pool", pool_.name}});
  }
  pool_.rules.publish(std::move(rules));
}

bool PoolRuntime::protocol_ok() const {
  return !plain_http_ || policy()->parsers->needs_http2() == nullptr;
}

void PoolRuntime::set_app_protocol(std::string_view protocol) {
  plain_http_ = protocol == "http";
}

bool PoolRuntime::ready() const {
  return started_ && (!scraper_ || scraper_->all_tried());
}

void PoolRuntime::endpoint_added(const std::shared_ptr<const Endpoint>& endpoint) {
  telemetry::log_info("endpoint added",
                      {{"pool", pool_.name}, {"endpoint", endpoint->id}, {"address", endpoint->host_port}});
}

void PoolRuntime::endpoint_updated(const std::shared_ptr<const Endpoint>& before,
                                   const std::shared_ptr<const Endpoint>& now) {
  if (before->draining == now->draining) return;
  telemetry::log_info(
      now->draining ? "endpoint drains, it gets requests of its sessions only" : "endpoint drains no longer",
      {{"pool", pool_.name}, {"endpoint", now->id}});
}

void PoolRuntime::endpoint_removed(const std::shared_ptr<const Endpoint>& endpoint) {
  telemetry::log_info("endpoint removed", {{"pool", pool_.name}, {"endpoint", endpoint->id}});
  pool_.health.removed(*endpoint);
  const std::lock_guard lock(epochs_mutex_);
  for (const auto& weak : epochs_) {
    if (const auto policy = weak.lock()) {
      for (const EndpointObserver* observer : policy->endpoint_observers)
        observer->endpoint_removed(*endpoint);
    }
  }
}

}  // namespace penstock::assembly
