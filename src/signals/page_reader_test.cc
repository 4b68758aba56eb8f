#include "signals/page_reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <sstream>

#include "base/hash.h"
#include "base/source_path_testing.h"

namespace penstock::signals {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Found = Reading::Found;

constexpr TimePoint kStart{std::chrono::seconds(1000)};

std::string read_vector(const std::string& name) {
  std::ifstream in(source_path("tests/vectors/vllm-0.32.0/metrics/") + name, std::ios::binary);
  EXPECT_TRUE(in) << name;
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}

CompiledEngines engines(SeriesMode mode = SeriesMode::kCompatible, std::vector<EngineMapping> custom = {}) {
  return CompiledEngines(EngineTable::build(std::move(custom), kDefaultEngine, kEngineLabel, mode).value());
}

Reading read(const CompiledEngines& compiled, std::string_view engine, std::string_view page) {
  PageReader reader(compiled);
  reader.begin(engine.empty() ? nullptr : compiled.table().find(engine));
  reader.feed(page);
  return reader.finish();
}

std::vector<uint64_t> hashes(std::vector<std::string> names) {
  std::vector<uint64_t> out;
  for (const std::string& name : names) out.push_back(hash_of(name));
  std::sort(out.begin(), out.end());
  return out;
}

constexpr std::string_view kLoraFamily =
    "# TYPE vllm:lora_requests_info gauge\n"
    "vllm:lora_requests_info{max_lora=\"4\",running_lora_adapters=\"a, b\",waiting_lora_adapters=\"c\"} "
    "1.7e9\n"
    "vllm:lora_requests_info{max_lora=\"4\",running_lora_adapters=\"\",waiting_lora_adapters=\"\"} 1.6e9\n";

// Worked scrape A of the reference, and what its variations change.
std::string page_a(std::string_view lora = kLoraFamily) {
  return "# TYPE vllm:num_requests_waiting gauge\n"
         "vllm:num_requests_waiting{engine=\"0\",model_name=\"m\"} 7.0\n"
         "vllm:num_requests_waiting{engine=\"1\",model_name=\"m\"} 4.0\n"
         "# TYPE vllm:num_requests_running gauge\n"
         "vllm:num_requests_running{engine=\"0\",model_name=\"m\"} 3.0\n"
         "# TYPE vllm:kv_cache_usage_perc gauge\n"
         "vllm:kv_cache_usage_perc{engine=\"0\",model_name=\"m\"} 0.55\n" +
         std::string(lora) +
         "# TYPE vllm:cache_config_info gauge\n"
         "vllm:cache_config_info{block_size=\"16\",num_gpu_blocks=\"512\"} 1.0\n";
}

void expect_a(const Reading& r) {
  EXPECT_EQ(r.at(Signal::kWaitingRequests).value, 7);
  EXPECT_EQ(r.at(Signal::kRunningRequests).value, 3);
  EXPECT_EQ(r.at(Signal::kKvUsage).value, 0.55);
  EXPECT_EQ(r.at(Signal::kCacheBlockSize).value, 16);
  EXPECT_EQ(r.at(Signal::kCacheNumBlocks).value, 512);
  for (const Reading::Value& v : r.signals) EXPECT_EQ(v.found, Found::kValue);
  EXPECT_EQ(r.running, hashes({"a", "b"}));
  EXPECT_EQ(r.waiting, hashes({"c"}));
  EXPECT_EQ(r.max_adapters, 4);
  EXPECT_THAT(r.errors, IsEmpty());
}

TEST(PageReaderTest, ScrapeAIsReadWhole) {
  expect_a(read(engines(), "vllm", page_a()));
  expect_a(read(engines(), "", page_a()));
}

TEST(PageReaderTest, ScrapeBWithoutLoraIsNoError) {
  const Reading r = read(engines(), "vllm", page_a(""));
  EXPECT_FALSE(r.lora_found);
  EXPECT_THAT(r.running, IsEmpty());
  EXPECT_THAT(r.errors, IsEmpty());
}

TEST(PageReaderTest, ScrapeCNamesEveryMissingFamily) {
  const Reading r =
      read(engines(), "vllm", "# TYPE vllm:num_requests_waiting gauge\nvllm:num_requests_waiting 7\n");
  EXPECT_EQ(r.at(Signal::kWaitingRequests).value, 7);
  EXPECT_EQ(r.at(Signal::kRunningRequests).found, Found::kMissing);
  EXPECT_EQ(r.at(Signal::kKvUsage).found, Found::kMissing);
  EXPECT_EQ(r.errors.size(), 3U);
  EXPECT_THAT(r.errors, Contains("metric family \"vllm:num_requests_running\" not found"));
  EXPECT_THAT(r.errors, Contains("metric family \"vllm:kv_cache_usage_perc\" not found"));
  EXPECT_THAT(r.errors, Contains("metric family \"vllm:cache_config_info\" not found"));
}

TEST(PageReaderTest, ScrapeDEmptyPageHasEverythingMissing) {
  const Reading r = read(engines(), "vllm", "");
  for (const Reading::Value& v : r.signals) EXPECT_EQ(v.found, Found::kMissing);
  EXPECT_FALSE(r.errors.empty());
}

// The reference reads 0 for series without TYPE, takes the first LoRA series then, and drops the whole page
// at a stray line: three silent losses that we don't repeat.
TEST(PageReaderTest, ScrapesEAndFLoseNothing) {
  std::string untyped;
  std::istringstream in(page_a());
  for (std::string line; std::getline(in, line);)
    if (!line.starts_with("#")) untyped += line + "\n";
  expect_a(read(engines(), "vllm", untyped));
  expect_a(read(engines(), "vllm", page_a() + "foo{\n"));
}

TEST(PageReaderTest, ScrapeGTruncatesCounts) {
  EXPECT_EQ(read(engines(), "vllm", "vllm:num_requests_waiting 7.9\n").at(Signal::kWaitingRequests).value, 7);
}

TEST(PageReaderTest, ScrapeHABlockSizeThatIsNoNumberIsAnErrorOfItsOwn) {
  const Reading r =
      read(engines(), "vllm", "vllm:cache_config_info{block_size=\"None\",num_gpu_blocks=\"512\"} 1\n");
  EXPECT_EQ(r.at(Signal::kCacheBlockSize).found, Found::kMissing);
  EXPECT_EQ(r.at(Signal::kCacheNumBlocks).value, 512);
  EXPECT_THAT(r.errors,
              Contains("label block_size=\"None\" of \"vllm:cache_config_info\" is not an integer"));
}

TEST(PageReaderTest, ReadsTheRecordedPagesOfVllm) {
  const CompiledEngines compiled = engines();
  const Reading load = read(compiled, "", read_vector("under_load.txt"));
  EXPECT_EQ(load.engine->name, "vllm");
  EXPECT_EQ(load.at(Signal::kRunningRequests).value, 8);
  EXPECT_EQ(load.at(Signal::kWaitingRequests).value, 9);
  EXPECT_DOUBLE_EQ(load.at(Signal::kKvUsage).value, 0.10196078431372546);
  EXPECT_EQ(load.at(Signal::kCacheBlockSize).value, 32);
  EXPECT_EQ(load.at(Signal::kCacheNumBlocks).value, 256);
  // MET-02, and an adapter both running and waiting.
  EXPECT_EQ(load.running, hashes({"alpha"}));
  EXPECT_EQ(load.waiting, hashes({"alpha"}));
  EXPECT_EQ(load.max_adapters, 1);
  EXPECT_THAT(load.errors, IsEmpty());

  // MET-01: HELP and TYPE but no sample before the first step.
  const Reading fresh = read(compiled, "", read_vector("fresh.txt"));
  EXPECT_FALSE(fresh.lora_found);
  EXPECT_THAT(fresh.errors, IsEmpty());
  EXPECT_EQ(fresh.at(Signal::kWaitingRequests).found, Found::kValue);

  // The newest of three series says that nothing runs.
  const Reading after = read(compiled, "", read_vector("after_load.txt"));
  EXPECT_TRUE(after.lora_found);
  EXPECT_THAT(after.running, IsEmpty());
  EXPECT_EQ(after.max_adapters, 1);

  // Strict mode counts only those that wait for capacity.
  const CompiledEngines strict_engines = engines(SeriesMode::kStrict);
  const Reading strict = read(strict_engines, "", read_vector("under_load.txt"));
  EXPECT_EQ(strict.at(Signal::kWaitingRequests).value, 6);
  EXPECT_EQ(strict.at(Signal::kWaitingRequests).by->name, "vllm:num_requests_waiting_by_reason");
}

TEST(PageReaderTest, TheNewestLoraSeriesWinsInAnyOrder) {
  std::vector<std::string> lines = {
      "vllm:lora_requests_info{max_lora=\"1\",running_lora_adapters=\"\",waiting_lora_adapters=\"\"} 100\n",
      "vllm:lora_requests_info{max_lora=\"2\",running_lora_adapters=\"a\",waiting_lora_adapters=\"\"} 200\n",
      "vllm:lora_requests_info{max_lora=\"3\",running_lora_adapters=\"a , b\",waiting_lora_adapters=\"\"} "
      "300\n"};
  std::sort(lines.begin(), lines.end());
  do {
    const Reading r = read(engines(), "vllm", lines[0] + lines[1] + lines[2]);
    EXPECT_EQ(r.running, hashes({"a", "b"}));
    EXPECT_EQ(r.max_adapters, 3);
  } while (std::next_permutation(lines.begin(), lines.end()));
}

TEST(PageReaderTest, TakesTheLargestTimestampAndTheFirstOnTies) {
  EngineMapping mine;
  mine.name = "mine";
  mine.rule(Signal::kWaitingRequests).names = {{"fam", {{"l", "value1"}}}};
  mine.rule(Signal::kRunningRequests).names = {{"other", {}}};
  const Reading r =
      read(engines(SeriesMode::kCompatible, {mine}), "mine",
           "fam{l=\"value1\"} 1 1000\nfam{l=\"value2\"} 2 2000\nother 6 1000\nother 5 3000\nother 4 3000\n");
  EXPECT_EQ(r.at(Signal::kWaitingRequests).value, 1);
  EXPECT_EQ(r.at(Signal::kRunningRequests).value, 5);
}

// MET-04.
TEST(PageReaderTest, KnowsTheNamesOfBothGenerationsAndPrefersTheNewOne) {
  const CompiledEngines compiled = engines();
  EXPECT_EQ(read(compiled, "vllm", "vllm:gpu_cache_usage_perc 0.3\n").at(Signal::kKvUsage).value, 0.3);
  EXPECT_EQ(read(compiled, "vllm", "vllm:gpu_cache_usage_perc 0.3\nvllm:kv_cache_usage_perc 0.4\n")
                .at(Signal::kKvUsage)
                .value,
            0.4);
}

TEST(PageReaderTest, StrictModeAddsRanksBehindOnePort) {
  const std::string page =
      "vllm:num_requests_waiting{engine=\"0\"} 7\nvllm:num_requests_waiting{engine=\"1\"} 4\n"
      "vllm:kv_cache_usage_perc{engine=\"0\"} 0.25\nvllm:kv_cache_usage_perc{engine=\"1\"} 0.75\n";
  const Reading strict = read(engines(SeriesMode::kStrict), "vllm", page);
  EXPECT_EQ(strict.at(Signal::kWaitingRequests).value, 11);
  EXPECT_EQ(strict.at(Signal::kKvUsage).value, 0.75);
  const Reading compatible = read(engines(), "vllm", page);
  EXPECT_EQ(compatible.at(Signal::kWaitingRequests).value, 7);
  EXPECT_EQ(compatible.at(Signal::kKvUsage).value, 0.25);
  const Reading sglang = read(engines(SeriesMode::kStrict), "sglang",
                              "sglang:num_queue_reqs{dp_rank=\"0\",priority=\"\"} "
                              "3\nsglang:num_queue_reqs{dp_rank=\"0\",priority=\"5\"} 2\n"
                              "sglang:num_queue_reqs{dp_rank=\"1\",priority=\"\"} 1\n");
  EXPECT_EQ(sglang.at(Signal::kWaitingRequests).value, 4);
}

TEST(PageReaderTest, DetectsTheEngineByWhatItExports) {
  const CompiledEngines compiled = engines();
  const Reading sglang =
      read(compiled, "",
           "sglang:num_running_reqs{tp_rank=\"0\"} 12.0\nsglang:num_queue_reqs{} 2.0\n"
           "sglang:token_usage{} 0.28\nsglang:page_size{} 64.0\nsglang:num_pages{} 11147.0\n");
  EXPECT_EQ(sglang.engine->name, "sglang");
  EXPECT_EQ(sglang.at(Signal::kRunningRequests).value, 12);
  EXPECT_EQ(sglang.at(Signal::kCacheBlockSize).value, 64);
  EXPECT_EQ(sglang.at(Signal::kCacheNumBlocks).value, 11147);
  EXPECT_THAT(sglang.errors, IsEmpty());

  const Reading old_sglang =
      read(compiled, "sglang", "sglang:cache_config_info{page_size=\"64\",num_pages=\"11147\"} 1\n");
  EXPECT_EQ(old_sglang.at(Signal::kCacheNumBlocks).value, 11147);

  const Reading triton =
      read(compiled, "",
           "nv_trt_llm_request_metrics{model=\"t\",request_type=\"waiting\",version=\"1\"} 2\n"
           "nv_trt_llm_request_metrics{model=\"t\",request_type=\"scheduled\",version=\"1\"} 1\n"
           "nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type=\"fraction\"} 0.42\n"
           "nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type=\"tokens_per\"} 64\n"
           "nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type=\"max\"} 6239\n");
  EXPECT_EQ(triton.engine->name, "triton-tensorrt-llm");
  EXPECT_EQ(triton.at(Signal::kWaitingRequests).value, 2);
  EXPECT_EQ(triton.at(Signal::kKvUsage).value, 0.42);
  EXPECT_EQ(triton.at(Signal::kCacheNumBlocks).value, 6239);

  EXPECT_EQ(read(compiled, "", "<html>not found</html>\n").engine->name, "vllm");
}

TEST(PageReaderTest, ValuesThatAreNoNumbersAreNoValues) {
  const Reading r = read(engines(), "vllm", "vllm:kv_cache_usage_perc NaN\nvllm:num_requests_waiting +Inf\n");
  EXPECT_EQ(r.at(Signal::kKvUsage).found, Found::kNotANumber);
  EXPECT_EQ(r.at(Signal::kWaitingRequests).found, Found::kNotANumber);
}

TEST(ApplyReadingTest, AMissingNameKeepsTheLastValueButSaysSo) {
  const CompiledEngines compiled = engines();
  SignalRow row;
  EXPECT_EQ(apply_reading(read(compiled, "vllm", page_a()), row, kStart), 0U);
  EXPECT_EQ(row.at(Signal::kKvUsage).state, SignalState::kFresh);
  EXPECT_EQ(row.lora.running_count, 2);
  const TimePoint later = kStart + std::chrono::seconds(1);
  const uint32_t missing = apply_reading(read(compiled, "vllm", "vllm:num_requests_waiting 1\n"), row, later);
  EXPECT_EQ(missing, 1U << static_cast<uint32_t>(Signal::kRunningRequests) |
                         1U << static_cast<uint32_t>(Signal::kKvUsage));
  EXPECT_EQ(row.at(Signal::kKvUsage).state, SignalState::kNameMissing);
  EXPECT_EQ(row.at(Signal::kKvUsage).value, 0.55);
  EXPECT_EQ(row.at(Signal::kKvUsage).observed_at, kStart);
  EXPECT_EQ(row.at(Signal::kWaitingRequests).observed_at, later);
  EXPECT_EQ(row.lora.state, SignalState::kNameMissing);
  EXPECT_EQ(row.lora.running_count, 0);
  mark_down(row);
  EXPECT_EQ(row.at(Signal::kWaitingRequests).state, SignalState::kEndpointDown);
  EXPECT_EQ(row.at(Signal::kWaitingRequests).value, 1);
}

TEST(ApplyReadingTest, ANotANumberGrowsStaleInsteadOfMissing) {
  const CompiledEngines compiled = engines();
  SignalRow row;
  apply_reading(read(compiled, "vllm", "vllm:kv_cache_usage_perc NaN\n"), row, kStart);
  EXPECT_EQ(row.at(Signal::kKvUsage).state, SignalState::kNeverSeen);
  apply_reading(read(compiled, "vllm", "vllm:kv_cache_usage_perc 0.5\n"), row, kStart);
  apply_reading(read(compiled, "vllm", "vllm:kv_cache_usage_perc NaN\n"), row,
                kStart + std::chrono::seconds(9));
  EXPECT_EQ(row.at(Signal::kKvUsage).observed_at, kStart);
  EXPECT_EQ(row.at(Signal::kKvUsage).value, 0.5);
}

TEST(ApplyReadingTest, MoreAdaptersThanTheBoundAreDroppedAndCounted) {
  std::string list;
  for (int i = 0; i < 70; ++i) list += "a" + std::to_string(i) + ",";
  const Reading r =
      read(engines(), "vllm", "vllm:lora_requests_info{running_lora_adapters=\"" + list + "\"} 5\n");
  EXPECT_EQ(r.running.size(), kMaxAdapters);
  EXPECT_EQ(r.dropped_adapters, 70 - kMaxAdapters);
}

// MET-08: the gauge forgets an adapter the moment it idles.
TEST(AdapterMemoryTest, AnIdleAdapterIsRememberedForAWhile) {
  AdapterMemory memory;
  std::vector<uint64_t> running = hashes({"a"});
  memory.apply(running, std::chrono::seconds(60), kStart);
  running.clear();
  memory.apply(running, std::chrono::seconds(60), kStart + std::chrono::seconds(59));
  EXPECT_EQ(running, hashes({"a"}));
  running.clear();
  memory.apply(running, std::chrono::seconds(60), kStart + std::chrono::seconds(61));
  EXPECT_THAT(running, IsEmpty());
}

TEST(PageReaderTest, ResidentAdaptersCountAsRunningInStrictMode) {
  const std::string page =
      "vllm:lora_adapter_loaded{adapter_name=\"idle\",level=\"gpu\"} "
      "1\nvllm:lora_adapter_loaded{adapter_name=\"gone\"} 0\n";
  EXPECT_EQ(read(engines(SeriesMode::kStrict), "vllm", page).running, hashes({"idle"}));
  EXPECT_THAT(read(engines(), "vllm", page).running, IsEmpty());
}

TEST(PageReaderTest, IsReadyForTheNextPage) {
  const CompiledEngines compiled = engines();
  PageReader reader(compiled);
  reader.begin(nullptr);
  reader.feed(page_a());
  expect_a(reader.finish());
  reader.begin(nullptr);
  reader.feed("vllm:num_requests_waiting 2\n");
  const Reading& second = reader.finish();
  EXPECT_EQ(second.at(Signal::kWaitingRequests).value, 2);
  EXPECT_EQ(second.at(Signal::kKvUsage).found, Found::kMissing);
  EXPECT_THAT(second.running, IsEmpty());
  reader.begin(compiled.table().find("sglang"));
  reader.feed(page_a());
  EXPECT_EQ(reader.finish().at(Signal::kWaitingRequests).found, Found::kMissing);
}

TEST(PageReaderTest, TellsWhetherTheEngineSleeps) {
  const CompiledEngines compiled = engines();
  const auto state = [](int awake, int offloaded, std::string_view rank) {
    return "vllm:engine_sleep_state{engine=\"" + std::string(rank) + "\",sleep_state=\"awake\"} " +
           std::to_string(awake) + "\nvllm:engine_sleep_state{engine=\"" + std::string(rank) +
           "\",sleep_state=\"weights_offloaded\"} " + std::to_string(offloaded) + "\n";
  };
  EXPECT_EQ(read(compiled, "vllm", page_a()).asleep, std::nullopt);
  EXPECT_EQ(read(compiled, "vllm", page_a() + state(1, 0, "0")).asleep, false);
  EXPECT_EQ(read(compiled, "vllm", page_a() + state(0, 1, "0")).asleep, true);
  EXPECT_EQ(read(compiled, "", page_a() + state(0, 1, "0")).asleep, true);
  // A rank that is awake serves.
  EXPECT_EQ(read(compiled, "vllm", page_a() + state(0, 1, "0") + state(1, 0, "1")).asleep, false);
  EXPECT_EQ(read(compiled, "vllm", page_a() + "vllm:engine_sleep_state{sleep_state=\"awake\"} NaN\n").asleep,
            std::nullopt);
}

}  // namespace
}  // namespace penstock::signals
