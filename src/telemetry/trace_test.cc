#include "telemetry/trace.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "telemetry/trace_test_support.h"

namespace penstock::telemetry {
namespace {

using namespace testing;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

TEST(TraceContext, ReadsAndWritesTraceparent) {
  const auto context = parse_traceparent(kParent);
  ASSERT_TRUE(context.has_value());
  EXPECT_TRUE(context->sampled());
  EXPECT_EQ(context->trace_id[0], 0x0a);
  EXPECT_EQ(context->span_id[7], 0x31);
  std::array<char, kTraceparentSize> text;
  format_traceparent(*context, text);
  EXPECT_EQ(std::string_view(text.data(), text.size()), kParent);
  EXPECT_FALSE(parse_traceparent(kUnsampled)->sampled());
  // A later version may say more behind a dash.
  EXPECT_TRUE(parse_traceparent("cc-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-more").has_value());
}

TEST(TraceContext, RefusesWhatIsNoTraceparent) {
  for (const std::string_view bad : {
           "",
           "00",
           "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-0",
           "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-more",
           "00-0AF7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
           "00-0af7651916cd43dd8448eb211c80319g-b7ad6b7169203331-01",
           "00-00000000000000000000000000000000-b7ad6b7169203331-01",
           "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
           "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
           "00_0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
           "cc-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01x",
       })
    EXPECT_FALSE(parse_traceparent(bad).has_value()) << bad;
  EXPECT_TRUE(usable_tracestate("vendor=a,other=b"));
  EXPECT_FALSE(usable_tracestate("a\nb"));
  EXPECT_FALSE(usable_tracestate(std::string(513, 'a')));
}

TEST(RequestTrace, NestsSpansUnderTheCallersSpan) {
  Traced traced;
  RequestTrace trace;
  trace.start(traced.tracer, kParent, "vendor=x", "gateway.request", SpanKind::kServer, "doors");
  EXPECT_EQ(trace.tracestate(), "vendor=x");
  const std::string sent(trace.traceparent());
  EXPECT_EQ(sent.substr(0, 36), std::string(kParent.substr(0, 36)));
  EXPECT_NE(sent.substr(36, 16), std::string(kParent.substr(36, 16)));
  EXPECT_EQ(sent.substr(52), "-01");
  {
    SpanScope outer(trace.recording(), "outer", SpanKind::kInternal, "inside");
    outer.set("number", int64_t{7});
    {
      SpanScope inner(trace.recording(), "inner.", SpanKind::kInternal, "inside", "leaf");
    }
    SpanScope second(trace.recording(), "second", SpanKind::kInternal, "inside");
    second.fail("it broke");
  }
  trace.set("model", std::string("m"));
  trace.finish();
  EXPECT_FALSE(trace.started());

  const std::vector<SpanBatch> batches = traced.collected.wait_for(1);
  ASSERT_THAT(batches, SizeIs(1));
  const SpanBatch& batch = batches[0];
  ASSERT_THAT(batch.spans, SizeIs(4));
  const auto parent = parse_traceparent(kParent);
  const auto own = parse_traceparent(sent);
  EXPECT_EQ(batch.trace_id, parent->trace_id);
  EXPECT_TRUE(batch.remote_parent);
  EXPECT_EQ(batch.spans[0].name, "gateway.request");
  EXPECT_EQ(batch.spans[0].id, own->span_id);
  EXPECT_EQ(batch.spans[0].parent_id, parent->span_id);
  EXPECT_EQ(batch.spans[1].parent_id, batch.spans[0].id);
  EXPECT_EQ(batch.spans[2].name, "inner.leaf");
  EXPECT_EQ(batch.spans[2].parent_id, batch.spans[1].id);
  EXPECT_EQ(batch.spans[3].parent_id, batch.spans[1].id);
  EXPECT_TRUE(batch.spans[3].failed);
  EXPECT_EQ(batch.spans[3].error, "it broke");
  std::set<std::array<uint8_t, 8>> ids;
  for (const Span& span : batch.spans) {
    ids.insert(span.id);
    EXPECT_GE(span.end, span.start);
    EXPECT_GE(span.start, batch.spans[0].start);
    EXPECT_LE(span.end, batch.spans[0].end);
  }
  EXPECT_THAT(ids, SizeIs(4));
}

TEST(RequestTrace, BeginsATraceWhenTheCallerHasNone) {
  Traced traced;
  RequestTrace trace;
  trace.start(traced.tracer, "garbage", "vendor=x", "gateway.request", SpanKind::kServer, "doors");
  EXPECT_EQ(trace.tracestate(), "");
  EXPECT_TRUE(parse_traceparent(trace.traceparent()).has_value());
  trace.finish();
  const std::vector<SpanBatch> batches = traced.collected.wait_for(1);
  EXPECT_FALSE(batches.at(0).remote_parent);
  EXPECT_EQ(batches[0].spans[0].parent_id, (std::array<uint8_t, 8>{}));
}

TEST(RequestTrace, PropagatesButRecordsNothingWhenNotSampled) {
  Traced traced;
  RequestTrace trace;
  trace.start(traced.tracer, kUnsampled, "", "gateway.request", SpanKind::kServer, "doors");
  EXPECT_EQ(trace.recording(), nullptr);
  EXPECT_EQ(trace.traceparent().substr(0, 36), kUnsampled.substr(0, 36));
  EXPECT_EQ(trace.traceparent().substr(52), "-00");
  SpanScope scope(trace.recording(), "nothing", SpanKind::kInternal, "inside");
  EXPECT_FALSE(scope);
  trace.set("key", true);
  trace.fail("ignored");
  trace.finish();
  EXPECT_TRUE(traced.tracer.shutdown(std::chrono::seconds(1)));
  EXPECT_THAT(traced.collected.wait_for(0), IsEmpty());
}

TEST(RequestTrace, BoundsSpansAttributesAndTexts) {
  Traced traced;
  RequestTrace trace;
  trace.start(traced.tracer, "", "", "gateway.request", SpanKind::kServer, "doors");
  for (size_t i = 0; i < 2 * RequestTrace::kMaxSpans; ++i) {
    SpanScope span(trace.recording(), "again", SpanKind::kInternal, "inside");
    if (span) span.set("text", std::string(10'000, 'x'));
  }
  for (int i = 0; i < 100; ++i) trace.set("key", int64_t{i});
  trace.finish();
  const SpanBatch batch = traced.collected.wait_for(1).at(0);
  EXPECT_THAT(batch.spans, SizeIs(RequestTrace::kMaxSpans));
  EXPECT_THAT(batch.spans[0].attributes, SizeIs(32));
  EXPECT_EQ(std::get<std::string>(batch.spans[1].attributes[0].value).size(), 512U);
}

TEST(RequestTrace, CutsALongTextBetweenTwoCharacters) {
  Traced traced;
  RequestTrace trace;
  trace.start(traced.tracer, "", "", "gateway.request", SpanKind::kServer, "doors");
  const auto text_of = [](std::string_view character, size_t before) {
    std::string text(before, 'x');
    while (text.size() < 600) text += character;
    return text;
  };
  trace.set("one", text_of("é", 1));     // 2 bytes, from 511
  trace.set("two", text_of("€", 0));     // 3 bytes, from 510
  trace.set("three", text_of("😀", 1));  // 4 bytes, from 509
  trace.set("whole", text_of("😀", 0));  // 4 bytes, up to 512
  trace.set("list", std::vector<std::string>{text_of("é", 1)});
  trace.set("none", std::string(600, '\x80'));  // no UTF-8
  trace.fail(text_of("€", 0));
  trace.finish();
  const SpanBatch batch = traced.collected.wait_for(1).at(0);
  const Span& span = batch.spans.at(0);
  const auto text = [&](size_t i) { return std::get<std::string>(span.attributes.at(i).value); };
  EXPECT_EQ(text(0), text_of("é", 1).substr(0, 511));
  EXPECT_EQ(text(1), text_of("€", 0).substr(0, 510));
  EXPECT_EQ(text(2), text_of("😀", 1).substr(0, 509));
  EXPECT_EQ(text(3), text_of("😀", 0).substr(0, 512));
  EXPECT_EQ(std::get<std::vector<std::string>>(span.attributes.at(4).value).at(0),
            text_of("é", 1).substr(0, 511));
  EXPECT_LE(text(5).size(), 512U);
  EXPECT_EQ(span.error, text_of("€", 0).substr(0, 510));
}

}  // namespace
}  // namespace penstock::telemetry
