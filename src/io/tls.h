#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/result.h"

namespace penstock::io {

struct TlsCertificate {
  std::string certificate_file;  // PEM, leaf first
  std::string key_file;          // PEM
};

struct TlsServerOptions {
  // The first is the default; the others are chosen by SNI when their names match.
  std::vector<TlsCertificate> certificates;
  std::string client_ca_file;  // empty: client certificates are not asked for
  bool require_client_certificate = false;
  std::vector<std::string> alpn = {"h2", "http/1.1"};  // in order of preference
  bool allow_tls12 = true;                             // otherwise 1.3 only
  // Without certificates: one is made for this organisation (ECDSA P-256, for localhost, ten years) that
  // nobody can verify.
  std::string self_signed_organisation;
  // Of TLS 1.2, by their IANA names; empty: the library's.
  std::vector<std::string> tls12_ciphers;
};

// Server side of TLS, shared by all loops. Thread-safe.
class TlsServerContext {
 public:
  // kInvalidConfig with the file's name when a certificate or key can't be used.
  static Result<std::shared_ptr<TlsServerContext>> create(TlsServerOptions options);
  ~TlsServerContext();
  // Reads the files again. New connections get the new certificates, open ones go on; on failure the old
  // ones stay in use. Blocks on files: not on a loop.
  Status reload();
  // The same from other files.
  Status reload(TlsServerOptions options);

  struct Impl;
  Impl& impl() { return *impl_; }

 private:
  TlsServerContext();
  std::unique_ptr<Impl> impl_;
};

struct TlsClientOptions {
  bool verify = true;   // chain and name
  std::string ca_file;  // PEM; empty: the system's
  std::string certificate_file;
  std::string key_file;
  // The same as PEM text, where they are in no file; a file goes first.
  std::string ca_pem;
  std::string certificate_pem;
  std::string key_pem;
  std::vector<std::string> alpn = {"http/1.1"};
  bool allow_tls12 = true;
};

// Client side of TLS, shared by all loops. Thread-safe. The system's CA certificates are read with the first
// connection, on a thread for what blocks.
class TlsClientContext {
 public:
  // kInvalidConfig with the file's name when one can't be used.
  static Result<std::shared_ptr<TlsClientContext>> create(TlsClientOptions options);
  ~TlsClientContext();
  // Reads the files again, for new connections; on failure the old ones stay in use. Blocks on files: not on
  // a loop.
  Status reload();

  struct Impl;
  Impl& impl() { return *impl_; }

 private:
  TlsClientContext();
  std::unique_ptr<Impl> impl_;
};

}  // namespace penstock::io
