#include "kubernetes/access_review.h"

#include <fmt/format.h>
#include <openssl/evp.h>

#include <array>
#include <utility>

#include "base/strings.h"
#include "telemetry/log.h"

namespace penstock::kubernetes {

namespace {

constexpr size_t kMaxTokenBytes = 16 * 1024;

// Of token, verb and path, which can't be mistaken for each other.
std::string key_of(std::string_view token, std::string_view verb, std::string_view path) {
  const std::string text = fmt::format("{}:{} {}:{} {}", token.size(), token, verb.size(), verb, path);
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
  unsigned size = 0;
  if (EVP_Digest(text.data(), text.size(), digest.data(), &size, EVP_sha256(), nullptr) != 1) return {};
  return {reinterpret_cast<const char*>(digest.data()), size};
}

// ,"groups":[…],"extra":{…} of the user that a TokenReview names, as a SubjectAccessReview takes them.
std::string user_fields(Json user) {
  std::string out = fmt::format("\"user\":{}", json_quote(user["username"].text()));
  if (const std::string_view uid = user["uid"].text(); !uid.empty()) out += ",\"uid\":" + json_quote(uid);
  for (const std::string_view list : {"groups", "extra"}) {
    if (user[list].present()) out += fmt::format(",\"{}\":{}", list, user[list].to_string());
  }
  return out;
}

}  // namespace

io::Task<Access> AccessReviews::review(std::string token, std::string verb, std::string path,
                                       io::CancelToken cancel) {
  if (token.empty() || token.size() > kMaxTokenBytes) co_return Access::kUnauthenticated;
  std::string key = key_of(token, verb, path);
  const auto found = entries_.find(key);
  if (found != entries_.end() && clock_.now() < found->second.until) co_return found->second.access;
  if (running_ >= options_.max_running) co_return still_allowed(key) ? Access::kAllowed : Access::kUnknown;
  ++running_;
  const Access access = co_await ask(token, verb, path, cancel);
  --running_;
  if (access == Access::kUnknown) co_return still_allowed(key) ? Access::kAllowed : access;
  if (!key.empty()) remember(std::move(key), access);
  co_return access;
}

bool AccessReviews::still_allowed(const std::string& key) {
  const auto found = entries_.find(key);
  if (found == entries_.end() || found->second.access != Access::kAllowed) return false;
  const TimePoint now = clock_.now();
  if (now - found->second.answered >= options_.allowed_for + options_.away_for) return false;
  // Or every scrape would wait for a server that isn't there.
  found->second.until = now + options_.refused_for;
  return true;
}

io::Task<Access> AccessReviews::ask(const std::string& token, const std::string& verb,
                                    const std::string& path, io::CancelToken cancel) {
  std::string who =
      fmt::format(R"({{"apiVersion":"authentication.k8s.io/v1","kind":"TokenReview","spec":{{"token":{}}}}})",
                  json_quote(token));
  const Answer reviewed = co_await api_.create_object(kTokenReviews, "", std::move(who), cancel);
  if (!reviewed.ok()) {
    complain(reviewed.failure);
    co_return Access::kUnknown;
  }
  JsonDocument document;
  const Result<Json> review = document.parse(reviewed.body);
  if (!review.ok()) co_return Access::kUnknown;
  const Json status = (*review)["status"];
  if (!status["authenticated"].boolean()) co_return Access::kUnauthenticated;
  std::string may =
      fmt::format(R"({{"apiVersion":"authorization.k8s.io/v1","kind":"SubjectAccessReview","spec":{{{},)"
                  R"("nonResourceAttributes":{{"path":{},"verb":{}}}}}}})",
                  user_fields(status["user"]), json_quote(path), json_quote(verb));
  const Answer decided = co_await api_.create_object(kSubjectAccessReviews, "", std::move(may), cancel);
  if (!decided.ok()) {
    complain(decided.failure);
    co_return Access::kUnknown;
  }
  const Result<Json> decision = document.parse(decided.body);
  if (!decision.ok()) co_return Access::kUnknown;
  told_.clear();
  co_return (*decision)["status"]["allowed"].boolean() ? Access::kAllowed : Access::kDenied;
}

void AccessReviews::remember(std::string key, Access access) {
  const Duration lasts = access == Access::kAllowed ? options_.allowed_for : options_.refused_for;
  const auto [it, added] =
      entries_.insert_or_assign(std::move(key), Entry{access, clock_.now() + lasts, clock_.now()});
  if (!added) return;
  order_.push_back(it->first);
  while (order_.size() > options_.max_entries) {
    entries_.erase(order_.front());
    order_.pop_front();
  }
}

void AccessReviews::complain(const Failure& failure) {
  if (failure.reason == Reason::kCancelled || failure.message == told_) return;
  told_ = failure.message;
  telemetry::log_warn("a caller of the metrics port can't be reviewed", {{"error", failure.message}});
}

}  // namespace penstock::kubernetes
