#include "flowcontrol/saturation/utilization_detector.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

namespace penstock::flowcontrol {
namespace {

using std::chrono::milliseconds;

constexpr TimePoint kNow{std::chrono::seconds(100)};

struct Load {
  double waiting = 0;
  double kv = 0;
  int age_ms = 0;  // < 0: never seen
};

SignalView view_of(const std::vector<Load>& loads) {
  SignalView view;
  view.resize(loads.size());
  for (size_t i = 0; i < loads.size(); ++i) {
    const auto set = [&](Signal signal, double value) {
      const auto s = static_cast<size_t>(signal);
      view.value[s][i] = value;
      view.observed_at[s][i] = loads[i].age_ms < 0 ? kNever : kNow - milliseconds(loads[i].age_ms);
      view.state[s][i] = loads[i].age_ms < 0 ? SignalState::kNeverSeen : SignalState::kFresh;
    };
    set(Signal::kWaitingRequests, loads[i].waiting);
    set(Signal::kKvUsage, loads[i].kv);
  }
  return view;
}

class UtilizationDetectorTest : public testing::Test {
 protected:
  // The thresholds of the reference's vectors.
  UtilizationDetector::Params params_{5, 0.9, milliseconds(100), 0};
  telemetry::Gauge stale_;
  PoolSnapshot pool_;

  double saturation(const std::vector<Load>& loads) {
    const UtilizationDetector detector(params_, milliseconds(50), stale_);
    std::vector<Candidate> all(loads.size());
    std::iota(all.begin(), all.end(), 0);
    return detector.saturation(pool_, view_of(loads), all, kNow);
  }
};

TEST_F(UtilizationDetectorTest, FollowsTheReferencesVectors) {
  EXPECT_DOUBLE_EQ(saturation({}), 1.0);
  EXPECT_NEAR(saturation({{2, .5}}), 0.5556, 1e-4);
  EXPECT_DOUBLE_EQ(saturation({{2, .5, 500}}), 1.0);
  EXPECT_DOUBLE_EQ(saturation({{10, .1}}), 2.0);
  EXPECT_NEAR(saturation({{1, .95}}), 1.0556, 1e-4);
  EXPECT_DOUBLE_EQ(saturation({{0, 0, -1}}), 1.0);
  EXPECT_NEAR(saturation({{1, .1}, {0, .2}}), 0.2111, 1e-4);
  EXPECT_NEAR(saturation({{1, .1}, {0, 0, 500}}), 0.6, 1e-4);
  EXPECT_NEAR(saturation({{1, .1}, {15, .2}}), 1.6, 1e-4);
  EXPECT_NEAR(saturation({{0, 0, 500}, {20, .2}, {1, .99}}), 2.0333, 1e-4);
  EXPECT_DOUBLE_EQ(saturation({{5, .1}}), 1.0);
  EXPECT_DOUBLE_EQ(saturation({{0, 0, 101}}), 1.0);
  EXPECT_DOUBLE_EQ(saturation({{0, 0, 100}}), 0.0);
}

TEST_F(UtilizationDetectorTest, CountsStaleEndpointsInItsGauge) {
  saturation({{0, 0, 500}, {1, .1}, {0, 0, -1}});
  EXPECT_EQ(stale_.value(), 2);
  saturation({});
  EXPECT_EQ(stale_.value(), 0);
}

TEST_F(UtilizationDetectorTest, LeavesOutWhatTheEngineDoesNotExport) {
  SignalView view = view_of({{99, .45}});
  const auto waiting = static_cast<size_t>(Signal::kWaitingRequests);
  view.state[waiting][0] = SignalState::kNameMissing;
  const UtilizationDetector detector(params_, milliseconds(50), stale_);
  const std::vector<Candidate> one{0};
  EXPECT_DOUBLE_EQ(detector.saturation(pool_, view, one, kNow), 0.5);
  view.state[static_cast<size_t>(Signal::kKvUsage)][0] = SignalState::kNameMissing;
  EXPECT_DOUBLE_EQ(detector.saturation(pool_, view, one, kNow), 1.0);
}

TEST_F(UtilizationDetectorTest, FiltersByThresholdsWithHeadroomAndFailsOpen) {
  params_.headroom = 0.2;
  const UtilizationDetector detector(params_, milliseconds(50), stale_);
  const auto kept = [&](const std::vector<Load>& loads) {
    SignalView view = view_of(loads);
    Arena arena;
    AttributeTable attributes(arena, 0, loads.size());
    Random random(1);
    InferenceRequest request;
    std::vector<Candidate> list(loads.size());
    std::iota(list.begin(), list.end(), 0);
    SchedulingContext ctx{request, pool_, view, attributes, arena, random, kNow, list};
    list.resize(detector.filter(ctx, list));
    return list;
  };
  EXPECT_EQ(kept({{5.9, .1}, {6, .1}, {0, 1.07}, {0, 1.09}, {0, 0, 200}}), (std::vector<Candidate>{0, 2}));
  EXPECT_EQ(kept({{99, .1}, {0, 0, 200}}), (std::vector<Candidate>{0, 1}));
}

// Strict mode, by endpoint: what the mean hides.
TEST_F(UtilizationDetectorTest, KeepsTheEndpointsThatHaveRoomByThemselves) {
  const std::vector<Load> loads{{4, .1}, {15, .2}, {0, 0, 500}, {0, .95}, {1, .1}};
  EXPECT_GT(saturation(loads), 1.0) << "the pool's mean is full";
  const UtilizationDetector detector(params_, milliseconds(50), stale_);
  SignalView view = view_of(loads);
  PoolSnapshot pool;
  for (size_t i = 0; i < loads.size(); ++i) {
    auto endpoint = std::make_shared<Endpoint>();
    endpoint->live = std::make_shared<EndpointLive>();
    pool.endpoints.push_back(endpoint);
  }
  const Freshness freshness;
  const auto kept = [&](const Freshness* how) {
    Arena arena;
    AttributeTable attributes(arena, 0, loads.size());
    Random random(1);
    InferenceRequest request;
    std::vector<Candidate> list(loads.size());
    std::iota(list.begin(), list.end(), 0);
    SchedulingContext ctx{request, pool, view, attributes, arena, random, kNow, list};
    ctx.freshness = how;
    list.resize(detector.keep_unsaturated(ctx, list));
    return list;
  };
  EXPECT_EQ(kept(&freshness), (std::vector<Candidate>{0, 4}));
  EXPECT_EQ(stale_.value(), 1);
  pool.endpoints[0]->live->unseen.add();
  EXPECT_EQ(kept(&freshness), (std::vector<Candidate>{4})) << "one sent since the scrape fills it";
  EXPECT_EQ(kept(nullptr), (std::vector<Candidate>{0, 4}));
}

TEST(UtilizationDetectorFactory, TakesItsStalenessFromTheScrapeInterval) {
  telemetry::MetricRegistry metrics;
  const SystemClock clock;
  const auto make = [&](std::string_view parameters, Duration interval) -> Result<Duration> {
    const config::Node node = *config::parse_document(parameters, "t");
    const PluginFactoryContext context{"d", &node, "plugins[0].parameters", metrics, clock, 1, interval};
    auto made = UtilizationDetector::create(context);
    if (!made) return std::move(made).error();
    return dynamic_cast<UtilizationDetector&>(**made).staleness_threshold();
  };
  EXPECT_EQ(*make("", milliseconds(50)), Duration(milliseconds(200)));
  EXPECT_EQ(*make("{}", milliseconds(200)), Duration(milliseconds(600)));
  EXPECT_EQ(*make("{metricsStalenessThreshold: 1s}", milliseconds(200)), Duration(milliseconds(1000)));
  EXPECT_EQ(*make("{metricsStalenessThreshold: 200ms}", milliseconds(200)), Duration(milliseconds(200)));
  const auto below = make("{metricsStalenessThreshold: 100ms}", milliseconds(200));
  ASSERT_FALSE(below.ok());
  EXPECT_THAT(below.error().message,
              testing::HasSubstr("invalid utilization detector configuration: plugins[0].parameters"
                                 ".metricsStalenessThreshold: 100ms is below the scrape interval 200ms"));
  const auto wrong = make(
      "{queueDepthThreshold: 0, kvCacheUtilThreshold: 1.5, metricsStalenessThreshold: 0s, "
      "headroom: -1}",
      milliseconds(200));
  ASSERT_FALSE(wrong.ok());
  EXPECT_THAT(wrong.error().message,
              testing::AllOf(testing::HasSubstr("queueDepthThreshold: must be positive, got 0"),
                             testing::HasSubstr("kvCacheUtilThreshold: must be in (0, 1], got 1.5"),
                             testing::HasSubstr("metricsStalenessThreshold: must be positive, got 0s"),
                             testing::HasSubstr("headroom: must be non-negative, got -1")));
}

}  // namespace
}  // namespace penstock::flowcontrol
