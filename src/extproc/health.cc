#include "extproc/health.h"

#include <grpc/health/v1/health.pb.h>

#include <algorithm>
#include <optional>

namespace penstock::extproc {

namespace {

namespace pb = grpc::health::v1;
using io::GrpcCode;
using io::GrpcServerStream;
using io::GrpcStatus;
using io::Task;

pb::HealthCheckResponse message_of(ServingStatus status) {
  pb::HealthCheckResponse message;
  message.set_status(static_cast<pb::HealthCheckResponse::ServingStatus>(status));
  return message;
}

std::optional<std::string> service_of(std::string_view bytes) {
  pb::HealthCheckRequest request;
  if (!request.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) return std::nullopt;
  return std::move(*request.mutable_service());
}

GrpcStatus malformed() {
  return {GrpcCode::kInternal, "the request is no HealthCheckRequest"};
}

}  // namespace

// One Watch. `changed` belongs to the loop; the rest is reached from there and by posts to it.
struct Health::Watcher {
  explicit Watcher(io::Loop& loop) : home(loop.ref()), changed(loop) {}
  io::LoopRef home;
  io::Event changed;
};

Health::~Health() {
  end_watches();
}

HealthInputs Health::inputs() const {
  const std::lock_guard lock(mutex_);
  return inputs_;
}

void Health::set(const HealthInputs& inputs, std::map<std::string, HealthInputs> pools) {
  const std::lock_guard lock(mutex_);
  if (inputs_ == inputs && pools_ == pools) return;
  inputs_ = inputs;
  pools_ = std::move(pools);
  wake_all();
}

void Health::end_watches() {
  const std::lock_guard lock(mutex_);
  ended_ = true;
  wake_all();
}

void Health::wake_all() {
  for (const std::shared_ptr<Watcher>& watcher : watchers_)
    watcher->home.post([watcher] { watcher->changed.set(); });
}

size_t Health::watchers() const {
  const std::lock_guard lock(mutex_);
  return watchers_.size();
}

ServingStatus Health::status(std::string_view service) const {
  const std::lock_guard lock(mutex_);
  return status_locked(service);
}

ServingStatus Health::status_locked(std::string_view service) const {
  const bool whole = service.empty() || service == kExtProcService;
  if (kind_ == Kind::kStatic) return whole ? ServingStatus::kServing : ServingStatus::kUnknown;
  const auto of = [](bool ok) { return ok ? ServingStatus::kServing : ServingStatus::kNotServing; };
  const auto is_live = [](const HealthInputs& inputs) {
    return inputs.pool_known && inputs.protocol_ok && !inputs.draining;
  };
  const auto is_ready = [&](const HealthInputs& inputs) {
    return is_live(inputs) && inputs.plugins_ready && (!leader_election_ || inputs.leader);
  };
  if (service.find('/') != std::string_view::npos && many_) {
    const auto pool = pools_.find(std::string(service));
    return pool == pools_.end() ? ServingStatus::kUnknown : of(is_ready(pool->second));
  }
  const bool live = is_live(inputs_);
  const bool ready = is_ready(inputs_);
  if (whole || service == "readiness") return of(ready);
  if (!leader_election_) return of(live);
  return service == "liveness" ? ServingStatus::kServing : ServingStatus::kServiceUnknown;
}

std::vector<std::pair<std::string, ServingStatus>> Health::list() const {
  const std::lock_guard lock(mutex_);
  std::vector<std::string> names = {std::string(kExtProcService)};
  if (kind_ == Kind::kStatic) names.emplace_back();
  if (kind_ == Kind::kPicker && leader_election_) names.insert(names.end(), {"liveness", "readiness"});
  for (const auto& [name, inputs] : pools_) names.push_back(name);
  std::vector<std::pair<std::string, ServingStatus>> out;
  for (std::string& name : names) {
    const ServingStatus status = status_locked(name);
    out.emplace_back(std::move(name), status);
  }
  return out;
}

void Health::serve_on(io::GrpcRouter& router) {
  router.add_unary(
      "/grpc.health.v1.Health/Check",
      [this](GrpcServerStream&, std::string_view request, std::string& response) -> Task<GrpcStatus> {
        const std::optional<std::string> service = service_of(request);
        if (!service) co_return malformed();
        const ServingStatus found = status(*service);
        if (found == ServingStatus::kUnknown) co_return GrpcStatus(GrpcCode::kNotFound, "unknown service");
        response = message_of(found).SerializeAsString();
        co_return GrpcStatus();
      });
  router.add_unary("/grpc.health.v1.Health/List",
                   [this](GrpcServerStream&, std::string_view, std::string& response) -> Task<GrpcStatus> {
                     pb::HealthListResponse message;
                     for (const auto& [name, found] : list())
                       (*message.mutable_statuses())[name] = message_of(found);
                     response = message.SerializeAsString();
                     co_return GrpcStatus();
                   });
  router.add("/grpc.health.v1.Health/Watch", [this](GrpcServerStream& stream) { return watch(stream); });
}

Task<GrpcStatus> Health::watch(GrpcServerStream& stream) {
  GrpcServerStream::Read request = co_await stream.read_message();
  if (!request.ok()) co_return io::grpc_status_of(request.error());
  const std::optional<std::string> service =
      request->has_value() ? service_of(**request) : std::optional<std::string>();
  if (!service) co_return malformed();

  // Registered as long as this coroutine lives, however it ends.
  struct Registration {
    explicit Registration(Health& h, std::shared_ptr<Watcher> w) : health(h), watcher(std::move(w)) {
      const std::lock_guard lock(health.mutex_);
      taken = health.watchers_.size() < kMaxWatchers;
      if (taken) health.watchers_.push_back(watcher);
    }
    Registration(const Registration&) = delete;
    Registration& operator=(const Registration&) = delete;
    ~Registration() {
      const std::lock_guard lock(health.mutex_);
      std::erase(health.watchers_, watcher);
    }
    Health& health;
    std::shared_ptr<Watcher> watcher;
    bool taken = false;
  };
  const auto watcher = std::make_shared<Watcher>(stream.loop());
  const Registration registration(*this, watcher);
  if (!registration.taken) co_return GrpcStatus(GrpcCode::kResourceExhausted, "too many watchers");

  const io::CancelToken gone = stream.cancel_token();
  std::optional<ServingStatus> told;
  for (;;) {
    // Before looking: what changes after the look wakes the wait.
    watcher->changed.reset();
    bool ended = false;
    ServingStatus now = ServingStatus::kUnknown;
    {
      const std::lock_guard lock(mutex_);
      now = status_locked(*service);
      ended = ended_;
    }
    if (now == ServingStatus::kUnknown) now = ServingStatus::kServiceUnknown;
    if (told != now) {
      const std::string bytes = message_of(now).SerializeAsString();
      const std::string_view piece = bytes;
      const Status written = co_await stream.write_message(io::GrpcPieces(&piece, 1));
      if (!written.ok()) co_return io::grpc_status_of(written.error());
      told = now;
    }
    if (ended) co_return GrpcStatus(GrpcCode::kUnavailable, "the health service ends");
    const Status changed = co_await watcher->changed.wait(Duration::zero(), gone);
    if (!changed.ok()) co_return GrpcStatus(GrpcCode::kCancelled, "the watcher has gone");
  }
}

}  // namespace penstock::extproc
