#include "gateway/models.h"

#include <gtest/gtest.h>

namespace penstock::gateway {
namespace {

ModelList decode(std::string text) {
  text.append(io::kBodyPadding, '\0');
  auto list = decode_models(std::string_view(text).substr(0, text.size() - io::kBodyPadding));
  EXPECT_TRUE(list.ok());
  return list.ok() ? *list : ModelList{};
}

TEST(ModelList, TheUnionKeepsEveryFieldOfTheFirstThatNamesAnId) {
  ModelList merged =
      decode(R"({"object":"list","data":[{"id":"base","max_model_len":2048,"permission":[]}]})");
  merged.merge(decode(
      R"({"data":[{"id":"base","created":9},{"id":"lora_1","parent":"base","root":"path"}, {"no":"id"}]})"));
  EXPECT_EQ(merged.to_json(),
            R"({"object":"list","data":[{"id":"base","max_model_len":2048,"permission":[]},)"
            R"({"id":"lora_1","parent":"base","root":"path"}]})");
  ASSERT_NE(merged.find("lora_1"), nullptr);
  EXPECT_EQ(merged.find("other"), nullptr);
}

TEST(ModelList, WhatIsNoListIsAnError) {
  std::string text = R"({"detail":"Not Found"})";
  const size_t size = text.size();
  text.append(io::kBodyPadding, '\0');
  EXPECT_FALSE(decode_models(std::string_view(text).substr(0, size)).ok());
}

}  // namespace
}  // namespace penstock::gateway
