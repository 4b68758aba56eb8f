#include "extproc/answers.h"

#include <gtest/gtest.h>

#include <envoy/service/ext_proc/v3/external_processor.pb.h>
#include <string>

namespace penstock::extproc {
namespace {

namespace pb = envoy::service::ext_proc::v3;
using Side = Answers::Side;

std::string hex(std::string_view bytes) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string out;
  for (const char c : bytes) {
    out += kDigits[static_cast<unsigned char>(c) >> 4U];
    out += kDigits[static_cast<unsigned char>(c) & 15U];
  }
  return out;
}

std::vector<std::string> bytes_of(Answers& answers) {
  std::vector<std::string> out;
  for (const auto message : answers.messages()) {
    std::string& text = out.emplace_back();
    for (const std::string_view piece : message) text += piece;
  }
  return out;
}

pb::ProcessingResponse parse(const std::string& bytes) {
  pb::ProcessingResponse response;
  EXPECT_TRUE(response.ParseFromString(bytes)) << hex(bytes);
  return response;
}

// Worked examples of the reference's contract, byte for byte.
TEST(Answers, AHeaderAnswerHasTheEndpointTheLengthAndTheMetadataOfTheReference) {
  Answers answers;
  const HeaderField length[] = {{"Content-Length", "72"}};
  answers.choice_on_headers({"10.0.0.1:8000", {}, {length, {}}});
  EXPECT_EQ(
      hex(bytes_of(answers)[0]),
      "0a510a4f124b0a310a2f0a1e782d676174657761792d64657374696e6174696f6e2d656e64706f696e741a0d31302e302e30"
      "2e313a383030300a160a140a0e436f6e74656e742d4c656e6774681a023732280142430a410a08656e766f792e6c6212352a"
      "330a310a1e782d676174657761792d64657374696e6174696f6e2d656e64706f696e74120f1a0d31302e302e302e313a3830"
      "3030");
}

TEST(Answers, BodyAndTrailerAnswersAreThoseOfTheReference) {
  Answers answers;
  const std::string_view body[] = {"{\"a\"", ":1}"};
  answers.streamed_body(Side::kRequest, body, 62000, true);
  answers.streamed_body(Side::kResponse, {}, 62000, true);
  answers.streamed_body(Side::kResponse, {}, 62000, false);
  answers.trailers(Side::kResponse);
  const auto got = bytes_of(answers);
  ASSERT_EQ(got.size(), 3U);
  EXPECT_EQ(hex(got[0]), "1a110a0f1a0d1a0b0a077b2261223a317d1001");
  EXPECT_EQ(hex(got[1]), "22080a061a041a021001");
  EXPECT_EQ(hex(got[2]), "3200");
}

TEST(Answers, ARefusalIsTheReferencesImmediateResponse) {
  Answers answers;
  const HeaderField reason[] = {{"x-llm-d-request-dropped-reason", "rejected-no-endpoints"}};
  const std::string body =
      "inference error: ServiceUnavailable - failed to find endpoint candidates for serving the request";
  answers.immediate({503, reason, body});
  answers.immediate({429, {}, "request evicted by flow control"});
  const auto got = bytes_of(answers);
  EXPECT_EQ(got[0].size(), 167U);
  EXPECT_EQ(
      hex(got[0].substr(0, 71)),
      "3aa4010a0308f703123b0a390a370a1e782d6c6c6d2d642d726571756573742d64726f707065642d726561736f6e1a1572656a"
      "65637465642d6e6f2d656e64706f696e74731a60");
  EXPECT_EQ(got[0].substr(71), body);
  EXPECT_EQ(hex(got[1]), "3a260a0308ad031a1f72657175657374206576696374656420627920666c6f7720636f6e74726f6c");
}

TEST(Answers, ABodyIsCutAtThePieceSizeAndEndsOnceWhateverItsParts) {
  for (const size_t size : {0UL, 1UL, 61000UL, 61999UL, 62000UL, 62001UL, 124000UL, 125000UL, 1000003UL}) {
    std::string body(size, 'x');
    for (size_t i = 0; i < size; ++i) body[i] = static_cast<char>('a' + i * 7 % 26);
    for (const size_t parts : {1UL, 3UL, 14UL}) {
      std::vector<std::string_view> views;
      for (size_t i = 0; i < parts; ++i) {
        views.push_back(
            std::string_view(body).substr(i * size / parts, (i + 1) * size / parts - i * size / parts));
      }
      Answers answers;
      EXPECT_EQ(answers.streamed_body(Side::kResponse, views, 62000, true),
                size == 0 ? 1 : (size + 61999) / 62000);
      std::string joined;
      size_t ends = 0;
      const auto got = bytes_of(answers);
      for (size_t i = 0; i < got.size(); ++i) {
        const pb::ProcessingResponse response = parse(got[i]);
        const auto& piece = response.response_body().response().body_mutation().streamed_response();
        EXPECT_LE(piece.body().size(), 62000U);
        joined += piece.body();
        ends += piece.end_of_stream() ? 1 : 0;
        EXPECT_EQ(piece.end_of_stream(), i + 1 == got.size());
      }
      EXPECT_EQ(joined, body);
      EXPECT_EQ(ends, 1U);
    }
  }
}

TEST(Answers, ScoresOfEveryEndpointGoIntoTheMetadata) {
  Answers answers;
  const director::EndpointScore scores[] = {{"10.0.0.1:8000", 4.8}, {"10.0.0.2:8000", 0.0}};
  answers.choice_on_headers({"10.0.0.1:8000,10.0.0.2:8000", scores, {}});
  const pb::ProcessingResponse response = parse(bytes_of(answers)[0]);
  const auto& lb = response.dynamic_metadata().fields().at("envoy.lb").struct_value().fields();
  EXPECT_EQ(lb.at("x-gateway-destination-endpoint").string_value(), "10.0.0.1:8000,10.0.0.2:8000");
  const auto& told = lb.at("x-gateway-destination-endpoint-scores").struct_value().fields();
  EXPECT_EQ(told.at("10.0.0.1:8000").number_value(), 4.8);
  EXPECT_EQ(told.at("10.0.0.2:8000").number_value(), 0.0);
}

TEST(Answers, ABufferedBodyIsAnsweredWithTheChoiceAndItsNewBytes) {
  Answers answers;
  const HeaderField set[] = {{"content-length", "9"}};
  const std::string_view remove[] = {"x-prefiller-host-port", "accept-encoding"};
  const std::string_view body[] = {"{\"m\":", "\"T\"}"};
  answers.choice_on_body({"10.0.0.1:8000", {}, {set, remove}}, {true, body});
  answers.choice_on_body({"10.0.0.1:8000", {}, {}}, {});
  const auto got = bytes_of(answers);
  const pb::ProcessingResponse replaced = parse(got[0]);
  const auto& common = replaced.request_body().response();
  EXPECT_EQ(common.body_mutation().body(), "{\"m\":\"T\"}");
  EXPECT_TRUE(common.clear_route_cache());
  ASSERT_EQ(common.header_mutation().set_headers_size(), 2);
  EXPECT_EQ(common.header_mutation().set_headers(0).header().raw_value(), "10.0.0.1:8000");
  EXPECT_EQ(common.header_mutation().set_headers(1).header().key(), "content-length");
  ASSERT_EQ(common.header_mutation().remove_headers_size(), 2);
  EXPECT_EQ(common.header_mutation().remove_headers(0), "x-prefiller-host-port");
  EXPECT_EQ(replaced.dynamic_metadata().fields().size(), 1U);
  const pb::ProcessingResponse kept = parse(got[1]);
  EXPECT_FALSE(kept.request_body().response().has_body_mutation());
  EXPECT_TRUE(kept.request_body().response().clear_route_cache());
}

TEST(Answers, EachBodyMessageOfTheOlderModesHasOneAnswer) {
  Answers answers;
  answers.headers(Side::kRequest);
  answers.body(Side::kRequest);
  answers.body(Side::kResponse);
  answers.trailers(Side::kRequest);
  const std::string_view some[] = {"ab", "c"};
  answers.body(Side::kResponse, {true, some});
  answers.body(Side::kResponse, {true, {}});
  const HeaderField set[] = {{"x-went-into-resp-headers", "true"}, {"x-empty", ""}};
  answers.headers(Side::kResponse, {set, {}});
  const auto got = bytes_of(answers);
  EXPECT_EQ(hex(got[0]), "0a00");
  EXPECT_EQ(hex(got[1]), "1a00");
  EXPECT_EQ(hex(got[2]), "2200");
  EXPECT_EQ(hex(got[3]), "2a00");
  EXPECT_EQ(parse(got[4]).response_body().response().body_mutation().body(), "abc");
  EXPECT_TRUE(parse(got[5]).response_body().response().body_mutation().clear_body());
  const pb::ProcessingResponse headers = parse(got[6]);
  EXPECT_EQ(headers.response_headers().response().header_mutation().set_headers(0).header().raw_value(),
            "true");
  EXPECT_FALSE(headers.response_headers().response().clear_route_cache());
}

TEST(Answers, NumbersForTheDataPlaneGoWithTheLastMessage) {
  Answers answers;
  answers.streamed_body(Side::kResponse, {}, 62000, true);
  const Answers::Number numbers[] = {{"envoy.lb", "cost", 1.5}, {"other", "x", 2}, {"envoy.lb", "tokens", 7}};
  answers.add_metadata(numbers);
  const pb::ProcessingResponse response = parse(bytes_of(answers)[0]);
  EXPECT_TRUE(response.response_body().response().body_mutation().streamed_response().end_of_stream());
  const auto& metadata = response.dynamic_metadata().fields();
  EXPECT_EQ(metadata.size(), 2U);
  EXPECT_EQ(metadata.at("envoy.lb").struct_value().fields().at("cost").number_value(), 1.5);
  EXPECT_EQ(metadata.at("envoy.lb").struct_value().fields().at("tokens").number_value(), 7);
  EXPECT_EQ(metadata.at("other").struct_value().fields().at("x").number_value(), 2);
}

}  // namespace
}  // namespace penstock::extproc
