#pragma once

#include <openssl/ssl.h>

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
  TlsClientOptions options;
  std::mutex mutex;
  std::shared_ptr<SSL_CTX> current;
  // The system's CA certificates are read with the first connection: most programs never make one.
  bool system_roots_read = false;

  static Result<std::shared_ptr<SSL_CTX>> load(const TlsClientOptions& options);
  SSL* make_ssl(const std::string& server_name);
};

}  // namespace penstock::io
