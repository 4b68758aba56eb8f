#include "scheduling/reference.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "scheduling/test_support.h"

namespace penstock::scheduling {
namespace {

using ::testing::HasSubstr;

const PluginDescriptor& find(std::string_view type) {
  for (const PluginDescriptor& plugin : scheduling_plugins()) {
    if (plugin.type == type) return plugin;
  }
  static const PluginDescriptor kNone{};
  return kNone;
}

TEST(PluginReferenceTest, PageShowsParametersWithDefaultsAndUnits) {
  const std::string page = render_plugin_page(find("load-aware-scorer"), "score = 1\n");
  EXPECT_THAT(page, HasSubstr("## `load-aware-scorer`"));
  EXPECT_THAT(page, HasSubstr("Stability: beta."));
  EXPECT_THAT(page, HasSubstr("| `threshold` | int | `128` | requests | "));
  EXPECT_THAT(page, testing::EndsWith(" |\n\nscore = 1\n"));
  EXPECT_THAT(render_plugin_page(find("queue-scorer"), ""), testing::EndsWith("\n\nTakes no parameters.\n"));
  EXPECT_THAT(render_plugin_page(find("queue-scorer"), "x\n"),
              testing::EndsWith("Takes no parameters.\n\nx\n"));
}

TEST(PluginReferenceTest, DeprecatedTypesNameTheirReplacement) {
  EXPECT_THAT(render_plugin_page(find("by-label"), ""),
              HasSubstr("Stability: beta, deprecated: use `label-selector-filter`."));
}

TEST(PluginReferenceTest, ListsEveryRegisteredType) {
  const std::string text =
      render_plugin_reference(scheduling_plugins(), [](std::string_view type) { return type; });
  for (const PluginDescriptor& plugin : scheduling_plugins()) {
    EXPECT_THAT(text, HasSubstr("[`" + std::string(plugin.type) + "`]"));
    EXPECT_THAT(text, HasSubstr("\n## `" + std::string(plugin.type) + "`\n"));
  }
}

TEST(RegistryTest, TypesAreUniqueDescribedAndCanBeMadeWithoutParametersOrSayWhatIsMissing) {
  const std::set<std::string_view> need_parameters{"by-label",
                                                   "disaggregatedset-rollout-screener",
                                                   "endpoint-attribute-filter",
                                                   "endpoint-attribute-scorer",
                                                   "header-label-affinity-scorer",
                                                   "pd-profile-handler",
                                                   "request-attribute-reporter",
                                                   "session-id-producer",
                                                   "utilization-filter"};
  std::set<std::string_view> types;
  for (const PluginDescriptor& plugin : scheduling_plugins()) {
    EXPECT_TRUE(types.insert(plugin.type).second) << plugin.type;
    EXPECT_FALSE(plugin.summary.empty()) << plugin.type;
    auto made = make_plugin(plugin.type);
    if (need_parameters.contains(plugin.type)) {
      EXPECT_FALSE(made.ok()) << plugin.type;
      continue;
    }
    ASSERT_TRUE(made.ok()) << plugin.type << ": " << made.error().message;
    EXPECT_NE(made->get(), nullptr);
  }
}

TEST(RegistryTest, TypesWithoutParametersAcceptAnyAsTheReferenceDoes) {
  for (const char* type : {"single-profile-handler", "queue-scorer", "kv-cache-utilization-scorer",
                           "running-requests-size-scorer", "lora-affinity-scorer", "decode-filter",
                           "prefill-filter", "encode-filter"}) {
    EXPECT_TRUE(make_plugin(type, "{anything: [1, 2]}").ok()) << type;
  }
}

TEST(RegistryTest, ParameterNamesMatchWithoutCase) {
  EXPECT_TRUE(make_plugin("max-score-picker", "MAXNUMOFENDPOINTS: 2").ok());
  EXPECT_FALSE(make_plugin("max-score-picker", "threshold: 2").ok());
}

}  // namespace
}  // namespace penstock::scheduling
