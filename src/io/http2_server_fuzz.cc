#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>

#include "io/detail/http1_server.h"
#include "io/detail/http2_server.h"
#include "io/detail/memory.h"

// Bytes into a server's HTTP/2 connection, over a socket pair, after the preface and empty SETTINGS. The
// first byte says what handlers do and whether whole messages are checked, the second how the bytes are
// split. Checked: no stream and no memory is left behind.
namespace {

using namespace penstock;
using namespace penstock::io;

uint8_t choice = 0;

Task<void> handle(HttpExchange& exchange) {
  if ((choice & 1U) != 0) {
    auto body = co_await exchange.read_all(4096);
    const std::string_view text = body.ok() ? std::string_view(body->data(), body->size()) : "no body";
    const std::vector<HeaderField> fields = {{"X-Path", exchange.request().path}};
    (void)exchange.write_head(200, fields, BodyFraming::chunked());
    (void)co_await exchange.finish({&text, 1}, exchange.request_trailers().all());
    co_return;
  }
  (void)exchange.write_head(200, {}, BodyFraming::chunked());
  for (;;) {
    auto piece = co_await exchange.read();
    if (!piece.ok()) co_return;
    const std::string_view data = piece->data;
    if (piece->last) {
      (void)co_await exchange.finish({&data, 1});
      co_return;
    }
    Status written = co_await exchange.write(data);
    if (!written.ok()) co_return;
  }
}

Task<void> serve(std::unique_ptr<detail::Http2ServerConnection> connection, std::string first, bool& done) {
  co_await connection->serve(first);
  done = true;
}

// The rest of the bytes, then the client's end, then the server's.
Task<void> drive(detail::ServerLoop& home, int fd, std::string_view rest, const bool& done) {
  constexpr int kTurns = 4;
  for (int turn = 0; turn < kTurns; ++turn) co_await home.loop.yield();
  if (!rest.empty()) (void)!::send(fd, rest.data(), rest.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  for (int turn = 0; turn < kTurns; ++turn) co_await home.loop.yield();
  ::close(fd);
  for (int turn = 0; turn < kTurns; ++turn) co_await home.loop.yield();
  if (home.first != nullptr) home.first->force_close();
  for (int turn = 0; turn < 200 && !done; ++turn) co_await home.loop.yield();
  home.loop.stop();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2) return 0;
  choice = data[0];
  const size_t split = 2 + data[1] % 64U;
  const std::string bytes(reinterpret_cast<const char*>(data) + 2, size - 2);
  int fds[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds) != 0) std::abort();

  Loop loop;
  auto server = std::make_shared<HttpServer::Impl>();
  server->options.max_header_bytes = 4096;
  server->options.max_body_bytes = 64 * 1024;
  server->options.http2.max_concurrent_streams = 16;
  server->options.http2.any_authority = (choice & 2U) != 0;
  server->options.http2.control_burst = 200;
  server->options.http2.reset_burst = 20;
  server->handler = HttpServer::handler_of(&handle);
  server->loops.push_back(std::make_unique<detail::ServerLoop>(loop, 256 * 1024));
  detail::ServerLoop& home = *server->loops.front();
  auto listening = std::make_shared<HttpServer::Impl::Listening>();
  server->open = 1;
  loop.open_connections() = 1;
  bool done = false;

  loop.post([&] {
    auto first = std::make_unique<detail::Http1Connection>(server, home, detail::Socket::adopt(loop, fds[0]),
                                                           listening, SocketAddress());
    auto connection = std::make_unique<detail::Http2ServerConnection>(*first);
    first.reset();
    const std::string preface =
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + std::string("\0\0\0\4\0\0\0\0\0", 9) + bytes.substr(0, split);
    spawn(loop, serve(std::move(connection), preface, done));
  });
  loop.post([&] {
    spawn(loop, drive(home, fds[1], std::string_view(bytes).substr(std::min(split, bytes.size())), done));
  });
  loop.run();
  if (!done || home.streams != 0 || server->open != 0) std::abort();
  return 0;
}
