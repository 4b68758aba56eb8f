#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "base/eventually.h"
#include "io/http_client.h"
#include "io/http_server.h"
#include "io/loop.h"

namespace penstock::io::testing {

// A plain blocking socket, to say exactly which bytes go when. Every wait ends after ten seconds.
class RawClient {
 public:
  explicit RawClient(const SocketAddress& address);
  explicit RawClient(int fd) : fd_(fd) {}
  RawClient(RawClient&& other) noexcept : fd_(other.fd_) { other.fd_ = -1; }
  RawClient(const RawClient&) = delete;
  ~RawClient();

  void send(std::string_view bytes) const;
  // What comes until `end` has been seen, or the peer's end.
  std::string read_until(std::string_view end);
  std::string read_to_end();
  // One receive; empty at the end.
  std::string receive();
  // True when the peer has ended or reset the connection.
  bool wait_closed();
  void shutdown_write() const;
  void close();
  void reset();
  void set_receive_buffer(int bytes) const;

 private:
  int fd_ = -1;
};

// A raw listening socket on loopback.
class RawServer {
 public:
  RawServer();
  ~RawServer();
  SocketAddress address() const { return address_; }
  RawClient accept() const;

 private:
  int fd_ = -1;
  SocketAddress address_;
};

// Runs a task on the loop and waits for its end from another thread.
void run_on(Loop& loop, std::function<Task<void>()> task);

using penstock::eventually;

SocketAddress loopback(uint16_t port = 0);

// A server on loopback whose handler is the test's, on loops of its own.
struct TestServer {
  explicit TestServer(std::function<Task<void>(HttpExchange&)> handler, HttpServerOptions options = {},
                      size_t loop_count = 1, std::shared_ptr<TlsServerContext> tls = nullptr);
  ~TestServer();
  // No exchange is running any more.
  bool quiet() {
    return eventually([&] { return server.stats().open_exchanges == 0; });
  }
  LoopGroup loops;
  HttpServer server;
  SocketAddress address;
};

// Answers with method, target and body, up to 1 MiB.
Task<void> echo(HttpExchange& exchange);

// A client on a loop of its own; everything of it happens there.
struct TestClient {
  explicit TestClient(HttpClientOptions options = {});
  ~TestClient();
  Loop& loop() { return loops.at(0); }
  HttpClient::Stats stats();
  LoopGroup loops;
  std::unique_ptr<HttpClient> client;
};

// A self-signed certificate for 127.0.0.1 and `name`, written as PEM files.
struct TestCertificate {
  std::string certificate_file;
  std::string key_file;
};
TestCertificate write_certificate(const std::string& folder, const std::string& stem,
                                  const std::string& name);

}  // namespace penstock::io::testing
