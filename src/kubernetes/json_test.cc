#include "kubernetes/json.h"

#include <gtest/gtest.h>

#include <vector>

#include "kubernetes/testing.h"

namespace penstock::kubernetes {
namespace {

TEST(Json, OfAnObjectTheFieldsAreTakenThatWereAskedFor) {
  JsonDocument document;
  const Json json = *document.parse(
      R"({"metadata":{"name":"x","labels":{"a.b/c":"1"},"gone":null},"spec":{"list":[{"k":1},{"k":2}],"x":2}})");
  const auto of = [&](std::vector<std::string> fields) { return json.to_node(fields).to_json(); };
  EXPECT_EQ(of({"metadata.labels", "spec.list"}),
            R"({"metadata":{"labels":{"a.b/c":"1"}},"spec":{"list":[{"k":1},{"k":2}]}})");
  EXPECT_EQ(of({"metadata.name", "metadata"}), of({"metadata"})) << "the larger one, whole";
  EXPECT_EQ(of({"spec.x", "status.word", "spec.x.y", "metadata.gone", "spec.list.k"}), R"({"spec":{"x":2}})")
      << "what is not there is left out";
  EXPECT_EQ(of({}), "{}");
}

TEST(Json, AFewFieldsOfAPodTakeAFractionOfItsMemory) {
  JsonDocument document;
  const testing::Recorded list = testing::recorded("list-pods-ready.http");
  Json pod;
  (*document.parse(list.body))["items"].for_each_item([&](Json item) { pod = item; });
  ASSERT_TRUE(pod.present());
  const std::vector<std::string> fields{"metadata.labels", "spec.hostname", "status.conditions"};
  const size_t few = memory_bytes(pod.to_node(fields));
  EXPECT_GT(few, 2000U);
  EXPECT_LT(few * 4, memory_bytes(pod.to_node()));
}

}  // namespace
}  // namespace penstock::kubernetes
