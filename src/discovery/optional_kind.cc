#include "discovery/optional_kind.h"

#include <fmt/format.h>

#include <algorithm>
#include <random>
#include <utility>
#include <vector>

#include "base/backoff.h"
#include "kubernetes/json.h"
#include "telemetry/log.h"

namespace penstock::discovery {

namespace {

using kubernetes::Failure;
using kubernetes::Json;
using kubernetes::Resource;

// For messages, before its plural is known too.
std::string called(const Resource& resource) {
  return resource.plural.empty() ? kubernetes::api_version(resource) + "/" + std::string(resource.kind)
                                 : kubernetes::full_name(resource);
}

bool has_verb(Json item, std::string_view verb) {
  bool found = false;
  item["verbs"].for_each_item([&](Json one) { found |= one.text() == verb; });
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

std::optional<Resource> OptionalKind::served(Json document, const Resource& resource, std::string& why) {
  std::optional<Resource> found;
  document["resources"].for_each_item([&](Json item) {
    const std::string_view name = item["name"].text();
    if (found || name.find('/') != std::string_view::npos) return;  // a subresource
    if (!resource.plural.empty()) {
      if (name == resource.plural) found = resource;
      return;
    }
    if (item["kind"].text() != resource.kind) return;
    if (!has_verb(item, "list") || !has_verb(item, "watch")) {
      why = fmt::format("{} can't be listed and watched", called(resource));
      return;
    }
    found = resource;
    found->namespaced = item["namespaced"].boolean();
    const auto known = std::find(names_.begin(), names_.end(), name);
    found->plural = known == names_.end() ? names_.emplace_back(name) : *known;
  });
  return found;
}

io::Task<Failure> OptionalKind::look(io::CancelToken token, std::optional<Resource>& found,
                                     std::string& why) {
  std::vector<Resource> candidates{options_.preferred};
  if (options_.legacy) candidates.push_back(*options_.legacy);
  for (const Resource& resource : candidates) {
    const kubernetes::Answer answer =
        co_await api_.get_path(kubernetes::discovery_path(resource.group, resource.version), token);
    if (!answer.ok() && answer.failure.reason != kubernetes::Reason::kNotFound) co_return answer.failure;
    kubernetes::JsonDocument document;
    const Result<Json> json = document.parse(answer.body);
    if (!answer.ok() || !json.ok()) continue;
    found = served(*json, resource, why);
    if (found) break;
  }
  co_return Failure();
}

io::Task<void> OptionalKind::run(io::CancelToken token) {
  io::Loop& loop = api_.loop();
  Backoff backoff(options_.retry_base, options_.retry_cap, std::random_device()());
  while (!token.cancelled()) {
    std::optional<Resource> found;
    std::string why;
    const Failure failure = co_await look(token, found, why);
    if (token.cancelled()) break;
    if (!failure.ok()) {
      const bool news = state_.trouble.empty() && !state_.looked;
      {
        const std::lock_guard lock(mutex_);
        state_.trouble = failure.message;
      }
      if (news) {
        telemetry::log_warn("it is not known whether the cluster has a resource",
                            {{"resource", called(options_.preferred)}, {"error", failure.message}});
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
      state_.trouble = found ? std::string() : why;
      state_.absent = !found;
      if (moved) state_.followed = found;
    }
    if (!found && first) {
      telemetry::log_warn(
          "the cluster does not have an optional resource; it is used when it comes",
          {{"resource", called(options_.preferred)}, {"why", why.empty() ? "not there" : why}});
    }
    if (moved) {
      if (options_.legacy && found == options_.legacy) {
        telemetry::log_warn("DEPRECATION: objects of a deprecated API group are used",
                            {{"resource", kubernetes::full_name(*options_.legacy)},
                             {"instead", kubernetes::full_name(options_.preferred)}});
      }
      follow_(*found);
    }
    if (first || moved) changed_();
    (void)co_await loop.sleep(options_.look_again, token);
  }
}

}  // namespace penstock::discovery
