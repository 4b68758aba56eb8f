#include "signals/scraper.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "base/hash.h"
#include "io/http_client.h"
#include "io/net.h"
#include "signals/sleep_probe.h"
#include "telemetry/log.h"

namespace penstock::signals {

namespace {

constexpr double kScrapeSeconds[] = {.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5};
constexpr Duration kFirstWithin = std::chrono::milliseconds(50);
constexpr Duration kShortestPause = std::chrono::milliseconds(1);
constexpr Duration kProbeInterval = std::chrono::seconds(1);
// Of an engine that doesn't know what it is asked.
constexpr Duration kProbePause = std::chrono::minutes(1);
constexpr Duration kStopWithin = std::chrono::seconds(5);

enum class Failure : uint8_t { kNone, kConnect, kTimeout, kStatus, kBody, kTooLarge };

std::string_view failure_name(Failure failure) {
  switch (failure) {
    case Failure::kNone:
      return "none";
    case Failure::kConnect:
      return "connect";
    case Failure::kTimeout:
      return "timeout";
    case Failure::kStatus:
      return "status";
    case Failure::kBody:
      return "body";
    case Failure::kTooLarge:
      return "too_large";
  }
  return "none";
}

// How a scrape ended; `text` in the reference's words.
struct Outcome {
  Failure failure = Failure::kNone;
  std::string text;
  bool cancelled = false;
  TimePoint observed_at = kNever;
};

// One deadline over a whole call, whatever comes in between: its timer cancels it. On the loop, around the
// call.
class Deadline {
 public:
  Deadline(io::Loop& loop, Duration within, const io::CancelToken& outer) : timer_(loop) {
    source_.follow(outer);
    timer_.arm(
        within,
        [](void* context) {
          auto* self = static_cast<Deadline*>(context);
          self->passed_ = true;
          self->source_.cancel();
        },
        this);
  }
  Deadline(const Deadline&) = delete;
  Deadline& operator=(const Deadline&) = delete;
  io::CancelToken token() const { return source_.token(); }
  bool passed() const { return passed_; }

 private:
  io::CancelSource source_;
  bool passed_ = false;
  io::Timer timer_;
};

bool given_tls(const MetricsSourceParams& p) {
  return p.scheme == "https" || p.insecure_skip_verify_given || !p.ca_cert_path.empty() ||
         !p.client_cert_path.empty();
}

std::string names_of(const SignalRule& rule) {
  std::string out;
  for (const MetricSpec& spec : rule.names) {
    if (!out.empty()) out += ", ";
    out += spec.text();
  }
  return out;
}

}  // namespace

Duration ScrapePace::first(const ScrapeSettings& settings, Random& random) {
  const Duration within = std::min(settings.interval, kFirstWithin);
  return Duration(static_cast<int64_t>(random.uniform() * static_cast<double>(within.count())));
}

Duration ScrapePace::next(const ScrapeSettings& settings, uint32_t failures, Random& random) {
  double ns = static_cast<double>(settings.interval.count());
  if (failures > settings.down_after) {
    const uint32_t doublings = std::min<uint32_t>(failures - settings.down_after, 30);
    ns *= static_cast<double>(uint64_t{1} << doublings);
    // An interval above the bound is no back-off and stays.
    ns = std::min(ns, static_cast<double>(std::max(settings.max_backoff, settings.interval).count()));
  }
  ns *= 1 + settings.jitter * (2 * random.uniform() - 1);
  return Duration(static_cast<int64_t>(ns));
}

struct Scraper::Config {
  Config(EngineTable table, ScrapeSettings s) : engines(std::move(table)), settings(std::move(s)) {}
  CompiledEngines engines;
  ScrapeSettings settings;
  std::shared_ptr<io::TlsClientContext> tls;
};

// What tasks need, held by each of them: nothing here goes while one runs.
struct Scraper::Shared {
  Shared(std::string pool_name, SignalTable& t, telemetry::MetricRegistry& metrics, const Clock& c)
      : pool(std::move(pool_name)),
        table(t),
        clock(c),
        poll_errors(metrics.counter(
            {.name = "llm_d_epp_datalayer_poll_errors_total",
             .help = "[ALPHA] Total number of errors encountered while polling a data source.",
             .labels = {"source_type"},
             .twins = {{.name = "llm_d_inference_scheduler_datalayer_poll_errors_total",
                        .labels = {{"source_type", ""}}}}})),
        extract_errors(
            metrics.counter({.name = "llm_d_epp_datalayer_extract_errors_total",
                             .help = "[ALPHA] Total number of errors encountered while extracting data.",
                             .labels = {"source_type", "extractor_type"},
                             .twins = {{.name = "llm_d_inference_scheduler_datalayer_extract_errors_total",
                                        .labels = {{"source_type", ""}, {"extractor_type", ""}}}}})),
        durations(metrics
                      .histogram({.name = "penstock_scrape_duration_seconds",
                                  .help = "Time from connecting to the last byte of a metrics page.",
                                  .labels = {"pool"},
                                  .bounds = kScrapeSeconds})
                      .with({pool})),
        failures(metrics.counter({.name = "penstock_scrape_failures_total",
                                  .help = "Scrapes that gave no page, by reason: connect, timeout, status, "
                                          "body, too_large.",
                                  .labels = {"pool", "reason"}})),
        malformed_lines(metrics
                            .counter({.name = "penstock_scrape_malformed_lines_total",
                                      .help = "Lines of wanted metrics that could not be read.",
                                      .labels = {"pool"}})
                            .with({pool})),
        dropped_adapters(metrics
                             .counter({.name = "penstock_lora_adapters_dropped_total",
                                       .help = "LoRA adapters an endpoint named beyond what one row holds.",
                                       .labels = {"pool"}})
                             .with({pool})) {}

  std::shared_ptr<const Config> config() const {
    const std::lock_guard lock(config_mutex);
    return current;
  }

  const std::string pool;
  SignalTable& table;
  const Clock& clock;
  telemetry::Family<telemetry::Counter>& poll_errors;
  telemetry::Family<telemetry::Counter>& extract_errors;
  telemetry::Histogram& durations;
  telemetry::Family<telemetry::Counter>& failures;
  telemetry::Counter& malformed_lines;
  telemetry::Counter& dropped_adapters;

  mutable std::mutex config_mutex;
  std::shared_ptr<const Config> current;
  std::vector<std::shared_ptr<Shard>> shards;

  std::mutex live_mutex;
  std::condition_variable none_live;
  size_t live = 0;
};

// The client of one loop, made with its first task and closed with its last. Used on that loop only.
struct Scraper::Shard {
  explicit Shard(io::Loop& l) : loop(l) {}
  io::Loop& loop;
  std::unique_ptr<io::HttpClient> client;
  size_t users = 0;

  class Use {
   public:
    explicit Use(Shard& shard) : shard_(shard) {
      if (shard_.users++ == 0)
        shard_.client = std::make_unique<io::HttpClient>(
            shard_.loop, io::HttpClientOptions{.max_idle_per_destination = 2});
    }
    Use(const Use&) = delete;
    Use& operator=(const Use&) = delete;
    ~Use() {
      if (--shard_.users == 0) shard_.client.reset();
    }

   private:
    Shard& shard_;
  };
};

// One endpoint's task and what it remembers. All but `tried`, `retired` and `engine` belongs to the shard's
// loop.
struct Scraper::Target {
  Target(std::shared_ptr<Shared> s, std::shared_ptr<Shard> sh, std::shared_ptr<const Endpoint> e,
         SignalTable::Ticket t)
      : shared(std::move(s)),
        shard(std::move(sh)),
        endpoint(std::move(e)),
        ticket(t),
        random(hash_of(endpoint->id) ^
               static_cast<uint64_t>(shared->clock.now().time_since_epoch().count())) {
    const std::lock_guard lock(shared->live_mutex);
    ++shared->live;
  }
  ~Target() {
    const std::lock_guard lock(shared->live_mutex);
    if (--shared->live == 0) shared->none_live.notify_all();
  }

  static io::Task<void> run(std::shared_ptr<Target> self);
  io::Task<Outcome> scrape(const io::HttpDestination& destination);
  io::Task<Outcome> exchange(const io::HttpDestination& destination, const io::HttpRequest& request,
                             const io::HttpCallOptions& options);
  Result<io::HttpDestination> destination() const;
  // Asks whether the engine sleeps; nothing: no answer that says so.
  io::Task<std::optional<bool>> probe_sleep();
  void note_sleep(std::optional<bool> asleep);
  void adopt_config();
  void begin_round();
  void succeeded(const Outcome& outcome);
  // Calls `tell(PageSink&)` for each, unless the task has retired.
  template <typename Tell>
  void tell_sinks(Tell&& tell);
  // From any thread: the sinks hear nothing of this task any more.
  void retire();
  void failed(const Outcome& outcome);
  void note_recovery();
  void log_names(const Reading& reading, uint32_t missing);

  const std::shared_ptr<Shared> shared;
  const std::shared_ptr<Shard> shard;
  std::shared_ptr<const Endpoint> endpoint;
  const SignalTable::Ticket ticket;
  Random random;
  io::CancelSource cancel;
  std::shared_ptr<const Config> config;
  std::unique_ptr<PageReader> reader;
  std::string page;                         // whole, for the sinks
  const EngineMapping* detected = nullptr;  // of `config`
  SignalRow row;
  UnseenRequests::Round round = 0;  // begun with the scrape under way, or with the first one that failed
  AdapterMemory adapters;
  uint32_t failures = 0;
  Failure last_failure = Failure::kNone;
  uint32_t missing = 0;
  uint32_t missing_logged = 0;
  bool page_tells_sleep = false;
  TimePoint probe_at = kNever;

  // Between a page and the end of the task: the page comes before the sinks' gone(), or not at all.
  std::mutex sinks_mutex;
  bool retired = false;

  std::atomic<bool> tried{false};
  mutable std::mutex engine_mutex;
  std::string engine;
};

void Scraper::Target::adopt_config() {
  std::shared_ptr<const Config> newest = shared->config();
  if (newest == config) return;
  config = std::move(newest);
  detected = nullptr;
  reader = std::make_unique<PageReader>(config->engines, config->settings.max_page_bytes);
}

// After a failed scrape the round goes on: what was sent in it is still to be shown.
void Scraper::Target::begin_round() {
  if (!config->settings.writes_signals || failures != 0 || endpoint->live == nullptr) return;
  round = endpoint->live->unseen.begin_round();
}

io::Task<void> Scraper::Target::run(std::shared_ptr<Target> self) {
  const Shard::Use use(*self->shard);
  io::Loop& loop = self->shard->loop;
  self->cancel.follow(loop.shutdown_token());
  self->adopt_config();
  Duration pause = ScrapePace::first(self->config->settings, self->random);
  while (co_await loop.sleep(pause, self->cancel.token())) {
    self->adopt_config();
    const TimePoint begin = self->shared->clock.now();
    auto where = self->destination();
    self->begin_round();
    Outcome outcome{Failure::kConnect, where.ok() ? std::string() : where.error().message};
    if (where.ok()) outcome = co_await self->scrape(*where);
    if (outcome.cancelled || self->cancel.cancelled()) break;
    const Duration took = self->shared->clock.now() - begin;
    if (outcome.failure == Failure::kNone) {
      self->shared->durations.observe(to_seconds(took));
      self->succeeded(outcome);
    } else {
      self->failed(outcome);
    }
    if (outcome.failure == Failure::kNone && self->config->settings.sleep_probe &&
        self->config->settings.writes_signals && !self->page_tells_sleep && begin >= self->probe_at) {
      std::optional<bool> asleep = co_await self->probe_sleep();
      if (self->cancel.cancelled()) break;
      self->note_sleep(asleep);
      self->probe_at = begin + (asleep ? kProbeInterval : kProbePause);
    }
    self->tried.store(true, std::memory_order_release);
    pause = ScrapePace::next(self->config->settings, self->failures, self->random);
    pause = std::max(kShortestPause, pause - (self->shared->clock.now() - begin));
  }
  if (const auto where = self->destination(); where.ok()) self->shard->client->drop_idle(*where);
}

Result<io::HttpDestination> Scraper::Target::destination() const {
  const MetricsSourceParams& source = config->settings.source;
  io::HttpDestination out;
  if (source.port != 0) {
    out.host = endpoint->address;
    out.port = static_cast<uint16_t>(source.port);
  } else {
    auto where = io::parse_host_port(endpoint->metrics_host);
    if (!where.ok()) return std::move(where).error();
    out.host = std::move(where->host);
    out.port = where->port;
  }
  const bool https = source.scheme_given ? source.scheme == "https" : endpoint->tls;
  if (https) {
    out.tls = config->tls;
    out.server_name = endpoint->tls_name.empty() ? config->settings.tls_name : endpoint->tls_name;
  }
  return out;
}

io::Task<std::optional<bool>> Scraper::Target::probe_sleep() {
  io::HttpDestination where;
  where.host = endpoint->address;
  where.port = endpoint->port;
  if (endpoint->tls) {
    where.tls = config->tls;
    where.server_name = endpoint->tls_name.empty() ? config->settings.tls_name : endpoint->tls_name;
  }
  std::vector<io::HeaderField> fields;
  for (const auto& [name, value] : config->settings.headers) fields.push_back({name, value});
  const io::HttpRequest request{.method = "GET", .target = kSleepProbePath, .fields = fields};
  io::HttpCallOptions options;
  const Deadline deadline(shard->loop, config->settings.deadline, cancel.token());
  options.connect_timeout = config->settings.deadline;
  options.token = deadline.token();
  options.fresh_connection = true;  // an idle one may have been closed by the engine
  auto call = co_await shard->client->start(where, request, options);
  if (!call.ok()) co_return std::nullopt;
  auto head = co_await call->response();
  if (!head.ok() || (*head)->status != 200) co_return std::nullopt;
  auto answer = co_await call->read_all(kMaxSleepAnswer);
  if (!answer.ok()) co_return std::nullopt;
  co_return parse_sleep_answer({answer->data(), answer->size()});
}

void Scraper::Target::note_sleep(std::optional<bool> asleep) {
  const bool sleeps = asleep.value_or(false);
  if (endpoint->live == nullptr) return;
  if (endpoint->live->asleep.exchange(sleeps, std::memory_order_relaxed) == sleeps) return;
  telemetry::log_info(sleeps ? "the engine sleeps, it gets no requests" : "the engine is awake",
                      {{"pool", shared->pool}, {"endpoint", endpoint->id}});
}

io::Task<Outcome> Scraper::Target::scrape(const io::HttpDestination& destination) {
  const ScrapeSettings& settings = config->settings;
  const Deadline deadline(shard->loop, settings.deadline, cancel.token());
  std::vector<io::HeaderField> fields;
  fields.reserve(settings.headers.size());
  for (const auto& [name, value] : settings.headers) fields.push_back({name, value});
  const io::HttpRequest request{.method = "GET", .target = settings.source.path, .fields = fields};
  io::HttpCallOptions options;
  options.connect_timeout = settings.deadline;
  options.token = deadline.token();
  Outcome outcome = co_await exchange(destination, request, options);
  if (deadline.passed() && outcome.failure != Failure::kNone) {
    outcome = {Failure::kTimeout,
               fmt::format("failed to fetch data from {}: no complete answer within {} ms", endpoint->id,
                           static_cast<int64_t>(to_millis(settings.deadline)))};
  }
  co_return outcome;
}

io::Task<Outcome> Scraper::Target::exchange(const io::HttpDestination& destination,
                                            const io::HttpRequest& request,
                                            const io::HttpCallOptions& options) {
  const auto broken = [&](Failure failure, const Error& error) {
    return Outcome{failure, fmt::format("failed to fetch data from {}: {}", endpoint->id, error.message),
                   error.code == ErrorCode::kCancelled};
  };
  io::HttpCallOptions attempt = options;
  for (int tries = 0;; ++tries) {
    auto call = co_await shard->client->start(destination, request, attempt);
    if (!call.ok()) co_return broken(Failure::kConnect, call.error());
    auto head = co_await call->response();
    if (!head.ok()) {
      // The engine had closed an idle connection: that says nothing about the engine.
      if (tries == 0 && call->failed_stale()) {
        attempt.fresh_connection = true;
        continue;
      }
      co_return broken(Failure::kBody, head.error());
    }
    if ((*head)->status != 200) {
      const int status = (*head)->status;
      const bool denied = status == 401 || status == 403;
      co_return Outcome{Failure::kStatus, fmt::format("unexpected status code from {}: {}{}", endpoint->id,
                                                      status, denied ? " (credentials refused)" : "")};
    }
    if (const auto encoding = (*head)->fields.get("content-encoding");
        !encoding.empty() && encoding != "identity") {
      co_return Outcome{Failure::kBody,
                        fmt::format("failed to fetch data from {}: content-encoding {} was not asked for",
                                    endpoint->id, encoding)};
    }
    const TimePoint observed_at = shared->clock.now();
    const EngineTable& engines = config->engines.table();
    reader->begin(engines.may_detect(*endpoint) ? detected : &engines.for_endpoint(*endpoint));
    page.clear();
    const bool keeps_page = !config->settings.sinks.empty();
    while (true) {
      auto piece = co_await call->read();
      if (!piece.ok()) co_return broken(Failure::kBody, piece.error());
      if (keeps_page) page.append(piece->data);
      const bool fits = config->settings.writes_signals ? reader->feed(piece->data)
                                                        : page.size() <= config->settings.max_page_bytes;
      if (!fits) {
        co_return Outcome{Failure::kTooLarge,
                          fmt::format("failed to fetch data from {}: the page is larger than {} bytes",
                                      endpoint->id, config->settings.max_page_bytes)};
      }
      if (piece->last) co_return Outcome{.observed_at = observed_at};
    }
  }
}

void Scraper::Target::succeeded(const Outcome& outcome) {
  const ScrapeSettings& settings = config->settings;
  const auto show_page = [&](std::string_view whose) {
    tell_sinks([&](PageSink& sink) { sink.page(*endpoint, whose, page, outcome.observed_at); });
  };
  if (!settings.writes_signals) {
    show_page("");
    note_recovery();
    return;
  }
  Reading reading = reader->finish();
  show_page(reading.engine->name);
  if (reading.engine->name != engine) {
    const std::lock_guard lock(engine_mutex);
    engine = reading.engine->name;
  }
  const bool any_found = std::any_of(reading.signals.begin(), reading.signals.end(), [](const auto& v) {
    return v.found == Reading::Found::kValue || v.found == Reading::Found::kNotANumber;
  });
  if (config->engines.table().may_detect(*endpoint)) detected = any_found ? reading.engine : nullptr;
  adapters.apply(reading.running, settings.adapter_memory, outcome.observed_at);
  if (!reading.running.empty()) reading.lora_found = true;

  page_tells_sleep = reading.asleep.has_value();
  if (page_tells_sleep || !settings.sleep_probe) note_sleep(reading.asleep);

  missing = apply_reading(reading, row, outcome.observed_at);
  row.shown_round = round;
  shared->table.write(ticket, row, shared->clock.now());
  if (!reading.errors.empty())
    shared->extract_errors.with({settings.source_type, settings.extractor_type}).add();
  if (reading.stats.malformed > 0) shared->malformed_lines.add(reading.stats.malformed);
  if (reading.dropped_adapters > 0) shared->dropped_adapters.add(reading.dropped_adapters);
  note_recovery();
  log_names(reading, missing);
}

template <typename Tell>
void Scraper::Target::tell_sinks(Tell&& tell) {
  const auto& sinks = config->settings.sinks;
  if (sinks.empty()) return;
  const std::lock_guard lock(sinks_mutex);
  if (retired) return;
  for (const auto& sink : sinks) tell(*sink);
}

void Scraper::Target::retire() {
  const std::lock_guard lock(sinks_mutex);
  retired = true;
}

void Scraper::Target::note_recovery() {
  if (failures > 0) {
    telemetry::log_info("scrape works again",
                        {{"pool", shared->pool}, {"endpoint", endpoint->id}, {"failures", failures}});
  }
  failures = 0;
  last_failure = Failure::kNone;
}

void Scraper::Target::log_names(const Reading& reading, uint32_t now_missing) {
  if (now_missing == missing_logged) return;
  for (size_t s = 0; s < kSignalCount; ++s) {
    const uint32_t bit = 1U << s;
    if ((now_missing & bit) == (missing_logged & bit)) continue;
    const std::string_view signal = signal_name(static_cast<Signal>(s));
    if ((now_missing & bit) != 0) {
      telemetry::log_warn("engine does not export a required metric",
                          {{"pool", shared->pool},
                           {"endpoint", endpoint->id},
                           {"signal", signal},
                           {"engine", reading.engine->name},
                           {"looked_for", names_of(reading.engine->rules[s])}});
    } else {
      telemetry::log_info("required metric is there again",
                          {{"pool", shared->pool}, {"endpoint", endpoint->id}, {"signal", signal}});
    }
  }
  missing_logged = now_missing;
}

void Scraper::Target::failed(const Outcome& outcome) {
  const ScrapeSettings& settings = config->settings;
  ++failures;
  shared->poll_errors.with({settings.source_type}).add();
  shared->failures.with({shared->pool, failure_name(outcome.failure)}).add();
  const bool goes_down = failures == settings.down_after;
  if (goes_down) tell_sinks([&](PageSink& sink) { sink.down(endpoint->slot); });
  if (goes_down && settings.writes_signals) {
    mark_down(row);
    shared->table.write(ticket, row, shared->clock.now());
    note_sleep(std::nullopt);
  }
  if (goes_down || outcome.failure != last_failure) {
    telemetry::log_warn(goes_down ? "scrapes keep failing, signals read endpoint_down" : "scrape failed",
                        {{"pool", shared->pool},
                         {"endpoint", endpoint->id},
                         {"failures", failures},
                         {"error", outcome.text}});
  }
  last_failure = outcome.failure;
}

Result<std::shared_ptr<const Scraper::Config>> Scraper::make_config(EngineTable engines,
                                                                    ScrapeSettings settings) {
  settings.interval = std::max(settings.interval, kMinScrapeInterval);
  auto config = std::make_shared<Config>(std::move(engines), std::move(settings));
  const MetricsSourceParams& source = config->settings.source;
  if (given_tls(source) || !config->settings.engine_tls) {
    auto tls = io::TlsClientContext::create({.verify = !source.insecure_skip_verify,
                                             .ca_file = source.ca_cert_path,
                                             .certificate_file = source.client_cert_path,
                                             .key_file = source.client_key_path});
    if (!tls.ok()) return tls.error().wrap("data source '" + config->settings.source_type + "'");
    config->tls = std::move(tls).value();
  } else {
    config->tls = config->settings.engine_tls;
  }
  return std::shared_ptr<const Config>(std::move(config));
}

Scraper::Scraper(std::string pool, io::LoopGroup& loops, SignalTable& table,
                 telemetry::MetricRegistry& metrics, const Clock& clock, EngineTable engines,
                 ScrapeSettings settings)
    : pool_(std::move(pool)),
      loops_(loops),
      table_(table),
      clock_(clock),
      shared_(std::make_shared<Shared>(pool_, table, metrics, clock)) {
  for (size_t i = 0; i < loops_.size(); ++i) shared_->shards.push_back(std::make_shared<Shard>(loops_.at(i)));
  checked_ = configure(std::move(engines), std::move(settings));
}

Scraper::~Scraper() {
  stop();
}

Status Scraper::configure(EngineTable engines, ScrapeSettings settings) {
  auto config = make_config(std::move(engines), std::move(settings));
  if (!config.ok()) return std::move(config).error();
  const std::lock_guard lock(shared_->config_mutex);
  shared_->current = std::move(config).value();
  return {};
}

Status Scraper::check() const {
  return checked_;
}

void Scraper::add(const std::shared_ptr<const Endpoint>& endpoint) {
  if (!shared_->config()) return;  // check() has the reason
  SignalTable::Ticket ticket;
  for (const auto& sink : shared_->config()->settings.sinks) sink->attached(*endpoint);
  if (shared_->config()->settings.writes_signals) ticket = table_.attach(endpoint->slot, clock_.now());
  const auto& shard = shared_->shards[endpoint->slot % shared_->shards.size()];
  auto target = std::make_shared<Target>(shared_, shard, endpoint, ticket);
  {
    const std::lock_guard lock(mutex_);
    targets_[endpoint->slot] = target;
  }
  shard->loop.post(
      [target = std::move(target), &loop = shard->loop] { io::spawn(loop, Target::run(target)); });
}

void Scraper::update(const std::shared_ptr<const Endpoint>& before,
                     const std::shared_ptr<const Endpoint>& after) {
  if (before->metrics_host != after->metrics_host || before->address != after->address ||
      before->tls != after->tls || before->tls_name != after->tls_name) {
    remove(*before);
    add(after);
    return;
  }
  const std::lock_guard lock(mutex_);
  const auto it = targets_.find(after->slot);
  if (it == targets_.end()) return;
  it->second->shard->loop.post([target = it->second, after] { target->endpoint = after; });
}

void Scraper::remove(const Endpoint& endpoint) {
  std::shared_ptr<Target> target;
  {
    const std::lock_guard lock(mutex_);
    const auto it = targets_.find(endpoint.slot);
    if (it == targets_.end()) return;
    target = std::move(it->second);
    targets_.erase(it);
  }
  if (const auto config = shared_->config()) {
    if (config->settings.writes_signals) table_.detach(target->ticket, clock_.now());
    target->retire();
    for (const auto& sink : config->settings.sinks) sink->gone(endpoint.slot);
  }
  io::Loop& loop = target->shard->loop;
  loop.post([target = std::move(target)] { target->cancel.cancel(); });
}

void Scraper::stop() {
  std::unordered_map<EndpointSlot, std::shared_ptr<Target>> all;
  {
    const std::lock_guard lock(mutex_);
    all.swap(targets_);
  }
  const auto config = shared_->config();
  for (auto& [slot, target] : all) {
    if (config == nullptr || config->settings.writes_signals) table_.detach(target->ticket, clock_.now());
    io::Loop& loop = target->shard->loop;
    loop.post([target = std::move(target)] { target->cancel.cancel(); });
  }
  all.clear();
  std::unique_lock lock(shared_->live_mutex);
  if (!shared_->none_live.wait_for(lock, kStopWithin, [&] { return shared_->live == 0; }))
    telemetry::log_error("scrapes did not end in time", {{"pool", pool_}, {"left", shared_->live}});
}

bool Scraper::all_tried() const {
  const std::lock_guard lock(mutex_);
  return std::all_of(targets_.begin(), targets_.end(),
                     [](const auto& entry) { return entry.second->tried.load(std::memory_order_acquire); });
}

std::string Scraper::engine_of(EndpointSlot slot) const {
  const std::lock_guard lock(mutex_);
  const auto it = targets_.find(slot);
  if (it == targets_.end()) return {};
  const std::lock_guard engine_lock(it->second->engine_mutex);
  return it->second->engine;
}

size_t Scraper::size() const {
  const std::lock_guard lock(mutex_);
  return targets_.size();
}

}  // namespace penstock::signals
