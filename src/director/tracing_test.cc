#include "director/tracing.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <condition_variable>
#include <map>
#include <mutex>

#include "director/observer.h"
#include "director/testing.h"

namespace penstock::director {
namespace {

using namespace testing;
using telemetry::Span;
using ::testing::ElementsAre;

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

class TracingTest : public ::testing::Test {
 protected:
  TracingTest() {
    telemetry::TracingOptions options;
    options.sampler = telemetry::TracingOptions::Sampler::kAlwaysOn;
    tracer = std::make_unique<telemetry::Tracer>(options, clock, registry,
                                                 std::make_unique<KeepingExporter>(kept));
    for (EndpointSlot i = 0; i < 3; ++i) {
      pictures.add(
          make_endpoint(i, std::string(1, static_cast<char>('a' + i)), static_cast<uint16_t>(9000 + i)));
    }
    // Adding clears them.
    for (Candidate c = 0; c < 3; ++c) {
      for (const Signal s : {Signal::kWaitingRequests, Signal::kRunningRequests, Signal::kKvUsage})
        pictures.set(s, c, c, clock.now());
    }
    pool.policy.publish(policy.policy);
  }

  RequestInput input(std::string_view text) {
    body.assign(text);
    body.append(protocol::kBodyPadding, '\0');
    RequestInput in;
    in.request_id = "r1";
    in.method = "POST";
    in.path = "/v1/completions";
    in.body = {body.data(), text.size()};
    in.received_at = clock.now();
    return in;
  }
  // Serves one request to its end and gives its spans by name.
  std::map<std::string, Span> serve(std::string_view text, int status) {
    begin_trace(tracer.get(), request, headers);
    Observer observer;
    observer.start(pool, request, nullptr, 0);
    const Status decided = director.decide(request, input(text));
    Observer::End end;
    end.status = status;
    end.reason = decided.ok() ? "ok" : "rejected";
    end.error = decided.ok() ? nullptr : &decided.error();
    observer.end(end, clock.now());
    EXPECT_FALSE(request.trace.started());
    request.reset();
    tracer->shutdown(std::chrono::seconds(10));
    std::map<std::string, Span> out;
    for (const telemetry::SpanBatch& batch : kept.batches)
      for (const Span& span : batch.spans) out[span.name] = span;
    return out;
  }
  static const telemetry::SpanValue& value(const Span& span, std::string_view key) {
    static const telemetry::SpanValue kMissing = std::string("(missing)");
    for (const telemetry::SpanAttribute& attribute : span.attributes)
      if (attribute.key == key) return attribute.value;
    return kMissing;
  }
  static std::string text(const Span& span, std::string_view key) {
    const auto* found = std::get_if<std::string>(&value(span, key));
    return found != nullptr ? *found : "(no text)";
  }
  static int64_t number(const Span& span, std::string_view key) {
    const auto* found = std::get_if<int64_t>(&value(span, key));
    return found != nullptr ? *found : -1;
  }

  ManualClock clock;
  telemetry::MetricRegistry registry;
  Kept kept;
  std::unique_ptr<telemetry::Tracer> tracer;
  RequestMetrics metrics{registry};
  Pool pool{"pool", "default", metrics, {1, 16}};
  TestPolicy policy;
  FixedPictures pictures;
  Director director{pool, std::make_unique<BorrowedPictures>(pictures), clock, {0, 99}};
  std::vector<HeaderField> headers;
  std::string body;
  Request request;
};

TEST_F(TracingTest, ADecisionHasTheReferencesSpansAndAttributes) {
  headers = {{"traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}};
  const auto spans = serve(R"({"model":"m"})", 200);
  const Span& root = spans.at("gateway.request");
  EXPECT_EQ(root.parent_id, (std::array<uint8_t, 8>{0xb7, 0xad, 0x6b, 0x71, 0x69, 0x20, 0x33, 0x31}));
  EXPECT_EQ(root.scope, "llm-d-router/pkg/epp/handlers");
  EXPECT_EQ(root.kind, telemetry::SpanKind::kServer);
  EXPECT_FALSE(root.failed);
  EXPECT_EQ(number(root, "http.response.status_code"), 200);
  EXPECT_EQ(text(root, "gen_ai.request.model"), "m");
  EXPECT_EQ(text(root, "penstock.endpoint"), "default/a");

  const Span& orchestration = spans.at("gateway.request_orchestration");
  EXPECT_EQ(orchestration.parent_id, root.id);
  EXPECT_EQ(orchestration.scope, "llm-d-router/pkg/epp/requestcontrol");
  EXPECT_EQ(orchestration.kind, telemetry::SpanKind::kServer);
  EXPECT_EQ(text(orchestration, "target_model"), "m");
  EXPECT_EQ(number(orchestration, "request_prio"), 0);

  const Span& profile = spans.at("run_scheduler_profile");
  EXPECT_EQ(profile.parent_id, orchestration.id);
  EXPECT_EQ(profile.scope, "llm-d-router/pkg/epp/scheduling");
  const Span& filters = spans.at("filter_endpoints");
  EXPECT_EQ(filters.parent_id, profile.id);
  EXPECT_EQ(number(filters, "llm_d.epp.filter.candidate_endpoints"), 3);
  EXPECT_EQ(number(filters, "llm_d.epp.filter.filtered_endpoints"), 3);
  EXPECT_EQ(text(filters, "gen_ai.request.id"), "r1");
  const Span& scoring = spans.at("llm_d.epp.scoring");
  EXPECT_EQ(scoring.parent_id, profile.id);
  EXPECT_EQ(number(scoring, "llm_d.epp.scoring.candidate_endpoints"), 3);
  size_t scorers = 0;
  for (const auto& [name, span] : spans) {
    if (!name.starts_with("llm_d.epp.scorer.")) continue;
    ++scorers;
    EXPECT_EQ(span.parent_id, scoring.id);
    EXPECT_EQ("llm_d.epp.scorer." + text(span, "llm_d.epp.scorer.type"), name);
    EXPECT_EQ(number(span, "llm_d.epp.scorer.endpoints_scored"), 3);
    EXPECT_TRUE(std::holds_alternative<double>(value(span, "llm_d.epp.scorer.score.max")));
    EXPECT_TRUE(std::holds_alternative<double>(value(span, "llm_d.epp.scorer.score.avg")));
    EXPECT_TRUE(std::holds_alternative<double>(value(span, "llm_d.epp.scorer.weight")));
  }
  EXPECT_EQ(number(scoring, "llm_d.epp.scorer.count"), static_cast<int64_t>(scorers));
  EXPECT_GE(scorers, 1U);
  const Span& pick = spans.at("pick_endpoints");
  EXPECT_EQ(pick.parent_id, profile.id);
  EXPECT_EQ(number(pick, "llm_d.epp.picker.candidate_endpoints"), 3);
  const auto& top = std::get<std::vector<std::string>>(value(pick, "llm_d.epp.picker.top_endpoints"));
  EXPECT_EQ(top.size(), 3U);
  EXPECT_EQ(top[0], "default/a");
  const auto& scores = std::get<std::vector<double>>(value(pick, "llm_d.epp.picker.top_scores"));
  EXPECT_TRUE(std::is_sorted(scores.rbegin(), scores.rend()));
}

TEST_F(TracingTest, TheMembersOfSeveralTracestateFieldsAreOneListInTheirOrder) {
  headers = {{"tracestate", "a=1,b=2"},
             {"traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"},
             {"tracestate", ""},
             {"tracestate", "c=3"},
             {"tracestate", "d=4"}};
  begin_trace(tracer.get(), request, headers);
  EXPECT_EQ(request.trace.tracestate(), "a=1,b=2,c=3,d=4");
  request.trace.reset();
}

TEST_F(TracingTest, OfSeveralTraceparentFieldsNoneCounts) {
  headers = {{"traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"},
             {"traceparent", "00-1bf7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"},
             {"tracestate", "a=1"}};
  begin_trace(tracer.get(), request, headers);
  const std::string sent(request.trace.traceparent());
  EXPECT_TRUE(telemetry::parse_traceparent(sent).has_value());
  EXPECT_NE(sent.substr(3, 32), "0af7651916cd43dd8448eb211c80319c");
  EXPECT_NE(sent.substr(3, 32), "1bf7651916cd43dd8448eb211c80319c");
  EXPECT_EQ(request.trace.tracestate(), "");
  request.trace.reset();
}

TEST_F(TracingTest, ARefusalMarksTheDecisionAndTheRequest) {
  const auto spans = serve("no healthy upstream", 400);
  EXPECT_TRUE(spans.at("gateway.request").failed);
  EXPECT_TRUE(spans.at("gateway.request_orchestration").failed);
  EXPECT_NE(spans.at("gateway.request").error.find("error unmarshaling"), std::string::npos);
  EXPECT_FALSE(spans.contains("run_scheduler_profile"));
}

TEST_F(TracingTest, AnAnswerOtherThan200IsAnError) {
  const auto spans = serve(R"({"model":"m"})", 503);
  EXPECT_TRUE(spans.at("gateway.request").failed);
  EXPECT_EQ(spans.at("gateway.request").error, "status 503");
  EXPECT_FALSE(spans.at("gateway.request_orchestration").failed);
}

TEST_F(TracingTest, WithoutATracerNothingIsMade) {
  begin_trace(nullptr, request, headers);
  ASSERT_TRUE(director.decide(request, input(R"({"model":"m"})")).ok());
  EXPECT_FALSE(request.trace.started());
  EXPECT_EQ(request.trace.traceparent(), "");
}

}  // namespace
}  // namespace penstock::director
