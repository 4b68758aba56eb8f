#include "simulator/metrics_page.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "base/source_path_testing.h"
#include "simulator/recorded_exchange.h"

namespace penstock::simulator {
namespace {

struct Family {
  std::string help;
  std::string type;
  std::set<std::string> label_names;
  size_t samples = 0;
};

// The page's families by name, and their order. Histogram samples count for their family.
std::pair<std::map<std::string, Family>, std::vector<std::string>> families_of(const std::string& page) {
  std::map<std::string, Family> out;
  std::vector<std::string> order;
  std::string current;
  for (const std::string_view line : split(page, '\n')) {
    if (line.starts_with("# HELP ") || line.starts_with("# TYPE ")) {
      const std::string_view rest = line.substr(7);
      current = rest.substr(0, rest.find(' '));
      if (line.starts_with("# HELP ")) {
        out[current].help = rest.substr(rest.find(' ') + 1);
        order.push_back(current);
      } else {
        out[current].type = rest.substr(rest.find(' ') + 1);
      }
    } else if (!line.empty()) {
      Family& family = out[current];
      ++family.samples;
      const size_t brace = line.find('{');
      if (brace == std::string_view::npos) continue;
      size_t at = brace + 1;
      std::string last;
      while (line[at] != '}') {
        const size_t equals = line.find("=\"", at);
        const std::string name(line.substr(at, equals - at));
        EXPECT_LT(last, name) << line;  // sorted
        last = name;
        family.label_names.insert(name);
        at = line.find('"', equals + 2) + 1;
        if (line[at] == ',') ++at;
      }
    }
  }
  return {out, order};
}

EngineModel::Options recorded_engine() {
  EngineModel::Options options;
  options.block_size = 32;
  options.num_blocks = 256;
  options.max_sequences = 8;
  options.max_model_len = 2048;
  options.max_adapters = 1;
  return options;
}

TEST(MetricsPage, ShowsTheRealEnginesFamiliesWithTheirHelpTypesLabelsAndOrder) {
  const std::string recorded =
      recorded::read_file(source_path("tests/vectors/vllm-0.32.0/metrics/under_load.txt"));
  ASSERT_FALSE(recorded.empty());
  EngineModel model(recorded_engine());
  model.add_adapter("alpha");
  MetricsContext context;
  context.model_name = "tiny";
  context.adapters_enabled = true;
  context.started_at = 1795994077.614;
  std::string page;
  append_metrics(page, MetricsDialect::kVllm, model, context);

  const auto [real, real_order] = families_of(recorded);
  const auto [ours, ours_order] = families_of(page);
  std::vector<std::string> real_vllm;
  for (const std::string& name : real_order) {
    if (name.starts_with("vllm:") && !name.starts_with("vllm:estimated_") &&
        !name.starts_with("vllm:tool_call_parser"))
      real_vllm.push_back(name);
  }
  std::vector<std::string> ours_vllm;
  for (const std::string& name : ours_order)
    if (name.starts_with("vllm:")) ours_vllm.push_back(name);
  EXPECT_EQ(ours_vllm, real_vllm);
  for (const std::string& name : real_vllm) {
    SCOPED_TRACE(name);
    ASSERT_TRUE(ours.contains(name));
    EXPECT_EQ(ours.at(name).help, real.at(name).help);
    EXPECT_EQ(ours.at(name).type, real.at(name).type);
    if (name == "vllm:lora_requests_info") continue;  // no sample before the first step
    EXPECT_EQ(ours.at(name).label_names, real.at(name).label_names);
    EXPECT_EQ(ours.at(name).samples, real.at(name).samples);
  }
  EXPECT_EQ(ours.at("vllm:lora_requests_info").samples, 0U);
}

TEST(MetricsPage, OldAdapterSeriesStayAndTheLiveOneIsTheNewest) {
  EngineModel model(recorded_engine());
  const int alpha = model.add_adapter("alpha");
  ManualClock clock;
  std::vector<TokenEvent> events;
  const std::vector<uint32_t> prompt = {1, 2, 3};
  SequenceSpec spec;
  spec.prompt = prompt;
  spec.output_tokens = 2;
  spec.adapter = alpha;
  model.add(spec, clock.now());
  model.advance(clock.now(), clock.wall_now(), events);
  MetricsContext context;
  context.model_name = "tiny";
  context.adapters_enabled = true;
  std::string page;
  append_metrics(page, MetricsDialect::kVllm, model, context);
  EXPECT_NE(page.find("vllm:lora_requests_info{max_lora=\"1\",running_lora_adapters=\"alpha\",waiting_lora_"
                      "adapters=\"\"}"),
            std::string::npos);
  EXPECT_NE(
      page.find(
          "vllm:lora_requests_info{max_lora=\"1\",running_lora_adapters=\"\",waiting_lora_adapters=\"\"}"),
      std::string::npos);
}

TEST(MetricsPage, NumbersAreWrittenAsTheClientLibraryDoes) {
  const auto written = [](double value) {
    std::string out;
    append_sample_value(out, value);
    return out;
  };
  EXPECT_EQ(written(8), "8.0");
  EXPECT_EQ(written(0.55), "0.55");
  EXPECT_EQ(written(27453), "27453.0");
  EXPECT_EQ(written(1234567), "1.234567e+06");
  EXPECT_EQ(written(1790000000.25), "1.79000000025e+09");
  EXPECT_EQ(written(1000000), "1e+06");
  EXPECT_EQ(written(0), "0.0");
  EXPECT_EQ(written(0.00001), "1e-05");
  EXPECT_EQ(written(INFINITY), "+Inf");
}

TEST(MetricsPage, DialectsHaveTheNamesOfTheirEngineTables) {
  EXPECT_EQ(*parse_dialect("sglang"), MetricsDialect::kSglang);
  EXPECT_EQ(*parse_dialect("trtllm-serve"), MetricsDialect::kTrtllmServe);
  EXPECT_EQ(*parse_dialect("trtllm"), MetricsDialect::kTrtllmServe);
  EXPECT_EQ(*parse_dialect("triton-tensorrt-llm"), MetricsDialect::kTritonTensorrtLlm);
  EXPECT_EQ(parse_dialect("other").error().message,
            "dialect \"other\" is none of vllm, vllm-old, sglang, trtllm-serve, triton-tensorrt-llm");
}

TEST(MetricsPage, OtherDialectsShowTheirOwnNames) {
  EngineModel model(recorded_engine());
  MetricsContext context;
  context.model_name = "m";
  const auto page = [&](MetricsDialect dialect) {
    std::string out;
    append_metrics(out, dialect, model, context);
    return out;
  };
  EXPECT_NE(page(MetricsDialect::kSglang)
                .find("sglang:num_queue_reqs{engine_type=\"unified\",model_name=\"m\",moe_ep_rank=\"0\",pp_"
                      "rank=\"0\","
                      "tp_rank=\"0\"} 0.0"),
            std::string::npos);
  EXPECT_NE(
      page(MetricsDialect::kTrtllmServe).find("trtllm_kv_cache_tokens_per_block{engine_type=\"undefined\""),
      std::string::npos);
  EXPECT_NE(page(MetricsDialect::kTritonTensorrtLlm)
                .find("nv_trt_llm_request_metrics{model=\"tensorrt_llm\",request_type=\"scheduled\",version="
                      "\"1\"} 0\n"),
            std::string::npos);
  EXPECT_NE(page(MetricsDialect::kTritonTensorrtLlm)
                .find("nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type=\"max\",model=\"tensorrt_llm\","
                      "version=\"1\"} 255\n"),
            std::string::npos);
  EXPECT_NE(page(MetricsDialect::kVllmOld).find("vllm:gpu_cache_usage_perc{model_name=\"m\"} 0.0"),
            std::string::npos);
}

}  // namespace
}  // namespace penstock::simulator
