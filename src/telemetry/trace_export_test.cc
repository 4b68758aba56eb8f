#include "telemetry/tracer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <opentelemetry/proto/collector/trace/v1/trace_service.pb.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <condition_variable>
#include <mutex>
#include <set>

#include "io/grpc.h"
#include "io/http_server.h"
#include "telemetry/trace_test_support.h"

namespace penstock::telemetry {
namespace {

using namespace testing;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

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
