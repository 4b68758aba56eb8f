#include "assembly/outside_http.h"

#include <algorithm>
#include <array>
#include <cassert>
#include <utility>

#include "io/http_client.h"

namespace penstock::assembly {

namespace {

io::Task<void> run_post(io::Loop& loop, io::HttpClient& client, std::shared_ptr<io::TlsClientContext> tls,
                        std::string url, std::string body, Duration deadline, size_t limit,
                        Outside::Done done) {
  co_await loop.yield();
  Outside::Answer answer;
  const Result<io::HttpUrl> where = io::parse_url(url);
  if (!where.ok()) {
    answer.error = where.error().message;
    done(std::move(answer));
    co_return;
  }
  io::HttpDestination destination(where->host, where->port);
  if (where->https) destination.tls = std::move(tls);
  const std::array<io::HeaderField, 1> fields{io::HeaderField{"content-type", "application/json"}};
  const std::array<std::string_view, 1> pieces{body};
  io::HttpRequest request;
  request.method = "POST";
  request.target = where->target;
  request.fields = fields;
  request.framing = io::BodyFraming::of_length(body.size());
  request.body = pieces;
  io::HttpCallOptions options;
  const io::CancelToken end = loop.shutdown_token();
  if (end.cancelled()) {
    deadline = std::min(deadline, OutsideHttp::kLastCalls);
  } else {
    options.token = end;
  }
  options.connect_timeout = deadline;
  auto fetched = co_await client.fetch(destination, request, options, deadline, limit);
  if (fetched.ok()) {
    answer.status = fetched->status;
    answer.body = std::move(fetched->body);
  } else {
    const ErrorCode code = fetched.error().code;
    answer.late = code == ErrorCode::kGatewayTimeout || code == ErrorCode::kRequestTimeout;
    answer.error = fetched.error().message;
  }
  done(std::move(answer));
}

io::Task<void> run_after(io::Loop& loop, Duration pause, std::function<void()> then) {
  (void)co_await loop.sleep(pause, loop.shutdown_token());
  then();
}

io::Loop& current() {
  io::Loop* loop = io::Loop::current();
  assert(loop != nullptr);
  return *loop;
}

}  // namespace

OutsideHttp::OutsideHttp(io::LoopGroup& loops) : clients_(loops.size()) {}

OutsideHttp::~OutsideHttp() = default;

io::HttpClient& OutsideHttp::client() {
  io::Loop& loop = current();
  std::unique_ptr<io::HttpClient>& client = clients_[loop.index()];
  if (client == nullptr) {
    io::HttpClientOptions options;
    options.max_connections_per_destination = kConnections;
    client = std::make_unique<io::HttpClient>(loop, options);
  }
  return *client;
}

Status OutsideHttp::prepare(const std::string& url) {
  const Result<io::HttpUrl> where = io::parse_url(url);
  if (!where.ok()) return where.error();
  if (!where->https) return {};
  const std::lock_guard lock(tls_mutex_);
  if (tls_ != nullptr) return {};
  auto made = io::TlsClientContext::create({});
  if (!made.ok()) return std::move(made).error();
  tls_ = *std::move(made);
  return {};
}

void OutsideHttp::post(std::string url, std::string body, Duration deadline, size_t limit, Done done) {
  io::Loop& loop = current();
  std::shared_ptr<io::TlsClientContext> tls;
  if (url.starts_with("https")) {
    const std::lock_guard lock(tls_mutex_);
    tls = tls_;
  }
  io::spawn(loop, run_post(loop, client(), std::move(tls), std::move(url), std::move(body), deadline, limit,
                           std::move(done)));
}

void OutsideHttp::after(Duration pause, std::function<void()> then) {
  io::Loop& loop = current();
  io::spawn(loop, run_after(loop, pause, std::move(then)));
}

size_t OutsideHttp::loop() const {
  return current().index();
}

}  // namespace penstock::assembly
