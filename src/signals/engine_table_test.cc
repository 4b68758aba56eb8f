#include "signals/engine_table.h"

#include <gtest/gtest.h>

namespace penstock::signals {
namespace {

using Labels = std::map<std::string, std::string, std::less<>>;

TEST(MetricSpecTest, ReadsEverySpellingOfTheSheet) {
  const struct {
    const char* text;
    const char* name;
    Labels labels;
  } cases[] = {
      {"my_metric", "my_metric", {}},
      {"my_metric{label1=value1}", "my_metric", {{"label1", "value1"}}},
      {"  my_metric  {  label1  =  value1  ,  label2  =  value2  }  ",
       "my_metric",
       {{"label1", "value1"}, {"label2", "value2"}}},
      {"m{}", "m", {}},
      {"m{ }", "m", {}},
      {"m{a=\"\"}", "m", {{"a", ""}}},
      {"m{a=\"b c\"}", "m", {{"a", "b c"}}},
      {"m{a=b,a=c}", "m", {{"a", "c"}}},
      {"m{a=b=c}", "m", {{"a", "b=c"}}},
      {"m{model_name=\"meta/llama\"}", "m", {{"model_name", "meta/llama"}}},
      {"m{a=~b.*}", "m", {{"a", "~b.*"}}},
      {"vllm:num_requests_waiting", "vllm:num_requests_waiting", {}},
  };
  for (const auto& c : cases) {
    const auto spec = parse_metric_spec(c.text);
    ASSERT_TRUE(spec.ok()) << c.text << ": " << spec.error().message;
    ASSERT_TRUE(spec->has_value()) << c.text;
    EXPECT_EQ((**spec).name, c.name) << c.text;
    EXPECT_EQ((**spec).labels, c.labels) << c.text;
  }
}

TEST(MetricSpecTest, RefusesEveryWrongSpellingOfTheSheet) {
  for (const char* text :
       {"m{a=b", "m{a}", "m{=v}", "m{a=}", "{a=b}", "m{a=b}x", "m{a=b,}", "m{a=\"b,c\"}", "m{a=\"b}c\"}",
        "m{a=\"x=y\"}", "m{a=b c}", "m{a!=b}", "m{a-b=c}", "a.b", "1m", "   ", "}", "{}"}) {
    EXPECT_FALSE(parse_metric_spec(text).ok()) << text;
  }
  EXPECT_EQ(parse_metric_spec("m{a=b").error().message, "not a valid metric specification: \"m{a=b\"");
  EXPECT_EQ(parse_metric_spec("m{a}").error().message, "invalid label pair \"a\" in specification: \"m{a}\"");
}

TEST(MetricSpecTest, EmptyTextDisables) {
  const auto spec = parse_metric_spec("");
  ASSERT_TRUE(spec.ok());
  EXPECT_FALSE(spec->has_value());
}

Endpoint labelled(Labels labels) {
  Endpoint e;
  e.labels = std::move(labels);
  return e;
}

TEST(EngineTableTest, ChoosesByLabelThenLegacyLabelThenDefault) {
  const auto table = EngineTable::build({}, kDefaultEngine, kEngineLabel, SeriesMode::kCompatible);
  ASSERT_TRUE(table.ok());
  EXPECT_EQ(table->for_endpoint(labelled({{"llm-d.ai/engine-type", "sglang"}})).name, "sglang");
  EXPECT_EQ(table->for_endpoint(labelled({{"inference.networking.k8s.io/engine-type", "trtllm-serve"}})).name,
            "trtllm-serve");
  EXPECT_EQ(table->for_endpoint(labelled({{"llm-d.ai/engine-type", "vllm-gaudi"}})).name, "vllm");
  EXPECT_EQ(table->for_endpoint(labelled({})).name, "vllm");
  EXPECT_TRUE(table->may_detect(labelled({})));
  EXPECT_FALSE(table->may_detect(labelled({{"llm-d.ai/engine-type", "vllm-gaudi"}})));
  Endpoint configured = labelled({{"llm-d.ai/engine-type", "sglang"}});
  configured.engine = "triton";
  EXPECT_EQ(table->for_endpoint(configured).name, "triton");
}

TEST(EngineTableTest, HasTheReferencesNames) {
  const auto table = EngineTable::build({}, kDefaultEngine, kEngineLabel, SeriesMode::kCompatible);
  const auto first = [&](std::string_view engine, Signal s) {
    return table->find(engine)->rule(s).names.at(0).text();
  };
  EXPECT_EQ(first("vllm", Signal::kWaitingRequests), "vllm:num_requests_waiting");
  EXPECT_EQ(first("vllm", Signal::kKvUsage), "vllm:kv_cache_usage_perc");
  EXPECT_EQ(first("sglang", Signal::kWaitingRequests), "sglang:num_queue_reqs");
  EXPECT_EQ(first("sglang", Signal::kKvUsage), "sglang:token_usage");
  EXPECT_EQ(first("trtllm-serve", Signal::kCacheNumBlocks), "trtllm_kv_cache_max_blocks");
  EXPECT_EQ(first("triton-tensorrt-llm", Signal::kRunningRequests),
            "nv_trt_llm_request_metrics{request_type=\"scheduled\"}");
  EXPECT_EQ(first("triton", Signal::kWaitingRequests), "nv_inference_pending_request_count");
  EXPECT_FALSE(table->find("triton")->provides(Signal::kKvUsage));
  EXPECT_TRUE(table->find("vllm")->provides(Signal::kCacheBlockSize));
}

TEST(EngineTableTest, AUserEntryReplacesABuiltInOneEntirely) {
  EngineMapping mine;
  mine.name = "vllm";
  mine.rule(Signal::kWaitingRequests).names = {{"my_queue", {}}};
  const auto table = EngineTable::build({mine}, kDefaultEngine, kEngineLabel, SeriesMode::kCompatible);
  ASSERT_TRUE(table.ok());
  EXPECT_FALSE(table->find("vllm")->provides(Signal::kKvUsage));
  EXPECT_NE(table->find("sglang"), nullptr);
  EXPECT_EQ(&table->mappings().front(), table->find("vllm"));
}

TEST(EngineTableTest, NamesWhatIsWrongWithAMapping) {
  const auto error = [](std::vector<std::string> names, std::string_view default_engine) {
    std::vector<EngineMapping> mappings(names.size());
    for (size_t i = 0; i < names.size(); ++i) mappings[i].name = names[i];
    const auto table =
        EngineTable::build(std::move(mappings), default_engine, kEngineLabel, SeriesMode::kCompatible);
    return table.ok() ? std::string() : table.error().message;
  };
  EXPECT_EQ(error({""}, "vllm"), "engine config name cannot be empty");
  EXPECT_EQ(error({"default"}, "vllm"), "engine config name cannot be \"default\" (reserved)");
  EXPECT_EQ(error({"x", "x"}, "vllm"), "mapping for engine type \"x\" already exists");
  EXPECT_EQ(error({}, "tgi"), "defaultEngine \"tgi\" not found in engineConfigs");
}

}  // namespace
}  // namespace penstock::signals
