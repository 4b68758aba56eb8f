#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <unordered_map>

#include "base/clock.h"
#include "io/loop.h"
#include "kubernetes/api_client.h"

namespace penstock::kubernetes {

// What became of a caller's token.
enum class Access : uint8_t {
  kAllowed,
  kUnauthenticated,  // no token, or nobody's
  kDenied,           // somebody's who may not
  kUnknown,          // the API server gave no answer
};

struct AccessReviewOptions {
  // As kube's own delegated authentication and authorisation keep answers.
  Duration allowed_for = std::chrono::minutes(1);
  Duration refused_for = std::chrono::seconds(10);
  // While the API server gives no answer, whom it allowed stays allowed for so long: metrics are wanted then.
  Duration away_for = std::chrono::minutes(10);
  size_t max_entries = 1024;  // the oldest goes first
  size_t max_running = 64;    // questions at once; who comes beyond them gets no answer
};

// Asks the API server whose a bearer token is (TokenReview) and whether that user may use a path that is no
// resource (SubjectAccessReview), and remembers for a while. Tokens are kept as their SHA-256 only. Lives on
// the client's loop.
class AccessReviews {
 public:
  AccessReviews(ApiClient& api, AccessReviewOptions options = {}) : api_(api), options_(options) {}

  // `verb`: in lower case, "get". kUnknown is not remembered, and is never the answer for who was allowed of
  // late.
  io::Task<Access> review(std::string token, std::string verb, std::string path, io::CancelToken cancel);

 private:
  struct Entry {
    Access access = Access::kUnknown;
    TimePoint until = kNever;
    TimePoint answered = kNever;  // by the API server
  };
  io::Task<Access> ask(const std::string& token, const std::string& verb, const std::string& path,
                       io::CancelToken cancel);
  void remember(std::string key, Access access);
  // Whether an earlier answer holds although there is none now.
  bool still_allowed(const std::string& key);
  void complain(const Failure& failure);

  ApiClient& api_;
  const AccessReviewOptions options_;
  SystemClock clock_;
  std::unordered_map<std::string, Entry> entries_;
  std::deque<std::string> order_;
  size_t running_ = 0;
  std::string told_;  // the last failure in the log; "" since it works
};

}  // namespace penstock::kubernetes
