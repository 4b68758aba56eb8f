#include "director/request_metrics.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

#include "telemetry/metrics.h"

namespace penstock::director {
namespace {

TEST(SeriesCache, NamesThatClientsChooseTakeABoundedNumberOfSeries) {
  telemetry::MetricRegistry registry;
  RequestMetrics metrics(registry);
  SeriesCache cache(metrics);
  std::set<const RequestSeries*> series;
  for (int model = 0; model < 100; ++model) {
    const std::string name = "m" + std::to_string(model);
    for (int fairness = 0; fairness < 60; ++fairness)
      series.insert(&cache.find(name, name, "f" + std::to_string(fairness), 0));
  }
  EXPECT_EQ(series.size(), SeriesCache::kMaxCached + 1);
  const RequestSeries& last = cache.find("m99", "m99", "f59", 0);
  EXPECT_EQ(last.model, "other");
  EXPECT_EQ(last.target, "other");
  EXPECT_EQ(last.fairness_id, "other");
  // Those that were there first keep theirs.
  EXPECT_EQ(cache.find("m0", "m0", "f0", 0).fairness_id, "f0");
}

TEST(SeriesCache, NamesThatAreTooLongOrNoTextAreOneNameAndTakeNoMemory) {
  telemetry::MetricRegistry registry;
  RequestMetrics metrics(registry);
  SeriesCache cache(metrics);
  const RequestSeries& other = cache.find("m", "m", std::string(60000, 'f'), 0);
  EXPECT_EQ(other.fairness_id, "other");
  EXPECT_EQ(&cache.find("m", "m", std::string(60000, 'g'), 0), &other);
  EXPECT_EQ(&cache.find("m", "m", "\xff\xfe", 0), &other);
  EXPECT_NE(&cache.find("m", "m", "f", 0), &other);
}

}  // namespace
}  // namespace penstock::director
