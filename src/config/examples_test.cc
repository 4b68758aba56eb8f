#include <gtest/gtest.h>

#include "base/source_path_testing.h"
#include "config/api_keys.h"
#include "config/endpoints_file.h"
#include "config/manifests.h"
#include "config/settings.h"

namespace penstock::config {
namespace {

const std::string kExamples = source_path("deploy/examples");

TEST(Examples, LoadWithoutWarningsAndBelongTogether) {
  auto settings = load_settings(kExamples + "/settings.yaml");
  ASSERT_TRUE(settings.ok()) << settings.error().message;
  EXPECT_TRUE(settings->warnings.empty());
  auto manifests = load_manifests(settings->manifests);
  ASSERT_TRUE(manifests.ok()) << manifests.error().message;
  EXPECT_TRUE(manifests->warnings.empty());
  const PoolSettings& pool = settings->pools.at(0);
  const InferencePool* object = manifests->find_pool(pool.ns, pool.name);
  ASSERT_NE(object, nullptr);
  auto endpoints = load_endpoints(pool.discovery.file);
  ASSERT_TRUE(endpoints.ok()) << endpoints.error().message;
  EXPECT_TRUE(endpoints->warnings.empty());
  for (const EndpointEntry& endpoint : endpoints->endpoints) EXPECT_TRUE(object->selects(endpoint.labels));
  auto keys = ApiKeys::load(kExamples + "/keys.yaml");
  ASSERT_TRUE(keys.ok()) << keys.error().message;
  EXPECT_NE((*keys)->find("secret"), nullptr);
}

}  // namespace
}  // namespace penstock::config
