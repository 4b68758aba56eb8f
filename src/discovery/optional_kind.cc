#include "discovery/optional_kind.h"

#include <random>
#include <utility>

#include "base/backoff.h"
#include "kubernetes/json.h"
#include "telemetry/log.h"

namespace penstock::discovery {

namespace {

using kubernetes::Failure;
using kubernetes::Json;
using kubernetes::Resource;

// Whether a discovery document lists the resource.
bool lists(const std::string& body, const Resource& resource) {
  kubernetes::JsonDocument document;
  const Result<Json> json = document.parse(body);
  if (!json.ok()) return false;
  bool found = false;
  (*json)["resources"].for_each_item([&](Json item) { found |= item["name"].text() == resource.plural; });
  return found;
}

}  // namespace

OptionalKind::OptionalKind(kubernetes::ApiClient& api, Options options,
                           std::function<void(const Resource&)> follow, std::function<void()> changed)
    : api_(api), options_(std::move(options)), follow_(std::move(follow)), changed_(std::move(changed)) {}

void OptionalKind::follow_again() const {
  if (state_.followed) follow_(*state_.followed);
}

OptionalKind::State OptionalKind::state() const {
  const std::lock_guard lock(mutex_);
  return state_;
}

io::Task<Failure> OptionalKind::look(io::CancelToken token, std::optional<Resource>& found) {
  for (const Resource& resource : {options_.preferred, options_.legacy}) {
    const kubernetes::Answer answer =
        co_await api_.get_path(kubernetes::discovery_path(resource.group, resource.version), token);
    if (!answer.ok() && answer.failure.reason != kubernetes::Reason::kNotFound) co_return answer.failure;
    if (!answer.ok() || !lists(answer.body, resource)) continue;
    found = resource;
    break;
  }
  co_return Failure();
}

io::Task<void> OptionalKind::run(io::CancelToken token) {
  io::Loop& loop = api_.loop();
  Backoff backoff(options_.retry_base, options_.retry_cap, std::random_device()());
  while (!token.cancelled()) {
    std::optional<Resource> found;
    const Failure failure = co_await look(token, found);
    if (token.cancelled()) break;
    if (!failure.ok()) {
      const bool news = state_.trouble.empty() && !state_.looked;
      {
        const std::lock_guard lock(mutex_);
        state_.trouble = failure.message;
      }
      if (news) {
        telemetry::log_warn("it is not known whether the cluster has a resource",
                            {{"resource", options_.preferred.plural}, {"error", failure.message}});
      }
      (void)co_await loop.sleep(backoff.next(), token);
      continue;
    }
    backoff.reset();
    const bool first = !state_.looked;
    const bool moved = found && state_.followed != found;
    {
      const std::lock_guard lock(mutex_);
      state_.looked = true;
      state_.trouble.clear();
      state_.absent = !found;
      if (moved) state_.followed = found;
    }
    if (!found && first) {
      telemetry::log_warn("the cluster does not have an optional resource; it is used when it comes",
                          {{"resource", kubernetes::full_name(options_.preferred)}});
    }
    if (moved) {
      if (found == options_.legacy) {
        telemetry::log_warn("DEPRECATION: objects of a deprecated API group are used",
                            {{"resource", kubernetes::full_name(options_.legacy)},
                             {"instead", kubernetes::full_name(options_.preferred)}});
      }
      follow_(*found);
    }
    if (first || moved) changed_();
    (void)co_await loop.sleep(options_.look_again, token);
  }
}

}  // namespace penstock::discovery
