#include "signals/exposition_scanner.h"
#include "base/source_path_testing.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <sstream>

namespace penstock::signals {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::string read_vector(const std::string& name) {
  std::ifstream in(source_path("tests/vectors/vllm-0.32.0/metrics/") + name, std::ios::binary);
  EXPECT_TRUE(in) << name;
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}

class Lines final : public SampleSink {
 public:
  explicit Lines(const NameSet& names) : names_(names) {}
  void sample(const Sample& s) override {
    std::ostringstream out;
    out << names_.name(s.name);
    for (const SampleLabel& l : s.labels) out << " " << l.name << "=" << l.value;
    out << " -> " << s.value;
    if (s.timestamp_ms != 0) out << " @" << s.timestamp_ms;
    lines.push_back(out.str());
  }
  std::vector<std::string> lines;

 private:
  const NameSet& names_;
};

struct Scan {
  std::vector<std::string> lines;
  ExpositionScanner::Stats stats;
};

Scan scan(const NameSet& names, std::string_view text, size_t piece = SIZE_MAX,
          ExpositionScanner::Options options = {}) {
  Lines sink(names);
  ExpositionScanner scanner(names, sink, options);
  while (!text.empty()) {
    const size_t n = std::min(piece, text.size());
    if (!scanner.feed(text.substr(0, n))) break;
    text.remove_prefix(n);
  }
  scanner.finish();
  return {sink.lines, scanner.stats()};
}

TEST(NameSetTest, FindsItsNamesAndNoOthers) {
  const NameSet names({"vllm:b", "vllm:a", "vllm:ab", "vllm:a"});
  EXPECT_EQ(names.size(), 3U);
  ASSERT_TRUE(names.find("vllm:ab").has_value());
  EXPECT_EQ(names.name(*names.find("vllm:ab")), "vllm:ab");
  EXPECT_FALSE(names.find("vllm:").has_value());
}

TEST(ExpositionScannerTest, TakesOnlyWantedNames) {
  const NameSet names({"m:a", "m:ab"});
  const Scan s = scan(names,
                      "# HELP m:a Text.\n# TYPE m:a gauge\nm:a{x=\"1\"} 1\nm:abc 2\nm:ab 3.5\nm:a_total 9\n"
                      "m:b 4\nq 1\n\nm:a 5\n");
  EXPECT_THAT(s.lines, ElementsAre("m:a x=1 -> 1", "m:ab -> 3.5", "m:a -> 5"));
  EXPECT_EQ(s.stats.lines, 10U);
  EXPECT_EQ(s.stats.malformed, 0U);
}

TEST(ExpositionScannerTest, ToleratesWhatOtherWritersWrite) {
  const NameSet names({"m"});
  const Scan s = scan(names,
                      "m 1\r\n"
                      "m 2 1700000000000\n"
                      "m 3 1700000000.25\n"
                      "m{a=\"b\"} 4 # {trace=\"x\"} 0.5\n"
                      "m{a=\"b\",} 5\n"
                      " m { a = \"b\" , c = \"}\\\"\\\\\\n,\" } 6\n"
                      "# EOF\n"
                      "# TYPE m unknown\n"
                      "m{} +Inf\n"
                      "m\tnan\n"
                      "m 1.79000000025e+09\n"
                      "m 7");
  EXPECT_THAT(s.lines, ElementsAre("m -> 1", "m -> 2 @1700000000000", "m -> 3 @1700000000250", "m a=b -> 4",
                                   "m a=b -> 5", "m a=b c=}\"\\\n, -> 6", "m -> inf", "m -> nan",
                                   "m -> 1.79e+09", "m -> 7"));
  EXPECT_EQ(s.stats.malformed, 0U);
}

TEST(ExpositionScannerTest, LeavesOutAndCountsMalformedLinesOfWantedNames) {
  const NameSet names({"m"});
  const Scan s = scan(names,
                      "m{\nm{a}\nm{a=b} 1\nm{a=\"b} 1\nm{a=\"\\x\"} 1\nm\nm x\nm 1 x\nm 1 2 3\nm{a=\"b\" "
                      "c=\"d\"} 1\nm{=\"b\"} 1\nm 1_0\nm +-1\nm{a=\"b\\\nfoo{\nm 2\n");
  EXPECT_THAT(s.lines, ElementsAre("m -> 2"));
  EXPECT_EQ(s.stats.malformed, 14U);
}

TEST(ExpositionScannerTest, BoundsLinesAndPages) {
  const NameSet names({"m"});
  const std::string long_line = "m{a=\"" + std::string(100, 'x') + "\"} 1\n";
  for (const size_t piece : {1UL, 7UL, 1000UL}) {
    const Scan s = scan(names, long_line + "m 2\n" + long_line, piece, {.max_line_bytes = 64});
    EXPECT_THAT(s.lines, ElementsAre("m -> 2"));
    EXPECT_EQ(s.stats.overlong, 2U);
    const Scan cut = scan(names, "m 1\nm 2\nm 3\n", piece, {.max_page_bytes = 10});
    EXPECT_THAT(cut.lines, ElementsAre("m -> 1", "m -> 2"));
    EXPECT_TRUE(cut.stats.page_too_large);
  }
}

TEST(ExpositionScannerTest, ANameWithNothingElseMatchesNothing) {
  const NameSet none{std::vector<std::string>{}};
  EXPECT_THAT(scan(none, "m 1\n").lines, IsEmpty());
}

TEST(ExpositionScannerTest, FindsTheSameWhereverTheRecordedPageIsCut) {
  const NameSet names({"vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc",
                       "vllm:lora_requests_info", "vllm:cache_config_info", "vllm:engine_sleep_state"});
  const std::string page = read_vector("under_load.txt");
  const Scan whole = scan(names, page);
  ASSERT_EQ(whole.lines.size(), 9U);
  EXPECT_EQ(whole.lines[0], "vllm:num_requests_running engine=0 model_name=tiny -> 8");
  EXPECT_EQ(whole.lines[1], "vllm:num_requests_waiting engine=0 model_name=tiny -> 9");
  EXPECT_EQ(whole.stats.malformed, 0U);
  for (const size_t piece : {1UL, 3UL, 64UL, 1000UL, 4096UL}) {
    const Scan cut = scan(names, page, piece);
    EXPECT_EQ(cut.lines, whole.lines) << piece;
    EXPECT_EQ(cut.stats.lines, whole.stats.lines) << piece;
  }
}

}  // namespace
}  // namespace penstock::signals
