#include "gateway/exchange.h"

#include "gateway/framing.h"

namespace penstock::gateway {

using io::BodyPiece;
using io::Task;

Task<void> Exchange::serve_service(ServiceState& service) {
  const io::RequestHead& head = http_.request();
  if (service.config.targets.empty()) {
    failure_ = Error{ErrorCode::kServiceUnavailable, "service " + service.config.name + " has no targets"};
    co_await fail("no_endpoints");
    co_return;
  }
  const io::HttpDestination& target =
      service.config
          .targets[service.next.fetch_add(1, std::memory_order_relaxed) % service.config.targets.size()];
  start_deadline(Duration::zero());
  const std::string host = io::join_host_port(target.host, target.port);
  RequestRules rules = rules_of_client();
  rules.to_engine = false;
  rules.drop_credentials = keys_ != nullptr;
  rules.host = host;
  state_.fields.clear();
  request_fields(head, rules, state_.scratch, state_.fields);

  io::HttpRequest message;
  message.method = head.method;
  message.target = head.target;
  message.fields = state_.fields;
  const std::optional<uint64_t> length = http_.content_length();
  const bool streams = !body_read_ && length != uint64_t{0};
  std::array<std::string_view, 1> whole{body_.view()};
  if (body_read_) {
    message.framing = io::BodyFraming::of_length(body_.size);
    if (body_.size != 0) message.body = whole;
  } else if (streams) {
    message.framing = length ? io::BodyFraming::of_length(*length) : io::BodyFraming::chunked();
    message.complete = false;
  } else if (head.method != "GET" && head.method != "HEAD") {
    message.framing = io::BodyFraming::of_length(0);
  }
  io::HttpCallOptions options;
  options.token = state_.cancel.token();
  ++attempts_;
  Result<io::HttpCall> started = co_await part_.service_client.start(target, message, options);
  if (!started.ok()) {
    failure_ = std::move(started).error();
    co_await fail_waiting("connect");
    co_return;
  }
  call_ = *std::move(started);
  bool sending = streams;
  while (sending) {
    Result<BodyPiece> piece = co_await http_.read();
    if (!piece.ok()) {
      failure_ = std::move(piece).error();
      co_await fail_waiting("request_body");
      co_return;
    }
    const std::array<std::string_view, 1> data{piece->data};
    const std::span<const std::string_view> pieces(data.data(), piece->data.empty() ? 0 : 1);
    Result<io::HttpCall::Sent> sent = io::HttpCall::Sent::kAll;
    if (piece->last) {
      sent = co_await call_.finish(pieces);
    } else {
      sent = co_await call_.write(pieces);
    }
    if (!sent.ok()) break;  // the answer may have been sent all the same
    sending = !piece->last && *sent != io::HttpCall::Sent::kAnswered;
  }
  Result<const io::ResponseHead*> answer = co_await call_.response();
  if (!answer.ok()) {
    failure_ = std::move(answer).error();
    co_await fail_waiting("service_error");
    co_return;
  }
  answer_ = *answer;
  co_await stream_service();
  state_.total_timer.disarm();
}

Task<void> Exchange::stream_service() {
  const io::ResponseHead& head = *answer_;
  const int status = head.status;
  state_.fields.clear();
  response_fields(head, {request_id_, {}, false}, state_.fields);
  Status wrote = http_.write_head(
      status, state_.fields, response_framing(http_.request().method, status, call_.content_length(), false));
  if (!wrote.ok()) {
    failure_ = std::move(wrote).error();
    co_await fail("service_error");
    co_return;
  }
  for (;;) {
    Result<BodyPiece> piece = co_await call_.read();
    if (!piece.ok()) {
      http_.abort();
      const Error error = std::move(piece).error();
      end(status, client_gone() ? gone_reason() : "service_error", client_gone() ? nullptr : &error);
      co_return;
    }
    const std::array<std::string_view, 1> data{piece->data};
    const std::span<const std::string_view> pieces(data.data(), piece->data.empty() ? 0 : 1);
    own_bytes_ += piece->data.size();
    if (piece->last) {
      wrote = co_await http_.finish(pieces, call_.trailers().all());
      call_.close();
      end(status, wrote.ok() ? "ok" : gone_reason(), nullptr);
      co_return;
    }
    wrote = co_await http_.write(pieces);
    if (!wrote.ok()) {
      http_.abort();
      end(status, gone_reason(), nullptr);
      co_return;
    }
  }
}

Task<void> Exchange::serve_pool_models() {
  ModelList merged;
  std::optional<Error> failure;
  bool any = false;
  for (size_t i = 0; i < part_.pools.size(); ++i) {
    if (!all_pools_ && i != backend_) continue;
    PoolPart& pool = *part_.pools[i];
    const director::Picture& picture = pool.director.picture();
    const std::shared_ptr<const UpstreamSettings> upstream = pool.upstream.current();
    std::vector<ModelsCache::Source> sources;
    for (const auto& endpoint : picture.pool->endpoints) {
      sources.push_back({pool.destination(*endpoint, upstream), upstream->authorization});
    }
    auto list = co_await pool.models.get(std::move(sources), picture.pool->epoch, core_.clock.now());
    if (list.ok()) {
      merged.merge(**list);
      any = true;
    } else {
      failure = std::move(list).error();
    }
  }
  if (!any) {
    failure_ =
        failure ? *std::move(failure) : Error{ErrorCode::kServiceUnavailable, "the gateway has no pools"};
    co_await fail_waiting("models");
    co_return;
  }
  constexpr std::string_view kList = "/v1/models";
  const std::string_view path = http_.request().path;
  if (path.size() > kList.size() + 1) {
    const std::string_view id = path.substr(kList.size() + 1);
    const std::string* entry = merged.find(id);
    if (entry == nullptr) {
      failure_ = Error{ErrorCode::kNotFound, "The model `" + std::string(id) + "` does not exist."};
      co_await fail("no_model");
      co_return;
    }
    co_await respond_json(200, *entry);
  } else {
    const std::string list = merged.to_json();
    co_await respond_json(200, list);
  }
}

}  // namespace penstock::gateway
