#include "kubernetes/reflector.h"

#include <fmt/format.h>

#include <algorithm>
#include <unordered_map>
#include <utility>
#include <vector>

#include "telemetry/log.h"

namespace penstock::kubernetes {

namespace {

constexpr size_t kMaxPages = 100'000;
constexpr int64_t kMetadataPage = 500;
// Of objects that a check suspects: more of them are one relist anyway.
constexpr size_t kMaxSuspects = 1000;

std::string key_of(Json metadata, bool one_namespace) {
  const std::string_view name = metadata["name"].text();
  if (one_namespace) return std::string(name);
  return fmt::format("{}/{}", metadata["namespace"].text(), name);
}

}  // namespace

Reflector::Reflector(ApiClient& api, ReflectorOptions options, ObjectSink& sink, Metrics& metrics)
    : api_(api),
      options_(std::move(options)),
      sink_(sink),
      metrics_(metrics),
      label_(options_.resource.plural),
      backoff_(options_.retry_base, options_.retry_cap, options_.seed),
      random_(options_.seed + 1),
      initial_timer_(api.loop()),
      steady_timer_(api.loop()),
      streaming_(options_.streaming) {
  metrics_.synced.with({label_}).set(0);
}

ReflectorState Reflector::state() const {
  const std::lock_guard lock(mutex_);
  return state_;
}

io::Task<void> Reflector::run(io::CancelToken token) {
  io::CancelSource checks;
  checks.follow(token);
  struct Ended {
    io::CancelSource& checks;
    bool checking = false;
    ~Ended() { checks.cancel(); }
  };
  Ended ended{checks};
  io::Event check_ended(api_.loop());
  if (options_.check_interval > Duration::zero()) {
    const auto checking = [](Reflector& self, io::CancelToken until, io::Event& over) -> io::Task<void> {
      co_await self.check(until);
      over.set();
    };
    io::spawn(api_.loop(), checking(*this, checks.token(), check_ended));
    ended.checking = true;
  }
  while (!token.cancelled()) {
    good_since_ = kNever;
    Failure end;
    if (version_.empty() && !streaming_) {
      end = co_await list(token);
      if (end.ok()) continue;
    } else {
      end = co_await watch(token);
    }
    if (token.cancelled()) break;
    const Duration wait = after(end);
    if (wait > Duration::zero()) (void)co_await api_.loop().sleep(wait, token);
  }
  checks.cancel();
  if (ended.checking) (void)co_await check_ended.wait();
}

io::Task<Failure> Reflector::watch(io::CancelToken token) {
  initial_ = version_.empty();
  no_streaming_ = false;
  if (initial_) begin_replace();
  WatchQuery query;
  query.label_selector = options_.label_selector;
  query.field_selector = options_.field_selector;
  query.resource_version = version_;
  query.send_initial_events = initial_;
  query.server_timeout = options_.server_timeout +
                         Duration(static_cast<int64_t>(random_.uniform() *
                                                       static_cast<double>(options_.server_timeout.count())));
  query.silence = options_.silence;
  metrics_.watches.with({label_}).add();
  attempt_.reset();
  attempt_.follow(token);
  if (initial_) initial_timer_.arm(options_.initial_silence, &Reflector::initial_silence, this);
  Failure end = co_await api_.watch(options_.resource, options_.ns, query, *this, attempt_.token());
  initial_timer_.disarm();
  steady_timer_.disarm();
  {
    const std::lock_guard lock(mutex_);
    state_.watching = false;
  }
  if (!initial_) co_return end;
  // A server that refuses the question, or answers without ever coming to an end of it, doesn't know
  // streaming lists.
  if (end.reason == Reason::kInvalid || no_streaming_) {
    streaming_ = false;
    telemetry::log_info("the API server has no streaming lists, pages are read",
                        {{"resource", label_}, {"why", end.message}});
    co_return co_await list(token);
  }
  // The server has ended the watch before it had told everything.
  if (end.ok()) co_return co_await list(token);
  co_return end;
}

void Reflector::initial_silence(void* self) {
  auto& reflector = *static_cast<Reflector*>(self);
  reflector.no_streaming_ = true;
  reflector.attempt_.cancel();
}

void Reflector::steady(void* self) {
  static_cast<Reflector*>(self)->recovered();
}

void Reflector::on_heard() {
  const TimePoint now = clock_.now();
  metrics_.heard_at.with({label_}).set(to_seconds(clock_.wall_now().time_since_epoch()));
  if (initial_) {
    initial_timer_.arm(options_.initial_silence, &Reflector::initial_silence, this);
  } else {
    if (good_since_ == kNever) good_since_ = now;
    if (!steady_timer_.armed()) steady_timer_.arm(options_.steady_after, &Reflector::steady, this);
  }
  const std::lock_guard lock(mutex_);
  state_.heard_at = now;
  state_.watching = !initial_;
}

bool Reflector::on_event(const WatchEvent& event) {
  static constexpr std::string_view kTypes[] = {"added", "modified", "deleted", "bookmark"};
  metrics_.events.with({label_, kTypes[static_cast<size_t>(event.type)]}).add();
  if (event.type == WatchEvent::Type::kBookmark) {
    if (initial_ && event.initial_events_end) {
      initial_ = false;
      initial_timer_.disarm();
      sink_.end_replace();
      synced(event.resource_version);
    } else if (initial_) {
      // Who has streaming lists sends no other bookmark before their end.
      no_streaming_ = true;
      return false;
    } else if (!event.resource_version.empty()) {
      version_ = event.resource_version;
      recovered();
    }
    return true;
  }
  if (event.type == WatchEvent::Type::kDeleted) {
    sink_.remove(key_of(event.object["metadata"], !options_.ns.empty()));
  } else {
    put(event.object);
  }
  // What there was comes in no order of versions.
  if (!initial_ && !event.resource_version.empty()) {
    version_ = event.resource_version;
    recovered();
  }
  return true;
}

void Reflector::on_batch_end() {
  if (initial_) return;
  if (good_since_ == kNever) good_since_ = clock_.now();
  sink_.batch_end();
  const std::lock_guard lock(mutex_);
  count_objects();
  state_.watching = true;
}

void Reflector::begin_replace() {
  full_ = false;
  sink_.begin_replace();
}

void Reflector::count_objects() {
  state_.objects = sink_.size();
  state_.bytes = sink_.bytes();
  state_.full = full_;
  metrics_.objects.with({label_}).set(static_cast<double>(state_.objects));
}

bool Reflector::has_room() const {
  return sink_.size() < options_.max_objects / 4 * 3 && sink_.bytes() < options_.max_bytes / 4 * 3;
}

void Reflector::put(Json object) {
  const Json metadata = object["metadata"];
  const std::string key = key_of(metadata, !options_.ns.empty());
  const bool full = sink_.size() >= options_.max_objects && sink_.version_of(key).empty();
  const Status status = full ? Status(Error{ErrorCode::kResourceExhausted, "there are too many objects"})
                             : sink_.put(key, metadata["resourceVersion"].text(), object);
  if (status.ok()) return;
  const bool no_room = status.error().code == ErrorCode::kResourceExhausted;
  full_ |= no_room;
  metrics_.unreadable.with({label_}).add();
  std::string told = (no_room ? "" : key + ": ") + status.error().message;
  if (told == unreadable_) return;
  telemetry::log_warn(
      no_room ? "objects are left out" : "an object can't be read, its last good version stays",
      {{"resource", label_}, {"object", key}, {"error", status.error().message}});
  unreadable_ = std::move(told);
}

io::Task<Failure> Reflector::list(io::CancelToken token) {
  Failure end = co_await list_from("", token);
  // The server has forgotten the version that the list began with. From the start, once.
  if (end.reason == Reason::kExpired) {
    metrics_.relists.with({label_, "list_expired"}).add();
    end = co_await list_from("", token);
  }
  co_return end;
}

io::Task<Failure> Reflector::list_from(std::string continue_token, io::CancelToken token) {
  begin_replace();
  std::string version;
  for (size_t pages = 0; pages < kMaxPages; ++pages) {
    ListQuery query;
    query.label_selector = options_.label_selector;
    query.field_selector = options_.field_selector;
    query.limit = options_.page_size;
    query.continue_token = continue_token;
    const Answer answer = co_await api_.list(options_.resource, options_.ns, query, token);
    if (!answer.ok()) co_return answer.failure;
    Failure failure = take_page(answer.body, continue_token, version);
    if (!failure.ok()) co_return failure;
    if (continue_token.empty()) break;
  }
  sink_.end_replace();
  synced(version);
  co_return Failure();
}

Failure Reflector::take_page(const std::string& body, std::string& next, std::string& version) {
  Failure failure;
  const Result<Json> page = page_.parse(body);
  if (!page.ok()) {
    failure.reason = Reason::kMalformed;
    failure.message = page.error().message;
    return failure;
  }
  const Json metadata = (*page)["metadata"];
  version = metadata["resourceVersion"].text();
  next = metadata["continue"].text();
  if (version.empty()) {
    failure.reason = Reason::kMalformed;
    failure.message = "a list has no resourceVersion";
    return failure;
  }
  (*page)["items"].for_each_item([this](Json item) { put(item); });
  page_.shrink();
  return failure;
}

void Reflector::synced(std::string_view version) {
  version_ = version;
  // Who sees a complete state finds what was told with it.
  sink_.batch_end();
  recovered();
  metrics_.heard_at.with({label_}).set(to_seconds(clock_.wall_now().time_since_epoch()));
  {
    const std::lock_guard lock(mutex_);
    count_objects();
    state_.complete = true;
    state_.heard_at = clock_.now();
  }
  if (state_changed_) state_changed_();
}

// How long to wait after an attempt, and what the next one is.
Duration Reflector::after(const Failure& end) {
  // An attempt may last without ever being any good: connecting, waiting for an answer.
  const Duration lived = good_since_ == kNever ? Duration::zero() : clock_.now() - good_since_;
  if (lived >= options_.healthy_after) backoff_.reset();
  if (end.ok()) {
    recovered();
    // A server ends watches in order all the time, but not as soon as they begin.
    return lived >= options_.healthy_after ? Duration::zero() : backoff_.next();
  }
  if (end.reason == Reason::kCancelled) return Duration::zero();  // a relist
  // A server that is back says for some seconds that we may not, that there is no such resource, or that it
  // knows no such version: no reason to leave it alone for as long as one that has said so all the time.
  const bool away =
      end.reason == Reason::kUnreachable || end.reason == Reason::kServer || end.reason == Reason::kTimeout;
  if (was_away_ && !away && (back_at_ == kNever || clock_.now() - back_at_ >= options_.retry_cap)) {
    back_at_ = clock_.now();
    backoff_.reset();
  }
  was_away_ = away;
  if (end.reason == Reason::kExpired || end.reason == Reason::kMalformed) {
    relist(reason_name(end.reason));
  }
  troubled(end);
  const bool refused = end.reason == Reason::kForbidden || end.reason == Reason::kUnauthorized ||
                       end.reason == Reason::kNotFound;
  const Duration wait = refused ? backoff_.next_within(options_.refused_cap) : backoff_.next();
  return std::max(wait, end.retry_after);
}

void Reflector::relist(std::string_view why) {
  if (version_.empty()) return;
  version_.clear();
  metrics_.relists.with({label_, why}).add();
}

void Reflector::troubled(const Failure& failure) {
  // To have missed nothing but the history is no trouble; to be told so again and again is.
  if (failure.reason == Reason::kExpired && backoff_.attempts() == 0) return;
  metrics_.synced.with({label_}).set(0);
  bool news = false;
  {
    const std::lock_guard lock(mutex_);
    news = state_.trouble_at == kNever || state_.reason != failure.reason;
    if (state_.trouble_at == kNever) state_.trouble_at = clock_.now();
    state_.reason = failure.reason;
    state_.message = failure.message;
    state_.absent = failure.reason == Reason::kNotFound;
  }
  if (!news) return;
  telemetry::log_warn("the API server can't be followed, the last good picture stays",
                      {{"resource", label_}, {"objects", sink_.size()}, {"error", failure.message}});
  if (state_changed_) state_changed_();
}

void Reflector::recovered() {
  if (version_.empty()) return;
  metrics_.synced.with({label_}).set(1);
  bool news = false;
  {
    const std::lock_guard lock(mutex_);
    news = state_.trouble_at != kNever;
    state_.trouble_at = kNever;
    state_.reason = Reason::kNone;
    state_.message.clear();
    state_.absent = false;
  }
  if (!news) return;
  telemetry::log_info("the API server is followed again", {{"resource", label_}, {"objects", sink_.size()}});
  if (state_changed_) state_changed_();
}

io::Task<void> Reflector::check(io::CancelToken token) {
  const auto jittered = [&] {
    const auto half = static_cast<double>(options_.check_interval.count()) / 2;
    return Duration(static_cast<int64_t>(half + random_.uniform() * 2 * half));
  };
  while (co_await api_.loop().sleep(jittered(), token)) {
    if (version_.empty() || initial_) continue;
    if (full_) {
      // Of a full sink the server always has more.
      if (!has_room()) continue;
      relist("room");
      attempt_.cancel();
      continue;
    }
    const auto first = co_await differences(token);
    if (!first || first->empty()) continue;
    // Events may be on their way: what is wrong still differs later, and has not moved in between.
    std::vector<std::string> versions;
    for (const std::string& key : *first) versions.emplace_back(sink_.version_of(key));
    if (!co_await api_.loop().sleep(options_.check_grace, token)) break;
    if (version_.empty() || initial_) continue;
    const auto second = co_await differences(token);
    if (!second) continue;
    size_t lost = 0;
    for (size_t i = 0; i < first->size(); ++i) {
      const bool again = std::find(second->begin(), second->end(), (*first)[i]) != second->end();
      if (again && sink_.version_of((*first)[i]) == versions[i]) ++lost;
    }
    if (lost == 0) continue;
    metrics_.inconsistencies.with({label_}).add(lost);
    telemetry::log_warn("the watch has lost changes, everything is read again",
                        {{"resource", label_}, {"objects", lost}});
    relist("inconsistent");
    attempt_.cancel();
  }
}

io::Task<std::optional<std::vector<std::string>>> Reflector::differences(io::CancelToken token) {
  std::unordered_map<std::string, std::string> theirs;
  std::string next;
  for (size_t pages = 0; pages < kMaxPages; ++pages) {
    ListQuery query;
    query.label_selector = options_.label_selector;
    query.field_selector = options_.field_selector;
    query.limit = kMetadataPage;
    query.continue_token = next;
    query.metadata_only = true;
    const Answer answer = co_await api_.list(options_.resource, options_.ns, query, token);
    if (!answer.ok()) co_return std::nullopt;
    JsonDocument document;
    const Result<Json> page = document.parse(answer.body);
    if (!page.ok()) co_return std::nullopt;
    (*page)["items"].for_each_item([&](Json item) {
      const Json metadata = item["metadata"];
      theirs[key_of(metadata, !options_.ns.empty())] = metadata["resourceVersion"].text();
    });
    next = (*page)["metadata"]["continue"].text();
    if (next.empty()) break;
  }
  std::vector<std::string> out;
  for (const auto& [key, version] : theirs) {
    if (out.size() < kMaxSuspects && sink_.version_of(key) != version) out.push_back(key);
  }
  sink_.for_each_key([&](std::string_view key) {
    if (out.size() < kMaxSuspects && !theirs.contains(std::string(key))) out.emplace_back(key);
  });
  co_return out;
}

}  // namespace penstock::kubernetes
