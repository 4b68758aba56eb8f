#include "scheduling/producers/latency_protocol.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>

namespace penstock::scheduling {
namespace {

using ::testing::HasSubstr;

TEST(LatencyProtocol, ABulkOfRowsIsAskedInThePredictorsWords) {
  const std::array<LatencyRow, 2> rows{
      LatencyRow{0.25, 1200, 3, 4, 1, 0.5, 2, 1, 900, 0, "decode"},
      LatencyRow{1.5, 10, 0, 0, 1, -1, 0, 3, 0, 0, ""},
  };
  EXPECT_EQ(prediction_body(rows),
            R"({"requests":[{"kv_cache_percentage":0.25,"input_token_length":1200,"num_request_waiting":3,)"
            R"("num_request_running":4,"num_tokens_generated":1,"prefix_cache_score":0.5,)"
            R"("encoder_input_size":2,"encoder_matched_size":1,"pod_type":"decode",)"
            R"("prefill_tokens_in_flight":900,"decode_tokens_in_flight":0},)"
            R"({"kv_cache_percentage":1,"input_token_length":10,"num_request_waiting":0,)"
            R"("num_request_running":0,"num_tokens_generated":1,"prefix_cache_score":0,)"
            R"("encoder_input_size":0,"encoder_matched_size":0,)"
            R"("prefill_tokens_in_flight":0,"decode_tokens_in_flight":0}]})");
}

TEST(LatencyProtocol, SamplesCarryTheirTimesAndWhen) {
  LatencySample sample;
  sample.row.role = "a\"b";
  sample.ttft_ms = 12.5;
  sample.at = WallTime(std::chrono::milliseconds(1'700'000'000'007));
  const std::string body = training_body({&sample, 1});
  EXPECT_THAT(body, HasSubstr(R"({"entries":[{"kv_cache_percentage":0)"));
  EXPECT_THAT(body, HasSubstr(R"("pod_type":"a\"b")"));
  EXPECT_THAT(body, HasSubstr(R"("actual_ttft_ms":12.5,"actual_tpot_ms":0,)"
                              R"("timestamp":"2023-11-14T22:13:20.007Z"}]})"));
}

TEST(LatencyProtocol, AnAnswerIsReadInTheOrderOfTheRows) {
  const auto times = parse_predictions(
      R"({"predictions":[{"ttft_ms":50,"tpot_ms":20.5,"ttft_uncertainty":3,"tpot_uncertainty":0.5,"model_type":"xgboost",)"
      R"("ttft_prediction_bounds":[1,2],"last_model_load":null},{"tpot_ms":-1,"ttft_ms":1e2,"ttft_uncertainty":null,"tpot_uncertainty":-4}],)"
      R"("total_requests":2,"failed_predictions":0})",
      2);
  ASSERT_TRUE(times.ok()) << times.error().message;
  EXPECT_EQ((*times)[0].ttft_ms, 50);
  EXPECT_EQ((*times)[0].tpot_ms, 20.5);
  EXPECT_EQ((*times)[0].ttft_error_ms, 3);
  EXPECT_EQ((*times)[0].tpot_error_ms, 0.5);
  EXPECT_EQ((*times)[1].ttft_ms, 100);
  EXPECT_EQ((*times)[1].tpot_ms, 0) << "a negative time is none";
  EXPECT_EQ((*times)[1].ttft_error_ms, 0) << "nothing is said of it";
  EXPECT_EQ((*times)[1].tpot_error_ms, 0);
}

TEST(LatencyProtocol, GarbageIsAnErrorThatSaysWhatIsWrong) {
  const auto error = [](std::string_view body) {
    const auto times = parse_predictions(body, 1);
    return times.ok() ? std::string() : times.error().message;
  };
  EXPECT_THAT(error(""), HasSubstr("is no JSON object"));
  EXPECT_THAT(error("<html>"), HasSubstr("is no JSON object"));
  EXPECT_THAT(error("{}"), HasSubstr("has no list \"predictions\""));
  EXPECT_THAT(error(R"({"predictions":7})"), HasSubstr("has no list"));
  EXPECT_THAT(error(R"({"predictions":[]})"), HasSubstr("has 0 predictions for 1 rows"));
  EXPECT_THAT(error(R"({"predictions":[null]})"), HasSubstr("without ttft_ms"));
  EXPECT_THAT(error(R"({"predictions":[{"ttft_ms":1}]})"), HasSubstr("without ttft_ms and tpot_ms"));
  EXPECT_THAT(error(R"({"predictions":[{"ttft_ms":1e999,"tpot_ms":1}]})"), HasSubstr("without ttft_ms"));
  EXPECT_THAT(error(R"({"predictions":[{"ttft_ms":"1","tpot_ms":1}]})"), HasSubstr("without ttft_ms"));
  EXPECT_THAT(error(R"({"predictions":[{"ttft_ms":1,"tpot_ms":1},{}]})"), HasSubstr("or too many"));
  EXPECT_THAT(error(R"({"predictions":[{"ttft_ms":1,"tpot_ms":1}])"), HasSubstr("is broken"));
  EXPECT_THAT(error(R"({"predictions":[{"ttft_ms":1,"tpot_ms":1}]} x)"), HasSubstr("is broken"));
}

TEST(LatencyProtocol, TooManySamplesAreThinnedInProportion) {
  EXPECT_EQ(stratified({600, 900}, 1000), (SampleCounts{400, 600}));
  EXPECT_EQ(stratified({600, 300}, 1000), (SampleCounts{600, 300}));
  EXPECT_EQ(stratified({2, 1}, 2), (SampleCounts{2, 0}));
  EXPECT_EQ(stratified({0, 7}, 3), (SampleCounts{0, 3}));
}

}  // namespace
}  // namespace penstock::scheduling
