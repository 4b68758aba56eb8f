#include "admin/admin_server.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "base/escapes.h"
#include "base/strings.h"

namespace penstock::admin {

namespace {

constexpr std::string_view kJson = "application/json";
constexpr std::string_view kText = "text/plain; charset=utf-8";
constexpr std::string_view kExposition = "text/plain; version=0.0.4; charset=utf-8";
constexpr size_t kExplainBodyLimit = 64 << 20;
constexpr size_t kDefaultDecisions = 50;

// What "/" and unknown paths show.
constexpr std::string_view kIndex =
    "penstock admin\n"
    "  GET  /metrics                     Prometheus text\n"
    "  GET  /healthz                     the process answers\n"
    "  GET  /readyz                      requests would be served\n"
    "  GET  /debug/decisions[?limit=N]   the last decisions, newest first\n"
    "  GET  /debug/decisions/<id>        one decision by request id\n"
    "  POST /debug/explain?path=<path>   where the body would go, without sending it\n"
    "  GET  /debug/plugins/state         state of the plugins\n"
    "  GET  /debug/endpoints             state and health of each endpoint\n"
    "  GET  /debug/shared-state          the store of shared state and the other replicas\n"
    "  GET  /debug/config                effective configuration of each pool\n"
    "  POST /debug/rollback[?pool=NAME]  back to the pool's former configuration; from this machine only\n";

struct Page {
  int status = 200;
  std::string_view content_type = kJson;
  std::string body;
};

// The value of one query parameter, percent-decoded.
std::optional<std::string> query_value(std::string_view query, std::string_view name) {
  for (const std::string_view part : split(query, '&')) {
    const size_t equals = part.find('=');
    if (part.substr(0, equals) != name) continue;
    std::string value(equals == std::string_view::npos ? std::string_view() : part.substr(equals + 1));
    std::replace(value.begin(), value.end(), '+', ' ');
    return percent_decode(value);
  }
  return std::nullopt;
}

Page error_page(int status, std::string_view message) {
  return {status, kJson, fmt::format("{{\"error\":{{\"message\":{}}}}}\n", json_quote(message))};
}

Page get_page(const AdminPages& pages, const io::RequestHead& request) {
  const std::string_view path = request.path;
  if (path == "/healthz") return {200, kText, "ok\n"};
  if (path == "/readyz") return {pages.ready() ? 200 : 503, kJson, pages.readiness()};
  if (path == "/debug/decisions") {
    size_t limit = kDefaultDecisions;
    if (const auto text = query_value(request.query, "limit")) {
      const auto number = parse_u64(*text);
      if (!number) return error_page(400, fmt::format("limit: '{}' is no number", *text));
      limit = *number;
    }
    return {200, kJson, pages.decisions(limit)};
  }
  if (path.starts_with("/debug/decisions/")) {
    const std::string_view id = path.substr(std::string_view("/debug/decisions/").size());
    auto decision = pages.decision(id);
    if (!decision) return error_page(404, fmt::format("no decision about request '{}' is kept", id));
    return {200, kJson, std::move(*decision)};
  }
  if (path == "/debug/plugins/state") return {200, kJson, pages.plugin_states()};
  if (path == "/debug/endpoints") return {200, kJson, pages.endpoints()};
  if (path == "/debug/shared-state") return {200, kJson, pages.shared_state()};
  if (path == "/debug/config") return {200, kText, pages.configuration()};
  if (path == "/") return {200, kText, std::string(kIndex)};
  return {404, kText, std::string(kIndex)};
}

int status_of(const Error& error) {
  switch (error.code) {
    case ErrorCode::kBadRequest:
      return 400;
    case ErrorCode::kNotFound:
      return 404;
    case ErrorCode::kPayloadTooLarge:
      return 413;
    case ErrorCode::kNotImplemented:
      return 501;
    case ErrorCode::kServiceUnavailable:
      return 503;
    default:
      return 500;
  }
}

// What runs on a thread for blocking work is waited for though the client may leave: it reads `pages`, which
// may be taken apart once stop() has seen the exchanges end.
io::Task<void> answer(const AdminPages& pages, io::HttpExchange& exchange) {
  const io::RequestHead& request = exchange.request();
  if (pages.refuse && request.path != "/healthz" && request.path != "/readyz") {
    if (const int status = co_await pages.refuse(exchange); status != 0) {
      const std::array<io::HeaderField, 1> scheme{{{"www-authenticate", "Bearer"}}};
      const std::span<const io::HeaderField> fields(scheme.data(), status == 401 ? 1 : 0);
      const std::string body = fmt::format("{}\n", io::reason_phrase(status));
      (void)co_await exchange.respond(status, kText, body, fields);
      co_return;
    }
  }
  if (request.path == "/debug/explain") {
    if (request.method != "POST") {
      const std::array<io::HeaderField, 1> allow{{{"allow", "POST"}}};
      (void)co_await exchange.respond(405, kText, "POST the body to be explained\n", allow);
      co_return;
    }
    auto body = co_await exchange.read_all(kExplainBodyLimit);
    if (!body.ok()) {
      const Page page = error_page(status_of(body.error()), body.error().message);
      (void)co_await exchange.respond(page.status, page.content_type, page.body);
      co_return;
    }
    const std::string path = query_value(request.query, "path").value_or("/v1/chat/completions");
    ExplainRequest explain{"POST", path, request.authority, request.fields.all(), *body};
    Result<std::string> result = pages.explain(explain);
    const Page page = result.ok() ? Page{200, kJson, *result}
                                  : error_page(status_of(result.error()), result.error().message);
    (void)co_await exchange.respond(page.status, page.content_type, page.body);
    co_return;
  }
  if (request.path == "/debug/rollback") {
    Page page;
    if (request.method != "POST") {
      page = error_page(405, "POST /debug/rollback changes the configuration in force");
    } else if (!on_this_machine(exchange.connection().peer)) {
      page = error_page(403, "a rollback is taken from this machine only");
    } else if (request.fields.find("origin")) {
      // A page in the operator's browser may send what any site likes, from this machine.
      page = error_page(403, "a rollback is not taken from a browser");
    } else {
      const auto roll = [&pages, pool = query_value(request.query, "pool").value_or("")] {
        return pages.rollback(pool);
      };
      auto done = co_await io::run_blocking(exchange.loop(), roll);
      if (!done.ok()) {
        page = error_page(503, done.error().message);
      } else if (!done->ok()) {
        page = error_page(status_of(done->error()), done->error().message);
      } else {
        page.body = std::move(**done);
      }
    }
    (void)co_await exchange.respond(page.status, page.content_type, page.body);
    co_return;
  }
  if (request.method != "GET" && request.method != "HEAD") {
    const std::array<io::HeaderField, 1> allow{{{"allow", "GET"}}};
    (void)co_await exchange.respond(405, kText, "method not allowed\n", allow);
    co_return;
  }
  if (request.path == "/metrics") {
    // A large page takes a while: health checks don't wait for it.
    const auto render = [&pages] { return pages.metrics(); };
    auto text = co_await io::run_blocking(exchange.loop(), render);
    if (text.ok()) {
      (void)co_await exchange.respond(200, kExposition, *text);
    } else {
      (void)co_await exchange.respond(503, kText, text.error().message);
    }
    co_return;
  }
  const Page page = get_page(pages, request);
  (void)co_await exchange.respond(page.status, page.content_type, page.body);
}

io::HttpServerOptions server_options() {
  io::HttpServerOptions options;
  options.max_connections = 256;
  options.max_body_bytes = kExplainBodyLimit;
  return options;
}

}  // namespace

bool on_this_machine(const io::SocketAddress& peer) {
  const std::string ip = peer.ip();
  return ip == "::1" || ip.starts_with("127.") || ip.starts_with("::ffff:127.");
}

AdminServer::AdminServer(io::Loop& loop, AdminPages pages) {
  auto shared = std::make_shared<const AdminPages>(std::move(pages));
  server_ = std::make_unique<io::HttpServer>(
      loop, server_options(),
      io::HttpServer::handler_of([shared](io::HttpExchange& exchange) { return answer(*shared, exchange); }));
}

AdminServer::~AdminServer() = default;

Result<io::SocketAddress> AdminServer::listen(const io::SocketAddress& address,
                                              std::shared_ptr<io::TlsServerContext> tls) {
  return server_->listen(address, std::move(tls), "admin");
}

void AdminServer::stop() {
  server_->stop();
}

}  // namespace penstock::admin
