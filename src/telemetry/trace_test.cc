#include "telemetry/trace.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <opentelemetry/proto/collector/trace/v1/trace_service.pb.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <condition_variable>
#include <map>
#include <mutex>
#include <set>

#include "io/grpc.h"
#include "io/http_server.h"
#include "telemetry/tracer.h"

namespace penstock::telemetry {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr std::string_view kParent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
constexpr std::string_view kUnsampled = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00";

// Keeps what it is given, and answers as told.
class Collected {
 public:
  using Answer = SpanExporter::Answer;

  std::unique_ptr<SpanExporter> exporter() {
    struct Exporter final : SpanExporter {
      explicit Exporter(Collected& owner) : collected(owner) {}
      Answer send(std::span<const SpanBatch> batches, Duration) override { return collected.take(batches); }
      Collected& collected;
    };
    return std::make_unique<Exporter>(*this);
  }
  void answer_next(std::vector<Answer> answers) { answers_ = std::move(answers); }
  // Holds every send until release().
  void hold() { held_ = true; }
  void release() {
    const std::lock_guard lock(mutex_);
    held_ = false;
    changed_.notify_all();
  }
  std::vector<SpanBatch> wait_for(size_t batches) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, std::chrono::seconds(10), [&] { return batches_.size() >= batches; });
    return batches_;
  }
  bool wait_for_sends(size_t sends) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::seconds(10), [&] { return sends_ >= sends; });
  }

 private:
  Answer take(std::span<const SpanBatch> batches) {
    std::unique_lock lock(mutex_);
    ++sends_;
    changed_.notify_all();
    changed_.wait_for(lock, std::chrono::seconds(10), [&] { return !held_; });
    Answer answer;
    if (!answers_.empty()) {
      answer = answers_.front();
      answers_.erase(answers_.begin());
    }
    if (answer.outcome == SpanExporter::Outcome::kSent)
      batches_.insert(batches_.end(), batches.begin(), batches.end());
    changed_.notify_all();
    return answer;
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  bool held_ = false;
  size_t sends_ = 0;
  std::vector<Answer> answers_;
  std::vector<SpanBatch> batches_;
};

TracingOptions always() {
  TracingOptions options;
  options.sampler = TracingOptions::Sampler::kAlwaysOn;
  options.schedule_delay = std::chrono::milliseconds(1);
  options.service_version = "1.2.3";
  options.commit = "abc123";
  return options;
}

struct Traced {
  explicit Traced(const TracingOptions& options = always())
      : tracer(options, clock, metrics, collected.exporter()) {}
  uint64_t count(std::string_view outcome) {
    return metrics.counter({.name = "penstock_trace_spans_total", .help = "", .labels = {"outcome"}})
        .with({outcome})
        .value();
  }
  Collected collected;
  SystemClock clock;
  MetricRegistry metrics;
  Tracer tracer;
};

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

std::map<std::string, std::string> environment;
const char* fake_variable(const char* name) {
  const auto at = environment.find(name);
  return at == environment.end() ? nullptr : at->second.c_str();
}

TEST(TracingOptions, TakesTheStandardVariables) {
  using Exporter = TracingOptions::Exporter;
  const auto read = [](std::map<std::string, std::string> variables, TracingOptions base = {}) {
    environment = std::move(variables);
    std::vector<std::string> warnings;
    const TracingOptions options = tracing_from_environment(base, {}, fake_variable, warnings);
    EXPECT_THAT(warnings, IsEmpty());
    return options;
  };
  EXPECT_EQ(read({}).exporter, Exporter::kNone);
  EXPECT_EQ(read({{"OTEL_TRACES_EXPORTER", "otlp"}}).exporter, Exporter::kOtlpGrpc);
  EXPECT_EQ(read({{"OTEL_TRACES_EXPORTER", "console"}}).exporter, Exporter::kConsole);
  TracingOptions console;
  console.exporter = Exporter::kConsole;
  EXPECT_EQ(read({{"OTEL_TRACES_EXPORTER", "none"}}, console).exporter, Exporter::kNone);
  EXPECT_EQ(read({{"OTEL_SDK_DISABLED", "true"}}, console).exporter, Exporter::kNone);

  const TracingOptions http = read({{"OTEL_TRACES_EXPORTER", "otlp"},
                                    {"OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf"},
                                    {"OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector:4318/"},
                                    {"OTEL_EXPORTER_OTLP_HEADERS", "X-Key=a%20b, other=c"},
                                    {"OTEL_EXPORTER_OTLP_TIMEOUT", "2500"},
                                    {"OTEL_TRACES_SAMPLER", "traceidratio"},
                                    {"OTEL_TRACES_SAMPLER_ARG", "0.25"},
                                    {"OTEL_RESOURCE_ATTRIBUTES", "service.name=from-attributes,pod=p1"},
                                    {"OTEL_SERVICE_NAME", "named"},
                                    {"OTEL_BSP_SCHEDULE_DELAY", "100"},
                                    {"OTEL_BSP_MAX_QUEUE_SIZE", "7"},
                                    {"OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "3"}});
  EXPECT_EQ(http.exporter, Exporter::kOtlpHttp);
  EXPECT_EQ(http.endpoint, "http://collector:4318/v1/traces");
  EXPECT_EQ(http.headers, (TracingOptions::Pairs{{"x-key", "a b"}, {"other", "c"}}));
  EXPECT_EQ(http.timeout, std::chrono::milliseconds(2500));
  EXPECT_FALSE(http.parent_based);
  EXPECT_EQ(http.ratio, 0.25);
  EXPECT_EQ(http.service_name, "named");
  EXPECT_EQ(http.resource_attributes, (TracingOptions::Pairs{{"pod", "p1"}}));
  EXPECT_EQ(http.schedule_delay, std::chrono::milliseconds(100));
  EXPECT_EQ(http.max_queue_spans, 7U);
  EXPECT_EQ(http.max_batch_spans, 3U);

  const TracingOptions own = read({{"OTEL_TRACES_EXPORTER", "otlp"},
                                   {"OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "http/protobuf"},
                                   {"OTEL_EXPORTER_OTLP_ENDPOINT", "http://wrong:1"},
                                   {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://right:2/path"}});
  EXPECT_EQ(own.endpoint, "http://right:2/path");
  EXPECT_EQ(read({{"OTEL_TRACES_EXPORTER", "otlp"}, {"OTEL_EXPORTER_OTLP_ENDPOINT", "c:4317"}}).endpoint,
            "https://c:4317");
  EXPECT_EQ(read({{"OTEL_TRACES_EXPORTER", "otlp"},
                  {"OTEL_EXPORTER_OTLP_ENDPOINT", "c:4317"},
                  {"OTEL_EXPORTER_OTLP_INSECURE", "true"}})
                .endpoint,
            "http://c:4317");
}

TEST(TracingOptions, WarnsOfWhatItCannotUseAndKeepsWhatItHad) {
  environment = {{"OTEL_TRACES_EXPORTER", "zipkin"},           {"OTEL_EXPORTER_OTLP_TIMEOUT", "soon"},
                 {"OTEL_TRACES_SAMPLER", "jaeger_remote"},     {"OTEL_TRACES_SAMPLER_ARG", "2"},
                 {"OTEL_RESOURCE_ATTRIBUTES", "novalue"},      {"OTEL_BSP_MAX_QUEUE_SIZE", "0"},
                 {"OTEL_EXPORTER_OTLP_PROTOCOL", "http/json"}, {"OTEL_EXPORTER_OTLP_COMPRESSION", "gzip"}};
  TracingOptions base;
  base.exporter = TracingOptions::Exporter::kOtlpGrpc;
  std::vector<std::string> warnings;
  const TracingOptions options = tracing_from_environment(base, {}, fake_variable, warnings);
  EXPECT_EQ(options.exporter, TracingOptions::Exporter::kOtlpGrpc);
  EXPECT_EQ(options.ratio, 0.1);
  EXPECT_EQ(options.max_queue_spans, 2048U);
  EXPECT_THAT(warnings, SizeIs(8));
}

// --- exporters ---

SpanBatch example_batch() {
  SpanBatch batch;
  batch.trace_id = parse_traceparent(kParent)->trace_id;
  batch.flags = 1;
  batch.remote_parent = true;
  batch.tracestate = "vendor=x";
  Span span;
  span.id = {1, 2, 3, 4, 5, 6, 7, 8};
  span.parent_id = parse_traceparent(kParent)->span_id;
  span.scope = "doors";
  span.name = "gateway.request";
  span.kind = SpanKind::kServer;
  span.start = WallTime(std::chrono::seconds(1'700'000'000));
  span.end = span.start + std::chrono::milliseconds(5);
  span.failed = true;
  span.error = "bad \xff byte";
  span.attributes = {{"text", std::string("t")},
                     {"integer", int64_t{-3}},
                     {"number", 0.5},
                     {"yes", true},
                     {"texts", std::vector<std::string>{"a", "b"}},
                     {"numbers", std::vector<double>{1.5, 2}}};
  batch.spans.push_back(span);
  span.scope = "inside";
  span.name = "child";
  span.kind = SpanKind::kInternal;
  span.failed = false;
  span.attributes.clear();
  batch.spans.push_back(span);
  return batch;
}

TEST(TraceExport, EncodesOtlp) {
  const SpanBatch batch = example_batch();
  TracingOptions options = always();
  options.resource_attributes = {{"k8s.pod.name", "p"}};
  opentelemetry::proto::collector::trace::v1::ExportTraceServiceRequest request;
  ASSERT_TRUE(request.ParseFromString(encode_otlp(options, std::span(&batch, 1))));
  ASSERT_EQ(request.resource_spans_size(), 1);
  const auto& all = request.resource_spans(0);
  std::map<std::string, std::string> resource;
  for (const auto& pair : all.resource().attributes()) resource[pair.key()] = pair.value().string_value();
  EXPECT_EQ(resource["service.name"], "penstock");
  EXPECT_EQ(resource["service.version"], "1.2.3");
  EXPECT_EQ(resource["k8s.pod.name"], "p");
  ASSERT_EQ(all.scope_spans_size(), 2);
  EXPECT_EQ(all.scope_spans(0).scope().name(), "doors");
  EXPECT_EQ(all.scope_spans(0).scope().attributes(0).key(), "commit-sha");
  EXPECT_EQ(all.scope_spans(0).scope().attributes(0).value().string_value(), "abc123");
  const auto& span = all.scope_spans(0).spans(0);
  EXPECT_EQ(span.trace_id().size(), 16U);
  EXPECT_EQ(span.span_id(), std::string("\1\2\3\4\5\6\7\x8"));
  EXPECT_EQ(span.parent_span_id().size(), 8U);
  EXPECT_EQ(span.trace_state(), "vendor=x");
  EXPECT_EQ(span.flags(), 0x301U);
  EXPECT_EQ(all.scope_spans(1).spans(0).flags(), 0x101U);
  EXPECT_EQ(span.kind(), opentelemetry::proto::trace::v1::Span::SPAN_KIND_SERVER);
  EXPECT_EQ(span.start_time_unix_nano(), 1'700'000'000'000'000'000U);
  EXPECT_EQ(span.end_time_unix_nano() - span.start_time_unix_nano(), 5'000'000U);
  EXPECT_EQ(span.status().code(), opentelemetry::proto::trace::v1::Status::STATUS_CODE_ERROR);
  EXPECT_EQ(span.status().message(), "bad ? byte");
  EXPECT_EQ(span.attributes(0).value().string_value(), "t");
  EXPECT_EQ(span.attributes(1).value().int_value(), -3);
  EXPECT_EQ(span.attributes(2).value().double_value(), 0.5);
  EXPECT_TRUE(span.attributes(3).value().bool_value());
  EXPECT_EQ(span.attributes(4).value().array_value().values(1).string_value(), "b");
  EXPECT_EQ(span.attributes(5).value().array_value().values(0).double_value(), 1.5);
}

TEST(TraceExport, WritesALineOfJsonASpan) {
  const SpanBatch batch = example_batch();
  const std::string lines = encode_console(always(), std::span(&batch, 1));
  EXPECT_EQ(std::count(lines.begin(), lines.end(), '\n'), 2);
  EXPECT_THAT(lines,
              HasSubstr(R"("TraceID":"0af7651916cd43dd8448eb211c80319c","SpanID":"0102030405060708")"));
  EXPECT_THAT(lines, HasSubstr(R"("ParentSpanID":"b7ad6b7169203331","SpanKind":"server")"));
  EXPECT_THAT(lines, HasSubstr(R"("StartTime":"2023-11-14T22:13:20.000000000Z")"));
  EXPECT_THAT(
      lines, HasSubstr(R"("Attributes":{"text":"t","integer":-3,"number":0.5,"yes":true,"texts":["a","b"])"));
  EXPECT_THAT(lines, HasSubstr(R"("Status":{"Code":"Error")"));
}

// A collector on loopback that answers as told.
class FakeCollector {
 public:
  FakeCollector() : loops_(1) {
    loops_.start();
    server_ = std::make_unique<io::HttpServer>(
        loops_, io::HttpServerOptions{},
        io::HttpServer::handler_of([this](io::HttpExchange& exchange) { return serve(exchange); }));
    auto address = io::SocketAddress::parse("127.0.0.1:0");
    auto bound = server_->listen(*address);
    EXPECT_TRUE(bound.ok());
    port_ = bound->port();
  }
  ~FakeCollector() {
    server_->stop();
    server_.reset();
    loops_.stop();
  }

  std::string url() const { return "http://127.0.0.1:" + std::to_string(port_) + "/v1/traces"; }
  void answer_next(std::vector<int> statuses) { statuses_ = std::move(statuses); }
  struct Seen {
    std::string path;
    std::string content_type;
    std::string key;
    opentelemetry::proto::collector::trace::v1::ExportTraceServiceRequest request;
  };
  std::vector<Seen> wait_for(size_t count) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, std::chrono::seconds(10), [&] { return seen_.size() >= count; });
    return seen_;
  }

 private:
  io::Task<void> serve(io::HttpExchange& exchange) {
    auto body = co_await exchange.read_all(1 << 20);
    Seen seen;
    seen.path = exchange.request().path;
    seen.content_type = exchange.request().fields.get("content-type");
    seen.key = exchange.request().fields.get("x-key");
    EXPECT_TRUE(seen.request.ParseFromArray(body->data(), static_cast<int>(body->size())));
    int status = 200;
    {
      const std::lock_guard lock(mutex_);
      seen_.push_back(std::move(seen));
      if (!statuses_.empty()) {
        status = statuses_.front();
        statuses_.erase(statuses_.begin());
      }
    }
    changed_.notify_all();
    const std::array<io::HeaderField, 1> fields = {io::HeaderField{"retry-after", "1"}};
    (void)co_await exchange.respond(status, "application/x-protobuf", "",
                                    std::span(fields).first(status == 200 ? 0 : 1));
  }

  io::LoopGroup loops_;
  std::unique_ptr<io::HttpServer> server_;
  uint16_t port_ = 0;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<int> statuses_;
  std::vector<Seen> seen_;
};

TEST(TraceExport, SendsProtobufOverHttpAndTriesAgainWhenAsked) {
  FakeCollector collector;
  collector.answer_next({503});
  TracingOptions options = always();
  options.exporter = TracingOptions::Exporter::kOtlpHttp;
  options.endpoint = collector.url();
  options.headers = {{"x-key", "secret"}};
  SystemClock clock;
  MetricRegistry metrics;
  auto tracer = make_tracer(options, clock, metrics);
  ASSERT_TRUE(tracer.ok());
  RequestTrace trace;
  trace.start(**tracer, kParent, "", "gateway.request", SpanKind::kServer, "doors");
  trace.finish();
  const auto seen = collector.wait_for(2);
  ASSERT_THAT(seen, SizeIs(2));
  EXPECT_EQ(seen[1].path, "/v1/traces");
  EXPECT_EQ(seen[1].content_type, "application/x-protobuf");
  EXPECT_EQ(seen[1].key, "secret");
  EXPECT_EQ(seen[1].request.resource_spans(0).scope_spans(0).spans(0).name(), "gateway.request");
  EXPECT_TRUE((*tracer)->shutdown(std::chrono::seconds(5)));
  EXPECT_THAT(metrics.render(), HasSubstr("penstock_trace_spans_total{outcome=\"exported\"} 1\n"));
}

TEST(TraceExport, TellsWhatToTryAgainFromWhatIsRefused) {
  FakeCollector collector;
  TracingOptions options = always();
  options.exporter = TracingOptions::Exporter::kOtlpHttp;
  options.endpoint = collector.url();
  auto exporter = make_span_exporter(options);
  ASSERT_TRUE(exporter.ok());
  const SpanBatch batch = example_batch();
  collector.answer_next({429, 400, 200});
  const auto busy = (*exporter)->send(std::span(&batch, 1), std::chrono::seconds(5));
  EXPECT_EQ(busy.outcome, SpanExporter::Outcome::kRetry);
  EXPECT_EQ(busy.retry_after, std::chrono::seconds(1));
  EXPECT_EQ((*exporter)->send(std::span(&batch, 1), std::chrono::seconds(5)).outcome,
            SpanExporter::Outcome::kRefused);
  EXPECT_EQ((*exporter)->send(std::span(&batch, 1), std::chrono::seconds(5)).outcome,
            SpanExporter::Outcome::kSent);
  // Nobody listens there.
  options.endpoint = "http://127.0.0.1:1/v1/traces";
  auto nobody = make_span_exporter(options);
  EXPECT_EQ((*nobody)->send(std::span(&batch, 1), std::chrono::seconds(5)).outcome,
            SpanExporter::Outcome::kRetry);
}

TEST(TraceExport, SendsOverGrpc) {
  std::mutex mutex;
  std::vector<std::string> names;
  std::string key;
  int calls = 0;
  auto router = std::make_shared<io::GrpcRouter>();
  router->add_unary(
      "/opentelemetry.proto.collector.trace.v1.TraceService/Export",
      [&](io::GrpcServerStream& stream, std::string_view request, std::string&) -> io::Task<io::GrpcStatus> {
        const std::lock_guard lock(mutex);
        if (++calls == 1) co_return io::GrpcStatus(io::GrpcCode::kUnavailable, "starting");
        if (calls == 3) co_return io::GrpcStatus(io::GrpcCode::kInvalidArgument, "no");
        key = stream.request().fields.get("x-key");
        opentelemetry::proto::collector::trace::v1::ExportTraceServiceRequest message;
        EXPECT_TRUE(message.ParseFromArray(request.data(), static_cast<int>(request.size())));
        names.push_back(message.resource_spans(0).scope_spans(0).spans(0).name());
        co_return io::GrpcStatus();
      });
  io::LoopGroup loops(1);
  loops.start();
  io::HttpServer server(loops, {}, router);
  auto bound = server.listen(*io::SocketAddress::parse("127.0.0.1:0"));
  ASSERT_TRUE(bound.ok());
  TracingOptions options = always();
  options.exporter = TracingOptions::Exporter::kOtlpGrpc;
  options.endpoint = "http://127.0.0.1:" + std::to_string(bound->port());
  options.headers = {{"x-key", "secret"}};
  auto exporter = make_span_exporter(options);
  ASSERT_TRUE(exporter.ok());
  const SpanBatch batch = example_batch();
  const auto send = [&] { return (*exporter)->send(std::span(&batch, 1), std::chrono::seconds(5)); };
  EXPECT_EQ(send().outcome, SpanExporter::Outcome::kRetry);
  EXPECT_EQ(send().outcome, SpanExporter::Outcome::kSent);
  const auto refused = send();
  EXPECT_EQ(refused.outcome, SpanExporter::Outcome::kRefused);
  EXPECT_EQ(refused.why, "INVALID_ARGUMENT: no");
  EXPECT_THAT(names, ElementsAre("gateway.request"));
  EXPECT_EQ(key, "secret");
  exporter->reset();
  server.stop();
  loops.stop();
}

// Takes connections and what is sent on them, and never answers.
class SilentCollector {
 public:
  SilentCollector() : listener_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(::bind(listener_, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    EXPECT_EQ(::listen(listener_, 16), 0);
    socklen_t size = sizeof(address);
    EXPECT_EQ(::getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size), 0);
    port_ = ntohs(address.sin_port);
  }
  ~SilentCollector() {
    if (connection_ >= 0) ::close(connection_);
    ::close(listener_);
  }
  SilentCollector(const SilentCollector&) = delete;
  SilentCollector& operator=(const SilentCollector&) = delete;

  std::string url() const { return "http://127.0.0.1:" + std::to_string(port_) + "/v1/traces"; }
  // Until the first bytes of an export are here.
  bool wait_for_export() {
    if (!readable(listener_)) return false;
    connection_ = ::accept(listener_, nullptr, nullptr);
    return connection_ >= 0 && readable(connection_);
  }

 private:
  static bool readable(int fd) {
    pollfd waiting{fd, POLLIN, 0};
    return ::poll(&waiting, 1, 10'000) == 1;
  }
  int listener_;
  int connection_ = -1;
  uint16_t port_ = 0;
};

TEST(TraceExport, ACollectorThatNeverAnswersDoesNotHoldUpTheEnd) {
  using Exporter = TracingOptions::Exporter;
  for (const Exporter kind : {Exporter::kOtlpHttp, Exporter::kOtlpGrpc}) {
    for (const bool by_destructor : {false, true}) {
      SilentCollector collector;
      TracingOptions options = always();
      options.exporter = kind;
      options.endpoint = collector.url();
      options.timeout = std::chrono::minutes(10);
      SystemClock clock;
      MetricRegistry metrics;
      auto tracer = make_tracer(options, clock, metrics);
      ASSERT_TRUE(tracer.ok());
      RequestTrace trace;
      trace.start(**tracer, kParent, "", "gateway.request", SpanKind::kServer, "doors");
      trace.finish();
      ASSERT_TRUE(collector.wait_for_export());
      const auto began = std::chrono::steady_clock::now();
      if (!by_destructor) {
        EXPECT_FALSE((*tracer)->shutdown(std::chrono::milliseconds(20)));
        EXPECT_FALSE((*tracer)->shutdown(std::chrono::minutes(10)));
      }
      tracer->reset();
      EXPECT_LT(std::chrono::steady_clock::now() - began, std::chrono::seconds(60));
      EXPECT_THAT(metrics.render(), HasSubstr("penstock_trace_spans_total{outcome=\"shutdown\"} 1\n"));
    }
  }
}

TEST(TraceExport, RefusesAnEndpointThatIsNoUrl) {
  TracingOptions options;
  options.exporter = TracingOptions::Exporter::kOtlpHttp;
  options.endpoint = "collector";
  EXPECT_FALSE(make_span_exporter(options).ok());
  options.exporter = TracingOptions::Exporter::kNone;
  SystemClock clock;
  MetricRegistry metrics;
  EXPECT_EQ(*make_tracer(options, clock, metrics), nullptr);
}

}  // namespace
}  // namespace penstock::telemetry
