#include "kubernetes/api_client.h"

#include <fmt/format.h>

#include <array>
#include <optional>
#include <utility>
#include <vector>

#include "base/strings.h"

namespace penstock::kubernetes {

namespace {

constexpr int kConflictAttempts = 5;
constexpr std::string_view kJson = "application/json";
constexpr std::string_view kMetadataList = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1";

Failure transport_failure(const Error& error) {
  Failure out;
  out.reason = error.code == ErrorCode::kCancelled      ? Reason::kCancelled
               : error.code == ErrorCode::kUnauthorized ? Reason::kUnauthorized  // we have no credentials
                                                        : Reason::kUnreachable;
  out.message = error.message;
  return out;
}

std::string_view content_type_of(PatchType type) {
  switch (type) {
    case PatchType::kMerge:
      return "application/merge-patch+json";
    case PatchType::kJson:
      return "application/json-patch+json";
    case PatchType::kApply:
      return "application/apply-patch+yaml";  // JSON is YAML
  }
  return kJson;
}

}  // namespace

// One call as it is made, and for messages.
struct ApiClient::Call {
  Call(std::string_view m, std::string_view v, std::string t) : method(m), verb(v), target(std::move(t)) {}

  std::string_view method;
  std::string_view verb;  // of RBAC; "" not about a resource
  std::string target;
  std::optional<Resource> resource;
  std::string ns;
  std::string name;
  std::string subresource;
  std::string_view accept = kJson;
  std::string_view content_type = kJson;
  std::string body;
  io::CancelToken token;
};

ApiClient::ApiClient(io::Loop& loop, ClusterConfig config, telemetry::MetricRegistry& metrics,
                     ApiClientOptions options)
    : loop_(loop),
      config_(std::move(config)),
      options_(std::move(options)),
      http_(loop),
      requests_(metrics.counter({.name = "penstock_kubernetes_requests_total",
                                 .help = "Calls of the Kubernetes API that have ended, by what came of them.",
                                 .labels = {"verb", "resource", "result"}})) {}

ApiClient::~ApiClient() = default;

Result<std::unique_ptr<ApiClient>> ApiClient::create(io::Loop& loop, ClusterConfig config,
                                                     telemetry::MetricRegistry& metrics,
                                                     ApiClientOptions options) {
  auto credentials = Credentials::create(loop, config);
  if (!credentials.ok()) return std::move(credentials).error();
  std::unique_ptr<ApiClient> out(new ApiClient(loop, std::move(config), metrics, std::move(options)));
  out->credentials_ = *std::move(credentials);
  return out;
}

io::HttpDestination ApiClient::destination() const {
  return {config_.host, config_.port, credentials_->tls(), config_.server_name};
}

Failure ApiClient::described(Failure failure, const Call& call) const {
  std::string what(call.verb);
  if (call.resource) {
    what += " " + full_name(*call.resource);
    if (!call.subresource.empty()) what += "/" + call.subresource;
    if (!call.name.empty()) what += fmt::format(" \"{}\"", call.name);
    if (!call.ns.empty()) what += fmt::format(" in namespace \"{}\"", call.ns);
  } else {
    what += " " + call.target;
  }
  failure.message = fmt::format("{}: {}: {}", reason_name(failure.reason), what, failure.message);
  return failure;
}

void ApiClient::count(const Call& call, const Failure& failure) {
  const std::string_view resource = call.resource ? call.resource->plural : std::string_view("discovery");
  requests_.with({call.verb, resource, failure.ok() ? std::string_view("ok") : reason_name(failure.reason)})
      .add();
}

io::Task<Answer> ApiClient::exchange(Call call) {
  Answer answer = co_await exchange_once(call);
  if (answer.failure.reason == Reason::kUnauthorized) {
    // The token may have been replaced since it was read.
    credentials_->refused();
    answer = co_await exchange_once(call);
  }
  if (answer.failure.reason == Reason::kUnreachable) co_await credentials_->reload_certificates(call.token);
  count(call, answer.failure);
  if (!answer.ok()) answer.failure = described(std::move(answer.failure), call);
  co_return answer;
}

namespace {

std::vector<io::HeaderField> fields_of(std::string_view accept, std::string_view authorization,
                                       std::string_view user_agent, std::string_view content_type) {
  std::vector<io::HeaderField> fields = {{"accept", accept}, {"user-agent", user_agent}};
  if (!authorization.empty()) fields.push_back({"authorization", authorization});
  if (!content_type.empty()) fields.push_back({"content-type", content_type});
  return fields;
}

}  // namespace

io::Task<Answer> ApiClient::exchange_once(const Call& call) {
  Answer answer;
  const Result<std::string> authorization = co_await credentials_->authorization(call.token);
  if (!authorization.ok()) {
    answer.failure = transport_failure(authorization.error());
    co_return answer;
  }
  const bool has_body = !call.body.empty();
  const std::vector<io::HeaderField> fields =
      fields_of(call.accept, *authorization, options_.user_agent, has_body ? call.content_type : "");
  const std::string_view body = call.body;
  io::HttpRequest request;
  request.method = call.method;
  request.target = call.target;
  request.fields = fields;
  if (has_body) {
    request.framing = io::BodyFraming::of_length(body.size());
    request.body = {&body, 1};
  }
  io::HttpCallOptions call_options;
  call_options.connect_timeout = options_.connect_timeout;
  call_options.first_byte_timeout = options_.request_timeout;
  call_options.idle_timeout = options_.request_timeout;
  call_options.token = call.token;
  const io::HttpDestination to = destination();
  auto fetched =
      co_await http_.fetch(to, request, call_options, options_.request_timeout, options_.max_body_bytes);
  if (!fetched.ok()) {
    answer.failure = transport_failure(fetched.error());
    co_return answer;
  }
  answer.body = std::move(fetched->body);
  if (fetched->status < 200 || fetched->status > 299) {
    answer.failure = failure_of_body(answer.body, fetched->status);
    answer.body.clear();
  }
  co_return answer;
}

io::Task<Answer> ApiClient::get(Resource resource, std::string ns, std::string name, io::CancelToken token) {
  Call call("GET", "get", config_.path_prefix + object_path(resource, ns, name));
  call.resource = resource;
  call.ns = std::move(ns);
  call.name = std::move(name);
  call.token = std::move(token);
  co_return co_await exchange(std::move(call));
}

io::Task<Answer> ApiClient::get_path(std::string path, io::CancelToken token) {
  Call call("GET", "get", config_.path_prefix + path);
  call.token = std::move(token);
  co_return co_await exchange(std::move(call));
}

io::Task<Answer> ApiClient::list(Resource resource, std::string ns, const ListQuery& query,
                                 io::CancelToken token) {
  Call call("GET", "list", config_.path_prefix + collection_path(resource, ns));
  const auto add = [&](std::string_view key, const std::string& value) {
    if (!value.empty()) add_query(call.target, key, value);
  };
  add("labelSelector", query.label_selector);
  add("fieldSelector", query.field_selector);
  add("continue", query.continue_token);
  // A token stands for a version already.
  if (query.continue_token.empty()) {
    add("resourceVersion", query.resource_version);
    add("resourceVersionMatch", query.match);
  }
  if (query.limit > 0) add("limit", std::to_string(query.limit));
  if (query.metadata_only) call.accept = kMetadataList;
  call.resource = resource;
  call.ns = std::move(ns);
  call.token = std::move(token);
  co_return co_await exchange(std::move(call));
}

io::Task<Failure> ApiClient::watch(Resource resource, std::string ns, const WatchQuery& query,
                                   WatchListener& listener, io::CancelToken token) {
  Call call("GET", "watch", config_.path_prefix + collection_path(resource, ns));
  const auto add = [&](std::string_view key, const std::string& value) {
    if (!value.empty()) add_query(call.target, key, value);
  };
  add("watch", "1");
  add("allowWatchBookmarks", "true");
  add("labelSelector", query.label_selector);
  add("fieldSelector", query.field_selector);
  add("resourceVersion", query.resource_version);
  if (query.send_initial_events) {
    add("sendInitialEvents", "true");
    add("resourceVersionMatch", "NotOlderThan");
  }
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(query.server_timeout).count();
  add("timeoutSeconds", std::to_string(std::max<int64_t>(seconds, 1)));
  call.resource = resource;
  call.ns = std::move(ns);
  call.token = std::move(token);
  Failure end = co_await watch_once(call, query, listener);
  if (end.reason == Reason::kUnauthorized) {
    credentials_->refused();
    end = co_await watch_once(call, query, listener);
  }
  if (end.reason == Reason::kUnreachable) co_await credentials_->reload_certificates(call.token);
  count(call, end);
  if (!end.ok()) end = described(std::move(end), call);
  co_return end;
}

io::Task<Failure> ApiClient::watch_once(const Call& call, const WatchQuery& query, WatchListener& listener) {
  const Result<std::string> authorization = co_await credentials_->authorization(call.token);
  if (!authorization.ok()) co_return transport_failure(authorization.error());
  const std::vector<io::HeaderField> fields = fields_of(call.accept, *authorization, options_.user_agent, "");
  io::HttpRequest request;
  request.target = call.target;
  request.fields = fields;
  io::HttpCallOptions call_options;
  call_options.connect_timeout = options_.connect_timeout;
  call_options.first_byte_timeout = options_.request_timeout;
  call_options.idle_timeout = query.silence;
  call_options.fresh_connection = true;  // it is held for minutes: no reason to risk one that is stale
  call_options.token = call.token;
  const io::HttpDestination to = destination();
  auto started = co_await http_.start(to, request, call_options);
  if (!started.ok()) co_return transport_failure(started.error());
  io::HttpCall& http = *started;
  const auto head = co_await http.response();
  if (!head.ok()) co_return transport_failure(head.error());
  const int status = (*head)->status;
  if (status < 200 || status > 299) {
    const auto body = co_await http.read_all(options_.max_body_bytes);
    if (!body.ok()) co_return transport_failure(body.error());
    co_return failure_of_body({body->data(), body->size()}, status);
  }
  listener.on_heard();
  WatchDecoder decoder(options_.max_event_bytes);
  for (;;) {
    auto piece = co_await http.read();
    if (!piece.ok()) {
      Failure failure = transport_failure(piece.error());
      if (piece.error().code == ErrorCode::kGatewayTimeout) {
        failure.reason = Reason::kTimeout;
        failure.message = fmt::format("the watch was silent for {} s", to_seconds(query.silence));
      }
      co_return failure;
    }
    listener.on_heard();
    decoder.feed(piece->data);
    if (piece->last) decoder.feed("\n");
    bool wanted = true;
    while (wanted) {
      const std::optional<WatchEvent> event = decoder.next();
      if (!event) break;
      wanted = listener.on_event(*event);
    }
    listener.on_batch_end();
    if (!decoder.failure().ok()) co_return decoder.failure();
    if (!wanted || piece->last) co_return Failure();
  }
}

io::Task<Answer> ApiClient::create_object(Resource resource, std::string ns, std::string body,
                                          io::CancelToken token) {
  Call call("POST", "create", config_.path_prefix + collection_path(resource, ns));
  call.resource = resource;
  call.ns = std::move(ns);
  call.body = std::move(body);
  call.token = std::move(token);
  co_return co_await exchange(std::move(call));
}

io::Task<Answer> ApiClient::replace(Resource resource, std::string ns, std::string name,
                                    std::string subresource, std::string body, io::CancelToken token) {
  Call call("PUT", "update", config_.path_prefix + object_path(resource, ns, name, subresource));
  call.resource = resource;
  call.ns = std::move(ns);
  call.name = std::move(name);
  call.subresource = std::move(subresource);
  call.body = std::move(body);
  call.token = std::move(token);
  co_return co_await exchange(std::move(call));
}

io::Task<Answer> ApiClient::patch(Resource resource, std::string ns, std::string name,
                                  std::string subresource, PatchType type, std::string body,
                                  std::string field_manager, bool force, io::CancelToken token) {
  Call call("PATCH", "patch", config_.path_prefix + object_path(resource, ns, name, subresource));
  if (type == PatchType::kApply) {
    add_query(call.target, "fieldManager", field_manager.empty() ? "penstock" : field_manager);
    if (force) add_query(call.target, "force", "true");
  }
  call.content_type = content_type_of(type);
  call.resource = resource;
  call.ns = std::move(ns);
  call.name = std::move(name);
  call.subresource = std::move(subresource);
  call.body = std::move(body);
  call.token = std::move(token);
  co_return co_await exchange(std::move(call));
}

io::Task<Answer> ApiClient::remove(Resource resource, std::string ns, std::string name,
                                   io::CancelToken token) {
  Call call("DELETE", "delete", config_.path_prefix + object_path(resource, ns, name));
  call.resource = resource;
  call.ns = std::move(ns);
  call.name = std::move(name);
  call.token = std::move(token);
  co_return co_await exchange(std::move(call));
}

io::Task<Answer> ApiClient::update(Resource resource, std::string ns, std::string name,
                                   std::string subresource, Change change, io::CancelToken token) {
  Answer answer;
  for (int attempt = 0; attempt < kConflictAttempts; ++attempt) {
    answer = co_await get(resource, ns, name, token);
    if (!answer.ok()) co_return answer;
    JsonDocument document;
    const Result<Json> object = document.parse(answer.body);
    if (!object.ok()) {
      answer.failure.reason = Reason::kMalformed;
      answer.failure.message = object.error().message;
      co_return answer;
    }
    Result<std::string> changed = change(*object);
    if (!changed.ok()) {
      answer.failure.reason = Reason::kInvalid;
      answer.failure.message = changed.error().message;
      co_return answer;
    }
    if (changed->empty()) co_return answer;
    answer = co_await replace(resource, ns, name, subresource, *std::move(changed), token);
    if (answer.failure.reason != Reason::kConflict) co_return answer;
  }
  co_return answer;
}

}  // namespace penstock::kubernetes
