#include "extproc/epp_runtime.h"

#include <gmock/gmock.h>
#include <grpc/health/v1/health.pb.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <fstream>

#include "base/eventually.h"
#include "base/temporary_folder.h"
#include "config/node.h"
#include "extproc/testing.h"
#include "io/grpc.h"

namespace penstock::extproc {
namespace {

using namespace testing;
using io::GrpcClientStream;
using io::Task;
using ::testing::HasSubstr;
using ::testing::Not;

const std::string kBody = R"({"model":"m","prompt":"hello"})";

std::string bytes_of(const pb::ProcessingRequest& request) {
  return request.SerializeAsString();
}

class EppRuntimeTest : public ::testing::Test {
 protected:
  EppRuntimeTest() {
    options.pool.name = "pool";
    // Nobody listens there: signals are never seen, and the picker picks all the same.
    options.pool.discovery.static_urls = {"http://127.0.0.1:1", "http://127.0.0.1:2"};
    options.pool.metrics.interval = std::chrono::seconds(3600);
    options.telemetry.access_log = false;
    options.loops = 2;
    options.secure = false;
    options.grpc_address = "127.0.0.1:0";
    options.health_address = "127.0.0.1:0";
    client_options.http2_calls_per_connection = 100000;
    client_options.http2_connections_per_destination = 1;
  }
  void start() {
    auto created = EppRuntime::create(options);
    ASSERT_TRUE(created.ok()) << created.error().message;
    runtime = std::move(*created);
    const Status started = runtime->start();
    ASSERT_TRUE(started.ok()) << started.error().message;
    destination = at(runtime->grpc_address());
  }
  static io::HttpDestination at(const std::string& address) {
    io::HttpDestination to;
    const auto parsed = io::SocketAddress::parse(address);
    to.host = "127.0.0.1";
    to.port = parsed->port();
    to.http2 = true;
    return to;
  }
  // Runs `work` on a client's loop of its own.
  template <typename Work>
  void with_client(Work work) {
    io::Loop loop;
    io::HttpClient client(loop, client_options);
    io::block_on(loop, work(client));
  }
  bool at_rest() {
    return eventually([&] {
      const Door::Stats stats = runtime->stats();
      return stats.open_streams == 0 && stats.active == 0 && stats.undecided == 0 &&
             stats.buffered_bytes == 0;
    });
  }

  EppOptions options;
  io::HttpClientOptions client_options;
  std::unique_ptr<EppRuntime> runtime;
  io::HttpDestination destination;
};

Task<std::unique_ptr<GrpcClientStream>> open(io::HttpClient& client, const io::HttpDestination& to) {
  io::GrpcCallOptions call;
  call.timeout = Duration::zero();
  auto opened = co_await GrpcClientStream::open(client, to, kProcessPath, call);
  EXPECT_TRUE(opened.ok()) << (opened.ok() ? "" : opened.error().message);
  co_return opened.ok() ? std::move(*opened) : nullptr;
}
Task<void> send(GrpcClientStream& stream, std::string bytes) {
  const std::array<std::string_view, 1> pieces{bytes};
  (void)co_await stream.write_message(pieces);
}
Task<pb::ProcessingResponse> receive(GrpcClientStream& stream) {
  pb::ProcessingResponse response;
  const auto message = co_await stream.read_message();
  EXPECT_TRUE(message.has_value()) << stream.status().message;
  if (message) {
    EXPECT_TRUE(response.ParseFromString(std::string(*message)));
  }
  co_return response;
}
// The request phase; the answers are those to headers and body.
Task<void> ask(GrpcClientStream& stream, std::string body) {
  co_await send(stream, bytes_of(full_duplex(request_headers(post_fields()))));
  co_await send(stream, bytes_of(request_body(body, false)));
  co_await send(stream, bytes_of(request_body("", true)));
}
Task<void> exchange(io::HttpClient& client, const io::HttpDestination& to) {
  auto stream = co_await open(client, to);
  if (stream == nullptr) co_return;
  co_await ask(*stream, kBody);
  pb::ProcessingResponse answer = co_await receive(*stream);
  EXPECT_TRUE(answer.has_request_headers());
  answer = co_await receive(*stream);
  EXPECT_EQ(answer.request_body().response().body_mutation().streamed_response().body(), kBody);
  co_await send(*stream, bytes_of(response_headers(engine_fields())));
  answer = co_await receive(*stream);
  EXPECT_TRUE(answer.has_response_headers());
  co_await send(*stream, bytes_of(response_body("{}", true)));
  answer = co_await receive(*stream);
  EXPECT_TRUE(answer.response_body().response().body_mutation().streamed_response().end_of_stream());
  // Dropped: a reset, as Envoy ends its streams.
}

TEST_F(EppRuntimeTest, AnExchangeIsServedOverHttp2) {
  start();
  with_client([&](io::HttpClient& client) { return exchange(client, destination); });
  EXPECT_TRUE(at_rest());
  EXPECT_THAT(runtime->metrics().render(),
              HasSubstr("penstock_extproc_streams_ended_total{reason=\"ok\"} 1"));
  EXPECT_THAT(runtime->decisions_json(10), HasSubstr("\"status\":200"));
}

Task<void> leave_when_counted(io::Loop& loop, io::HttpClient& client, const io::HttpDestination& to,
                              EppRuntime& runtime) {
  auto stream = co_await open(client, to);
  if (stream == nullptr) co_return;
  co_await ask(*stream, kBody);
  while (runtime.stats().undecided == 0) (void)co_await loop.sleep(std::chrono::milliseconds(1));
}

TEST_F(EppRuntimeTest, ARequestThatWaitsForOthersIsAnsweredAfterwardsOrLeaves) {
  const auto config = [](std::string_view window) {
    return *config::parse_document(
        "plugins: [{type: burst-prefix-cache-producer, parameters: {windowDurationMs: " +
            std::string(window) + "}}, {type: queue-scorer}]",
        "test");
  };
  options.pool.allow_experimental_plugins = true;
  options.pool.config_inline = config("20");
  start();
  with_client([&](io::HttpClient& client) { return exchange(client, destination); });
  EXPECT_TRUE(at_rest());
  runtime.reset();

  options.pool.config_inline = config("10000");
  start();
  {
    io::Loop loop;
    io::HttpClient client(loop, client_options);
    io::block_on(loop, leave_when_counted(loop, client, destination, *runtime));
  }
  EXPECT_TRUE(at_rest());
  EXPECT_EQ(runtime->metrics().render().find("reason=\"ok\"} 1"), std::string::npos);
}

// A connection that has sent `bytes`, and then neither reads nor answers.
int connect_and_send(const std::string& address_text, const std::string& bytes) {
  const auto address = io::SocketAddress::parse(address_text);
  const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
  EXPECT_EQ(::connect(fd, static_cast<const sockaddr*>(address->native()),
                      static_cast<socklen_t>(address->native_bytes())),
            0);
  EXPECT_EQ(::send(fd, bytes.data(), bytes.size(), 0), static_cast<ssize_t>(bytes.size()));
  return fd;
}

std::string frame(uint8_t type, uint8_t flags, uint8_t stream, const std::string& payload) {
  std::string out(9, '\0');
  out[1] = static_cast<char>(payload.size() >> 8U);
  out[2] = static_cast<char>(payload.size());
  out[3] = static_cast<char>(type);
  out[4] = static_cast<char>(flags);
  out[8] = static_cast<char>(stream);
  return out + payload;
}

// The preface and empty SETTINGS.
std::string hello() {
  return "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, 0, 0, "");
}

TEST_F(EppRuntimeTest, ALostConnectionIsNotAClientThatHangsUp) {
  start();
  std::string head;
  for (const auto& [name, value] : {std::pair<std::string, std::string>{":method", "POST"},
                                    {":scheme", "http"},
                                    {":authority", "picker"},
                                    {":path", std::string(kProcessPath)},
                                    {"content-type", "application/grpc"},
                                    {"te", "trailers"}}) {
    // Literals that are not indexed.
    head += '\0';
    head += static_cast<char>(name.size()) + name;
    head += static_cast<char>(value.size()) + value;
  }
  const std::string message = bytes_of(full_duplex(request_headers(post_fields())));
  std::string body(3, '\0');
  body += static_cast<char>(message.size() >> 8U);
  body += static_cast<char>(message.size());
  const int fd = connect_and_send(runtime->grpc_address(),
                                  hello() + frame(1, 4, 1, head) + frame(0, 0, 1, body + message));
  EXPECT_TRUE(eventually([&] { return runtime->stats().undecided == 1; }));
  ::close(fd);
  EXPECT_TRUE(at_rest());
  EXPECT_THAT(runtime->metrics().render(),
              HasSubstr("penstock_extproc_streams_ended_total{reason=\"connection_lost\"} 1"));
}

TEST_F(EppRuntimeTest, ADataPlaneThatIsSilentlyGoneIsFoundByItsSilence) {
  options.ping_interval = std::chrono::milliseconds(30);
  options.ping_timeout = std::chrono::milliseconds(60);
  start();
  const int fd = connect_and_send(runtime->grpc_address(), hello());
  EXPECT_TRUE(eventually(
      [&] { return runtime->metrics().render().find("reason=\"ping_timeout\"} 1") != std::string::npos; }));
  ::close(fd);
}

Task<void> hang_up_early(io::HttpClient& client, const io::HttpDestination& to, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    auto stream = co_await open(client, to);
    if (stream == nullptr) co_return;
    co_await send(*stream, bytes_of(full_duplex(request_headers(post_fields()))));
  }
  co_await exchange(client, to);
}

TEST_F(EppRuntimeTest, ClientsThatHangUpDuringTheirUploadDoNotCostTheSharedConnection) {
  start();
  with_client([&](io::HttpClient& client) { return hang_up_early(client, destination, 1500); });
  EXPECT_TRUE(at_rest());
  const std::string metrics = runtime->metrics().render();
  EXPECT_THAT(metrics, HasSubstr("reason=\"reset_flood\"} 0"));
  EXPECT_THAT(metrics, HasSubstr("penstock_extproc_streams_ended_total{reason=\"ok\"} 1"));
}

Task<void> open_two(io::HttpClient& client, const io::HttpDestination& to) {
  auto first = co_await open(client, to);
  auto second = co_await open(client, to);
  if (first == nullptr || second == nullptr) co_return;
  co_await ask(*first, kBody);
  co_await receive(*first);
  co_await receive(*first);
  co_await send(*second, bytes_of(full_duplex(request_headers(post_fields()))));
  const pb::ProcessingResponse answer = co_await receive(*second);
  EXPECT_EQ(answer.immediate_response().status().code(), 503);
}

TEST_F(EppRuntimeTest, StreamsBeyondTheLimitAreRefusedByName) {
  options.door.streams = 1;
  start();
  with_client([&](io::HttpClient& client) { return open_two(client, destination); });
  EXPECT_TRUE(at_rest());
}

TEST_F(EppRuntimeTest, TlsWithACertificateMadeAtStart) {
  options.secure = true;
  start();
  io::TlsClientOptions tls;
  tls.verify = false;
  tls.alpn = {"h2"};
  destination.tls = *io::TlsClientContext::create(tls);
  destination.server_name = "localhost";
  with_client([&](io::HttpClient& client) { return exchange(client, destination); });
  EXPECT_TRUE(at_rest());
}

Task<void> many(io::HttpClient& client, const io::HttpDestination& to, size_t count,
                std::function<void()> held) {
  std::vector<std::unique_ptr<GrpcClientStream>> streams;
  for (size_t i = 0; i < count; ++i) {
    auto stream = co_await open(client, to);
    if (stream == nullptr) co_return;
    co_await ask(*stream, kBody);
    pb::ProcessingResponse answer = co_await receive(*stream);
    EXPECT_TRUE(answer.has_request_headers()) << i;
    if (!answer.has_request_headers()) co_return;
    answer = co_await receive(*stream);
    streams.push_back(std::move(stream));
  }
  held();
}

TEST_F(EppRuntimeTest, ThousandsOfStreamsOfOneConnectionWaitForTheirAnswersWithoutTheirBodies) {
  start();
  constexpr size_t kStreams = 1500;
  with_client([&](io::HttpClient& client) {
    return many(client, destination, kStreams, [&] {
      const Door::Stats stats = runtime->stats();
      EXPECT_EQ(stats.open_streams, static_cast<int64_t>(kStreams));
      EXPECT_EQ(stats.active, static_cast<int64_t>(kStreams));
      EXPECT_EQ(stats.undecided, 0);
      EXPECT_EQ(stats.buffered_bytes, 0);
    });
  });
  EXPECT_TRUE(at_rest());
}

Task<void> half_close(io::HttpClient& client, const io::HttpDestination& to, int after) {
  auto stream = co_await open(client, to);
  if (stream == nullptr) co_return;
  if (after > 0) co_await send(*stream, bytes_of(full_duplex(request_headers(post_fields()))));
  if (after > 1) co_await send(*stream, bytes_of(request_body(kBody, after > 2)));
  (void)co_await stream->half_close();
  while (co_await stream->read_message()) {
  }
  EXPECT_EQ(stream->status().code, io::GrpcCode::kOk) << after << ": " << stream->status().message;
}

TEST_F(EppRuntimeTest, AHalfCloseAtAnyPointEndsTheStreamWithOk) {
  start();
  for (int after = 0; after < 4; ++after) {
    with_client([&](io::HttpClient& client) { return half_close(client, destination, after); });
  }
  EXPECT_TRUE(at_rest());
}

Task<void> broken(io::HttpClient& client, const io::HttpDestination& to, std::string bytes,
                  io::GrpcCode code) {
  auto stream = co_await open(client, to);
  if (stream == nullptr) co_return;
  co_await send(*stream, std::move(bytes));
  while (co_await stream->read_message()) {
  }
  EXPECT_EQ(stream->status().code, code) << stream->status().message;
}

TEST_F(EppRuntimeTest, BrokenAndOversizedMessagesEndTheirStreamOnly) {
  options.max_receive_message_bytes = 100000;
  start();
  with_client([&](io::HttpClient& client) {
    return broken(client, destination, "garbage", io::GrpcCode::kInvalidArgument);
  });
  with_client([&](io::HttpClient& client) {
    return broken(client, destination, std::string(100001, 'x'), io::GrpcCode::kResourceExhausted);
  });
  with_client([&](io::HttpClient& client) { return exchange(client, destination); });
  EXPECT_TRUE(at_rest());
}

Task<void> refused(io::HttpClient& client, const io::HttpDestination& to, std::string body, int status) {
  auto stream = co_await open(client, to);
  if (stream == nullptr) co_return;
  co_await send(*stream, bytes_of(full_duplex(request_headers(post_fields()))));
  co_await send(*stream, bytes_of(request_body(body, true)));
  const pb::ProcessingResponse answer = co_await receive(*stream);
  EXPECT_EQ(answer.immediate_response().status().code(), status);
  EXPECT_FALSE((co_await stream->read_message()).has_value());
  EXPECT_EQ(stream->status().code, io::GrpcCode::kOk);
}

TEST_F(EppRuntimeTest, ARefusalEndsTheStreamWithOk) {
  options.door.body_bytes = 1000;
  start();
  with_client([&](io::HttpClient& client) { return refused(client, destination, "{", 400); });
  with_client(
      [&](io::HttpClient& client) { return refused(client, destination, std::string(1001, 'x'), 413); });
  EXPECT_TRUE(at_rest());
}

Task<void> silent(io::HttpClient& client, const io::HttpDestination& to) {
  auto stream = co_await open(client, to);
  if (stream == nullptr) co_return;
  co_await send(*stream, bytes_of(full_duplex(request_headers(post_fields()))));
  const pb::ProcessingResponse answer = co_await receive(*stream);
  EXPECT_EQ(answer.immediate_response().status().code(), 408);
}

TEST_F(EppRuntimeTest, ARequestThatNeverEndsIsAnsweredByOurOwnDeadline) {
  options.door.body_timeout = std::chrono::milliseconds(50);
  start();
  with_client([&](io::HttpClient& client) { return silent(client, destination); });
  EXPECT_TRUE(at_rest());
}

Task<void> drip(io::Loop& loop, io::HttpClient& client, const io::HttpDestination& to) {
  auto stream = co_await open(client, to);
  if (stream == nullptr) co_return;
  co_await send(*stream, bytes_of(full_duplex(request_headers(post_fields()))));
  for (int i = 0; i < 100; ++i) {
    co_await send(*stream, bytes_of(request_body("{", false)));
    co_await loop.sleep(std::chrono::milliseconds(2));
  }
  const pb::ProcessingResponse answer = co_await receive(*stream);
  EXPECT_EQ(answer.immediate_response().status().code(), 408);
}

TEST_F(EppRuntimeTest, ABodyThatDripsForEverIsAnsweredByTheDeadlineOfTheWhole) {
  options.door.body_total_timeout = std::chrono::milliseconds(60);
  start();
  io::Loop loop;
  io::HttpClient client(loop, client_options);
  io::block_on(loop, drip(loop, client, destination));
  EXPECT_TRUE(at_rest());
  EXPECT_THAT(runtime->decisions_json(1), HasSubstr("was not complete within"));
}

// Reads nothing of a large answer: it waits in the picker, with its body, until the client goes.
Task<void> slow_reader(io::Loop& loop, io::HttpClient& client, const io::HttpDestination& to,
                       EppRuntime& runtime) {
  auto stream = co_await open(client, to);
  if (stream == nullptr) co_return;
  co_await ask(*stream, R"({"model":"m","prompt":")" + std::string(8 << 20, 'x') + "\"}");
  while (runtime.decisions_json(1).size() < 10) co_await loop.sleep(std::chrono::milliseconds(1));
  EXPECT_EQ(runtime.stats().undecided, 1) << "its answers have not left";
  EXPECT_GT(runtime.stats().buffered_bytes, 8 << 20);
}

TEST_F(EppRuntimeTest, AClientThatDoesNotReadHoldsItsOwnBodyOnlyUntilItGoes) {
  start();
  {
    io::Loop loop;
    io::HttpClient client(loop, client_options);
    io::block_on(loop, slow_reader(loop, client, destination, *runtime));
  }
  EXPECT_TRUE(at_rest());
}

TEST_F(EppRuntimeTest, TheStateOfItsPluginsHasTheShapeOfTheReference) {
  start();
  const std::string state = runtime->plugin_states_json();
  EXPECT_THAT(state, ::testing::StartsWith(R"({"timestamp":"20)"));
  EXPECT_THAT(state, HasSubstr(R"(Z","plugins":{")"));
  EXPECT_THAT(state, HasSubstr(R"("queue-scorer":{"name":"queue-scorer","type":"queue-scorer",)"
                               R"("message":"plugin does not support state collection"})"));
}

Task<void> thrifty(io::HttpClient& client, const io::HttpDestination& to) {
  auto stream = co_await open(client, to);
  if (stream == nullptr) co_return;
  co_await ask(*stream, kBody);
  co_await receive(*stream);
  co_await receive(*stream);
  EXPECT_FALSE((co_await stream->read_message()).has_value());
  EXPECT_EQ(stream->status().code, io::GrpcCode::kOk);
}

TEST_F(EppRuntimeTest, NeverEndsTheStreamRightAfterTheRequest) {
  options.door.response_phase = ResponsePhase::kNever;
  start();
  with_client([&](io::HttpClient& client) { return thrifty(client, destination); });
  EXPECT_TRUE(at_rest());
  EXPECT_EQ(runtime->stats().credits, 1);
}

Task<void> check_health(io::HttpClient& client, const io::HttpDestination& to, std::string service,
                        int expected) {
  grpc::health::v1::HealthCheckRequest request;
  request.set_service(service);
  const std::string bytes = request.SerializeAsString();
  const std::array<std::string_view, 1> pieces{bytes};
  const io::GrpcReply reply = co_await io::grpc_unary(client, to, "/grpc.health.v1.Health/Check", pieces);
  grpc::health::v1::HealthCheckResponse response;
  EXPECT_TRUE(reply.status.ok()) << reply.status.message;
  EXPECT_TRUE(response.ParseFromString(reply.message));
  EXPECT_EQ(static_cast<int>(response.status()), expected);
}

TEST_F(EppRuntimeTest, HealthServesWhileItListensAndNotWhileItDrains) {
  options.health_on_grpc = true;
  start();
  const std::string service(kExtProcService);
  const auto check = [&](const io::HttpDestination& to, int expected) {
    with_client([&](io::HttpClient& client) { return check_health(client, to, service, expected); });
  };
  check(at(runtime->health_address()), 1);
  check(destination, 1);
  runtime->begin_drain();
  check(at(runtime->health_address()), 2);
  check(destination, 1);  // the static one
  // Who has not noticed yet is served on.
  with_client([&](io::HttpClient& client) { return exchange(client, destination); });
  runtime->stop();
}

Task<void> outlives_the_door(io::HttpClient& client, const io::HttpDestination& to, EppRuntime& runtime) {
  auto stream = co_await open(client, to);
  if (stream == nullptr) co_return;
  co_await ask(*stream, kBody);
  co_await receive(*stream);
  co_await receive(*stream);
  runtime.close_door();
  EXPECT_EQ(runtime.active_requests(), 1);
  co_await send(*stream, bytes_of(response_headers(engine_fields())));
  EXPECT_TRUE((co_await receive(*stream)).has_response_headers());
  co_await send(*stream, bytes_of(response_body("{}", true)));
  EXPECT_TRUE((co_await receive(*stream)).has_response_body());
}

TEST_F(EppRuntimeTest, WhatIsOpenWhenTheDoorClosesGoesOnToItsEnd) {
  start();
  with_client([&](io::HttpClient& client) { return outlives_the_door(client, destination, *runtime); });
  EXPECT_TRUE(at_rest());
  EXPECT_NE(runtime->metrics().render().find("penstock_extproc_streams_ended_total{reason=\"ok\"} 1"),
            std::string::npos);
}

TEST_F(EppRuntimeTest, WithoutEndpointsToFindItSaysSo) {
  options.pool.discovery.static_urls.clear();
  const auto created = EppRuntime::create(options);
  ASSERT_FALSE(created.ok());
  EXPECT_THAT(created.error().message, HasSubstr("dataLayer.discovery"));
  EXPECT_THAT(created.error().message, HasSubstr("Kubernetes"));
}

TEST_F(EppRuntimeTest, SeveralPoolsDoNotStartByAConfigurationThatNoneCouldUse) {
  options.pool.discovery.static_urls.clear();
  options.cluster.many = true;
  options.pool.config_file = "no-such-file.yaml";
  const auto created = EppRuntime::create(options);
  ASSERT_FALSE(created.ok());
  EXPECT_THAT(created.error().message, HasSubstr("no-such-file.yaml"));
}

TEST_F(EppRuntimeTest, OfSeveralPoolsNoConfigurationNamesADiscovery) {
  options.pool.discovery.static_urls.clear();
  options.cluster.many = true;
  auto configuration = config::parse_document(
      "apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\n"
      "plugins: [{type: file-discovery, parameters: {path: endpoints.yaml}}]\n"
      "dataLayer: {discovery: {pluginRef: file-discovery}}\n",
      "test");
  ASSERT_TRUE(configuration.ok());
  options.pool.config_inline = *std::move(configuration);
  const auto created = EppRuntime::create(options);
  ASSERT_FALSE(created.ok());
  EXPECT_THAT(created.error().message, HasSubstr("the endpoints of several pools come from the cluster"));
}

TEST_F(EppRuntimeTest, ANameInDnsAloneFindsEndpoints) {
  options.pool.discovery.static_urls.clear();
  options.pool.discovery.dns.name = "localhost";
  options.pool.discovery.dns.port = 1;
  start();
  EXPECT_TRUE(
      eventually([&] { return runtime->readiness_json().find("\"endpoints\":0") == std::string::npos; }));
}

TEST_F(EppRuntimeTest, APoolThatSaysHttpIsNotHealthyWithAParserOfGrpc) {
  const TemporaryFolder folder;
  const auto write = [&](const std::string& protocol) {
    folder.write(
        "pool.yaml",
        "apiVersion: inference.networking.k8s.io/v1\nkind: InferencePool\nmetadata: {name: pool, "
        "namespace: "
        "default}\nspec:\n  selector: {matchLabels: {app: engine}}\n  targetPorts: [{number: 8000}]\n" +
            protocol);
  };
  write("");
  options.manifests = folder.path();
  options.pool.config_file = folder.write(
      "epp.cfg",
      "apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\nplugins: [{type: vllmgrpc-parser}]\n"
      "requestHandler: {parsers: [{pluginRef: vllmgrpc-parser}]}\n");
  start();
  const auto check = [&](int expected) {
    const io::HttpDestination health = at(runtime->health_address());
    for (const std::string service : {"liveness", "readiness", ""}) {
      with_client([&](io::HttpClient& client) { return check_health(client, health, service, expected); });
    }
  };
  check(1);
  write("  appProtocol: http\n");
  ASSERT_TRUE(runtime->reload(options).ok());
  check(2);
  write("  appProtocol: kubernetes.io/h2c\n");
  ASSERT_TRUE(runtime->reload(options).ok());
  check(1);
}

// A latency predictor that gives no answer.
class NoPredictor {
 public:
  enum class How : uint8_t { kHangsUpUnread, kHangsUp, kHangsUpAmidTheAnswer, kHangs };

  explicit NoPredictor(How how) : how_(how), loops_(1) {
    loops_.start();
    auto handler = io::HttpServer::handler_of([this](io::HttpExchange& exchange) { return fail(exchange); });
    server_ = std::make_unique<io::HttpServer>(loops_, io::HttpServerOptions{}, std::move(handler));
    const auto bound = server_->listen(*io::SocketAddress::parse("127.0.0.1:0"));
    EXPECT_TRUE(bound.ok());
    if (bound.ok()) url = "http://" + bound->to_string();
  }
  ~NoPredictor() { server_.reset(); }
  NoPredictor(const NoPredictor&) = delete;
  NoPredictor& operator=(const NoPredictor&) = delete;

  std::string url;
  std::atomic<int> asked{0};

 private:
  Task<void> fail(io::HttpExchange& exchange) {
    if (how_ != How::kHangsUpUnread) (void)co_await exchange.read_all(1 << 20);
    ++asked;
    if (how_ == How::kHangsUpAmidTheAnswer) {
      (void)exchange.write_head(200, {}, io::BodyFraming::of_length(1000));
      (void)co_await exchange.write("{\"predictions\":");
    }
    if (how_ == How::kHangs)
      (void)co_await exchange.loop().sleep(std::chrono::hours(1), exchange.cancel_token());
    exchange.abort();
  }
  How how_;
  io::LoopGroup loops_;
  std::unique_ptr<io::HttpServer> server_;
};

// With a deadline that nothing here should wait for.
class PredictorTest : public EppRuntimeTest {
 protected:
  PredictorTest() { options.tracing = false; }
  void start_with(const NoPredictor& predictor) {
    options.pool.config_file = folder.write(
        "epp.yaml",
        "apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\nplugins:\n"
        "- {type: predicted-latency-producer, parameters: {predictionDeadline: 30s, predictionServerURL: '" +
            predictor.url +
            "'}}\n- {type: latency-scorer}\nschedulingProfiles:\n"
            "- {name: default, plugins: [{pluginRef: latency-scorer}]}\n");
    start();
  }
  const TemporaryFolder folder;
};

TEST_F(PredictorTest, OneThatHangsUpIsNotWaitedForUntilTheDeadline) {
  using How = NoPredictor::How;
  for (const How how : {How::kHangsUpUnread, How::kHangsUp, How::kHangsUpAmidTheAnswer}) {
    const NoPredictor predictor(how);
    start_with(predictor);
    with_client([&](io::HttpClient& client) -> Task<void> {
      for (int i = 0; i < 3; ++i) co_await exchange(client, destination);
    });
    EXPECT_THAT(runtime->metrics().render(),
                HasSubstr("penstock_latency_predictor_calls_total{plugin_name=\"predicted-latency-producer\","
                          "outcome=\"connect\"} 3"));
    EXPECT_TRUE(at_rest());
    runtime.reset();
  }
}

// Its connection stays until the picker has seen the stream end: losing both at once is another reason.
Task<void> leave_when_asked(io::HttpClient& client, const io::HttpDestination& to,
                            const NoPredictor& predictor, const EppRuntime& runtime) {
  auto stream = co_await open(client, to);
  if (stream == nullptr) co_return;
  co_await ask(*stream, kBody);
  while (predictor.asked == 0) (void)co_await client.loop().sleep(std::chrono::milliseconds(1));
  stream.reset();
  while (runtime.stats().active != 0) (void)co_await client.loop().sleep(std::chrono::milliseconds(1));
}

TEST_F(PredictorTest, AStreamThatEndsWhileItWaitsIsNotDecided) {
  const NoPredictor predictor(NoPredictor::How::kHangs);
  start_with(predictor);
  with_client(
      [&](io::HttpClient& client) { return leave_when_asked(client, destination, predictor, *runtime); });
  EXPECT_TRUE(at_rest());
  const std::string page = runtime->metrics().render();
  EXPECT_THAT(page, HasSubstr("penstock_extproc_streams_ended_total{reason=\"client_disconnect\"} 1"));
  EXPECT_THAT(page, Not(HasSubstr("extension_point=\"PreRequest\""))) << "no plugin is told";
}

TEST_F(EppRuntimeTest, TheBuildIsNamedInItsMetrics) {
  start();
  const std::string page = runtime->metrics().render();
  EXPECT_NE(page.find("\nllm_d_epp_info{commit=\"\",build_ref=\""), std::string::npos);
  EXPECT_NE(page.find("\ninference_extension_info{"), std::string::npos);
}

TEST_F(EppRuntimeTest, AReloadTakesRewritesAndExplainUsesThem) {
  const TemporaryFolder folder;
  const auto write = [&](const std::string& model) {
    folder.write("rewrite.yaml",
                 "apiVersion: llm-d.ai/v1alpha2\nkind: InferenceModelRewrite\nmetadata: {name: r, namespace: "
                 "default}\n"
                 "spec:\n  poolRef: {name: pool}\n  rules:\n  - targets: [{modelRewrite: " +
                     model + "}]\n");
  };
  write("first");
  options.manifests = folder.path();
  start();
  Door::ExplainRequest request;
  request.path = "/v1/completions?x=1";
  request.body = kBody;
  auto explained = runtime->explain(request);
  ASSERT_TRUE(explained.ok()) << explained.error().message;
  EXPECT_THAT(*explained, HasSubstr("\"target_model\":\"first\""));
  write("second");
  ASSERT_TRUE(runtime->reload(options).ok());
  EXPECT_THAT(*runtime->explain(request), HasSubstr("\"target_model\":\"second\""));
  folder.write("rewrite.yaml", "{");
  EXPECT_FALSE(runtime->reload(options).ok());
  EXPECT_THAT(*runtime->explain(request), HasSubstr("\"target_model\":\"second\""));
}

}  // namespace
}  // namespace penstock::extproc
