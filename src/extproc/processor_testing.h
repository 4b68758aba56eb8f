#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "extproc/processor.h"
#include "extproc/testing.h"

// What the tests of the state machine share: its answers in a few words, and a bench of one door.
namespace penstock::extproc::testing {

inline const std::string kBody = R"({"model":"m","prompt":"hello"})";

inline std::string destination(const pb::HeaderMutation& mutation) {
  for (const auto& option : mutation.set_headers()) {
    if (option.header().key() == "x-gateway-destination-endpoint") return option.header().raw_value();
  }
  return "";
}
inline std::map<std::string, std::string> set_headers(const pb::HeaderMutation& mutation) {
  std::map<std::string, std::string> out;
  for (const auto& option : mutation.set_headers()) {
    EXPECT_FALSE(option.has_append());
    EXPECT_TRUE(option.header().value().empty());
    out[option.header().key()] = option.header().raw_value();
  }
  return out;
}
inline std::vector<std::string> removed(const pb::HeaderMutation& mutation) {
  return {mutation.remove_headers().begin(), mutation.remove_headers().end()};
}
inline const pb::HeaderMutation& header_mutation(const pb::ProcessingResponse& response) {
  return response.request_headers().response().header_mutation();
}
// The streamed pieces of one side joined, the end flag written as '|'.
inline std::string streamed(const std::vector<pb::ProcessingResponse>& answers) {
  std::string out;
  for (const auto& answer : answers) {
    const auto& body = answer.has_request_body() ? answer.request_body() : answer.response_body();
    if (!answer.has_request_body() && !answer.has_response_body()) continue;
    const auto& piece = body.response().body_mutation().streamed_response();
    out += piece.body();
    if (piece.end_of_stream()) out += '|';
  }
  return out;
}

class ProcessorTest : public ::testing::Test {
 protected:
  void rewrite_to(const std::string& target) {
    director::RewriteObject object;
    object.name = "rewrite";
    object.rules.push_back({{}, true, {{target, {}}}});
    auto rules = std::make_shared<director::PoolRules>();
    rules->rewrites = director::RewriteTable({object});
    bench.pool.rules.publish(rules);
  }
  // Headers and a whole body, as an HTTP/1.1 client's come.
  std::vector<pb::ProcessingResponse> post(Stream& stream, const std::string& body = kBody,
                                           Fields fields = post_fields()) {
    EXPECT_THAT(stream.send(full_duplex(request_headers(fields))), ::testing::IsEmpty());
    if (!body.empty()) {
      EXPECT_THAT(stream.send(request_body(body, false)), ::testing::IsEmpty());
    }
    return stream.send(request_body("", true));
  }
  double ends(std::string_view reason) {
    return static_cast<double>(bench.core->metrics.ends.with({reason}).value());
  }
  // Nothing is held any more.
  void expect_at_rest() {
    EXPECT_EQ(bench.all_load(), 0U);
    EXPECT_EQ(bench.core->bodies.held(), 0);
    EXPECT_EQ(bench.core->active.load(), 0);
    EXPECT_EQ(bench.core->undecided.load(), 0);
  }
  std::string log_of(const std::string& id) { return bench.pool.log.find_json(id).value_or(""); }

  DoorBench bench;
};

}  // namespace penstock::extproc::testing
