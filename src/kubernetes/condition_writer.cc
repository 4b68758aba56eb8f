#include "kubernetes/condition_writer.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/strings.h"
#include "kubernetes/timestamps.h"
#include "telemetry/log.h"

namespace penstock::kubernetes {

namespace {

constexpr std::string_view kManager = "penstock";
constexpr Duration kRefusedFor = std::chrono::minutes(10);
constexpr Duration kLookAgain = std::chrono::seconds(30);
constexpr size_t kMaxMessageBytes = 1000;  // of a condition 32,768 are allowed, of an event 1,024
constexpr size_t kMaxWarned = 10'000;

std::string cut(std::string_view message) {
  size_t size = std::min(message.size(), kMaxMessageBytes);
  // Not inside of a character: what the server makes of that would differ for ever.
  while (size > 0 && size < message.size() && (static_cast<unsigned char>(message[size]) & 0xC0U) == 0x80U)
    --size;
  return std::string(message.substr(0, size));
}

std::string object_key(const Resource& resource, std::string_view ns, std::string_view name) {
  return fmt::format("{} {}/{}", full_name(resource), ns, name);
}

Json accepted_condition(Json object) {
  Json found;
  object["status"]["conditions"].for_each_item([&](Json condition) {
    if (condition["type"].text() == "Accepted") found = condition;
  });
  return found;
}

}  // namespace

ObjectIdentity identity_of(Json object) {
  const Json metadata = object["metadata"];
  return {std::string(metadata["name"].text()), std::string(metadata["uid"].text()),
          std::string(metadata["resourceVersion"].text())};
}

ConditionWriter::ConditionWriter(ApiClient& api, std::function<bool()> may_write)
    : api_(api),
      may_write_(std::move(may_write)),
      work_(api.loop()),
      backoff_(std::chrono::milliseconds(500), std::chrono::seconds(30), 1) {}

void ConditionWriter::want(const Resource& resource, std::string_view ns, Json object,
                           const Acceptance& acceptance) {
  const std::string key = object_key(resource, ns, object["metadata"]["name"].text());
  const std::string_view status = acceptance.accepted ? "True" : "False";
  const std::string message = cut(acceptance.message);
  const Json metadata = object["metadata"];
  const int64_t generation = metadata["generation"].integer().value_or(0);
  const Json now = accepted_condition(object);
  const bool same_status = now["status"].text() == status;
  if (same_status && now["reason"].text() == acceptance.reason && now["message"].text() == message &&
      now["observedGeneration"].integer().value_or(0) == generation) {
    waiting_.erase(key);
    return;
  }
  if (waiting_.size() >= kMaxWaiting && !waiting_.contains(key)) return;
  const std::string since =
      same_status ? std::string(now["lastTransitionTime"].text()) : format_time(clock_.wall_now());
  Job job;
  job.resource = resource;
  job.ns = ns;
  job.name = metadata["name"].text();
  job.status = fmt::format(
      R"({{"apiVersion":{},"kind":{},"metadata":{{"name":{},"namespace":{}}},"status":{{"conditions":[{{)"
      R"("type":"Accepted","status":"{}","reason":{},"message":{},"observedGeneration":{},)"
      R"("lastTransitionTime":{}}}]}}}})",
      json_quote(api_version(resource)), json_quote(resource.kind), json_quote(job.name), json_quote(ns),
      status, json_quote(acceptance.reason), json_quote(message), generation, json_quote(since));
  if (!acceptance.accepted) {
    const auto former = waiting_.find(key);
    if (is_news(key, message)) {
      job.event = event_body(resource, ns, identity_of(object), acceptance.reason, message);
    } else if (former != waiting_.end()) {
      job.event = std::move(former->second.event);
    }
  }
  waiting_.insert_or_assign(key, std::move(job));
  work_.set();
}

void ConditionWriter::warn(const Resource& resource, std::string_view ns, const ObjectIdentity& object,
                           std::string_view reason, std::string_view message) {
  const std::string key = object_key(resource, ns, object.name);
  if (waiting_.size() >= kMaxWaiting || !is_news(key, message)) return;
  Job job;
  job.resource = resource;
  job.ns = ns;
  job.name = object.name;
  job.event = event_body(resource, ns, object, reason, cut(message));
  waiting_.insert_or_assign(key, std::move(job));
  work_.set();
}

bool ConditionWriter::is_news(const std::string& key, std::string_view message) {
  if (warned_.size() >= kMaxWarned) warned_.clear();
  std::string& last = warned_[key];
  if (last == message) return false;
  last = message;
  return true;
}

std::string ConditionWriter::event_body(const Resource& resource, std::string_view ns,
                                        const ObjectIdentity& object, std::string_view reason,
                                        std::string_view message) const {
  const std::string now = json_quote(format_time(clock_.wall_now()));
  return fmt::format(
      R"({{"apiVersion":"v1","kind":"Event","metadata":{{"generateName":{},"namespace":{}}},)"
      R"("involvedObject":{{"apiVersion":{},"kind":{},"name":{},"namespace":{},"uid":{},"resourceVersion":{}}},)"
      R"("type":"Warning","reason":{},"message":{},"count":1,"firstTimestamp":{},"lastTimestamp":{},)"
      R"("source":{{"component":"{}"}},"reportingComponent":"{}","reportingInstance":""}})",
      json_quote(object.name + "."), json_quote(ns), json_quote(api_version(resource)),
      json_quote(resource.kind), json_quote(object.name), json_quote(ns), json_quote(object.uid),
      json_quote(object.resource_version), json_quote(reason), json_quote(message), now, now, kManager,
      kManager);
}

bool ConditionWriter::took(const Failure& failure) {
  if (failure.ok() || failure.reason == Reason::kNotFound) return true;
  if (failure.message != told_) {
    told_ = failure.message;
    telemetry::log_warn("a condition or event can't be written", {{"error", failure.message}});
  }
  if (failure.reason == Reason::kForbidden) {
    refused_until_ = clock_.now() + kRefusedFor;
    return true;
  }
  return failure.reason == Reason::kInvalid;
}

io::Task<void> ConditionWriter::run(io::CancelToken token) {
  while (!token.cancelled()) {
    work_.reset();
    if (waiting_.empty() || !may_write_()) {
      (void)co_await work_.wait(kLookAgain, token);
      continue;
    }
    if (clock_.now() < refused_until_) {
      waiting_.clear();
      warned_.clear();
      continue;
    }
    auto first = waiting_.extract(waiting_.begin());
    Job& job = first.mapped();
    bool done = true;
    if (!job.status.empty()) {
      const Answer applied = co_await api_.patch(job.resource, job.ns, job.name, "status", PatchType::kApply,
                                                 job.status, std::string(kManager), true, token);
      done = took(applied.failure);
    }
    if (done && !job.event.empty() && clock_.now() >= refused_until_) {
      const Answer created = co_await api_.create_object(kEvents, job.ns, job.event, token);
      done = took(created.failure);
      if (!done) job.status.clear();
    }
    if (done) {
      backoff_.reset();
      continue;
    }
    // What was wanted meanwhile goes first.
    waiting_.insert(std::move(first));
    (void)co_await api_.loop().sleep(backoff_.next(), token);
  }
}

}  // namespace penstock::kubernetes
