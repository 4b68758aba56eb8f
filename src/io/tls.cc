#include "io/tls.h"

#include <arpa/inet.h>
#include <openssl/bn.h>
#include <openssl/ec.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/rand.h>
#include <openssl/x509v3.h>

#include <cstring>

#include "io/detail/tls_impl.h"

namespace penstock::io {

namespace detail {

std::string take_ssl_error() {
  const unsigned long code = ERR_get_error();
  ERR_clear_error();
  if (code == 0) return "TLS failure";
  if (ERR_GET_LIB(code) == ERR_LIB_SYS) return std::strerror(ERR_GET_REASON(code));
  const bool no_block = ERR_GET_LIB(code) == ERR_LIB_PEM && ERR_GET_REASON(code) == PEM_R_NO_START_LINE;
  if (no_block || ERR_GET_LIB(code) == ERR_LIB_OSSL_DECODER) return "no PEM block of that kind in it";
  char text[256];
  ERR_error_string_n(code, text, sizeof(text));
  return text;
}

namespace {

Error config_error(const std::string& what, const std::string& file) {
  return invalid_config(what + " '" + file + "': " + take_ssl_error());
}

std::string alpn_wire(const std::vector<std::string>& names) {
  std::string wire;
  for (const std::string& name : names) {
    if (name.empty() || name.size() > 255) continue;
    wire.push_back(static_cast<char>(name.size()));
    wire += name;
  }
  return wire;
}

void set_common_options(SSL_CTX* context, bool allow_tls12) {
  SSL_CTX_set_min_proto_version(context, allow_tls12 ? TLS1_2_VERSION : TLS1_3_VERSION);
  SSL_CTX_set_mode(context, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER |
                                SSL_MODE_RELEASE_BUFFERS | SSL_MODE_AUTO_RETRY);
  SSL_CTX_set_options(context, SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION);
  SSL_CTX_set_read_ahead(context, 1);
}

template <auto Free>
struct Freed {
  template <typename T>
  void operator()(T* object) const {
    Free(object);
  }
};

using PemReader = std::unique_ptr<BIO, Freed<BIO_free_all>>;

PemReader pem_reader(const std::string& pem) {
  return PemReader(BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())));
}

std::unique_ptr<X509, Freed<X509_free>> next_certificate(const PemReader& reader) {
  return std::unique_ptr<X509, Freed<X509_free>>(PEM_read_bio_X509(reader.get(), nullptr, nullptr, nullptr));
}

// After the last certificate: the text has ended, and not in the middle of one.
bool at_pem_end() {
  if (ERR_GET_REASON(ERR_peek_last_error()) != PEM_R_NO_START_LINE) return false;
  ERR_clear_error();
  return true;
}

// Every certificate of the text is a root that is trusted.
Status trust_pem(SSL_CTX* context, const std::string& pem) {
  const PemReader reader = pem_reader(pem);
  size_t found = 0;
  while (const auto certificate = next_certificate(reader)) {
    if (X509_STORE_add_cert(SSL_CTX_get_cert_store(context), certificate.get()) != 1)
      return invalid_config("can't use CA certificate: " + take_ssl_error());
    ++found;
  }
  if (found == 0 || !at_pem_end()) return invalid_config("can't use CA certificate: " + take_ssl_error());
  return {};
}

// The leaf first, then its issuers.
Status use_certificate_pem(SSL_CTX* context, const std::string& certificate, const std::string& key) {
  const PemReader reader = pem_reader(certificate);
  const auto leaf = next_certificate(reader);
  if (!leaf || SSL_CTX_use_certificate(context, leaf.get()) != 1)
    return invalid_config("can't use client certificate: " + take_ssl_error());
  while (auto issuer = next_certificate(reader)) {
    if (SSL_CTX_add0_chain_cert(context, issuer.get()) != 1)
      return invalid_config("can't use client certificate: " + take_ssl_error());
    static_cast<void>(issuer.release());
  }
  if (!at_pem_end()) return invalid_config("can't use client certificate: " + take_ssl_error());
  const std::unique_ptr<EVP_PKEY, Freed<EVP_PKEY_free>> private_key(
      PEM_read_bio_PrivateKey(pem_reader(key).get(), nullptr, nullptr, nullptr));
  if (!private_key || SSL_CTX_use_PrivateKey(context, private_key.get()) != 1)
    return invalid_config("can't use client key: " + take_ssl_error());
  if (SSL_CTX_check_private_key(context) != 1)
    return invalid_config("the client certificate doesn't belong to the key: " + take_ssl_error());
  return {};
}

Status use_certificate(SSL_CTX* context, const std::string& certificate, const std::string& key) {
  if (SSL_CTX_use_certificate_chain_file(context, certificate.c_str()) != 1)
    return config_error("can't use certificate file", certificate);
  if (SSL_CTX_use_PrivateKey_file(context, key.c_str(), SSL_FILETYPE_PEM) != 1)
    return config_error("can't use key file", key);
  if (SSL_CTX_check_private_key(context) != 1)
    return config_error("the certificate doesn't belong to the key", key);
  return {};
}

// Makes a key and a certificate for it, and gives both to the context.
Status use_self_signed(SSL_CTX* context, const std::string& organisation) {
  const auto failed = [] {
    return invalid_config("can't make a self-signed certificate: " + take_ssl_error());
  };
  const std::unique_ptr<EVP_PKEY, Freed<EVP_PKEY_free>> key(EVP_EC_gen("P-256"));
  const std::unique_ptr<X509, Freed<X509_free>> certificate(X509_new());
  if (!key || !certificate) return failed();
  X509* x = certificate.get();
  unsigned char serial[8] = {};
  if (RAND_bytes(serial, sizeof(serial)) != 1) return failed();
  serial[0] &= 0x7FU;
  const std::unique_ptr<BIGNUM, Freed<BN_free>> number(BN_bin2bn(serial, sizeof(serial), nullptr));
  constexpr long kDay = 24L * 60 * 60;
  X509_NAME* name = X509_get_subject_name(x);
  const auto text = reinterpret_cast<const unsigned char*>(organisation.c_str());
  if (!number || X509_set_version(x, 2) != 1 ||
      BN_to_ASN1_INTEGER(number.get(), X509_get_serialNumber(x)) == nullptr ||
      X509_gmtime_adj(X509_getm_notBefore(x), -kDay) == nullptr ||
      X509_gmtime_adj(X509_getm_notAfter(x), 3650 * kDay) == nullptr || X509_set_pubkey(x, key.get()) != 1 ||
      X509_NAME_add_entry_by_txt(name, "O", MBSTRING_UTF8, text, -1, -1, 0) != 1 ||
      X509_set_issuer_name(x, name) != 1) {
    return failed();
  }
  X509V3_CTX extension_context;
  X509V3_set_ctx(&extension_context, x, x, nullptr, nullptr, 0);
  const std::unique_ptr<X509_EXTENSION, Freed<X509_EXTENSION_free>> names(X509V3_EXT_conf_nid(
      nullptr, &extension_context, NID_subject_alt_name, "DNS:localhost,IP:127.0.0.1,IP:::1"));
  if (!names || X509_add_ext(x, names.get(), -1) != 1 || X509_sign(x, key.get(), EVP_sha256()) == 0 ||
      SSL_CTX_use_certificate(context, x) != 1 || SSL_CTX_use_PrivateKey(context, key.get()) != 1) {
    return failed();
  }
  return {};
}

Status use_ciphers(SSL_CTX* context, const std::vector<std::string>& names) {
  std::string list;
  for (const std::string& name : names) {
    const char* known = OPENSSL_cipher_name(name.c_str());
    if (known == nullptr || std::string_view(known) == "(NONE)") {
      return invalid_config("there is no TLS 1.2 cipher suite '" + name + "'");
    }
    list += (list.empty() ? "" : ":") + std::string(known);
  }
  if (!list.empty() && SSL_CTX_set_cipher_list(context, list.c_str()) != 1) {
    return invalid_config("can't use TLS cipher suites '" + list + "': " + take_ssl_error());
  }
  return {};
}

// Index of the generation in an SSL_CTX, for the callbacks.
int select_alpn(SSL*, const unsigned char** out, unsigned char* out_size, const unsigned char* in,
                unsigned in_size, void* context) {
  const auto& generation = *static_cast<TlsServerContext::Impl::Generation*>(context);
  const auto* ours = reinterpret_cast<const unsigned char*>(generation.alpn_wire.data());
  const auto ours_size = static_cast<unsigned>(generation.alpn_wire.size());
  unsigned char* chosen = nullptr;
  if (SSL_select_next_proto(&chosen, out_size, ours, ours_size, in, in_size) != OPENSSL_NPN_NEGOTIATED)
    return SSL_TLSEXT_ERR_NOACK;
  *out = chosen;
  return SSL_TLSEXT_ERR_OK;
}

int select_certificate(SSL* ssl, int*, void* context) {
  const auto& generation = *static_cast<TlsServerContext::Impl::Generation*>(context);
  const char* name = SSL_get_servername(ssl, TLSEXT_NAMETYPE_host_name);
  if (name == nullptr) return SSL_TLSEXT_ERR_NOACK;
  for (const SslCtxPtr& candidate : generation.contexts) {
    X509* certificate = SSL_CTX_get0_certificate(candidate.get());
    if (certificate != nullptr && X509_check_host(certificate, name, 0, 0, nullptr) == 1) {
      SSL_set_SSL_CTX(ssl, candidate.get());
      return SSL_TLSEXT_ERR_OK;
    }
  }
  return SSL_TLSEXT_ERR_NOACK;
}

// Keeps a generation alive as long as an SSL made from it.
int generation_index() {
  static const int index = SSL_get_ex_new_index(
      0, nullptr, nullptr, nullptr, [](void*, void* pointer, CRYPTO_EX_DATA*, int, long, void*) {
        delete static_cast<std::shared_ptr<TlsServerContext::Impl::Generation>*>(pointer);
      });
  return index;
}

}  // namespace
}  // namespace detail

Result<std::shared_ptr<TlsServerContext::Impl::Generation>> TlsServerContext::Impl::load(
    const TlsServerOptions& options) {
  const bool self_signed = options.certificates.empty() && !options.self_signed_organisation.empty();
  if (options.certificates.empty() && !self_signed)
    return invalid_config("a TLS listener needs a certificate");
  std::vector<TlsCertificate> certificates = options.certificates;
  if (self_signed) certificates.emplace_back();
  auto generation = std::make_shared<Generation>();
  generation->alpn_wire = detail::alpn_wire(options.alpn);
  for (const TlsCertificate& certificate : certificates) {
    ERR_clear_error();
    detail::SslCtxPtr context(SSL_CTX_new(TLS_server_method()));
    if (!context) return invalid_config("no TLS context: " + detail::take_ssl_error());
    detail::set_common_options(context.get(), options.allow_tls12);
    SSL_CTX_set_session_cache_mode(context.get(), SSL_SESS_CACHE_OFF);
    static constexpr unsigned char kSessionContext[] = "penstock";
    SSL_CTX_set_session_id_context(context.get(), kSessionContext, sizeof(kSessionContext) - 1);
    Status status = self_signed ? detail::use_self_signed(context.get(), options.self_signed_organisation)
                                : detail::use_certificate(context.get(), certificate.certificate_file,
                                                          certificate.key_file);
    if (status.ok()) status = detail::use_ciphers(context.get(), options.tls12_ciphers);
    if (!status.ok()) return std::move(status).error();
    if (!options.client_ca_file.empty()) {
      if (SSL_CTX_load_verify_locations(context.get(), options.client_ca_file.c_str(), nullptr) != 1)
        return detail::config_error("can't use client CA file", options.client_ca_file);
      SSL_CTX_set_client_CA_list(context.get(), SSL_load_client_CA_file(options.client_ca_file.c_str()));
      SSL_CTX_set_verify(
          context.get(),
          SSL_VERIFY_PEER | (options.require_client_certificate ? SSL_VERIFY_FAIL_IF_NO_PEER_CERT : 0),
          nullptr);
    } else if (options.require_client_certificate) {
      return invalid_config("client certificates are required, but there is no client CA file");
    }
    if (!generation->alpn_wire.empty())
      SSL_CTX_set_alpn_select_cb(context.get(), detail::select_alpn, generation.get());
    SSL_CTX_set_tlsext_servername_callback(context.get(), detail::select_certificate);
    SSL_CTX_set_tlsext_servername_arg(context.get(), generation.get());
    generation->contexts.push_back(std::move(context));
  }
  return generation;
}

SSL* TlsServerContext::Impl::make_ssl() {
  std::shared_ptr<Generation> generation;
  {
    const std::lock_guard<std::mutex> lock(mutex);
    generation = current;
  }
  SSL* ssl = SSL_new(generation->contexts.front().get());
  if (ssl != nullptr)
    SSL_set_ex_data(ssl, detail::generation_index(), new std::shared_ptr<Generation>(std::move(generation)));
  return ssl;
}

TlsServerContext::TlsServerContext() : impl_(std::make_unique<Impl>()) {}
TlsServerContext::~TlsServerContext() = default;

Result<std::shared_ptr<TlsServerContext>> TlsServerContext::create(TlsServerOptions options) {
  auto generation = Impl::load(options);
  if (!generation.ok()) return std::move(generation).error();
  std::shared_ptr<TlsServerContext> context(new TlsServerContext());
  context->impl_->options = std::move(options);
  context->impl_->current = std::move(*generation);
  return context;
}

Status TlsServerContext::reload() {
  TlsServerOptions options;
  {
    const std::lock_guard<std::mutex> lock(impl_->mutex);
    options = impl_->options;
  }
  return reload(std::move(options));
}

Status TlsServerContext::reload(TlsServerOptions options) {
  auto generation = Impl::load(options);
  if (!generation.ok()) return std::move(generation).error();
  const std::lock_guard<std::mutex> lock(impl_->mutex);
  impl_->options = std::move(options);
  impl_->current = std::move(*generation);
  return {};
}

Result<std::shared_ptr<TlsClientContext::Impl::Generation>> TlsClientContext::Impl::load(
    const TlsClientOptions& options) {
  ERR_clear_error();
  auto generation = std::make_shared<Generation>();
  generation->context.reset(SSL_CTX_new(TLS_client_method()));
  SSL_CTX* context = generation->context.get();
  if (context == nullptr) return invalid_config("no TLS context: " + detail::take_ssl_error());
  detail::set_common_options(context, options.allow_tls12);
  if (options.verify) {
    generation->uses_system_roots = options.ca_file.empty() && options.ca_pem.empty();
    if (!options.ca_file.empty() &&
        SSL_CTX_load_verify_locations(context, options.ca_file.c_str(), nullptr) != 1)
      return detail::config_error("can't use CA file", options.ca_file);
    if (options.ca_file.empty() && !options.ca_pem.empty()) {
      if (Status status = detail::trust_pem(context, options.ca_pem); !status.ok())
        return std::move(status).error();
    }
    SSL_CTX_set_verify(context, SSL_VERIFY_PEER, nullptr);
  } else {
    SSL_CTX_set_verify(context, SSL_VERIFY_NONE, nullptr);
  }
  if (!options.certificate_file.empty()) {
    if (Status status = detail::use_certificate(context, options.certificate_file, options.key_file);
        !status.ok())
      return std::move(status).error();
  }
  if (options.certificate_file.empty() && !options.certificate_pem.empty()) {
    if (Status status = detail::use_certificate_pem(context, options.certificate_pem, options.key_pem);
        !status.ok())
      return std::move(status).error();
  }
  const std::string wire = detail::alpn_wire(options.alpn);
  if (!wire.empty())
    SSL_CTX_set_alpn_protos(context, reinterpret_cast<const unsigned char*>(wire.data()),
                            static_cast<unsigned>(wire.size()));
  return generation;
}

void TlsClientContext::Impl::Generation::read_system_roots() {
  std::call_once(once, [this] {
    (void)SSL_CTX_set_default_verify_paths(context.get());
    roots_read.store(true, std::memory_order_release);
  });
}

SSL* TlsClientContext::Impl::make_ssl(const Generation& generation, const std::string& server_name) const {
  SSL* ssl = SSL_new(generation.context.get());
  if (ssl == nullptr) return nullptr;
  in6_addr address{};
  const bool literal = inet_pton(AF_INET, server_name.c_str(), &address) == 1 ||
                       inet_pton(AF_INET6, server_name.c_str(), &address) == 1;
  if (!literal) SSL_set_tlsext_host_name(ssl, server_name.c_str());
  if (options.verify) {
    SSL_set_hostflags(ssl, X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS);
    // Without the name any certificate of a trusted issuer would do.
    const int named = literal ? X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(ssl), server_name.c_str())
                              : SSL_set1_host(ssl, server_name.c_str());
    if (named != 1) {
      SSL_free(ssl);
      return nullptr;
    }
  }
  return ssl;
}

TlsClientContext::TlsClientContext() : impl_(std::make_unique<Impl>()) {}
TlsClientContext::~TlsClientContext() = default;

Result<std::shared_ptr<TlsClientContext>> TlsClientContext::create(TlsClientOptions options) {
  auto context = Impl::load(options);
  if (!context.ok()) return std::move(context).error();
  std::shared_ptr<TlsClientContext> out(new TlsClientContext());
  out->impl_->options = std::move(options);
  out->impl_->current = std::move(*context);
  return out;
}

Status TlsClientContext::reload() {
  auto context = Impl::load(impl_->options);
  if (!context.ok()) return std::move(context).error();
  const std::lock_guard<std::mutex> lock(impl_->mutex);
  impl_->current = std::move(*context);
  return {};
}

}  // namespace penstock::io
