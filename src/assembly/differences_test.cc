#include "assembly/differences.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "telemetry/metrics.h"

namespace penstock::assembly {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

std::vector<std::string> of(std::string_view text) {
  telemetry::MetricRegistry metrics;
  const SystemClock clock;
  const auto assembly = assemble(text, "a", {.tables = builtin_tables(), .metrics = metrics, .clock = clock});
  EXPECT_TRUE(assembly.ok()) << assembly.error().message;
  return assembly.ok() ? differences(*assembly) : std::vector<std::string>();
}

TEST(Differences, TheBuiltInConfigurationHasThoseOfItsPlugins) {
  const auto lines = of("");
  EXPECT_THAT(lines, Contains(StartsWith("approx-prefix-cache-producer: ")));
  EXPECT_THAT(lines, Contains(StartsWith("queue-scorer: ")));
  EXPECT_THAT(lines, Not(Contains(StartsWith("file-discovery: "))));
}

TEST(Differences, OnlyWhatTheConfigurationUsesIsNamed) {
  const auto lines = of("plugins: [{type: active-request-scorer}]\npenstock: {mode: strict}\n");
  EXPECT_THAT(lines, Not(Contains(StartsWith("queue-scorer: "))));
  EXPECT_THAT(lines, Contains(HasSubstr("penstock.mode strict")));
}

TEST(Differences, EveryTypeThatIsNamedIsOneOfThisBuild) {
  // So that a renamed plugin takes its sentence along.
  std::vector<std::string> known;
  for (const auto& table : builtin_tables()) {
    for (const PluginDescriptor& plugin : table) known.emplace_back(plugin.type);
  }
  for (const std::string_view type : difference_types()) EXPECT_THAT(known, Contains(std::string(type)));
}

}  // namespace
}  // namespace penstock::assembly
