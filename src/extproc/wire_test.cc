#include "extproc/wire.h"

#include <gtest/gtest.h>

#include <envoy/service/ext_proc/v3/external_processor.pb.h>
#include <string>

namespace penstock::extproc {
namespace {

namespace pb = envoy::service::ext_proc::v3;

std::string bytes_of_hex(std::string_view hex) {
  std::string out;
  for (size_t i = 0; i + 1 < hex.size(); i += 2) {
    out += static_cast<char>(std::stoi(std::string(hex.substr(i, 2)), nullptr, 16));
  }
  return out;
}

TEST(Wire, AHeaderOnlyRequestIsRead) {
  const std::string bytes = bytes_of_hex("12190a150a130a053a706174681a0a2f76312f6d6f64656c731801");
  Incoming in;
  ASSERT_TRUE(decode(bytes, in));
  EXPECT_EQ(in.part, Part::kRequestHeaders);
  std::vector<HeaderField> fields;
  bool end = false;
  ASSERT_TRUE(decode_headers(in.content, fields, end));
  EXPECT_TRUE(end);
  ASSERT_EQ(fields.size(), 1U);
  EXPECT_EQ(fields[0].name, ":path");
  EXPECT_EQ(fields[0].value, "/v1/models");
}

TEST(Wire, ABodyAndItsSubsetAreViewsIntoTheMessage) {
  const std::string bytes = bytes_of_hex(
      "22060a027b7d100142580a560a14656e766f792e6c622e7375627365745f68696e74123e0a3c0a25782d676174657761792d64"
      "65"
      "7374696e6174696f6e2d656e64706f696e742d737562736574121332110a0f1a0d31302e302e302e313a38303030");
  Incoming in;
  ASSERT_TRUE(decode(bytes, in));
  EXPECT_EQ(in.part, Part::kRequestBody);
  std::string_view body;
  bool end = false;
  ASSERT_TRUE(decode_body(in.content, body, end));
  EXPECT_EQ(body, "{}");
  EXPECT_TRUE(end);
  EXPECT_GE(body.data(), bytes.data());
  EXPECT_LT(body.data(), bytes.data() + bytes.size());
  const auto value =
      find_metadata(in.metadata, "envoy.lb.subset_hint", "x-gateway-destination-endpoint-subset");
  ASSERT_TRUE(value);
  std::vector<std::string> entries;
  EXPECT_TRUE(each_text(*value, [&](std::string_view text) { entries.emplace_back(text); }));
  EXPECT_EQ(entries, std::vector<std::string>{"10.0.0.1:8000"});
  EXPECT_FALSE(find_metadata(in.metadata, "envoy.lb", "x-gateway-destination-endpoint-subset"));
}

TEST(Wire, RawValuesCountBeforeValuesAndEmptyOnesDoNot) {
  pb::ProcessingRequest request;
  const auto add = [&](const char* key, const char* value, const char* raw) {
    auto* header = request.mutable_request_headers()->mutable_headers()->add_headers();
    header->set_key(key);
    header->set_value(value);
    header->set_raw_value(raw);
  };
  add("x-request-id", "wrong-id", "binary-id");
  add("a", "b", "");
  request.set_observability_mode(true);
  auto* config = request.mutable_protocol_config();
  config->set_request_body_mode(
      envoy::extensions::filters::http::ext_proc::v3::ProcessingMode::FULL_DUPLEX_STREAMED);
  config->set_send_body_without_waiting_for_header_response(true);
  (*(*request.mutable_attributes())["envoy.filters.http.ext_proc"].mutable_fields())["upstream.address"]
      .set_string_value("10.0.0.1:8000");
  const std::string bytes = request.SerializeAsString();
  Incoming in;
  ASSERT_TRUE(decode(bytes, in));
  EXPECT_TRUE(in.observability_mode);
  ASSERT_TRUE(in.protocol_config);
  EXPECT_EQ(in.protocol_config->request_body_mode, 4U);
  EXPECT_EQ(in.protocol_config->response_body_mode, 0U);
  EXPECT_TRUE(in.protocol_config->send_body_without_waiting);
  std::vector<HeaderField> fields;
  bool end = true;
  ASSERT_TRUE(decode_headers(in.content, fields, end));
  EXPECT_FALSE(end);
  ASSERT_EQ(fields.size(), 2U);
  EXPECT_EQ(fields[0].value, "binary-id");
  EXPECT_EQ(fields[1].value, "b");
  const auto served = find_attribute(bytes, "upstream.address");
  ASSERT_TRUE(served);
  EXPECT_EQ(value_text(*served), "10.0.0.1:8000");
}

TEST(Wire, ASubsetMayBeATextAndOtherKindsAreNoList) {
  pb::ProcessingRequest request;
  auto& fields = *(*request.mutable_metadata_context()->mutable_filter_metadata())["ns"].mutable_fields();
  fields["text"].set_string_value("a:1,b:2");
  fields["number"].set_number_value(5);
  auto* list = fields["mixed"].mutable_list_value();
  list->add_values()->set_number_value(5);
  list->add_values()->set_string_value("10.0.0.1:80");
  list->add_values()->set_bool_value(true);
  fields["empty"].mutable_list_value();
  const std::string bytes = request.SerializeAsString();
  Incoming in;
  ASSERT_TRUE(decode(bytes, in));
  EXPECT_EQ(in.part, Part::kNothing);
  std::vector<std::string> seen;
  const auto each = [&](std::string_view text) { seen.emplace_back(text); };
  EXPECT_EQ(value_text(*find_metadata(in.metadata, "ns", "text")), "a:1,b:2");
  EXPECT_FALSE(each_text(*find_metadata(in.metadata, "ns", "text"), each));
  EXPECT_FALSE(value_text(*find_metadata(in.metadata, "ns", "number")));
  EXPECT_TRUE(each_text(*find_metadata(in.metadata, "ns", "empty"), each));
  EXPECT_TRUE(seen.empty());
  EXPECT_TRUE(each_text(*find_metadata(in.metadata, "ns", "mixed"), each));
  EXPECT_EQ(seen, std::vector<std::string>{"10.0.0.1:80"});
}

TEST(Wire, WhatIsNoProtobufIsRefusedAtEveryLength) {
  pb::ProcessingRequest request;
  request.mutable_request_body()->set_body("{\"model\":\"m\"}");
  request.mutable_request_body()->set_end_of_stream(true);
  const std::string bytes = request.SerializeAsString();
  Incoming in;
  ASSERT_TRUE(decode(bytes, in));
  for (size_t size = 1; size < bytes.size(); ++size) {
    EXPECT_FALSE(decode(std::string_view(bytes).substr(0, size), in)) << size;
  }
  EXPECT_TRUE(decode("", in));
  EXPECT_FALSE(decode("not protobuf at all", in));
  EXPECT_FALSE(decode(std::string_view("\x00", 1), in));
  EXPECT_FALSE(decode("\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", in));
  EXPECT_FALSE(decode("\x22\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", in));
}

}  // namespace
}  // namespace penstock::extproc
