#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "io/http_server.h"
#include "io/loop.h"

namespace penstock::admin {

// A request of `/debug/explain` as the decision needs it. Views live during the call.
struct ExplainRequest {
  std::string_view method;
  std::string_view path;  // of the request to be explained
  std::string_view host;
  std::span<const io::HeaderField> headers;
  std::span<const char> body;  // io::kBodyPadding readable bytes follow
};

// Where the pages come from. Each function is called on the admin's loop (`metrics` and `rollback` on a
// thread for blocking work), must not block for long, and outlives the server.
struct AdminPages {
  std::function<std::string()> metrics;                // Prometheus text
  std::function<bool()> ready;                         // false while starting or draining
  std::function<std::string()> readiness;              // JSON that says why not
  std::function<std::string(size_t limit)> decisions;  // JSON list, newest first
  std::function<std::optional<std::string>(std::string_view request_id)> decision;
  std::function<Result<std::string>(const ExplainRequest&)> explain;  // JSON
  std::function<std::string()> plugin_states;                         // JSON
  std::function<std::string()> endpoints;                             // JSON: states and health
  std::function<std::string()> configuration;                         // effective configurations, text
  std::function<std::string()> shared_state;                          // JSON: other replicas
  // "": the only pool. JSON that says the new epoch. On a thread for blocking work.
  std::function<Result<std::string>(std::string_view pool)> rollback;
  // Whether the caller may, by its Authorization header: 0, or the status of the refusal. Asked for all but
  // /healthz and /readyz; null: everybody may.
  std::function<io::Task<int>(io::HttpExchange& exchange)> refuse;
};

// Whether a peer may change the process: reading pages may be open to a network.
bool on_this_machine(const io::SocketAddress& peer);

// The operator's door: /metrics, /healthz, /readyz, /debug/*. On an address of its own; nothing
// on it shows prompt text. It runs on one loop; its requests never touch the data plane's loops.
class AdminServer {
 public:
  AdminServer(io::Loop& loop, AdminPages pages);
  ~AdminServer();

  // `tls`: null for plain HTTP.
  Result<io::SocketAddress> listen(const io::SocketAddress& address,
                                   std::shared_ptr<io::TlsServerContext> tls = nullptr);
  void stop();

 private:
  std::unique_ptr<io::HttpServer> server_;
};

}  // namespace penstock::admin
