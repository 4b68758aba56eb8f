#include "simulator/fleet/trace_file.h"

#include <gtest/gtest.h>

#include <array>

#include "simulator/fleet/fleet_testing.h"

namespace penstock::simulator {
namespace {

TEST(TraceFileTest, ALineIsARequestWhosePromptIsMadeOfItsBlocks) {
  const auto trace = parse_trace(
      "{\"timestamp\": 1500, \"input_length\": 700, \"output_length\": 5, \"hash_ids\": [0, 9], \"other\": "
      "1}\n"
      "\n"
      "{\"timestamp\": 20.5, \"input_length\": 512, \"output_length\": 0, \"hash_ids\": [0]}",
      "t", false);
  ASSERT_TRUE(trace.ok()) << trace.error().message;
  ASSERT_EQ(trace->requests.size(), 2U);
  const FleetRequest& first = trace->requests[0];  // in order of time
  EXPECT_EQ(first.at, std::chrono::microseconds(20500));
  EXPECT_EQ(first.input_tokens, 512U);
  EXPECT_EQ(first.output_tokens, 1U);
  const FleetRequest& second = trace->requests[1];
  EXPECT_EQ(second.at, std::chrono::milliseconds(1500));
  EXPECT_EQ(second.pieces, 2U);
  EXPECT_EQ(trace->pieces[second.first_piece + 1].id, 9U);
  EXPECT_EQ(trace->pieces[second.first_piece + 1].tokens, 188U);

  std::vector<uint32_t> a;
  std::vector<uint32_t> b;
  trace->tokens_of(first, a);
  trace->tokens_of(second, b);
  ASSERT_EQ(b.size(), 700U);
  EXPECT_TRUE(std::equal(a.begin(), a.end(), b.begin()));
}

TEST(TraceFileTest, RequestsOfOneTimestampAreSpreadUntilTheNext) {
  std::string text;
  for (const char* at : {"0", "0", "0", "3000", "3000"})
    text += std::string("{\"timestamp\": ") + at +
            ", \"input_length\": 1, \"output_length\": 1, \"hash_ids\": [1]}\n";
  const auto spread = parse_trace(text, "t", true);
  ASSERT_TRUE(spread.ok());
  EXPECT_EQ(spread->requests[1].at, std::chrono::seconds(1));
  EXPECT_EQ(spread->requests[2].at, std::chrono::seconds(2));
  EXPECT_EQ(spread->requests[4].at, std::chrono::seconds(3));
  const auto kept = parse_trace(text, "t", false);
  ASSERT_TRUE(kept.ok());
  EXPECT_EQ(kept->requests[2].at, Duration::zero());
}

TEST(TraceFileTest, AWrongLineIsNamedByFileLineAndMember) {
  struct Case {
    std::string_view line, error;
  };
  const std::array<Case, 13> cases{{
      {R"({"input_length": 1, "output_length": 1, "hash_ids": [1]})", "t:2: timestamp: is missing"},
      {R"({"timestamp": "x", "input_length": 1, "output_length": 1, "hash_ids": [1]})",
       "t:2: timestamp: is not a number"},
      {R"({"timestamp": -1, "input_length": 1, "output_length": 1, "hash_ids": [1]})",
       "t:2: timestamp: -1 is not between 0 and 31622400000"},
      {R"({"timestamp": 0, "input_length": 0, "output_length": 1, "hash_ids": []})",
       "t:2: input_length: 0 is not between 1 and 16777216"},
      {R"({"timestamp": 0, "input_length": 1e300, "output_length": 1, "hash_ids": []})",
       "t:2: input_length: 1e+300 is not between 1 and 16777216"},
      {R"({"timestamp": 0, "input_length": 1.5, "output_length": 1, "hash_ids": [1]})",
       "t:2: input_length: 1.5 is not a whole number"},
      {R"({"timestamp": 0, "input_length": 1, "output_length": 99999999, "hash_ids": [1]})",
       "t:2: output_length: 99999999 is not between 0 and 16777216"},
      {R"({"timestamp": 0, "input_length": 1, "output_length": 1})", "t:2: hash_ids: is missing"},
      {R"({"timestamp": 0, "input_length": 1, "output_length": 1, "hash_ids": 7})",
       "t:2: hash_ids: is not a list"},
      {R"({"timestamp": 0, "input_length": 513, "output_length": 1, "hash_ids": [1]})",
       "t:2: hash_ids: 1 ids of 512 tokens do not make input_length 513, which needs 2"},
      {R"({"timestamp": 0, "input_length": 1, "output_length": 1, "hash_ids": [-1]})",
       "t:2: hash_ids: an id is not a whole number between 0 and 4294967295"},
      {R"([1])", "t:2: not a JSON object: "},
      {R"({"timestamp": 0,)", "t:2: not a JSON object: "},
  }};
  for (const Case& c : cases) {
    const auto trace =
        parse_trace("{\"timestamp\": 0, \"input_length\": 1, \"output_length\": 1, \"hash_ids\": [1]}\n" +
                        std::string(c.line) + "\n",
                    "t", true);
    ASSERT_FALSE(trace.ok()) << c.line;
    EXPECT_TRUE(trace.error().message.starts_with(c.error)) << trace.error().message;
  }
  EXPECT_EQ(parse_trace("\n", "t", true).error().message, "t: no request in it");
  EXPECT_EQ(read_trace("/no/such/trace", true).error().message,
            "reading /no/such/trace: No such file or directory");
  EXPECT_EQ(read_trace("/", true).error().message, "reading /: Is a directory");
}

TEST(TraceFileTest, ThePublishedTracesAreReadWhole) {
  const Workload conversation = trace_of_vectors("mooncake_conversation.jsonl");
  EXPECT_EQ(conversation.requests.size(), 12031U);
  EXPECT_EQ(conversation.pieces.size(), 288500U);
  EXPECT_EQ(conversation.name, "mooncake_conversation");
  const Workload synthetic = trace_of_vectors("mooncake_synthetic.jsonl", true);
  EXPECT_EQ(synthetic.requests.size(), 3993U);
  EXPECT_EQ(synthetic.pieces.size(), 121877U);
}

}  // namespace
}  // namespace penstock::simulator
