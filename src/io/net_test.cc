#include "io/net.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "base/temporary_folder.h"
#include "io/detail/test_support.h"
#include "io/http_client.h"
#include "io/http_server.h"

namespace penstock::io {
namespace {

using testing::loopback;
using testing::run_on;
using testing::TestCertificate;

std::string text_of(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

TEST(SocketAddress, ParsesAndPrintsBothFamilies) {
  EXPECT_EQ(SocketAddress::parse("127.0.0.1:80")->to_string(), "127.0.0.1:80");
  EXPECT_EQ(SocketAddress::parse("[::1]:8080")->to_string(), "[::1]:8080");
  EXPECT_EQ(SocketAddress::parse(":90")->to_string(), "[::]:90");
  for (const char* bad : {"127.0.0.1:70000", "host:80", "[::1", "1:2:3:4:5", "[]:80", "a:b"})
    EXPECT_FALSE(SocketAddress::parse(bad).ok()) << bad;
  EXPECT_EQ(parse_host_port("example.org", 443)->port, 443);
  EXPECT_EQ(parse_host_port("::1", 7)->host, "::1");
  EXPECT_EQ(join_host_port("::1", 80), "[::1]:80");
}

TEST(Resolver, KnowsLiteralsAndLocalNames) {
  Loop loop;
  auto test = [&]() -> Task<void> {
    auto literal = co_await resolve(loop, "127.0.0.1", 5, std::chrono::seconds(1));
    EXPECT_TRUE(literal.ok() && literal->size() == 1 && literal->front().port() == 5);
    auto local = co_await resolve(loop, "localhost", 6, std::chrono::seconds(5));
    EXPECT_TRUE(local.ok() && !local->empty() && local->front().port() == 6);
  };
  block_on(loop, test());
}

TEST(Stream, CarriesBytesBothWaysAndKnowsItsEnd) {
  Loop loop;
  auto test = [&]() -> Task<void> {
    auto listener = Listener::bind(loop, loopback());
    EXPECT_TRUE(listener.ok());
    const SocketAddress address = listener->local();
    spawn(loop, [](Listener& l) -> Task<void> {
      auto peer = co_await l.accept();
      EXPECT_TRUE(peer.ok());
      char buffer[16];
      auto got = co_await peer->read(buffer);
      EXPECT_TRUE(got.ok());
      const std::string_view pieces[] = {"<", std::string_view(buffer, *got), ">"};
      EXPECT_TRUE((co_await peer->write(pieces)).ok());
      peer->shutdown_write();
      auto end = co_await peer->read(buffer);
      EXPECT_TRUE(end.ok() && *end == 0);
    }(*listener));
    auto stream = co_await connect(loop, "127.0.0.1", address.port());
    EXPECT_TRUE(stream.ok());
    EXPECT_TRUE((co_await stream->write("ping")).ok());
    std::string all;
    char buffer[2];
    for (;;) {
      auto got = co_await stream->read(buffer);
      EXPECT_TRUE(got.ok());
      if (!got.ok() || *got == 0) break;
      all.append(buffer, *got);
    }
    EXPECT_EQ(all, "<ping>");
    IoOptions options;
    options.timeout = std::chrono::milliseconds(5);
    stream->close();
    co_await loop.sleep(std::chrono::milliseconds(2));
  };
  block_on(loop, test());
}

Task<void> answer(HttpExchange& exchange) {
  auto body = co_await exchange.read_all(8 << 20);
  if (!body.ok()) co_return;
  const HeaderField fields[] = {{"x-alpn", exchange.connection().alpn},
                                {"x-client", exchange.connection().client_certificate_names}};
  const std::string_view piece(body->data(), body->size());
  (void)exchange.write_head(200, fields, BodyFraming::of_length(piece.size()));
  (void)co_await exchange.finish({&piece, 1});
}

TEST(Tls, ServerAndClientAgreeAndCertificatesAreReloadedUnderOpenConnections) {
  const TemporaryFolder folder;
  TestCertificate certificate = testing::write_certificate(folder.path(), "server", "first.test");
  TlsServerOptions server_options;
  server_options.certificates = {{certificate.certificate_file, certificate.key_file}};
  auto server_tls = TlsServerContext::create(server_options);
  ASSERT_TRUE(server_tls.ok()) << server_tls.error().message;
  LoopGroup loops(1);
  HttpServer server(loops, {}, HttpServer::handler_of(answer));
  loops.start();
  const SocketAddress address = *server.listen(loopback(), *server_tls);

  const std::string old_ca = folder.path() + "/old.pem";
  std::filesystem::copy_file(certificate.certificate_file, old_ca);
  const auto client_with_ca = [](const std::string& ca) {
    TlsClientOptions options;
    options.ca_file = ca;
    auto context = TlsClientContext::create(options);
    EXPECT_TRUE(context.ok());
    return *context;
  };
  const auto first = client_with_ca(old_ca);
  run_on(loops.at(0), [&]() -> Task<void> {
    HttpClient client(loops.at(0));
    HttpDestination by_old{"127.0.0.1", address.port(), first, {}};
    std::string body(300'000, 'x');
    for (size_t i = 0; i < body.size(); ++i) body[i] = static_cast<char>('a' + i % 23);
    const std::string_view view = body;
    HttpRequest request;
    request.method = "POST";
    request.framing = BodyFraming::of_length(body.size());
    request.body = {&view, 1};
    for (int round = 0; round < 3; ++round) {
      auto call = co_await client.start(by_old, request);
      EXPECT_TRUE(call.ok()) << (call.ok() ? "" : call.error().message);
      if (!call.ok()) co_return;
      EXPECT_EQ(call->reused(), round > 0);
      auto head = co_await call->response();
      EXPECT_TRUE(head.ok());
      if (!head.ok()) co_return;
      EXPECT_EQ((*head)->fields.get("x-alpn"), "http/1.1");
      auto echoed = co_await call->read_all(body.size());
      EXPECT_TRUE(echoed.ok());
      if (echoed.ok()) {
        EXPECT_TRUE(std::string_view(echoed->data(), echoed->size()) == body);
      }
      if (round == 1) {
        // New files: the open connection goes on, a new one sees the new certificate.
        testing::write_certificate(folder.path(), "server", "second.test");
        EXPECT_TRUE((*server_tls)->reload().ok());
      }
    }
    HttpCallOptions fresh;
    fresh.fresh_connection = true;
    auto refused = co_await client.start(by_old, {}, fresh);
    EXPECT_FALSE(refused.ok());
    if (!refused.ok()) {
      EXPECT_EQ(refused.error().code, ErrorCode::kBadGateway);
      EXPECT_NE(refused.error().message.find("certificate"), std::string::npos) << refused.error().message;
    }
    HttpDestination by_new{"127.0.0.1", address.port(), client_with_ca(certificate.certificate_file),
                           "second.test"};
    auto accepted = co_await client.start(by_new, {});
    EXPECT_TRUE(accepted.ok()) << (accepted.ok() ? "" : accepted.error().message);
    HttpDestination wrong_name{"127.0.0.1", address.port(), client_with_ca(certificate.certificate_file),
                               "other.test"};
    auto wrong = co_await client.start(wrong_name, {});
    EXPECT_FALSE(wrong.ok());
  });
  std::filesystem::remove(certificate.key_file);
  EXPECT_FALSE((*server_tls)->reload().ok());
  server.stop();
}

TEST(Tls, ClientCertificatesAreAskedForAndNamed) {
  const TemporaryFolder folder;
  const TestCertificate server_certificate =
      testing::write_certificate(folder.path(), "server", "server.test");
  const TestCertificate other_certificate = testing::write_certificate(folder.path(), "other", "other.test");
  const TestCertificate client_certificate =
      testing::write_certificate(folder.path(), "client", "client.test");
  TlsServerOptions server_options;
  server_options.certificates = {{server_certificate.certificate_file, server_certificate.key_file},
                                 {other_certificate.certificate_file, other_certificate.key_file}};
  server_options.client_ca_file = client_certificate.certificate_file;
  server_options.require_client_certificate = true;
  auto server_tls = TlsServerContext::create(server_options);
  ASSERT_TRUE(server_tls.ok()) << server_tls.error().message;
  LoopGroup loops(1);
  HttpServer server(loops, {}, HttpServer::handler_of(answer));
  loops.start();
  const SocketAddress address = *server.listen(loopback(), *server_tls);
  run_on(loops.at(0), [&]() -> Task<void> {
    HttpClient client(loops.at(0));
    TlsClientOptions options;
    options.ca_file = other_certificate.certificate_file;  // SNI must bring the second certificate
    options.certificate_file = client_certificate.certificate_file;
    options.key_file = client_certificate.key_file;
    auto context = TlsClientContext::create(options);
    EXPECT_TRUE(context.ok());
    HttpDestination destination{"127.0.0.1", address.port(), *context, "other.test"};
    auto call = co_await client.start(destination, {});
    EXPECT_TRUE(call.ok()) << (call.ok() ? "" : call.error().message);
    if (!call.ok()) co_return;
    auto head = co_await call->response();
    EXPECT_TRUE(head.ok());
    if (head.ok()) {
      EXPECT_NE((*head)->fields.get("x-client").find("client.test"), std::string_view::npos);
    }
    call->close();
    TlsClientOptions by_text;
    by_text.ca_pem = text_of(options.ca_file);
    by_text.certificate_pem = text_of(options.certificate_file);
    by_text.key_pem = text_of(options.key_file);
    auto from_text = TlsClientContext::create(by_text);
    EXPECT_TRUE(from_text.ok()) << (from_text.ok() ? "" : from_text.error().message);
    if (!from_text.ok()) co_return;
    HttpDestination same{"127.0.0.1", address.port(), *from_text, "other.test"};
    auto again = co_await client.start(same, {});
    EXPECT_TRUE(again.ok()) << (again.ok() ? "" : again.error().message);
    if (!again.ok()) co_return;
    auto same_head = co_await again->response();
    EXPECT_TRUE(same_head.ok());
    if (same_head.ok()) {
      EXPECT_NE((*same_head)->fields.get("x-client").find("client.test"), std::string_view::npos);
    }
    again->close();
    options.certificate_file.clear();
    options.verify = false;
    auto anonymous = TlsClientContext::create(options);
    HttpDestination without{"127.0.0.1", address.port(), *anonymous, {}};
    auto refused = co_await client.start(without, {});
    if (refused.ok()) {
      auto answer_head = co_await refused->response();
      EXPECT_FALSE(answer_head.ok());
    }
  });
  server.stop();
}

// They are a file that nobody writes for the time being: whoever reads it, it must not be the loop.
TEST(Tls, TheSystemsCertificatesAreReadWithTheFirstConnectionAndNotOnTheLoop) {
  const TemporaryFolder folder;
  const TestCertificate certificate = testing::write_certificate(folder.path(), "server", "server.test");
  const std::string pipe = folder.path() + "/system.pem";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  ASSERT_EQ(::setenv("SSL_CERT_FILE", pipe.c_str(), 1), 0);
  ASSERT_EQ(::setenv("SSL_CERT_DIR", (folder.path() + "/none").c_str(), 1), 0);
  TlsServerOptions server_options;
  server_options.certificates = {{certificate.certificate_file, certificate.key_file}};
  auto server_tls = TlsServerContext::create(server_options);
  ASSERT_TRUE(server_tls.ok()) << server_tls.error().message;
  testing::TestServer server(answer, {}, 1, *server_tls);
  auto client_tls = TlsClientContext::create({});
  ASSERT_TRUE(client_tls.ok());
  const HttpDestination destination{"127.0.0.1", server.address.port(), *client_tls, "server.test"};

  testing::TestClient client;
  std::atomic<int> answered{0};
  for (int i = 0; i < 2; ++i) {
    spawn(client.loop(),
          [](testing::TestClient& c, const HttpDestination& to, std::atomic<int>& count) -> Task<void> {
            auto call = co_await c.client->start(to, {});
            EXPECT_TRUE(call.ok()) << (call.ok() ? "" : call.error().message);
            ++count;
          }(client, destination, answered));
  }
  int writer = -1;
  EXPECT_TRUE(testing::eventually([&] {
    writer = ::open(pipe.c_str(), O_WRONLY | O_NONBLOCK);  // succeeds when there is a reader
    return writer >= 0;
  }));
  std::atomic<bool> turned{false};
  client.loop().post([&] { turned = true; });
  EXPECT_TRUE(testing::eventually([&] { return turned.load(); }));
  EXPECT_EQ(answered, 0);
  std::ifstream file(certificate.certificate_file);
  const std::string text(std::istreambuf_iterator<char>(file), {});
  EXPECT_EQ(::write(writer, text.data(), text.size()), static_cast<ssize_t>(text.size()));
  ::close(writer);
  EXPECT_TRUE(testing::eventually([&] { return answered == 2; }));
  ::unsetenv("SSL_CERT_FILE");
  ::unsetenv("SSL_CERT_DIR");
}

TEST(Tls, TextWithoutACertificateIsRefused) {
  TlsClientOptions options;
  options.ca_pem = "no certificate";
  EXPECT_FALSE(TlsClientContext::create(options).ok());
  TlsClientOptions client;
  client.verify = false;
  client.certificate_pem = "no certificate";
  EXPECT_FALSE(TlsClientContext::create(client).ok());
}

TEST(Tls, TextWithADamagedCertificateAfterAGoodOneIsRefused) {
  const TemporaryFolder folder;
  const TestCertificate certificate = testing::write_certificate(folder.path(), "good", "good.test");
  const std::string good = text_of(certificate.certificate_file);
  const std::string key = text_of(certificate.key_file);
  const size_t middle = good.size() / 2;
  const std::string cut = good.substr(0, middle);
  const std::string altered = cut + "!!!!" + good.substr(middle + 4);
  for (const std::string& second : {good, std::string("# the end\n"), cut, altered}) {
    const bool right = second != cut && second != altered;
    TlsClientOptions authority;
    authority.ca_pem = good + second;
    EXPECT_EQ(TlsClientContext::create(authority).ok(), right) << second;
    TlsClientOptions client;
    client.verify = false;
    client.certificate_pem = good + second;
    client.key_pem = key;
    EXPECT_EQ(TlsClientContext::create(client).ok(), right) << second;
  }
}

// What a server tells of connections that come to nothing.
struct BadStarts {
  HttpServerOptions options() {
    HttpServerOptions out;
    out.on_bad_start = [this](const ConnectionInfo& connection, std::string_view reason) {
      const std::lock_guard<std::mutex> lock(mutex);
      EXPECT_EQ(connection.peer.to_string().substr(0, 10), "127.0.0.1:");
      reasons.emplace_back(reason);
    };
    return out;
  }
  std::vector<std::string> taken() {
    const std::lock_guard<std::mutex> lock(mutex);
    return std::exchange(reasons, {});
  }
  std::mutex mutex;
  std::vector<std::string> reasons;
};

TEST(Tls, WhoSpeaksTlsToAPlainPortIsReported) {
  BadStarts bad;
  testing::TestServer server(answer, bad.options());
  testing::RawClient hello(server.address);
  hello.send(std::string_view("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 11));
  EXPECT_TRUE(hello.read_to_end().starts_with("HTTP/1.1 400"));
  EXPECT_EQ(bad.taken(), std::vector<std::string>{"the client speaks TLS, this port plain text"});
  testing::RawClient nonsense(server.address);
  nonsense.send("\x17\x03 nonsense\r\n\r\n");
  EXPECT_TRUE(nonsense.read_to_end().starts_with("HTTP/1.1 400"));
  EXPECT_EQ(bad.taken(), std::vector<std::string>{});
}

TEST(Tls, WhoSpeaksPlainTextToATlsPortIsReportedAndWhoMerelyGoesIsNot) {
  const TemporaryFolder folder;
  const TestCertificate certificate = testing::write_certificate(folder.path(), "server", "server.test");
  TlsServerOptions server_options;
  server_options.certificates = {{certificate.certificate_file, certificate.key_file}};
  auto server_tls = TlsServerContext::create(server_options);
  ASSERT_TRUE(server_tls.ok()) << server_tls.error().message;
  BadStarts bad;
  testing::TestServer server(answer, bad.options(), 1, *server_tls);
  const auto all_closed = [&] {
    return testing::eventually([&] { return server.server.stats().connections_open == 0; });
  };
  for (const std::string_view first : {"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "GET / HTTP/1.1\r\n\r\n"}) {
    testing::RawClient plain(server.address);
    plain.send(first);
    EXPECT_TRUE(plain.wait_closed());
    EXPECT_EQ(bad.taken(), std::vector<std::string>{"the client speaks plain text, this port TLS"}) << first;
  }
  {
    const testing::RawClient probe(server.address);
  }
  testing::RawClient resets(server.address);
  resets.reset();
  EXPECT_TRUE(testing::eventually([&] { return server.server.stats().connections_accepted == 4; }));
  EXPECT_TRUE(all_closed());
  EXPECT_EQ(bad.taken(), std::vector<std::string>{});

  // One that doesn't know the certificate says so.
  auto client_tls = TlsClientContext::create({});
  ASSERT_TRUE(client_tls.ok());
  testing::TestClient client;
  const HttpDestination destination{"127.0.0.1", server.address.port(), *client_tls, "server.test"};
  testing::run_on(client.loop(), [&]() -> Task<void> {
    auto call = co_await client.client->start(destination, {});
    EXPECT_FALSE(call.ok());
  });
  EXPECT_TRUE(all_closed());
  const std::vector<std::string> refused = bad.taken();
  ASSERT_EQ(refused.size(), 1U);
  EXPECT_NE(refused[0].find("TLS handshake: "), std::string::npos);
  EXPECT_NE(refused[0].find("unknown ca"), std::string::npos) << refused[0];
}

TEST(Tls, UnusableFilesAreNamed) {
  TlsServerOptions options;
  options.certificates = {{"/nonexistent.pem", "/nonexistent.key"}};
  auto context = TlsServerContext::create(options);
  ASSERT_FALSE(context.ok());
  EXPECT_EQ(context.error().code, ErrorCode::kInvalidConfig);
  EXPECT_NE(context.error().message.find("/nonexistent.pem"), std::string::npos);
}

}  // namespace
}  // namespace penstock::io
