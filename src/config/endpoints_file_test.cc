#include "config/endpoints_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace penstock::config {
namespace {

using testing::HasSubstr;

std::string error_of(std::string_view text) {
  auto file = decode_endpoints(text, "endpoints.yaml");
  return file.ok() ? "no error" : file.error().message;
}

TEST(EndpointsFile, ReadsTheReferencesFormat) {
  auto file = decode_endpoints(R"(
endpoints:
  - name: ep1
    namespace: ns1
    address: "10.0.0.1"
    port: "8000"
    labels: {llm-d.ai/role: decode}
  - {name: ep2, address: 10.0.0.2, port: "8001"}
)",
                               "endpoints.yaml");
  ASSERT_TRUE(file.ok()) << file.error().message;
  ASSERT_EQ(file->endpoints.size(), 2U);
  EXPECT_EQ(file->endpoints[0].id(), "ns1/ep1");
  EXPECT_EQ(file->endpoints[0].port, 8000);
  EXPECT_EQ(file->endpoints[0].labels.at("llm-d.ai/role"), "decode");
  EXPECT_EQ(file->endpoints[1].id(), "default/ep2");
  EXPECT_TRUE(file->warnings.empty());
}

TEST(EndpointsFile, ReadsIpv6NamesUrlsNumbersAndMissingPorts) {
  auto file = decode_endpoints(R"({"endpoints": [
    {"name": "a", "address": "fd00::1", "port": 8000},
    {"name": "b", "address": "engine-1.example.com"},
    {"url": "https://engine.example.com:8443", "draining": true}]})",
                               "e.json");
  ASSERT_TRUE(file.ok()) << file.error().message;
  EXPECT_EQ(file->endpoints[0].address, "fd00::1");
  EXPECT_EQ(file->endpoints[1].port, 0);
  EXPECT_TRUE(file->endpoints[2].tls);
  EXPECT_TRUE(file->endpoints[2].draining);
  EXPECT_EQ(file->endpoints[2].name, "engine.example.com-8443");
}

TEST(EndpointsFile, NamesEveryBadEntry) {
  const std::string error = error_of(
      "endpoints:\n- {name: a, address: 10.0.0.300, port: \"1\"}\n- {name: b, address: h, port: \"0\"}\n"
      "- {name: c, address: h, port: 80, url: \"http://x\"}\n- {name: d, address: h, labels: {x: 1}}\n");
  EXPECT_THAT(error, HasSubstr("endpoints[0]: endpoint \"a\": invalid address \"10.0.0.300\" (line 2)"));
  EXPECT_THAT(error, HasSubstr("endpoints[1]: endpoint \"b\": invalid port \"0\" (line 3)"));
  EXPECT_THAT(error, HasSubstr("give one or the other (line 4)"));
  EXPECT_THAT(error, HasSubstr("labels.x: expected string, got int 1"));
  EXPECT_THAT(error_of("endpoints: 3"), HasSubstr("expected list"));
  EXPECT_THAT(error_of("[]"), HasSubstr("expected object"));
}

TEST(EndpointsFile, WarnsOfUnknownFieldsAndDuplicates) {
  auto file = decode_endpoints(
      "endpoints:\n- {name: a, address: h, port: 1, zone: x}\n- {name: a, address: h, port: 2}\n", "f");
  ASSERT_TRUE(file.ok());
  ASSERT_EQ(file->endpoints.size(), 1U);
  EXPECT_EQ(file->endpoints[0].port, 2);
  ASSERT_EQ(file->warnings.size(), 2U);
  EXPECT_THAT(file->warnings[0], HasSubstr("endpoints[0]: unknown field \"zone\" (line 2) is ignored"));
  EXPECT_THAT(file->warnings[1], HasSubstr("\"default/a\" of line 3 replaces the one of line 2"));
}

TEST(EndpointsFile, OnlyAnExplicitEmptyListIsNoEndpoints) {
  for (const char* empty : {"", "# nothing\n", "null"})
    EXPECT_THAT(error_of(empty), HasSubstr("the file is empty"));
  EXPECT_THAT(error_of("{}"), HasSubstr("\"endpoints\" is missing"));
  EXPECT_THAT(error_of("# list\nendpoint: [{name: a, address: h}]\n"),
              HasSubstr("\"endpoints\" is missing: unknown field \"endpoint\" (line 2)"));
  EXPECT_THAT(error_of("\nendpoints:\n"), HasSubstr("endpoints: nothing is listed"));
  auto file = decode_endpoints("endpoints: []\n", "f");
  ASSERT_TRUE(file.ok());
  EXPECT_TRUE(file->endpoints.empty());
  EXPECT_THAT(file->warnings, testing::ElementsAre(HasSubstr("the list is empty (line 1)")));
}

TEST(EndpointsFile, WarnsOfOneServerUnderTwoNames) {
  auto file = decode_endpoints(
      "endpoints:\n- {name: a, address: h, port: 1}\n- {name: b, address: h, port: 1}\n- {name: c, address: "
      "h, "
      "port: 2}\n",
      "f");
  ASSERT_TRUE(file.ok());
  EXPECT_THAT(file->warnings, testing::ElementsAre("endpoint \"default/b\" of line 3 has the address of "
                                                   "\"default/a\" of line 2"));
}

TEST(EndpointsFile, WarnsOfUnknownFieldsBesideTheList) {
  auto file = decode_endpoints("version: 2\nendpoints: [{name: a, address: h}]\n", "f");
  ASSERT_TRUE(file.ok());
  EXPECT_THAT(file->warnings, testing::ElementsAre("unknown field \"version\" (line 1) is ignored"));
}

TEST(EndpointUrl, TakesWhatTheCommandLineTakes) {
  auto plain = parse_endpoint_url("http://127.0.0.1:8001");
  ASSERT_TRUE(plain.ok());
  EXPECT_EQ(plain->address, "127.0.0.1");
  EXPECT_EQ(plain->port, 8001);
  EXPECT_EQ(plain->name, "127.0.0.1-8001");
  EXPECT_EQ(parse_endpoint_url("https://h.example/")->port, 443);
  EXPECT_EQ(parse_endpoint_url("http://[::1]:8000")->address, "::1");
  EXPECT_EQ(parse_endpoint_url("http://[::1]:8000")->name, "--1-8000");
  EXPECT_EQ(parse_endpoint_url("localhost:9")->port, 9);
  for (const char* bad :
       {"", "localhost", "ftp://x", "http://x:0", "http://x/path", "http://u@x", "http://::1:80",
        "http://[::1", "http://[1.2.3.4]:5", "http://x:99999", "http://1.2.3:4", "http://-x:1"}) {
    EXPECT_FALSE(parse_endpoint_url(bad).ok()) << bad;
  }
}

}  // namespace
}  // namespace penstock::config
