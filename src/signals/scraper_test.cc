#include "signals/scraper.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>

#include <condition_variable>
#include <cstdio>
#include <mutex>
#include <set>

#include "base/eventually.h"
#include "base/temporary_folder.h"
#include "io/http_server.h"

namespace penstock::signals {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;

constexpr std::string_view kPage =
    "vllm:num_requests_waiting{engine=\"0\"} 7\nvllm:num_requests_running{engine=\"0\"} 3\n"
    "vllm:kv_cache_usage_perc{engine=\"0\"} 0.5\n"
    "vllm:lora_requests_info{max_lora=\"2\",running_lora_adapters=\"a\",waiting_lora_adapters=\"\"} 1.7e9\n"
    "vllm:cache_config_info{block_size=\"16\",num_gpu_blocks=\"512\"} 1\n";

enum class Mode { kGood, kHang, kBusy, kDropped, kBrokenOff, kRenamed, kCloses, kHuge, kNeedsKey };

// A self-signed certificate for 127.0.0.1 and its key as PEM files of a folder that goes with it.
class Certificate {
 public:
  Certificate() {
    EVP_PKEY* key = EVP_EC_gen("P-256");
    X509* x = X509_new();
    X509_set_version(x, 2);
    ASN1_INTEGER_set(X509_get_serialNumber(x), 1);
    X509_gmtime_adj(X509_getm_notBefore(x), -60);
    X509_gmtime_adj(X509_getm_notAfter(x), 3600);
    X509_set_pubkey(x, key);
    X509_NAME_add_entry_by_txt(X509_get_subject_name(x), "CN", MBSTRING_ASC,
                               reinterpret_cast<const unsigned char*>("engine"), -1, -1, 0);
    X509_set_issuer_name(x, X509_get_subject_name(x));
    X509_EXTENSION* names = X509V3_EXT_conf_nid(nullptr, nullptr, NID_subject_alt_name, "IP:127.0.0.1");
    X509_add_ext(x, names, -1);
    X509_EXTENSION_free(names);
    X509_sign(x, key, EVP_sha256());
    std::FILE* out = std::fopen(certificate().c_str(), "w");
    PEM_write_X509(out, x);
    std::fclose(out);
    out = std::fopen(this->key().c_str(), "w");
    PEM_write_PrivateKey(out, key, nullptr, nullptr, 0, nullptr, nullptr);
    std::fclose(out);
    X509_free(x);
    EVP_PKEY_free(key);
  }
  std::string certificate() const { return folder_.file("cert.pem"); }
  std::string key() const { return folder_.file("key.pem"); }

 private:
  TemporaryFolder folder_;
};

// A real HTTP server on a loop of its own that answers /metrics as told.
class FakeEngine {
 public:
  explicit FakeEngine(std::shared_ptr<io::TlsServerContext> tls = nullptr)
      : loops_(1), server_(loops_, io::HttpServerOptions{}, handler()) {
    loops_.start();
    const auto address = server_.listen(*io::SocketAddress::from_ip("127.0.0.1", 0), std::move(tls));
    EXPECT_TRUE(address.ok());
    port_ = address->port();
  }
  ~FakeEngine() {
    server_.stop();
    loops_.stop();
  }
  uint16_t port() const { return port_; }
  void set(Mode mode) { mode_ = mode; }
  void set_asleep(bool asleep) { asleep_ = asleep; }
  // The probe's answer comes a byte at a time, for hours.
  void set_trickles() { trickles_ = true; }
  uint64_t probes() const { return probes_; }
  uint64_t hits() const { return hits_; }

 private:
  std::shared_ptr<io::HttpHandler> handler() {
    return io::HttpServer::handler_of([this](io::HttpExchange& exchange) { return answer(*this, exchange); });
  }
  static io::Task<void> answer(FakeEngine& self, io::HttpExchange& exchange) {
    if (exchange.request().path == "/is_sleeping" && self.trickles_) {
      ++self.probes_;
      (void)exchange.write_head(200, {}, io::BodyFraming::of_length(1000000));
      while (true) {
        const bool taken = (co_await exchange.write(" ")).ok();
        if (!taken) co_return;
        const bool slept = co_await exchange.loop().sleep(milliseconds(20), exchange.cancel_token());
        if (!slept) co_return;
      }
    }
    if (exchange.request().path == "/is_sleeping") {
      (void)co_await exchange.respond(200, "application/json",
                                      self.asleep_ ? "{\"is_sleeping\":true}" : "{\"is_sleeping\":false}");
      co_return;
    }
    ++self.hits_;
    switch (self.mode_.load()) {
      case Mode::kHang:
        (void)co_await exchange.loop().sleep(seconds(600), exchange.cancel_token());
        co_return;
      case Mode::kBusy:
        (void)co_await exchange.respond(503, "text/plain", "busy");
        co_return;
      case Mode::kDropped:
        exchange.abort();
        co_return;
      case Mode::kBrokenOff:
        (void)exchange.write_head(200, {}, io::BodyFraming::of_length(100000));
        (void)co_await exchange.write(kPage);
        exchange.abort();
        co_return;
      case Mode::kRenamed:
        (void)co_await exchange.respond(
            200, "text/plain",
            "vllm:num_requests_waiting 1\nvllm:num_requests_running 1\nvllm:kv_usage 0.9\n");
        co_return;
      case Mode::kCloses:
        exchange.close_after();
        break;
      case Mode::kHuge: {
        const std::string huge(300000, '\n');
        (void)co_await exchange.respond(200, "text/plain", huge);
        co_return;
      }
      case Mode::kNeedsKey:
        if (exchange.request().fields.get("authorization") != "Bearer secret" ||
            exchange.request().path != "/engine/metrics") {
          (void)co_await exchange.respond(401, "text/plain", "no");
          co_return;
        }
        break;
      case Mode::kGood:
        break;
    }
    (void)co_await exchange.respond(200, "text/plain; version=1.0.0", kPage);
  }

  io::LoopGroup loops_;
  std::atomic<Mode> mode_{Mode::kGood};
  std::atomic<uint64_t> hits_{0};
  std::atomic<bool> asleep_{false};
  std::atomic<bool> trickles_{false};
  std::atomic<uint64_t> probes_{0};
  io::HttpServer server_;
  uint16_t port_ = 0;
};

class ScraperTest : public ::testing::Test {
 protected:
  ScraperTest() : loops_(2) { loops_.start(); }
  ~ScraperTest() override {
    scraper_.reset();
    loops_.stop();
  }
  static ScrapeSettings fast() {
    ScrapeSettings s;
    s.interval = milliseconds(50);
    s.deadline = milliseconds(150);
    s.max_backoff = milliseconds(100);
    return s;
  }
  Scraper& scraper(ScrapeSettings settings = fast()) {
    scraper_ =
        std::make_unique<Scraper>("p", loops_, table_, metrics_, clock_, engines(), std::move(settings));
    EXPECT_TRUE(scraper_->check().ok());
    return *scraper_;
  }
  static EngineTable engines() {
    return EngineTable::build({}, kDefaultEngine, kEngineLabel, SeriesMode::kCompatible).value();
  }
  static std::shared_ptr<const Endpoint> endpoint(EndpointSlot slot, uint16_t port) {
    auto e = std::make_shared<Endpoint>();
    e->slot = slot;
    e->id = "default/e" + std::to_string(slot);
    e->address = "127.0.0.1";
    e->port = port;
    e->live = std::make_shared<EndpointLive>();
    e->host_port = e->metrics_host = "127.0.0.1:" + std::to_string(port);
    return e;
  }
  SignalState state(EndpointSlot slot, Signal signal = Signal::kWaitingRequests) {
    return table_.read(slot).at(signal).state;
  }
  double number(std::string_view series) {
    const std::string text = metrics_.render();
    const size_t at = text.find(std::string(series) + " ");
    return at == std::string::npos ? 0 : std::stod(text.substr(at + series.size() + 1));
  }

  io::LoopGroup loops_;
  SignalTable table_;
  telemetry::MetricRegistry metrics_;
  SystemClock clock_;
  std::unique_ptr<Scraper> scraper_;
};

TEST_F(ScraperTest, FillsTheRowOfEachEndpoint) {
  FakeEngine a;
  FakeEngine b;
  Scraper& s = scraper();
  s.add(endpoint(0, a.port()));
  s.add(endpoint(1, b.port()));
  ASSERT_TRUE(eventually([&] { return s.all_tried(); }));
  for (const EndpointSlot slot : {EndpointSlot{0}, EndpointSlot{1}}) {
    const SignalRow row = table_.read(slot);
    EXPECT_EQ(row.at(Signal::kWaitingRequests).value, 7);
    EXPECT_EQ(row.at(Signal::kRunningRequests).value, 3);
    EXPECT_EQ(row.at(Signal::kKvUsage).value, 0.5);
    EXPECT_EQ(row.at(Signal::kCacheBlockSize).value, 16);
    EXPECT_EQ(row.at(Signal::kKvUsage).state, SignalState::kFresh);
    EXPECT_EQ(row.lora.running_count, 1);
    EXPECT_EQ(row.lora.max_adapters, 2);
    EXPECT_EQ(s.engine_of(slot), "vllm");
  }
  EXPECT_GE(number("penstock_scrape_duration_seconds_count{pool=\"p\"}"), 2);
}

// MET-07 and worked scrape I.
TEST_F(ScraperTest, ThreeFailuresInARowMakeAnEndpointDownAndOneSuccessBringsItBack) {
  FakeEngine engine;
  Scraper& s = scraper();
  s.add(endpoint(0, engine.port()));
  ASSERT_TRUE(eventually([&] { return state(0) == SignalState::kFresh; }));
  const TimePoint before = table_.read(0).at(Signal::kWaitingRequests).observed_at;
  engine.set(Mode::kBusy);
  const std::string errors = "llm_d_epp_datalayer_poll_errors_total{source_type=\"metrics-data-source\"}";
  ASSERT_TRUE(eventually([&] { return number(errors) >= 1; }));
  ASSERT_TRUE(eventually([&] { return state(0) == SignalState::kEndpointDown; }));
  EXPECT_GE(number(errors), 3) << "one failure flips nothing";
  EXPECT_GE(number("penstock_scrape_failures_total{pool=\"p\",reason=\"status\"}"), 3);
  EXPECT_EQ(table_.read(0).at(Signal::kWaitingRequests).value, 7) << "the last value stays";
  EXPECT_GE(table_.read(0).at(Signal::kWaitingRequests).observed_at, before);
  engine.set(Mode::kGood);
  EXPECT_TRUE(eventually([&] { return state(0) == SignalState::kFresh; }));
}

// MET-10: what a scrape shows and what it cannot.
TEST_F(ScraperTest, RequestsAreUnseenUntilAScrapeThatBeganAfterThemSucceeds) {
  FakeEngine engine;
  auto target = std::make_shared<Endpoint>(*endpoint(0, engine.port()));
  target->live = std::make_shared<EndpointLive>();
  UnseenRequests& unseen = target->live->unseen;
  Scraper& s = scraper();
  s.add(target);
  ASSERT_TRUE(eventually([&] { return state(0) == SignalState::kFresh; }));
  unseen.add();
  ASSERT_TRUE(eventually([&] { return unseen.since(table_.read(0).shown_round) == 0; }));

  engine.set(Mode::kHang);
  // Whatever was under way has answered or hangs; from here on no scrape succeeds.
  const uint64_t hits = engine.hits();
  ASSERT_TRUE(eventually([&] { return engine.hits() >= hits + 2; }));
  unseen.add();
  ASSERT_TRUE(eventually([&] { return state(0) == SignalState::kEndpointDown; }));
  EXPECT_EQ(unseen.since(table_.read(0).shown_round), 1U) << "failed scrapes show nothing";
  engine.set(Mode::kGood);
  EXPECT_TRUE(eventually([&] { return unseen.since(table_.read(0).shown_round) == 0; }));
}

// RET-03 and MET-05.
TEST_F(ScraperTest, AHungEngineDelaysNobodyElse) {
  FakeEngine hung;
  FakeEngine good;
  hung.set(Mode::kHang);
  Scraper& s = scraper();
  s.add(endpoint(0, hung.port()));
  s.add(endpoint(2, good.port()));  // the same loop
  ASSERT_TRUE(eventually(
      [&] { return number("penstock_scrape_failures_total{pool=\"p\",reason=\"timeout\"}") >= 3; }));
  EXPECT_GE(good.hits(), hung.hits());
  EXPECT_EQ(state(2), SignalState::kFresh);
  EXPECT_TRUE(eventually([&] { return state(0) == SignalState::kEndpointDown; }));
  EXPECT_EQ(table_.read(0).at(Signal::kWaitingRequests).observed_at, kNever);
}

TEST_F(ScraperTest, FailuresOfEveryKindAreNamed) {
  FakeEngine engine;
  ScrapeSettings settings = fast();
  settings.max_page_bytes = 100000;
  Scraper& s = scraper(settings);
  s.add(endpoint(0, engine.port()));
  const struct {
    Mode mode;
    const char* reason;
  } cases[] = {{Mode::kDropped, "body"}, {Mode::kBrokenOff, "body"}, {Mode::kHuge, "too_large"}};
  for (const auto& c : cases) {
    const std::string series =
        std::string("penstock_scrape_failures_total{pool=\"p\",reason=\"") + c.reason + "\"}";
    const double before = number(series);
    engine.set(c.mode);
    EXPECT_TRUE(eventually([&] { return number(series) > before; })) << c.reason;
  }
  engine.set(Mode::kCloses);
  EXPECT_TRUE(eventually([&] { return state(0) == SignalState::kFresh; }));
  s.add(endpoint(1, 1));  // nobody listens there
  EXPECT_TRUE(eventually(
      [&] { return number("penstock_scrape_failures_total{pool=\"p\",reason=\"connect\"}") >= 1; }));
}

TEST_F(ScraperTest, ARenamedMetricIsAStateAndNotAZero) {
  FakeEngine engine;
  Scraper& s = scraper();
  s.add(endpoint(0, engine.port()));
  ASSERT_TRUE(eventually([&] { return state(0) == SignalState::kFresh; }));
  engine.set(Mode::kRenamed);
  ASSERT_TRUE(eventually([&] { return state(0, Signal::kKvUsage) == SignalState::kNameMissing; }));
  EXPECT_EQ(table_.read(0).at(Signal::kKvUsage).value, 0.5);
  EXPECT_EQ(table_.read(0).at(Signal::kWaitingRequests).value, 1);
  EXPECT_GE(
      number("llm_d_epp_datalayer_extract_errors_total{source_type=\"metrics-data-source\",extractor_type="
             "\"core-metrics-extractor\"}"),
      1);
}

// TLS-03 and MET-09: credentials, path and port of the source.
TEST_F(ScraperTest, SendsCredentialsAndFollowsTheSourcesParameters) {
  FakeEngine engine;
  engine.set(Mode::kNeedsKey);
  ScrapeSettings settings = fast();
  settings.headers = {{"authorization", "Bearer secret"}};
  settings.source.path = "/engine/metrics";
  settings.source.port = engine.port();
  Scraper& s = scraper(settings);
  s.add(endpoint(0, 1));
  EXPECT_TRUE(eventually([&] { return state(0) == SignalState::kFresh; }));
  settings.headers = {{"authorization", "Bearer wrong"}};
  ASSERT_TRUE(s.configure(engines(), settings).ok());
  EXPECT_TRUE(eventually([&] { return state(0) == SignalState::kEndpointDown; }))
      << "new settings take effect";
}

// TLS-01.
TEST_F(ScraperTest, ScrapesOverTlsWithAndWithoutChecking) {
  const Certificate certificate;
  auto tls = io::TlsServerContext::create({.certificates = {{certificate.certificate(), certificate.key()}}});
  ASSERT_TRUE(tls.ok()) << tls.error().message;
  FakeEngine engine(tls.value());
  Scraper& s = scraper();
  auto https = std::make_shared<Endpoint>(*endpoint(0, engine.port()));
  https->tls = true;
  s.add(https);
  EXPECT_TRUE(eventually([&] { return state(0) == SignalState::kFresh; })) << "unchecked by default";

  ScrapeSettings settings = fast();
  settings.source.scheme = "https";
  settings.source.scheme_given = settings.source.insecure_skip_verify_given = true;
  settings.source.insecure_skip_verify = false;
  ASSERT_TRUE(s.configure(engines(), settings).ok());
  const auto plain = endpoint(1, engine.port());
  s.add(plain);
  EXPECT_TRUE(eventually([&] { return state(1) == SignalState::kEndpointDown; })) << "an unknown authority";

  settings.source.ca_cert_path = certificate.certificate();
  ASSERT_TRUE(s.configure(engines(), settings).ok());
  EXPECT_TRUE(eventually([&] { return state(1) == SignalState::kFresh; }));

  settings.source.ca_cert_path = "/nowhere/ca.pem";
  const Status missing = s.configure(engines(), settings);
  ASSERT_FALSE(missing.ok());
  EXPECT_THAT(missing.error().message,
              HasSubstr("data source 'metrics-data-source': can't use CA file '/nowhere/ca.pem'"));
}

// MEM-04 and HOT-02.
TEST_F(ScraperTest, NobodyIsScrapedAfterItsRemoval) {
  FakeEngine gone;
  FakeEngine stays;
  Scraper& s = scraper();
  const auto leaver = endpoint(0, gone.port());
  for (int i = 0; i < 20; ++i) {
    s.add(leaver);
    s.remove(*leaver);
  }
  s.add(leaver);
  s.add(endpoint(1, stays.port()));
  ASSERT_TRUE(eventually([&] { return gone.hits() >= 3; }));
  s.remove(*leaver);
  EXPECT_EQ(state(0), SignalState::kNeverSeen);
  EXPECT_EQ(s.size(), 1U);
  // The loop has seen the removal once the other endpoint was scraped again; one scrape may be under way.
  const uint64_t hits = gone.hits();
  const uint64_t others = stays.hits();
  ASSERT_TRUE(eventually([&] { return stays.hits() >= others + 6; }));
  EXPECT_LE(gone.hits(), hits + 1);
  EXPECT_EQ(state(0), SignalState::kNeverSeen);
  s.stop();
  const uint64_t last = stays.hits();
  EXPECT_EQ(state(1), SignalState::kNeverSeen);
  FakeEngine clock;
  Scraper other("q", loops_, table_, metrics_, clock_, engines(), fast());
  other.add(endpoint(2, clock.port()));
  ASSERT_TRUE(eventually([&] { return clock.hits() >= 4; }));
  EXPECT_LE(stays.hits(), last + 1);
}

// HOT-04.
TEST_F(ScraperTest, AnEndpointThatMovesIsFollowed) {
  FakeEngine before;
  FakeEngine after;
  Scraper& s = scraper();
  const auto old = endpoint(0, before.port());
  const auto moved = endpoint(0, after.port());
  s.add(old);
  ASSERT_TRUE(eventually([&] { return before.hits() >= 1; }));
  s.update(old, moved);
  EXPECT_TRUE(eventually([&] { return after.hits() >= 1 && state(0) == SignalState::kFresh; }));
  auto relabelled = std::make_shared<Endpoint>(*moved);
  relabelled->labels["llm-d.ai/engine-type"] = "sglang";
  s.update(moved, relabelled);
  EXPECT_TRUE(eventually([&] { return state(0) == SignalState::kNameMissing; }));
  EXPECT_EQ(s.size(), 1U);
}

// What a sink was told, in order: "attached", "down", "gone" or "<engine> <address>" of a page.
class RecordingSink final : public PageSink {
 public:
  void attached(const Endpoint&) override { note("attached"); }
  void page(const Endpoint& endpoint, std::string_view engine, std::string_view, TimePoint) override {
    note(std::string(engine) + " " + endpoint.host_port);
  }
  void down(EndpointSlot) override { note("down"); }
  void gone(EndpointSlot) override { note("gone"); }
  std::vector<std::string> told() const {
    const std::lock_guard lock(mutex_);
    return told_;
  }
  std::string last() const { return told().back(); }

 private:
  void note(std::string what) {
    const std::lock_guard lock(mutex_);
    told_.push_back(std::move(what));
  }
  mutable std::mutex mutex_;
  std::vector<std::string> told_;
};

TEST_F(ScraperTest, NoPageOfAnEndpointComesAfterItIsGone) {
  FakeEngine one;
  FakeEngine two;
  const auto sink = std::make_shared<RecordingSink>();
  ScrapeSettings settings = fast();
  settings.sinks = {sink};
  Scraper& s = scraper(settings);
  std::shared_ptr<const Endpoint> now = endpoint(0, one.port());
  std::shared_ptr<const Endpoint> next = endpoint(0, two.port());
  s.add(now);
  EXPECT_EQ(sink->told().front(), "attached");
  for (int i = 0; i < 10; ++i) {
    ASSERT_TRUE(eventually([&] { return sink->last() == "vllm " + now->host_port; }));
    s.update(now, next);
    std::swap(now, next);
  }
  ASSERT_TRUE(eventually([&] { return sink->last() == "vllm " + now->host_port; }));
  s.remove(*now);
  EXPECT_EQ(sink->last(), "gone");
  std::set<std::string> since;
  for (const std::string& what : sink->told()) {
    if (what == "gone" || what == "attached") {
      since.clear();
    } else if (what != "down") {
      since.insert(what);
      EXPECT_EQ(since.size(), 1U) << what;
    }
  }
}

// Stays in its first page until it is told that the endpoint is gone, which must not happen meanwhile.
class LingeringSink final : public PageSink {
 public:
  void attached(const Endpoint&) override {}
  void page(const Endpoint&, std::string_view, std::string_view, TimePoint) override {
    std::unique_lock lock(mutex_);
    if (entered_) return;
    entered_ = true;
    overtaken_ = told_.wait_for(lock, milliseconds(200), [&] { return gone_; });
    left_ = true;
  }
  void gone(EndpointSlot) override {
    const std::lock_guard lock(mutex_);
    gone_ = true;
    told_.notify_all();
  }
  bool entered() const {
    const std::lock_guard lock(mutex_);
    return entered_;
  }
  bool left() const {
    const std::lock_guard lock(mutex_);
    return left_;
  }
  bool overtaken() const {
    const std::lock_guard lock(mutex_);
    return overtaken_;
  }

 private:
  mutable std::mutex mutex_;
  std::condition_variable told_;
  bool entered_ = false;
  bool left_ = false;
  bool gone_ = false;
  bool overtaken_ = false;
};

TEST_F(ScraperTest, APageThatIsBeingReadIsFinishedBeforeItsEndpointIsGone) {
  FakeEngine engine;
  const auto sink = std::make_shared<LingeringSink>();
  ScrapeSettings settings = fast();
  settings.sinks = {sink};
  Scraper& s = scraper(settings);
  const auto served = endpoint(0, engine.port());
  s.add(served);
  ASSERT_TRUE(eventually([&] { return sink->entered(); }));
  s.remove(*served);
  ASSERT_TRUE(eventually([&] { return sink->left(); }));
  EXPECT_FALSE(sink->overtaken());
}

TEST_F(ScraperTest, SinksLearnThatAnEndpointIsDown) {
  FakeEngine engine;
  const auto sink = std::make_shared<RecordingSink>();
  ScrapeSettings settings = fast();
  settings.sinks = {sink};
  Scraper& s = scraper(settings);
  s.add(endpoint(0, engine.port()));
  ASSERT_TRUE(eventually([&] { return sink->last().starts_with("vllm"); }));
  engine.set(Mode::kBusy);
  EXPECT_TRUE(eventually([&] { return sink->last() == "down"; }));
  engine.set(Mode::kGood);
  EXPECT_TRUE(eventually([&] { return sink->last().starts_with("vllm"); }));
}

TEST_F(ScraperTest, SinksLearnTheEngineThatThePageIsOf) {
  FakeEngine engine;
  const auto sink = std::make_shared<RecordingSink>();
  ScrapeSettings settings = fast();
  settings.sinks = {sink};
  Scraper& s = scraper(settings);
  ASSERT_TRUE(
      s.configure(EngineTable::build({}, "sglang", kEngineLabel, SeriesMode::kCompatible).value(), settings)
          .ok());
  s.add(endpoint(0, engine.port()));
  EXPECT_TRUE(eventually([&] { return sink->last().starts_with("vllm "); })) << sink->last();
}

TEST_F(ScraperTest, AProbeTellsOfSleepWhereThePageDoesNotAndNobodyIsAskedUnlessConfigured) {
  FakeEngine probed;
  FakeEngine left_alone;
  probed.set_asleep(true);
  left_alone.set_asleep(true);
  const auto asked = endpoint(0, probed.port());
  const auto not_asked = endpoint(1, left_alone.port());
  ScrapeSettings settings = fast();
  settings.sleep_probe = true;
  Scraper& s = scraper(settings);
  s.add(asked);
  EXPECT_TRUE(eventually([&] { return asked->live->asleep.load(); }));
  probed.set_asleep(false);
  EXPECT_TRUE(eventually([&] { return !asked->live->asleep.load(); }));
  probed.set_asleep(true);
  EXPECT_TRUE(eventually([&] { return asked->live->asleep.load(); }));
  // Nobody knows any more.
  probed.set(Mode::kBusy);
  EXPECT_TRUE(eventually([&] { return state(0) == SignalState::kEndpointDown; }));
  EXPECT_TRUE(eventually([&] { return !asked->live->asleep.load(); }));

  Scraper plain("q", loops_, table_, metrics_, clock_, engines(), fast());
  plain.add(not_asked);
  ASSERT_TRUE(eventually([&] { return left_alone.hits() >= 3; }));
  EXPECT_FALSE(not_asked->live->asleep);
}

TEST_F(ScraperTest, AProbeWhoseAnswerTricklesHoldsNoScrapeUp) {
  FakeEngine engine;
  engine.set_trickles();
  ScrapeSettings settings = fast();
  settings.sleep_probe = true;
  scraper(settings).add(endpoint(0, engine.port()));
  ASSERT_TRUE(eventually([&] { return engine.probes() == 1; }));
  const uint64_t before = engine.hits();
  EXPECT_TRUE(eventually([&] { return engine.hits() >= before + 3; }));
}

TEST(ScrapePaceTest, JittersWithinItsBoundsAndBacksOff) {
  ScrapeSettings s;
  s.interval = milliseconds(200);
  s.jitter = 0.1;
  s.max_backoff = seconds(2);
  Random random(1);
  for (int i = 0; i < 1000; ++i) {
    EXPECT_LT(ScrapePace::first(s, random), milliseconds(50));
    const Duration calm = ScrapePace::next(s, 0, random);
    EXPECT_GE(calm, milliseconds(180));
    EXPECT_LE(calm, milliseconds(220));
    EXPECT_LE(ScrapePace::next(s, s.down_after, random), milliseconds(220)) << "not down yet";
    EXPECT_GE(ScrapePace::next(s, s.down_after + 1, random), milliseconds(360));
    EXPECT_LE(ScrapePace::next(s, 4000000000U, random), milliseconds(2200));
  }
  s.interval = seconds(10);
  EXPECT_GE(ScrapePace::next(s, 100, random), seconds(9)) << "a long interval is no shorter when failing";
}

}  // namespace
}  // namespace penstock::signals
