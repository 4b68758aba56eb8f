#pragma once

#include <gtest/gtest.h>

#include <deque>
#include <fstream>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/source_path_testing.h"
#include "base/strings.h"
#include "io/http_server.h"
#include "io/loop.h"
#include "kubernetes/api_client.h"
#include "telemetry/metrics.h"

// For tests: recorded answers of a real API server, and a server that gives them again.
namespace penstock::kubernetes::testing {

inline std::string vector_text(const std::string& name) {
  std::ifstream file(source_path("tests/vectors/kubernetes/") + name, std::ios::binary);
  EXPECT_TRUE(file.good()) << name;
  return {std::istreambuf_iterator<char>(file), {}};
}

// A recorded answer without the request's lines and its own headers.
struct Recorded {
  int status = 0;
  std::string body;
};

inline Recorded recorded(const std::string& name) {
  std::string text = vector_text(name);
  size_t at = text.starts_with("HTTP/") ? 0 : text.find("\nHTTP/") + 1;
  Recorded out;
  out.status = std::stoi(text.substr(at + 9, 3));
  size_t body = text.find("\r\n\r\n", at);
  size_t skip = 4;
  if (body == std::string::npos) {
    body = text.find("\n\n", at);
    skip = 2;
  }
  out.body = text.substr(body + skip);
  return out;
}

// One answer of the fake server: a body at once, or pieces of a watch that ends after the last one (or is
// held open until the client goes).
struct FakeAnswer {
  FakeAnswer() {}
  FakeAnswer(int s, std::string b) : status(s) { pieces.push_back(std::move(b)); }
  static FakeAnswer stream(std::vector<std::string> pieces, bool held = false) {
    FakeAnswer out;
    out.pieces = std::move(pieces);
    out.chunked = true;
    out.held = held;
    return out;
  }
  int status = 200;
  std::vector<std::string> pieces;
  bool chunked = false;
  bool held = false;
  bool cut = false;  // the connection breaks after the last piece
};

// Answers by a function of the request; remembers what was asked. Runs on a loop of its own.
class FakeServer {
 public:
  struct Request {
    std::string method, target, authorization, content_type, accept, body;
  };
  using Script = std::function<FakeAnswer(const Request&)>;

  explicit FakeServer(Script script) : script_(std::move(script)), loops_(1) {
    server_ = std::make_unique<io::HttpServer>(
        loops_, io::HttpServerOptions(),
        io::HttpServer::handler_of([this](io::HttpExchange& exchange) { return handle(exchange); }));
    loops_.start();
    address_ = *server_->listen(*io::SocketAddress::parse("127.0.0.1:0"));
  }
  ~FakeServer() { stop(); }
  void stop() {
    if (server_) server_->stop();
    server_.reset();
    loops_.stop();
  }

  ClusterConfig config() const {
    ClusterConfig out;
    out.source = "test";
    out.tls = false;
    out.host = "127.0.0.1";
    out.port = address_.port();
    return out;
  }
  std::vector<Request> requests() const {
    const std::lock_guard lock(mutex_);
    return requests_;
  }
  size_t count() const {
    const std::lock_guard lock(mutex_);
    return requests_.size();
  }

 private:
  io::Task<void> handle(io::HttpExchange& exchange) {
    Request request;
    request.method = exchange.request().method;
    request.target = exchange.request().target;
    const io::HeaderFields fields = exchange.request().fields;
    request.authorization = fields.get("authorization");
    request.content_type = fields.get("content-type");
    request.accept = fields.get("accept");
    auto body = co_await exchange.read_all(1 << 20);
    if (body.ok()) request.body.assign(body->data(), body->size());
    FakeAnswer answer;
    {
      const std::lock_guard lock(mutex_);
      requests_.push_back(request);
      answer = script_(request);
    }
    if (!answer.chunked) {
      (void)co_await exchange.respond(answer.status, "application/json", answer.pieces.front());
      co_return;
    }
    const io::HeaderField type{"content-type", "application/json"};
    (void)exchange.write_head(answer.status, {&type, 1}, io::BodyFraming::chunked());
    (void)co_await exchange.flush();
    for (const std::string& piece : answer.pieces) {
      const std::string_view view = piece;
      (void)co_await exchange.write(view);
      co_await exchange.loop().yield();
    }
    if (answer.held) {
      const io::CancelToken gone = exchange.cancel_token();
      (void)co_await exchange.loop().sleep(std::chrono::seconds(60), gone);
    }
    if (answer.cut) {
      exchange.abort();
      co_return;
    }
    (void)co_await exchange.finish();
  }

  mutable std::mutex mutex_;
  Script script_;
  std::vector<Request> requests_;
  io::LoopGroup loops_;
  std::unique_ptr<io::HttpServer> server_;
  io::SocketAddress address_;
};

// Runs `test` with a client of that server, on a loop of this thread.
inline void with_client(const ClusterConfig& config, const std::function<io::Task<void>(ApiClient&)>& test,
                        const ApiClientOptions& options = {}) {
  telemetry::MetricRegistry metrics;
  io::Loop loop;
  auto client = ApiClient::create(loop, config, metrics, options);
  ASSERT_TRUE(client.ok()) << client.error().message;
  io::block_on(loop, test(**client));
}

}  // namespace penstock::kubernetes::testing
