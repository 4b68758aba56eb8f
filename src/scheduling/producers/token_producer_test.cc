#include "scheduling/producers/token_producer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "scheduling/test_support.h"

namespace penstock::scheduling {
namespace {

using ::testing::HasSubstr;

TEST(TokenProducerTest, MakesTheTokenizedPromptBeforeQueueing) {
  const DataProducer* producer = nullptr;
  auto plugin = make_as("token-producer", producer, "", nullptr, "mine");
  ASSERT_NE(producer, nullptr);
  EXPECT_EQ(producer->stage(), DataProducer::Stage::kRequest);
  DataDeclaration declaration;
  producer->declare_data(declaration);
  ASSERT_EQ(declaration.produces.size(), 1U);
  EXPECT_EQ(declaration.produces[0].key.text(), "TokenizedPrompt/token-producer");
  EXPECT_TRUE(make_plugin("token-producer", "estimate: {}").ok());
  EXPECT_TRUE(make_plugin("tokenizer").ok());
}

TEST(TokenProducerTest, RefusesBackendsItDoesNotHaveByName) {
  for (const char* parameters :
       {"vllm: {url: 'http://localhost:8000'}", "modelName: m", "udsTokenizerConfig: {}"}) {
    auto plugin = make_plugin("token-producer", parameters);
    ASSERT_FALSE(plugin.ok()) << parameters;
    EXPECT_THAT(plugin.error().message, HasSubstr("this build has only the 'estimate' backend"))
        << parameters;
  }
  EXPECT_FALSE(make_plugin("token-producer", "estimate: {size: 4}").ok());
  EXPECT_FALSE(make_plugin("token-producer", "guess: {}").ok());
}

}  // namespace
}  // namespace penstock::scheduling
