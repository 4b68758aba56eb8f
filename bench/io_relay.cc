// The least a proxy hop on io/ can cost: one loop, no routing, no parsing of bodies.
//   io_relay LISTEN_PORT UPSTREAM_PORT[,UPSTREAM_PORT…]
// Compare its CPU a request with nginx in the same run (bench/run measures the gateway the same way).
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "io/http_client.h"
#include "io/http_server.h"

namespace {

using namespace penstock;
using namespace penstock::io;

struct Relay final : HttpHandler {
  Relay(Loop& loop, std::vector<HttpDestination> to) : client(loop), upstreams(std::move(to)) {}

  Task<void> handle(HttpExchange& exchange) override {
    auto body = co_await exchange.read_all(64U << 20U);
    if (!body.ok()) {
      (void)co_await exchange.respond(413, "text/plain", body.error().message);
      co_return;
    }
    const RequestHead& in = exchange.request();
    const std::string_view piece(body->data(), body->size());
    HttpRequest request;
    request.method = in.method;
    request.target = in.target;
    request.fields = in.fields.all();
    request.framing = BodyFraming::of_length(piece.size());
    request.body = {&piece, 1};
    HttpCallOptions options;
    options.token = exchange.cancel_token();
    options.first_byte_timeout = std::chrono::seconds(600);
    auto call = co_await client.start(upstreams[next++ % upstreams.size()], request, options);
    if (!call.ok()) {
      (void)co_await exchange.respond(502, "text/plain", call.error().message);
      co_return;
    }
    auto head = co_await call->response();
    if (!head.ok()) {
      (void)co_await exchange.respond(502, "text/plain", head.error().message);
      co_return;
    }
    const auto length = call->content_length();
    (void)exchange.write_head((*head)->status, (*head)->fields.all(),
                              length ? BodyFraming::of_length(*length) : BodyFraming::chunked());
    for (;;) {
      auto next_piece = co_await call->read();
      if (!next_piece.ok()) {
        exchange.abort();
        co_return;
      }
      const std::string_view data = next_piece->data;
      if (next_piece->last) {
        (void)co_await exchange.finish({&data, 1});
        co_return;
      }
      const Status sent = co_await exchange.write({&data, 1});
      if (!sent.ok()) co_return;
    }
  }

  HttpClient client;
  std::vector<HttpDestination> upstreams;
  size_t next = 0;
};

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  std::vector<HttpDestination> upstreams;
  for (std::string_view rest = argv[2]; !rest.empty();) {
    const size_t comma = rest.find(',');
    upstreams.emplace_back("127.0.0.1",
                           static_cast<uint16_t>(std::atoi(std::string(rest.substr(0, comma)).c_str())));
    rest = comma == std::string_view::npos ? std::string_view{} : rest.substr(comma + 1);
  }
  Loop loop;
  HttpServer server(loop, {}, std::make_shared<Relay>(loop, std::move(upstreams)));
  auto bound = server.listen(*SocketAddress::from_ip("127.0.0.1", static_cast<uint16_t>(std::atoi(argv[1]))));
  if (!bound.ok()) {
    std::fprintf(stderr, "%s\n", bound.error().message.c_str());
    return 1;
  }
  loop.run();
  return 0;
}
