#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <future>
#include <thread>

#include "io/detail/test_support.h"

namespace penstock::io::testing {

RawClient::RawClient(const SocketAddress& address) {
  fd_ = ::socket(address.is_v6() ? AF_INET6 : AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (::connect(fd_, static_cast<const sockaddr*>(address.native()),
                static_cast<socklen_t>(address.native_bytes())) != 0)
    ADD_FAILURE() << "can't connect to " << address.to_string();
  const int on = 1;
  ::setsockopt(fd_, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
}

RawClient::~RawClient() {
  close();
}

void RawClient::send(std::string_view bytes) const {
  while (!bytes.empty()) {
    const ssize_t sent = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent <= 0) return;
    bytes.remove_prefix(static_cast<size_t>(sent));
  }
}

std::string RawClient::receive() {
  pollfd poll{fd_, POLLIN, 0};
  if (::poll(&poll, 1, 10'000) != 1) {
    ADD_FAILURE() << "nothing came within ten seconds";
    return {};
  }
  std::string bytes(65536, '\0');
  const ssize_t got = ::recv(fd_, bytes.data(), bytes.size(), 0);
  bytes.resize(got > 0 ? static_cast<size_t>(got) : 0);
  return bytes;
}

std::string RawClient::read_until(std::string_view end) {
  std::string all;
  while (all.find(end) == std::string::npos) {
    const std::string more = receive();
    if (more.empty()) break;
    all += more;
  }
  return all;
}

std::string RawClient::read_to_end() {
  std::string all;
  for (std::string more = receive(); !more.empty(); more = receive()) all += more;
  return all;
}

bool RawClient::wait_closed() {
  pollfd poll{fd_, POLLIN, 0};
  if (::poll(&poll, 1, 10'000) != 1) return false;
  char byte = 0;
  return ::recv(fd_, &byte, 1, 0) <= 0;
}

void RawClient::shutdown_write() const {
  ::shutdown(fd_, SHUT_WR);
}

void RawClient::close() {
  if (fd_ >= 0) ::close(fd_);
  fd_ = -1;
}

void RawClient::reset() {
  const linger now{1, 0};
  ::setsockopt(fd_, SOL_SOCKET, SO_LINGER, &now, sizeof(now));
  close();
}

void RawClient::set_receive_buffer(int bytes) const {
  ::setsockopt(fd_, SOL_SOCKET, SO_RCVBUF, &bytes, sizeof(bytes));
}

RawServer::RawServer() {
  const SocketAddress any = loopback();
  fd_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (::bind(fd_, static_cast<const sockaddr*>(any.native()), static_cast<socklen_t>(any.native_bytes())) !=
          0 ||
      ::listen(fd_, 16) != 0)
    ADD_FAILURE() << "can't listen";
  sockaddr_storage storage{};
  socklen_t size = sizeof(storage);
  ::getsockname(fd_, reinterpret_cast<sockaddr*>(&storage), &size);
  address_ = SocketAddress::from_native(&storage, size);
}

RawServer::~RawServer() {
  ::close(fd_);
}

RawClient RawServer::accept() const {
  pollfd poll{fd_, POLLIN, 0};
  if (::poll(&poll, 1, 10'000) != 1) ADD_FAILURE() << "nobody connected within ten seconds";
  return RawClient(::accept4(fd_, nullptr, nullptr, SOCK_CLOEXEC));
}

void run_on(Loop& loop, std::function<Task<void>()> task) {
  std::promise<void> done;
  auto runner = [](std::function<Task<void>()>& body, std::promise<void>& end) -> Task<void> {
    co_await body();
    end.set_value();
  };
  spawn(loop, runner(task, done));
  done.get_future().wait();
}

SocketAddress loopback(uint16_t port) {
  return *SocketAddress::from_ip("127.0.0.1", port);
}

TestServer::TestServer(std::function<Task<void>(HttpExchange&)> handler, HttpServerOptions options,
                       size_t loop_count, std::shared_ptr<TlsServerContext> tls)
    : loops(loop_count), server(loops, std::move(options), HttpServer::handler_of(std::move(handler))) {
  loops.start();
  auto bound = server.listen(loopback(), std::move(tls));
  EXPECT_TRUE(bound.ok());
  address = *bound;
}

TestServer::~TestServer() {
  server.stop();
  loops.stop();
}

Task<void> echo(HttpExchange& exchange) {
  auto body = co_await exchange.read_all(1 << 20);
  if (!body.ok()) {
    const int status = body.error().code == ErrorCode::kPayloadTooLarge ? 413 : 400;
    (void)co_await exchange.respond(status, "text/plain", body.error().message);
    co_return;
  }
  const std::string text = std::string(exchange.request().method) + " " +
                           std::string(exchange.request().target) + " " +
                           std::string(body->data(), body->size());
  (void)co_await exchange.respond(200, "text/plain", text);
}

TestClient::TestClient(HttpClientOptions options) : loops(1) {
  loops.start();
  run_on(loop(), [&]() -> Task<void> {
    client = std::make_unique<HttpClient>(loop(), options);
    co_return;
  });
}

TestClient::~TestClient() {
  run_on(loop(), [&]() -> Task<void> {
    client.reset();
    co_return;
  });
}

HttpClient::Stats TestClient::stats() {
  HttpClient::Stats out;
  run_on(loop(), [&]() -> Task<void> {
    out = client->stats();
    co_return;
  });
  return out;
}

TestCertificate write_certificate(const std::string& folder, const std::string& stem,
                                  const std::string& name) {
  EVP_PKEY* key = EVP_EC_gen("P-256");
  X509* certificate = X509_new();
  X509_set_version(certificate, 2);
  static std::atomic<long> serial{1};
  ASN1_INTEGER_set(X509_get_serialNumber(certificate), serial++);
  X509_gmtime_adj(X509_getm_notBefore(certificate), -3600);
  X509_gmtime_adj(X509_getm_notAfter(certificate), 3600);
  X509_set_pubkey(certificate, key);
  X509_NAME* subject = X509_get_subject_name(certificate);
  X509_NAME_add_entry_by_txt(subject, "CN", MBSTRING_ASC,
                             reinterpret_cast<const unsigned char*>(name.c_str()), -1, -1, 0);
  X509_set_issuer_name(certificate, subject);
  const std::string names = "DNS:" + name + ",IP:127.0.0.1";
  for (const auto& [nid, value] :
       {std::pair<int, std::string>{NID_subject_alt_name, names}, {NID_basic_constraints, "CA:TRUE"}}) {
    X509_EXTENSION* extension = X509V3_EXT_conf_nid(nullptr, nullptr, nid, value.c_str());
    X509_add_ext(certificate, extension, -1);
    X509_EXTENSION_free(extension);
  }
  X509_sign(certificate, key, EVP_sha256());
  TestCertificate out{folder + "/" + stem + ".pem", folder + "/" + stem + ".key"};
  if (FILE* file = std::fopen(out.certificate_file.c_str(), "w")) {
    PEM_write_X509(file, certificate);
    std::fclose(file);
  }
  if (FILE* file = std::fopen(out.key_file.c_str(), "w")) {
    PEM_write_PrivateKey(file, key, nullptr, nullptr, 0, nullptr, nullptr);
    std::fclose(file);
  }
  X509_free(certificate);
  EVP_PKEY_free(key);
  return out;
}

}  // namespace penstock::io::testing
