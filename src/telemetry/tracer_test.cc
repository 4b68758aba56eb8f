#include "telemetry/tracer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "telemetry/trace_test_support.h"

namespace penstock::telemetry {
namespace {

using namespace testing;
using ::testing::SizeIs;

TEST(Tracer, SamplesTheRatioOfRootsAndFollowsParents) {
  TracingOptions options;
  options.ratio = 0.1;
  Traced traced(options);
  int sampled = 0;
  for (int i = 0; i < 20'000; ++i) {
    RequestTrace trace;
    trace.start(traced.tracer, "", "", "gateway.request", SpanKind::kServer, "doors");
    sampled += trace.recording() != nullptr ? 1 : 0;
  }
  EXPECT_GT(sampled, 1700);
  EXPECT_LT(sampled, 2300);
  const auto yes = parse_traceparent(kParent);
  const auto no = parse_traceparent(kUnsampled);
  EXPECT_TRUE(traced.tracer.samples(yes->trace_id, &*yes));
  EXPECT_FALSE(traced.tracer.samples(no->trace_id, &*no));

  options.parent_based = false;
  options.ratio = 1;
  Traced all(options);
  EXPECT_TRUE(all.tracer.samples(no->trace_id, &*no));
  options.ratio = 0;
  Traced none(options);
  EXPECT_FALSE(none.tracer.samples(yes->trace_id, &*yes));
  options.parent_based = true;
  options.sampler = TracingOptions::Sampler::kAlwaysOff;
  Traced off(options);
  EXPECT_FALSE(off.tracer.samples(yes->trace_id, nullptr));
  EXPECT_TRUE(off.tracer.samples(yes->trace_id, &*yes));
}

TEST(Tracer, DropsAndCountsWhatTheQueueDoesNotHold) {
  TracingOptions options = always();
  options.max_queue_spans = 8;
  options.max_batch_spans = 1;
  Traced traced(options);
  traced.collected.hold();
  const auto submit = [&] {
    RequestTrace trace;
    trace.start(traced.tracer, "", "", "gateway.request", SpanKind::kServer, "doors");
    trace.finish();
  };
  submit();
  ASSERT_TRUE(traced.collected.wait_for_sends(1));
  for (int i = 0; i < 12; ++i) submit();
  EXPECT_EQ(traced.count("queue_full"), 4U);
  traced.collected.release();
  EXPECT_TRUE(traced.tracer.shutdown(std::chrono::seconds(10)));
  EXPECT_EQ(traced.count("exported"), 9U);
  submit();
  EXPECT_EQ(traced.count("shutdown"), 1U);
}

TEST(Tracer, TriesAgainWhatMayBeTakenLaterAndDropsWhatIsRefused) {
  Traced traced;
  using Outcome = SpanExporter::Outcome;
  traced.collected.answer_next({{Outcome::kRetry, std::chrono::milliseconds(1), "busy"},
                                {Outcome::kRetry, std::chrono::milliseconds(1), "busy"},
                                {Outcome::kSent, Duration(0), ""},
                                {Outcome::kRefused, Duration(0), "no"}});
  RequestTrace trace;
  trace.start(traced.tracer, "", "", "first", SpanKind::kServer, "doors");
  trace.finish();
  EXPECT_THAT(traced.collected.wait_for(1), SizeIs(1));
  trace.start(traced.tracer, "", "", "second", SpanKind::kServer, "doors");
  trace.finish();
  ASSERT_TRUE(traced.collected.wait_for_sends(4));
  traced.tracer.shutdown(std::chrono::seconds(10));
  EXPECT_EQ(traced.count("exported"), 1U);
  EXPECT_EQ(traced.count("export_failed"), 1U);
}

TEST(Tracer, SendsWhatIsQueuedAtShutdownAndGivesUpAtTheDeadline) {
  TracingOptions options = always();
  options.schedule_delay = std::chrono::hours(1);
  Traced traced(options);
  RequestTrace trace;
  trace.start(traced.tracer, "", "", "late", SpanKind::kServer, "doors");
  trace.finish();
  EXPECT_TRUE(traced.tracer.shutdown(std::chrono::seconds(10)));
  EXPECT_EQ(traced.count("exported"), 1U);

  Traced hurried(options);
  trace.start(hurried.tracer, "", "", "too late", SpanKind::kServer, "doors");
  trace.finish();
  EXPECT_FALSE(hurried.tracer.shutdown(Duration(0)));
  EXPECT_EQ(hurried.count("shutdown"), 1U);
}

TEST(Tracer, SaysThatItDroppedWhatTheCollectorDidNotTakeAtShutdown) {
  using Outcome = SpanExporter::Outcome;
  TracingOptions options = always();
  options.schedule_delay = std::chrono::hours(1);
  for (const Outcome outcome : {Outcome::kRefused, Outcome::kRetry}) {
    Traced traced(options);
    traced.collected.answer_next({{outcome, Duration(0), "no"}});
    RequestTrace trace;
    trace.start(traced.tracer, "", "", "late", SpanKind::kServer, "doors");
    trace.finish();
    EXPECT_FALSE(traced.tracer.shutdown(std::chrono::seconds(10)));
    EXPECT_EQ(traced.count("export_failed"), 1U);
  }
}

}  // namespace
}  // namespace penstock::telemetry
