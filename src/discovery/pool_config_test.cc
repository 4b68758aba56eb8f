#include "discovery/pool_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace penstock::discovery {
namespace {

using ::testing::HasSubstr;

Result<std::optional<ConfigReference>> reference(const std::string& text) {
  config::InferencePool pool;
  pool.meta.annotations[std::string(kConfigAnnotation)] = text;
  return config_reference(pool);
}

TEST(PoolConfigTest, AnAnnotationNamesAConfigMapAndPerhapsItsEntry) {
  EXPECT_EQ(*config_reference(config::InferencePool()), std::nullopt);
  EXPECT_EQ(*reference("mine"), (ConfigReference{"mine", ""}));
  EXPECT_EQ(*reference(" mine/picker.yaml "), (ConfigReference{"mine", "picker.yaml"}));
  for (const char* wrong : {"", "/a", "mine/", "ns/mine/a", "two words", "a,b", "app=x"}) {
    const auto read = reference(wrong);
    ASSERT_FALSE(read.ok()) << wrong;
    EXPECT_THAT(read.error().message, HasSubstr("penstock.dev/config '" + std::string(wrong) + "'"));
  }
}

TEST(PoolConfigTest, AnEntryIsTakenByNameOrBecauseItIsTheOnlyOne) {
  kubernetes::JsonDocument document;
  const auto one =
      decode_config_map(*document.parse(R"({"metadata":{"name":"c"},"data":{"a.yaml":"plugins: []"}})"));
  ASSERT_TRUE(one.ok());
  EXPECT_EQ(one->name, "c");
  EXPECT_EQ(*config_entry(*one, ""), "plugins: []");
  EXPECT_EQ(*config_entry(*one, "a.yaml"), "plugins: []");
  EXPECT_EQ(config_entry(*one, "b").error().message, "no entry 'b'; there are: a.yaml");
  const ConfigMapRecord two{"c", {{"a", "1"}, {"b", "2"}}};
  EXPECT_EQ(config_entry(two, "").error().message, "which entry? There are: a, b");
  EXPECT_EQ(*config_entry(two, "b"), "2");
  EXPECT_EQ(config_entry(ConfigMapRecord{}, "").error().message, "which entry? There are: none");
}

}  // namespace
}  // namespace penstock::discovery
