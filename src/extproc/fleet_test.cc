#include "extproc/fleet.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <optional>
#include <set>
#include <thread>

#include "base/eventually.h"
#include "base/strings.h"
#include "config/node.h"
#include "io/grpc.h"
#include "io/http_client.h"

namespace penstock::extproc {
namespace {

using std::chrono::hours;
using std::chrono::milliseconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr const char* kQueue = "plugins: [{type: queue-scorer}]";
constexpr const char* kCache = "plugins: [{type: kv-cache-utilization-scorer}]";
constexpr const char* kGrpc =
    "{plugins: [{type: queue-scorer}, {type: vllmgrpc-parser}], requestHandler: {parsers: [{pluginRef: "
    "vllmgrpc-parser}]}}";
constexpr const char* kBad = "plugins: [{type: no-such-plugin}]";

config::TelemetrySettings quiet() {
  config::TelemetrySettings settings;
  settings.access_log = false;
  return settings;
}

// A fleet without a cluster behind it: the test tells it of pools, as the cluster would. Whoever is asked
// about pods knows none.
class FleetTest : public ::testing::Test {
 protected:
  FleetTest() { options.look = milliseconds(1); }
  ~FleetTest() override {
    if (!fleet) return;
    door->begin_stop();
    fleet->stop();
    if (cluster) cluster->stop();
    base.stop_pools();
    door.reset();
    fleet.reset();
    base.release();
  }

  void start() {
    base.loops->start();
    ASSERT_TRUE(base.start_pools().ok());
    door = std::make_unique<Door>(*base.loops, base.metrics, base.clock, nullptr, DoorOptions());
    fleet =
        std::make_unique<Fleet>(base, *door, options, [this](uint16_t port) { return open(port); }, [] {});
    discovery::KubernetesDiscoveryOptions kube;
    kube.cluster.source = "test";
    kube.cluster.tls = false;
    kube.cluster.host = "127.0.0.1";
    kube.cluster.port = 1;  // nobody listens
    kube.many = true;
    auto made = discovery::KubernetesDiscovery::create(std::move(kube), nullptr, nobody, base.metrics);
    ASSERT_TRUE(made.ok()) << made.error().message;
    cluster = *std::move(made);
    cluster->start();
    fleet->start(*cluster);
  }

  static config::InferencePool pool_of(const std::string& name, bool own_config = false) {
    config::InferencePool pool;
    pool.meta.name = name;
    pool.meta.ns = "ns";
    pool.target_ports = {8000};
    if (own_config) pool.meta.annotations[std::string(discovery::kConfigAnnotation)] = name;
    return pool;
  }
  void tell(const config::InferencePool& pool) { fleet->pool_changed(pool.meta.full_name(), &pool); }
  void tell(const std::string& name, bool own_config = false) { tell(pool_of(name, own_config)); }
  void take_away(const std::string& name) { fleet->pool_changed("ns/" + name, nullptr); }
  void configure(const std::string& name, std::optional<std::string> text, std::string error = {}) {
    fleet->config_changed("ns/" + name, {"ConfigMap ns/" + name, std::move(text), std::move(error)});
  }

  // Names of the pools that serve.
  std::vector<std::string> serving() const {
    std::vector<std::string> out;
    for (const auto& pool : base.pools_now()) out.push_back(pool->pool().name);
    return out;
  }
  bool serves(const std::vector<std::string>& names) const {
    return eventually([&] { return serving() == names; });
  }
  const assembly::PoolRuntime* runtime(const std::string& name) const {
    for (const auto& pool : base.pools_now()) {
      if (pool->pool().name == name) return pool.get();
    }
    return nullptr;
  }
  std::string effective(const std::string& name) const { return runtime(name)->policy()->effective_config; }
  // Waits for what the page says of the pool.
  bool says(const std::string& name, const std::string& source, const std::string& state,
            bool deleted = false) const {
    const std::string words = "{\"pool\":\"ns/" + name + "\",\"config\":\"" + source + "\",\"state\":\"" +
                              state + "\",\"deleted\":" + (deleted ? "true" : "false");
    return eventually([&] { return fleet->configurations_json().find(words) != std::string::npos; });
  }
  bool counts(size_t serving, size_t deleted, size_t unconfigured) {
    const auto has = [&](const char* state, size_t count) {
      return base.metrics.render().find("penstock_pools{state=\"" + std::string(state) + "\"} " +
                                        std::to_string(count)) != std::string::npos;
    };
    return eventually([&] {
      return has("serving", serving) && has("deleted", deleted) && has("unconfigured", unconfigured);
    });
  }

  Result<std::unique_ptr<io::HttpServer>> open(uint16_t port) {
    ++opened;
    if (taken) return Error{ErrorCode::kIo, "somebody else listens there"};
    auto server = std::make_unique<io::HttpServer>(*base.loops, io::HttpServerOptions(),
                                                   std::make_shared<io::GrpcRouter>());
    auto bound = server->listen(*io::SocketAddress::parse("127.0.0.1:0"), nullptr, "pool");
    if (!bound.ok()) return std::move(bound).error();
    const std::lock_guard lock(mutex);
    listening[port] = *bound;
    return server;
  }
  // Whether a connection to the port that was opened for this one is taken.
  bool answers(uint16_t port) {
    std::optional<io::SocketAddress> address;
    {
      const std::lock_guard lock(mutex);
      const auto found = listening.find(port);
      if (found == listening.end()) return false;
      address = found->second;
    }
    const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
    const int result = ::connect(fd, static_cast<const sockaddr*>(address->native()),
                                 static_cast<socklen_t>(address->native_bytes()));
    ::close(fd);
    return result == 0;
  }

  struct Nobody final : discovery::PoolListener {
    void pool_changed(const std::string&, const config::InferencePool*) override {}
    void rules_changed(const config::Manifests&) override {}
    void state_changed() override {}
  };

  Nobody nobody;
  FleetOptions options;
  assembly::Foundation base{1, quiet()};
  std::unique_ptr<Door> door;
  std::unique_ptr<discovery::KubernetesDiscovery> cluster;
  std::unique_ptr<Fleet> fleet;
  std::atomic<int> opened{0};
  std::atomic<bool> taken{false};
  std::mutex mutex;  // of `listening`
  std::map<uint16_t, io::SocketAddress> listening;
};

TEST_F(FleetTest, EachPoolThatIsToldOfServesByItself) {
  start();
  EXPECT_EQ(fleet->configurations_json(), "[]");
  tell("b");
  tell("a");
  EXPECT_TRUE(serves({"a", "b"}));
  EXPECT_TRUE(counts(2, 0, 0));
  EXPECT_TRUE(says("a", "process", "current"));
  EXPECT_TRUE(says("b", "process", "current"));
  const std::map<std::string, HealthInputs> health = fleet->health();
  ASSERT_EQ(health.size(), 2U);
  for (const auto& [id, inputs] : health) {
    EXPECT_TRUE(inputs.plugins_ready && inputs.protocol_ok) << id;
    EXPECT_FALSE(inputs.pool_known) << "its pods are not";
  }
  for (const char* id : {"ns/a", "ns/b"}) {
    EXPECT_THAT(base.metrics.render(),
                HasSubstr("penstock_pool_config_current{inference_pool=\"" + std::string(id) + "\"} 1"));
  }
}

TEST_F(FleetTest, AProtocolThatItsParserDoesNotTakeIsThatPoolsAlone) {
  start();
  config::InferencePool pool = pool_of("a", true);
  pool.app_protocol = "http";
  tell(pool);
  configure("a", kGrpc);
  config::InferencePool other = pool_of("b");
  other.app_protocol = "http";
  tell(other);
  EXPECT_TRUE(serves({"a", "b"}));
  EXPECT_FALSE(fleet->health().at("ns/a").protocol_ok);
  EXPECT_TRUE(fleet->health().at("ns/b").protocol_ok);
  pool.app_protocol = "kubernetes.io/h2c";
  tell(pool);
  EXPECT_TRUE(eventually([&] { return fleet->health().at("ns/a").protocol_ok; }));
}

TEST_F(FleetTest, ADeletedPoolServesOnAndComesBackAsIfNothingHadBeen) {
  options.linger = hours(1);
  start();
  tell("a");
  tell("b");
  ASSERT_TRUE(serves({"a", "b"}));
  const assembly::PoolRuntime* const before = runtime("a");
  take_away("a");
  EXPECT_TRUE(counts(1, 1, 0));
  EXPECT_TRUE(says("a", "process", "current", true));
  EXPECT_THAT(serving(), ElementsAre("a", "b"));
  tell("a");
  EXPECT_TRUE(counts(2, 0, 0));
  EXPECT_EQ(runtime("a"), before);
}

TEST_F(FleetTest, APoolThatHasGoneLeavesNothingBehindAndMayComeAgain) {
  options.linger = Duration::zero();
  start();
  for (int life = 0; life < 3; ++life) {
    tell("a");
    tell("b", true);
    configure("b", kQueue);
    ASSERT_TRUE(serves({"a", "b"}));
    take_away("b");
    EXPECT_TRUE(serves({"a"}));
    EXPECT_TRUE(counts(1, 0, 0));
    EXPECT_TRUE(eventually([&] { return base.metrics.render().find("ns/b") == std::string::npos; }));
    EXPECT_THAT(fleet->configurations_json(), Not(HasSubstr("ns/b")));
    EXPECT_EQ(fleet->health().size(), 1U);
  }
  take_away("b");  // once more than it was told of
  take_away("never");
  take_away("a");
  EXPECT_TRUE(serves({}));
}

// Opens a stream of pool "ns/a", and ends it once it is `over`.
io::Task<void> hold_stream(io::Loop& loop, io::HttpClient& client, const io::HttpDestination& to,
                           const std::atomic<bool>& over) {
  io::GrpcCallOptions call;
  call.timeout = Duration::zero();
  const std::array<io::HeaderField, 1> pool{{{"x-penstock-pool", "ns/a"}}};
  call.metadata = pool;
  auto opened = co_await io::GrpcClientStream::open(client, to, kProcessPath, call);
  if (!opened.ok()) ADD_FAILURE() << opened.error().message;
  if (!opened.ok()) co_return;
  while (!over) (void)co_await loop.sleep(milliseconds(1));
  (void)co_await (*opened)->half_close();
  while (co_await (*opened)->read_message()) {
  }
}

TEST_F(FleetTest, APoolThatIsThereAgainWhileItsLastStreamGoesOnIsTheSame) {
  options.linger = Duration::zero();
  start();
  tell("a");
  ASSERT_TRUE(counts(1, 0, 0));  // streams find it
  const assembly::PoolRuntime* const before = runtime("a");
  const auto router = std::make_shared<io::GrpcRouter>();
  door->serve(*router);
  io::HttpServer server(*base.loops, io::HttpServerOptions(), router);
  const auto bound = server.listen(*io::SocketAddress::parse("127.0.0.1:0"), nullptr, "ext-proc");
  ASSERT_TRUE(bound.ok());
  io::HttpDestination to;
  to.host = "127.0.0.1";
  to.port = bound->port();
  to.http2 = true;
  const auto series = [&] {
    const std::string page = base.metrics.render();
    size_t count = 0;
    for (const std::string_view line : split(page, '\n')) {
      const bool ready = line.starts_with("llm_d_epp_ready_endpoints{");
      count += ready && line.find("inference_pool=\"ns/a\"") != std::string_view::npos ? 1 : 0;
    }
    return count;
  };
  std::atomic<bool> over = false;
  std::thread data_plane([&] {
    io::Loop loop;
    io::HttpClient client(loop, {});
    io::block_on(loop, hold_stream(loop, client, to, over));
  });
  EXPECT_TRUE(eventually([&] { return door->stats().open_streams == 1; }));
  for (int life = 0; life < 3; ++life) {
    take_away("a");
    EXPECT_TRUE(counts(0, 0, 0));
    EXPECT_THAT(serving(), ElementsAre("a")) << "for its stream";
    tell("a");
    EXPECT_TRUE(counts(1, 0, 0));
    EXPECT_TRUE(says("a", "process", "current"));
    EXPECT_THAT(serving(), ElementsAre("a"));
    EXPECT_EQ(runtime("a"), before);
    EXPECT_EQ(series(), 1U);
  }
  over = true;
  data_plane.join();
  EXPECT_TRUE(eventually([&] { return door->stats().open_streams == 0; }));
  EXPECT_EQ(runtime("a"), before);
  take_away("a");
  EXPECT_TRUE(serves({}));
  EXPECT_TRUE(eventually([&] { return series() == 0; }));
  door->begin_stop();
  server.stop(Duration::zero());
}

TEST_F(FleetTest, APoolWaitsForItsConfigurationAndForAGoodOne) {
  options.linger = Duration::zero();
  start();
  tell("a", true);
  EXPECT_TRUE(says("a", "", "waiting"));
  EXPECT_TRUE(counts(0, 0, 1));
  configure("a", std::nullopt, "ConfigMap ns/a does not exist");
  EXPECT_TRUE(says("a", "ConfigMap ns/a", "none"));
  EXPECT_THAT(fleet->configurations_json(), HasSubstr("ConfigMap ns/a does not exist"));
  for (const char* bad : {kBad, "plugins: [", "dataLayer: {discovery: {pluginRef: x}}"}) {
    configure("a", bad);
    tell("other");  // behind it in the queue
    EXPECT_TRUE(serves({"other"}));
    EXPECT_TRUE(says("a", "ConfigMap ns/a", "none"));
    EXPECT_FALSE(fleet->health().at("ns/a").plugins_ready);
    take_away("other");
    EXPECT_TRUE(serves({}));
  }
  EXPECT_THAT(base.metrics.render(),
              HasSubstr("penstock_pool_config_loads_total{inference_pool=\"ns/a\",result=\"error\"} 4"));
  configure("a", kQueue);
  EXPECT_TRUE(serves({"a"}));
  EXPECT_TRUE(says("a", "ConfigMap ns/a", "current"));
  EXPECT_THAT(effective("a"), HasSubstr("queue-scorer"));
  EXPECT_TRUE(fleet->health().at("ns/a").plugins_ready);
}

TEST_F(FleetTest, ABadConfigurationLeavesTheLastGoodOneUntilTheNext) {
  start();
  tell("a", true);
  tell("b");
  configure("a", kQueue);
  ASSERT_TRUE(serves({"a", "b"}));
  const std::string good = effective("a");
  const std::string of_b = effective("b");
  configure("a", kBad);
  EXPECT_TRUE(says("a", "ConfigMap ns/a", "former"));
  EXPECT_THAT(fleet->configurations_json(), HasSubstr("no-such-plugin"));
  EXPECT_EQ(effective("a"), good);
  EXPECT_THAT(base.metrics.render(), HasSubstr("penstock_pool_config_current{inference_pool=\"ns/a\"} 0"));
  configure("a", std::nullopt, "ConfigMap ns/a does not exist");
  EXPECT_TRUE(
      eventually([&] { return fleet->configurations_json().find("does not exist") != std::string::npos; }));
  EXPECT_EQ(effective("a"), good);
  configure("a", kCache);
  EXPECT_TRUE(says("a", "ConfigMap ns/a", "current"));
  EXPECT_THAT(effective("a"), HasSubstr("kv-cache-utilization-scorer"));
  tell("a");  // without the annotation: the process's
  EXPECT_TRUE(says("a", "process", "current"));
  EXPECT_EQ(effective("a"), of_b);
  configure("a", kQueue);  // late, of a ConfigMap that is named no longer
  tell("c");
  EXPECT_TRUE(serves({"a", "b", "c"}));
  EXPECT_EQ(effective("a"), of_b);
}

TEST_F(FleetTest, AReloadIsForThePoolsOfTheProcessesConfigurationAndSaysWhichFailed) {
  start();
  tell("a");
  tell("b", true);
  configure("b", kQueue);
  ASSERT_TRUE(serves({"a", "b"}));
  const std::string of_a = effective("a");
  const std::string of_b = effective("b");
  const auto reload = [&](const char* text) {
    config::PoolSettings settings;
    settings.config_inline = *config::parse_document(text, "test");
    const std::lock_guard lock(base.changes);
    return fleet->reload(std::move(settings));
  };
  const Status failed = reload(kBad);
  ASSERT_FALSE(failed.ok());
  EXPECT_THAT(failed.error().message, HasSubstr("pool ns/a: "));
  EXPECT_THAT(failed.error().message, HasSubstr("no-such-plugin"));
  EXPECT_TRUE(says("a", "process", "former"));
  EXPECT_TRUE(says("b", "ConfigMap ns/b", "current"));
  EXPECT_EQ(effective("a"), of_a);
  EXPECT_TRUE(reload(kCache).ok());
  EXPECT_TRUE(says("a", "process", "current"));
  EXPECT_THAT(effective("a"), HasSubstr("kv-cache-utilization-scorer"));
  EXPECT_EQ(effective("b"), of_b);
  tell("c");
  EXPECT_TRUE(serves({"a", "b", "c"}));
  EXPECT_EQ(effective("c"), effective("a"));
}

TEST_F(FleetTest, ItIsSettledOnceEachOfTheFirstPoolsIsKnownToServeOrNotTo) {
  start();
  tell("a", true);
  fleet->pools_listed();
  EXPECT_TRUE(says("a", "", "waiting"));
  EXPECT_FALSE(fleet->settled());
  configure("a", kBad);
  EXPECT_TRUE(eventually([&] { return fleet->settled(); }));
  tell("b");  // what comes later is no reason to be unsettled
  EXPECT_TRUE(serves({"b"}));
  EXPECT_TRUE(fleet->settled());
}

TEST_F(FleetTest, WithoutPoolsItIsSettledOnceTheyWereListed) {
  start();
  EXPECT_FALSE(fleet->settled());
  fleet->pools_listed();
  EXPECT_TRUE(eventually([&] { return fleet->settled(); }));
}

TEST_F(FleetTest, AListedPoolWhosePodsAreNotKnownIsWaitedFor) {
  start();
  tell("a");
  fleet->pools_listed();
  ASSERT_TRUE(serves({"a"}));
  EXPECT_TRUE(counts(1, 0, 0));  // it has been looked after since
  EXPECT_FALSE(fleet->settled());
}

TEST_F(FleetTest, APortOfAPoolsOwnIsOpenAsLongAsAPoolNamesIt) {
  options.first_port = 9100;
  options.last_port = 9199;
  options.linger = Duration::zero();
  start();
  config::InferencePool pool = pool_of("a");
  pool.endpoint_picker = config::EndpointPickerRef{};
  pool.endpoint_picker->name = "a-picker";
  pool.endpoint_picker->port = 9200;  // out of the range
  tell(pool);
  ASSERT_TRUE(serves({"a"}));
  EXPECT_EQ(opened, 0);
  pool.endpoint_picker->port = 9101;
  tell(pool);
  EXPECT_TRUE(eventually([&] { return answers(9101); }));
  pool.endpoint_picker->port = 9102;
  tell(pool);
  EXPECT_TRUE(eventually([&] { return answers(9102) && !answers(9101); }));
  take_away("a");
  EXPECT_TRUE(eventually([&] { return !answers(9102); }));
  EXPECT_EQ(opened, 2);
}

TEST_F(FleetTest, APortThatIsTakenIsTriedUntilItIsFree) {
  options.first_port = options.last_port = 9100;
  taken = true;
  start();
  config::InferencePool pool = pool_of("a");
  pool.endpoint_picker = config::EndpointPickerRef{};
  pool.endpoint_picker->name = "a-picker";
  pool.endpoint_picker->port = 9100;
  tell(pool);
  EXPECT_TRUE(eventually([&] { return opened > 3; }));
  EXPECT_THAT(serving(), ElementsAre("a"));
  taken = false;
  EXPECT_TRUE(eventually([&] { return answers(9100); }));
}

TEST_F(FleetTest, WhatIsToldAfterItsEndChangesNothing) {
  start();
  tell("a");
  ASSERT_TRUE(serves({"a"}));
  fleet->stop();
  take_away("a");
  tell("b");
  fleet->state_changed();
  EXPECT_THAT(serving(), ElementsAre("a"));
  fleet->stop();
}

}  // namespace
}  // namespace penstock::extproc
