#include "assembly/assembly_testing.h"
#include "base/source_path_testing.h"
#include "config/files.h"
#include "config/node.h"

namespace penstock::assembly {
namespace {

using testing::ContainsRegex;
using testing::EndsWith;

class LoaderErrorsTest : public AssemblyTest {};

TEST_F(LoaderErrorsTest, NamePluginFieldAndLine) {
  const std::string path = source_path("tests/vectors/loader-errors.yaml");
  const auto text = config::read_file(path, 1 << 20);
  ASSERT_TRUE(text.ok());
  const auto document = config::parse_document(*text, path);
  ASSERT_TRUE(document.ok()) << document.error().message;
  EXPECT_GE(document->items.size(), 75U);
  options_.flow_control_available = true;
  for (const config::Node& one : document->items) {
    const config::Node* configuration = one.find("configuration");
    const config::Node* error = one.find("error");
    ASSERT_TRUE(configuration != nullptr && error != nullptr) << path << ":" << one.line;
    EXPECT_EQ(error_of(configuration->text), error->text) << path << ":" << one.line;
    EXPECT_THAT(error->text, ContainsRegex("line [0-9]+")) << path << ":" << one.line;
  }
}

// The line of the plugin that has the default's name.
TEST_F(LoaderErrorsTest, OfDefaultsWhoseNameAnotherPluginHasNameThatPluginsLine) {
  const auto named = [&](const std::string& name, const std::string& more = "") {
    return error_of("plugins:\n- type: prefix-cache-scorer\n- {name: " + name + ", type: queue-scorer}\n" +
                    more);
  };
  EXPECT_THAT(named("approx-prefix-cache-producer"),
              EndsWith("data key PrefixCacheMatchInfoDataKey/approx-prefix-cache-producer is consumed by "
                       "prefix-cache-scorer, but no plugin produces it (line 2)"));
  EXPECT_THAT(named("utilization-detector"),
              EndsWith("plugin 'utilization-detector' is not a fwkfc.SaturationDetector (line 3)"));
  EXPECT_THAT(named("openai-parser"),
              EndsWith("the plugin \"openai-parser\" is not a parser plugin (line 3)"));
  EXPECT_THAT(named("metrics-data-source"),
              EndsWith("the plugin metrics-data-source is not a fwkdl.DataSource (line 3)"));
  EXPECT_THAT(named("core-metrics-extractor"),
              EndsWith("the plugin core-metrics-extractor is not a fwkdl.Extractor (line 3)"));
  EXPECT_THAT(named("fcfs-ordering-policy", "featureGates: [flowControl]\n"),
              EndsWith("plugin \"fcfs-ordering-policy\" does not implement OrderingPolicy (actual type: "
                       "queue-scorer) (line 3)"));
  EXPECT_THAT(named("static-usage-limit-policy", "featureGates: [flowControl]\n"),
              EndsWith("does not implement UsageLimitPolicy (actual type: queue-scorer) (line 3)"));
}

}  // namespace
}  // namespace penstock::assembly
