#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "io/http_client.h"
#include "io/loop.h"

// Bytes of a server to a client with two HTTP/2 calls under way. The first byte says how the calls read.
// Checked: both calls end, whatever comes.
namespace {

using namespace penstock;
using namespace penstock::io;

Task<void> call(HttpClient& client, HttpDestination to, bool whole, int& ended) {
  HttpRequest request;
  const std::string_view body = "request";
  request.method = "POST";
  request.framing = BodyFraming::chunked();
  request.body = {&body, 1};
  // A call that found the connection closing opens another one, which nobody answers.
  HttpCallOptions options;
  options.first_byte_timeout = std::chrono::milliseconds(2);
  auto made = co_await client.start(to, request, options);
  if (made.ok()) {
    auto head = co_await made->response();
    if (head.ok() && whole) {
      auto all = co_await made->read_all(4096);
      (void)all;
    } else if (head.ok()) {
      for (;;) {
        auto piece = co_await made->read();
        if (!piece.ok() || piece->last) break;
      }
    }
  }
  ++ended;
}

Task<void> stop_when_both_ended(Loop& loop, int peer, int& ended) {
  const TimePoint deadline = loop.now() + std::chrono::seconds(5);
  while (ended < 2) {
    co_await loop.yield();
    if (loop.now() > deadline) std::abort();
  }
  ::close(peer);
  loop.stop();
}

// A listening socket for the life of the process.
int listener(SocketAddress& address) {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const SocketAddress any = *SocketAddress::parse("127.0.0.1:0");
  if (::bind(fd, static_cast<const sockaddr*>(any.native()), static_cast<socklen_t>(any.native_bytes())) !=
          0 ||
      ::listen(fd, 16) != 0)
    std::abort();
  sockaddr_storage storage{};
  socklen_t bytes = sizeof(storage);
  ::getsockname(fd, reinterpret_cast<sockaddr*>(&storage), &bytes);
  address = SocketAddress::from_native(&storage, bytes);
  return fd;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 1) return 0;
  static SocketAddress address;
  static const int listening = listener(address);
  const bool whole = (data[0] & 1U) != 0;
  // SETTINGS first, so that more than the first frame is looked at.
  std::string bytes("\0\0\0\4\0\0\0\0\0", 9);
  bytes.append(reinterpret_cast<const char*>(data) + 1, size - 1);

  Loop loop;
  int ended = 0;
  {
    HttpClient client(loop);
    const HttpDestination to(address.ip(), address.port(), nullptr, {}, true);
    loop.post([&] {
      spawn(loop, call(client, to, whole, ended));
      spawn(loop, call(client, to, whole, ended));
      // The connection has been made by then: loopback answers at once.
      const int peer = ::accept4(listening, nullptr, nullptr, SOCK_CLOEXEC);
      (void)!::send(peer, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
      ::shutdown(peer, SHUT_WR);
      spawn(loop, stop_when_both_ended(loop, peer, ended));
    });
    loop.run();
  }
  return 0;
}
