#pragma once

#include <openssl/ssl.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "io/tls.h"

namespace penstock::io {

namespace detail {
struct SslCtxDeleter {
  void operator()(SSL_CTX* context) const { SSL_CTX_free(context); }
};
using SslCtxPtr = std::unique_ptr<SSL_CTX, SslCtxDeleter>;

// The oldest error of OpenSSL's queue, which is emptied.
std::string take_ssl_error();
}  // namespace detail

struct TlsServerContext::Impl {
  // One generation of certificates: the first context is the default.
  struct Generation {
    std::vector<detail::SslCtxPtr> contexts;
    std::string alpn_wire;
  };
  TlsServerOptions options;
  std::mutex mutex;
  std::shared_ptr<Generation> current;

  static Result<std::shared_ptr<Generation>> load(const TlsServerOptions& options);
  // A connection's SSL; it keeps what it needs of its generation.
  SSL* make_ssl();
};

struct TlsClientContext::Impl {
  // What one reading of the files gave.
  struct Generation {
    detail::SslCtxPtr context;
    // False: read_system_roots() comes before the first connection.
    bool ready() const { return !uses_system_roots || roots_read.load(std::memory_order_acquire); }
    // Takes tens of milliseconds, and most programs never make a connection: not before the first one, and
    // not on a loop. Any thread; the first one reads, the others wait for it. Where there are no
    // certificates, each handshake fails with the reason.
    void read_system_roots();

    bool uses_system_roots = false;
    std::once_flag once;
    std::atomic<bool> roots_read{false};
  };
  TlsClientOptions options;
  std::mutex mutex;
  std::shared_ptr<Generation> current;

  static Result<std::shared_ptr<Generation>> load(const TlsClientOptions& options);
  std::shared_ptr<Generation> generation() {
    const std::lock_guard<std::mutex> lock(mutex);
    return current;
  }
  // A connection's SSL. REQUIRES: generation.ready().
  SSL* make_ssl(const Generation& generation, const std::string& server_name) const;
};

}  // namespace penstock::io
