#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <mutex>
#include <set>

#include "extproc/testing.h"
#include "telemetry/tracer.h"

namespace penstock::extproc {
namespace {

using namespace testing;

constexpr std::string_view kParent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
const std::string kBody = R"({"model":"m","prompt":"hello"})";

struct Kept {
  std::mutex mutex;
  std::vector<telemetry::SpanBatch> batches;
};
struct KeepingExporter final : telemetry::SpanExporter {
  explicit KeepingExporter(Kept& to) : kept(to) {}
  Answer send(std::span<const telemetry::SpanBatch> batches, Duration) override {
    const std::lock_guard lock(kept.mutex);
    kept.batches.insert(kept.batches.end(), batches.begin(), batches.end());
    return {};
  }
  Kept& kept;
};

class ExtProcTracingTest : public ::testing::Test {
 protected:
  ExtProcTracingTest() {
    bench.options.tracer = &tracer;
    bench.add_endpoints(2);
  }
  // The header changes of the request's answer.
  std::map<std::string, std::string> pick(Stream& stream, Fields fields,
                                          std::vector<std::string>* removed = nullptr) {
    (void)stream.send(full_duplex(request_headers(fields)));
    const auto answers = stream.send(request_body(kBody, true));
    std::map<std::string, std::string> set;
    if (answers.empty()) return set;
    const auto& mutation = answers[0].request_headers().response().header_mutation();
    for (const auto& option : mutation.set_headers())
      set[option.header().key()] = option.header().raw_value();
    if (removed != nullptr)
      removed->assign(mutation.remove_headers().begin(), mutation.remove_headers().end());
    return set;
  }
  std::map<std::string, telemetry::Span> spans() {
    tracer.shutdown(std::chrono::seconds(10));
    std::map<std::string, telemetry::Span> out;
    for (const telemetry::SpanBatch& batch : kept.batches)
      for (const telemetry::Span& span : batch.spans) out[span.name] = span;
    return out;
  }

  Kept kept;
  SystemClock clock;
  telemetry::MetricRegistry metrics;
  telemetry::Tracer tracer{telemetry::TracingOptions(), clock, metrics,
                           std::make_unique<KeepingExporter>(kept)};
  DoorBench bench;
};

TEST_F(ExtProcTracingTest, TheRequestGoesOnUnderTheDoorsSpanAndTheSpansEndWithTheAnswer) {
  Fields fields = post_fields();
  fields.emplace_back("traceparent", kParent);
  fields.emplace_back("tracestate", "vendor=x");
  Stream stream(bench);
  const auto set = pick(stream, fields);
  ASSERT_TRUE(set.contains("traceparent"));
  EXPECT_EQ(set.at("traceparent").substr(0, 36), kParent.substr(0, 36));
  EXPECT_EQ(set.at("tracestate"), "vendor=x");
  (void)stream.send(response_headers(engine_fields()));
  (void)stream.send(
      response_body(R"({"usage":{"prompt_tokens":3,"completion_tokens":2,"total_tokens":5}})", true));
  stream.end();
  const auto found = spans();
  const telemetry::Span& root = found.at("gateway.request");
  const auto sent = telemetry::parse_traceparent(set.at("traceparent"));
  EXPECT_EQ(root.id, sent->span_id);
  EXPECT_EQ(root.parent_id, telemetry::parse_traceparent(kParent)->span_id);
  EXPECT_FALSE(root.failed) << root.error;
  EXPECT_TRUE(found.contains("gateway.request_orchestration"));
  EXPECT_TRUE(found.contains("pick_endpoints"));
}

TEST_F(ExtProcTracingTest, AStateWithoutAReadableParentIsTakenAway) {
  Fields fields = post_fields();
  fields.emplace_back("traceparent", "garbage");
  fields.emplace_back("tracestate", "vendor=x");
  Stream stream(bench);
  std::vector<std::string> removed;
  const auto set = pick(stream, fields, &removed);
  EXPECT_TRUE(telemetry::parse_traceparent(set.at("traceparent")).has_value());
  EXPECT_FALSE(set.contains("tracestate"));
  EXPECT_THAT(removed, ::testing::Contains("tracestate"));
  stream.end();
}

TEST_F(ExtProcTracingTest, AStreamThatBreaksOffLeavesAFailedSpan) {
  Fields fields = post_fields();
  fields.emplace_back("traceparent", kParent);
  Stream stream(bench);
  (void)stream.send(full_duplex(request_headers(fields)));
  stream.end();
  const auto found = spans();
  EXPECT_TRUE(found.at("gateway.request").failed);
}

TEST_F(ExtProcTracingTest, WithoutATracerTheCallersContextStays) {
  bench.options.tracer = nullptr;
  Fields fields = post_fields();
  fields.emplace_back("traceparent", kParent);
  Stream stream(bench);
  std::vector<std::string> removed;
  const auto set = pick(stream, fields, &removed);
  EXPECT_FALSE(set.contains("traceparent"));
  EXPECT_THAT(removed, ::testing::Not(::testing::Contains("traceparent")));
  stream.end();
}

}  // namespace
}  // namespace penstock::extproc
